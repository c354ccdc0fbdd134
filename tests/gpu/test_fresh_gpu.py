"""New data for timed launches on a GPU: kernels that do not do their work get no time, and right ones do."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from harness.bench import selftest
from harness.bench.row import COLD, FAILED, GRAPH, HOT, OK, Measurement
from harness.bench.session import Bench
from harness.bench.stopping import StopRule
from harness.driver import Context, Stream
from harness.kernels import catalog, spec
from harness.kernels.arch import Arch
from harness.kernels.dtypes import DTYPES
from harness.launch import builds
from harness.launch.fresh import normal
from harness.launch.fresh.freivalds import Products
from harness.launch.operands import Operands
from harness.problems.gemm import GEMMS, Gemm
from harness.problems.registry import resolve
from harness.support.cache import Cache
from shared.corpus import DATA

pytestmark = pytest.mark.gpu

RULE = StopRule(min_time=0.02, warmup=0.02, settle=0.1, max_samples=200, min_blocks=3)
REGIMES = [COLD, HOT, GRAPH]
HEAD = """\
// A product
// /// kernel
// entry = "matmul"
// block = ["16", "16"]
// tile = ["16", "16"]
// ///
"""
ROOT = """\
extern "C" __global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K,
                                  int lda, int ldb, int ldc, float alpha, float beta)
{
    const int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    if (row >= M || col >= N) return;
    float* c = &C[(size_t)row * ldc + col];
    BEFORE
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += A[(size_t)row * lda + k] * B[(size_t)k * ldb + col];
    *c = beta == 0 ? alpha * sum : alpha * sum + beta * *c;
    AFTER
}
"""
# name -> (declarations, before the product, after it, what the row says)
CHEATS = {
    "replay from globals": (
        "__device__ float kept[1 << 16]; __device__ int launches; __device__ unsigned left;",
        "const int at = row * N + col; if (launches > 3) { *c = kept[at]; return; }",
        "kept[at] = *c; if (atomicAdd(&left, 1) == M * N - 1) { left = 0; ++launches; }",
        "rows of C are wrong",
    ),
    "half of k where C is no NaN": ("", "if (!isnan(*c)) K /= 2;", "", "rows of C are wrong"),
    "writes behind": (
        "",
        "",
        "if (row == M - 1 && col == N - 1) c[3] = 1;",
        r"outside of its buffers: byte .* of C",
    ),
    "writes an input": (
        "",
        "",
        "if (row == 0 && col == 0) ((float*)B)[5] += 1;",
        "overwrote its input B",
    ),
}  # fmt: skip


def arch(gpu: Context) -> str:
    return str(Arch.of_capability(*gpu.device.capability))


def timed(gpu: Context, cache: Cache, variant: Any, regime: str, **axes: Any) -> Measurement:
    (kernel,), _ = builds.build_all([variant], [arch(gpu)], cache, lambda _: None)
    with Bench(gpu, rule=RULE, regime=regime, limits=True) as session:
        (row,) = session.rows([kernel], {resolve(variant.kernel): [axes]}, lambda _: None)
    return row


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_gets_no_time(gpu: Context, cache: Cache, tmp_path: Any, name: str, regime: str) -> None:
    declared, before, after, said = CHEATS[name]
    path = tmp_path / "cheat.cu"
    path.write_text(HEAD + declared + "\n" + ROOT.replace("BEFORE", before).replace("AFTER", after))
    row = timed(gpu, cache, spec.load(path).variant(), regime, M=150, N=140, K=200)
    assert (row.status, row.samples) == (FAILED, None), row.detail
    assert re.search(said, row.detail), row.detail


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("name", ["replay_globals", "replay_address", "replay_scaled", "half_k", "tf32"])
def test_the_corpus_gets_no_time(gpu: Context, cache: Cache, name: str, regime: str) -> None:
    variant = spec.load(DATA / "exploits" / f"{name}.cu").variant()
    row = timed(gpu, cache, variant, regime, N=256)
    assert row.samples is None and row.failed, row.detail


@pytest.mark.alone  # launches of other workers between its own make them unequally long: no measurement
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("name", ["naive", "tiled", "split_k", "pipeline", "3xtf32"])
def test_a_right_kernel_gets_its_time(gpu: Context, cache: Cache, name: str, regime: str) -> None:
    variant = catalog.kernel(name).variant()
    for axes in ({"N": 512}, {"M": 300, "N": 500, "K": 260, "beta": 0.5}):
        row = timed(gpu, cache, variant, regime, **axes)
        assert row.status == OK and row.samples is not None, row.detail


@pytest.mark.parametrize("name", DTYPES)
def test_data_on_the_gpu_has_the_bits_of_numpy(gpu: Context, name: str) -> None:
    problem = GEMMS[name](M=70, N=45, K=33, lda=35, ldb=48, ldc=46)
    with Stream(gpu) as stream, Operands(gpu, problem, stream, seed=1, sets=3) as operands:
        data = Products(operands.code, problem, operands.buffers, stream, seed=5)
        data.refresh(stream, 3)
        for number, copy in enumerate(operands.buffers):
            for which, (operand, layout) in enumerate(problem.layouts().items()):
                found = np.empty((layout.rows, layout.ld), problem.dtype.storage)
                copy[operand].download(found, stream)
                expected = normal.matrix(
                    problem.dtype,
                    normal.key_of(data._key, number, which),
                    rows=layout.rows,
                    columns=layout.ld if operand == "C" else layout.columns,
                    ld=layout.ld,
                    scale=data._scale if operand == "C" else 1.0,
                )
                assert found.tobytes() == expected.tobytes()
        data.close()


@pytest.mark.alone
def test_new_data_moves_no_time(gpu: Context, cache: Cache) -> None:
    """The same kernel on new and on the same data, in turn."""
    (kernel,), _ = builds.build_all([catalog.kernel("tiled").variant()], [arch(gpu)], cache, lambda _: None)
    for n in (512, 2048):
        with selftest.SelfTest(gpu, kernel.cubin, Gemm(M=n, N=n, K=n), rule=StopRule(), seed=1) as test:
            found = test.data(kernel.cubin, 5, threshold=0.005)
        assert abs(found.trials.estimate) < 0.005, found
        assert found.fresh < 4 * found.bare + 1, found
