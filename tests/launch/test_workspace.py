"""`workspace`: memory of a kernel's own, zeroed once. Blocks that share a tile along k leave sums and counts
there.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from harness.bench import emulation
from harness.cli import main
from harness.driver import Context, Stream
from harness.errors import SpecError
from harness.kernels import catalog, spec
from harness.kernels.compiler import compile_kernel
from harness.launch import kernel as launch
from harness.launch.builds import build_all
from harness.launch.operands import Operands
from harness.problems.gemm import Gemm
from harness.support.cache import Cache

# SPLIT blocks a tile leave their sums; the last one to do so adds them up, in order, and counts from 0 again.
BODY = """\
// Split along k
// /// kernel
// entry = "matmul"
// block = ["16", "16"]
// tile = ["16", "16"]
// grid = ["TILES_X", "TILES_Y", "SPLIT"]
// workspace = "{workspace}"
// [params]
// SPLIT = [3]
// ///
extern "C" __global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K,
                                  int lda, int ldb, int ldc, float alpha, float beta, unsigned* workspace)
{{
    __shared__ unsigned before;
    const int tiles = gridDim.x * gridDim.y, tile = blockIdx.y * gridDim.x + blockIdx.x;
    const int self = threadIdx.y * 16 + threadIdx.x;
    float* sums = (float*)(workspace + tiles) + tile * SPLIT * 256 + self;
    const int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    if (row < M && col < N)
        for (int k = blockIdx.z; k < K; k += SPLIT) sum += A[row * lda + k] * B[k * ldb + col];
    sums[blockIdx.z * 256] = sum;
    __threadfence();
    __syncthreads();
    if (self == 0) before = atomicAdd(&workspace[tile], 1);
    __syncthreads();
    if (before != SPLIT - 1) return;
    float total = 0;
    for (int part = 0; part < SPLIT; ++part) total += *(volatile float*)&sums[part * 256];
    if (self == 0) workspace[tile] = {left};
    float* c = C + row * ldc + col;
    if (row < M && col < N) *c = beta == 0 ? alpha * total : alpha * total + beta * *c;
}}
"""
SIZE = "4 * TILES_X * TILES_Y * (1 + SPLIT * 256)"


@pytest.fixture
def kernel(tmp_path: Path) -> Any:
    def write(workspace: str = SIZE, left: str = "0") -> Path:
        path = tmp_path / "split.cu"
        path.write_text(BODY.format(workspace=workspace, left=left))
        return path

    return write


def test_its_size_follows_the_launch(kernel: Any) -> None:
    variant = spec.load(kernel("4 * TILES_X * TILES_Y * SPLIT + SMS")).variant()
    assert launch.workspace(variant, Gemm(M=33, N=17, K=5), sms=7) == 4 * 2 * 3 * 3 + 7
    assert launch.workspace(catalog.kernel("tiled").variant(), Gemm(M=33, N=17, K=5)) == 0


@pytest.mark.parametrize("bad", ["4 * TILES", "SPLIT - 4", "SPLIT // 0"])
def test_a_size_that_cannot_be_is_refused(kernel: Any, bad: str) -> None:
    with pytest.raises(SpecError, match="workspace"):
        launch.workspace(spec.load(kernel(bad)).variant(), Gemm(M=16, N=16, K=16))


def test_blocks_that_wait_for_one_another_are_launched_together(kernel: Any) -> None:
    assert catalog.kernel("20_stream_k").cooperative and not catalog.kernel("tiled").cooperative
    path = kernel()
    path.write_text(path.read_text().replace("// [params]", "// cooperative = 1\n// [params]"))
    with pytest.raises(SpecError, match="cooperative must be true or false, not 1"):
        spec.load(path)


def test_a_kernel_that_begins_early_must_wait(kernel: Any) -> None:
    path = kernel()
    assert not spec.load(path).variant().programmatic
    path.write_text(path.read_text().replace("// [params]", '// programmatic = "SPLIT > 2"\n// [params]'))
    variant = spec.load(path).variant()
    assert variant.programmatic and not spec.load(path).variant(SPLIT=2).programmatic
    operands: Any = SimpleNamespace(problem=Gemm(M=16, N=16, K=16), context=None)
    cubin: Any = SimpleNamespace(variant=variant, ptx="ld.global")
    with pytest.raises(SpecError, match="never waits for that"):
        launch.prepare(cubin, operands)
    cubin.ptx = "griddepcontrol.wait;"
    with pytest.raises(AttributeError):  # past the check: there is no context here
        launch.prepare(cubin, operands)


def test_it_is_the_last_argument_in_the_emulator(kernel: Any) -> None:
    done = CliRunner().invoke(main, ["check", str(kernel()), "-a", "M=20", "-a", "N=33", "-a", "K=17"])
    assert done.exit_code == 0, done.output


def test_the_emulator_sees_an_access_past_its_end(kernel: Any) -> None:
    short = str(kernel(f"{SIZE} - 4"))
    done = CliRunner().invoke(main, ["check", short, "-a", "N=16"])
    assert done.exit_code == 1 and "workspace" in done.output, done.output


def test_it_begins_with_zeros(kernel: Any, cache: Cache) -> None:
    """A kernel with another idea of where counting starts is wrong."""
    path = kernel()
    path.write_text(path.read_text().replace("before != SPLIT - 1", "before != SPLIT"))
    problem = Gemm(M=16, N=16, K=16)
    (built,), _ = build_all([spec.load(path).variant()], ["sm_75"], cache, lambda _: None)
    inputs = problem.inputs(1)
    _, arrays = emulation.launch(built, problem, inputs, emulation.Options(check=False))
    assert np.isnan(arrays["C"]).all()  # nobody was the last


@pytest.mark.gpu
def test_on_a_gpu_one_launch_leaves_it_ready_for_the_next(gpu: Context, kernel: Any, cache: Cache) -> None:
    problem = Gemm(M=40, N=70, K=33)
    arch = gpu.device.arch
    with Stream(gpu) as stream, Operands(gpu, problem, stream, seed=1, sets=2) as operands:
        cubin = compile_kernel(spec.load(kernel()).variant(), arch, cache=cache)
        with launch.prepare(cubin, operands) as run:
            for _ in range(5):
                operands.fill_output(stream)
                run(stream), run(stream)
                first, second = (c.copy() for c in operands.outputs(stream))
                assert np.array_equal(first, second) and not np.isnan(first).any()
    with Stream(gpu) as stream, Operands(gpu, problem, stream, seed=1, sets=1) as operands:
        cubin = compile_kernel(spec.load(kernel(left="1")).variant(), arch, cache=cache)
        with launch.prepare(cubin, operands) as run:  # one that leaves it otherwise fails the second time
            run(stream)
            operands.fill_output(stream)
            run(stream)
            assert not np.allclose(next(operands.outputs(stream)), operands.reference.expected)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "params", [{}, {"BM": 64, "WM": 32, "CHUNK": 16}, {"BN": 128, "STAGES": 6, "SLICES": 2}], ids=str
)
@pytest.mark.parametrize("columns", [1025, 1028], ids=["copied", "mapped"])
def test_stream_k_gives_equal_bits(gpu: Context, cache: Cache, params: dict[str, int], columns: int) -> None:
    """Blocks meet in every order there is; the sums do not depend on it."""
    if gpu.device.capability != (9, 0):
        pytest.skip("20_stream_k is made for sm_90a")
    problem = Gemm(M=300, N=columns, K=5000)
    with Stream(gpu) as stream, Operands(gpu, problem, stream, seed=3, sets=2) as operands:
        cubin = compile_kernel(catalog.kernel("20_stream_k").variant(**params), "sm_90a", cache=cache)
        with launch.prepare(cubin, operands) as run:
            operands.fill_output(stream)
            run(stream)
            assert next(operands.verdicts(stream, sets=1)).ok
            expected = next(operands.outputs(stream)).copy()
            for _ in range(100):
                operands.fill_output(stream)
                for _ in range(10):
                    run(stream)
                for got in operands.outputs(stream):
                    assert np.array_equal(got, expected)
