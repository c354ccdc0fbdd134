"""Im2col maps of kernels without front matter: the images are as large as host code has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.kernels import text
from harness.kernels.cpp.host import tensors

SOURCE = """#include <cuda.h>
constexpr int N = 2, H = 5, W = 6, C = 8;
__global__ void columns(const __grid_constant__ CUtensorMap map, float* out, int w, int h, int pixels)
{
    __shared__ alignas(128) float tile[16][C];
    __shared__ alignas(8) unsigned long long barrier;
    unsigned at = __cvta_generic_to_shared(&barrier), to = __cvta_generic_to_shared(tile);
    int first = blockIdx.x * 16;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512;" ::"r"(at) : "memory");
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
                     " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %7};"
                     ::"r"(to), "l"(&map), "r"(at), "r"(0), "r"(first % w - 1), "r"(first / w % h - 1),
                     "r"(first / w / h), "h"((short)2) : "memory");
    }
    __syncthreads();
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;"
                 " @!p bra again; }" ::"r"(at) : "memory");
    for (int i = threadIdx.x; i < 16 * C; i += 32)
        if (first + i / C < pixels) out[first * C + i] = tile[i / C][i % C];
}
void launch(float* in, float* out)
{
    CUtensorMap map;
    cuuint64_t extents[] = {C, W, H, N}, strides[] = {C * 4, C * W * 4, C * W * H * 4};
    cuuint32_t steps[] = {1, 1, 1, 1};
    int lower[] = {-1, -1}, upper[] = {-1, -1};
    cuTensorMapEncodeIm2col(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, in, extents, strides, lower, upper,
        C, 16, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
        CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    columns<<<(N * H * W + 15) / 16, 32>>>(map, out, W, H, N * H * W);
}
"""


def encoded(source: str) -> dict[str, tensors.Encoded]:
    (entry,) = text.entries(source)
    return tensors.of(source, entry, "columns")


def test_an_im2col_map_is_read() -> None:
    one = encoded(SOURCE)["map"]
    assert (one.extents, one.strides, one.box) == ((8, 6, 5, 2), (32, 192, 960), (8, 16))
    assert (one.lower, one.upper, one.steps) == ((-1, -1), (-1, -1), (1, 1, 1, 1))
    assert encoded(SOURCE.replace("{C, W, H, N}", "{C, W, height, N}")) == {}
    assert encoded(SOURCE.replace("lower[] = {-1, -1}", "lower[] = {-1}")) == {}


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (("", ""), ""),
        (("first % w - 1", "first % w + 1"), "outside the pixel box"),
        (("[%0], 512;", "[%0], 256;"), "mbarrier"),
    ],
)
def test_a_kernel_is_checked(edit: tuple[str, str], told: str, tmp_path: Path) -> None:
    path = tmp_path / "columns.cu"
    path.write_text(SOURCE.replace(*edit))
    run = CliRunner().invoke(main, ["check", str(path)])
    assert (run.exit_code, told in run.output) == (1 if told else 0, True), run.output
