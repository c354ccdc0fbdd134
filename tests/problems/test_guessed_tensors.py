"""Tensor maps of kernels without front matter: as host code encodes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.kernels import text
from harness.kernels.cpp import includes
from harness.kernels.cpp.host import tensors

HOST = """
#include <cuda.h>
#include <vector>
int main() {
  const int WIDTH = 1 << 15, HEIGHT = 40;
  CUtensorMap in{}, out{};
  uint64_t size[2] = {WIDTH, HEIGHT}, stride[1] = {WIDTH * sizeof(float)};
  uint32_t box[2] = {BOX, 16}, one[2] = {1, 1};
  encode(&in, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, x, size, stride, box, one, CU_TENSOR_MAP_INTERLEAVE_NONE,
         CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_L2_PROMOTION_NONE, NONE);
  cuTensorMapEncodeTiled(&out, CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, y, shape,
                         stride, (box3), one, INTERLEAVE, CU_TENSOR_MAP_SWIZZLE_NONE, L2, NONE);
  copy<<<dim3(WIDTH / BOX, 3), 64>>>(in, NAMED);
}
"""
KERNEL = """
#define BOX 16
__global__ void copy(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b) {}
"""


def found(host: str) -> dict[str, tensors.Encoded]:
    source = KERNEL + host
    (entry,) = text.entries(source)
    return tensors.of(source, entry, "copy")


def test_what_a_function_is_given_is_no_constant() -> None:
    alone = HOST.partition("  cuTensorMapEncodeTiled(")[0].partition("copy<<<")[0]
    alone += "}\n"
    assert set(found(alone)) == {"a", "b"}
    assert found(alone.replace("main() {", "main(int BOX) { if (BOX) {") + "}") == {}
    assert set(found("int f(int BOX) { return BOX; }" + alone)) == {"a", "b"}


def test_a_tensor_map_is_read() -> None:
    """Where extents are no numbers there are four boxes, and no more in any case; boxes have to be known."""
    assert set(found(HOST)) == {"a"}, "a brace around a name is none of ours"
    assert found(HOST.replace("encode(&in", "entry_point()(&in")) == found(HOST)
    known = HOST.replace("(box3)", "box3").replace("BOX, 16}", "BOX, 16}, box3[] = {8, 4, BOX / 8}")
    at = found(known.replace("shape,", "shape_of(n),").replace("NAMED", "out"))
    assert at["a"] == tensors.Encoded(
        name="in", element="FLOAT32", size=4, extents=(64, 40), box=(16, 16), swizzle=64
    )
    assert (at["a"].strides, at["a"].bytes) == ((256,), 256 * 40)
    assert "b" not in at, "its extents are not as many as its box"
    shape = known.replace("box3[] =", "shape[3] = {n, 4, 12}, box3[] =").replace("NAMED", "out")
    assert (found(shape)["b"].extents, found(shape)["b"].strides) == ((32, 4, 8), (64, 256))
    alone = HOST.partition("  cuTensorMapEncodeTiled(")[0]
    assert {name: map_.name for name, map_ in found(alone).items()} == {"a": "in", "b": "in"}


def test_odd_extents_and_large_boxes(tmp_path: Path) -> None:
    """An extent that is no size is unknown; a tensor of which nobody has as much is not made."""
    known = HOST.replace("{WIDTH, HEIGHT}", "{-1, 0}")
    assert found(known)["a"].extents == (64, 64)
    path = tmp_path / "k.cu"
    box, large = "uint32_t box[2] = {BOX, 16}", "uint32_t box[5] = {64, 16, 16, 8, 64}"
    host = HOST.replace("FLOAT32, 2", "FLOAT32, 5").replace(box, large)
    wide = host.replace("size[2] = {WIDTH, HEIGHT}", "size[5] = {n, n, n, n, n}")
    path.write_text((KERNEL + wide).replace("NAMED", "in"))
    ran = CliRunner().invoke(main, ["check", str(path)])
    assert ran.exit_code == 2 and "elements: four boxes along each extent" in ran.output, ran.output


def test_a_map_behind_a_pointer_is_read_likewise() -> None:
    behind = (KERNEL + HOST).replace("const __grid_constant__ CUtensorMap a", "const CUtensorMap* a")
    (entry,) = text.entries(behind)
    assert tensors.of(behind, entry, "copy") == found(HOST)


TURN = """
#include <cuda/barrier>
#include <cuda/std/utility>
using barrier = cuda::barrier<cuda::thread_scope_block>;
namespace cde = cuda::device::experimental;
#define BOX 16
__global__ void turn(const __grid_constant__ CUtensorMap in, const __grid_constant__ CUtensorMap out)
{
    __shared__ alignas(128) float tile[BOX * BOX], turned[BOX * BOX];
    __shared__ barrier full;
    int x = blockIdx.x * BOX, y = blockIdx.y * BOX, t = threadIdx.x;
    if (t == 0) { init(&full, blockDim.x); cde::fence_proxy_async_shared_cta(); }
    __syncthreads();
    barrier::arrival_token token;
    if (t == 0) {
        cde::cp_async_bulk_tensor_2d_global_to_shared(&tile, &in, x, y, full);
        token = cuda::device::barrier_arrive_tx(full, 1, sizeof(tile));
    } else {
        token = full.arrive();
    }
    full.wait(cuda::std::move(token));
    turned[t % BOX * BOX + t / BOX] = tile[t];
    cde::fence_proxy_async_shared_cta();
    __syncthreads();
    if (t == 0) {
        cde::cp_async_bulk_tensor_2d_shared_to_global(&out, y, x, &turned);
        cde::cp_async_bulk_commit_group();
        cde::cp_async_bulk_wait_group_read<0>();
    }
}
#include <vector>
void make(CUtensorMap* map, void* data)
{
    uint64_t size[] = {64, 64}, stride[] = {256};
    uint32_t box[] = {BOX, BOX}, one[] = {1, 1};
    cuTensorMapEncodeTiled(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, data, size, stride, box, one, NO,
                           CU_TENSOR_MAP_SWIZZLE_NONE, L2, NO);
}
int main() { turn<<<dim3(4, 4), BOX * BOX>>>(a, b); }
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not any((folder / "cuda/barrier").is_file() for folder in includes.libraries()), reason="needs CCCL"
)
def test_a_kernel_with_tensor_maps_runs_and_its_fault_is_found(tmp_path: Path) -> None:
    path = tmp_path / "turn.cu"
    wait = "    full.wait(cuda::std::move(token));\n"
    box = "box[] = {BOX, BOX}"
    assert wait in TURN and box in TURN
    for source, code, said in (
        (TURN, 0, "no reference"),
        (TURN.replace(wait, ""), 1, "RAW hazard"),
        (TURN.replace(box, "box[] = {BOX, n}"), 2, "its box is no number in this file"),
    ):
        path.write_text(source)
        ran = CliRunner().invoke(main, ["check", str(path)])
        assert ran.exit_code == code and said in ran.output, ran.output
