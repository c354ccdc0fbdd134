"""Fixtures that several test files share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cache import Cache
from harness.spec import Kernel, Variant

# pytester: tests/test_pytest_plugin.py runs pytest inside pytest. The plugin is loaded by its entry point
# where harness is installed, and by this line in a bare checkout.
pytest_plugins = ["pytester", "harness.pytest_plugin"]

KERNEL = """\
// {title}
//
// /// kernel
// entry = "matmul"
// block = ["TILE", "TILE"]
// tile  = ["TILE", "TILE"]
{extra}//
// [params]
// TILE = [16, 8]
// ///
{body}
"""
BODY = """\
extern "C" __global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K,
                                  int lda, int ldb, int ldc, float alpha, float beta)
{
    int col = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE + threadIdx.y;
    if (row >= M || col >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += A[row * lda + k] * B[k * ldb + col];
    C[row * ldc + col] = beta == 0 ? alpha * sum : alpha * sum + beta * C[row * ldc + col];
}
"""


TILED = """\
extern "C" __global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K,
                                  int lda, int ldb, int ldc, float alpha, float beta)
{
    __shared__ float As[TILE][TILE], Bs[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y, col = blockIdx.x * TILE + x, row = blockIdx.y * TILE + y;
    float sum = 0;
    for (int k = 0; k < K; k += TILE) {
        As[y][x] = row < M && k + x < K ? A[row * lda + k + x] : 0.f;
        Bs[y][x] = k + y < K && col < N ? B[(k + y) * ldb + col] : 0.f;
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += As[y][i] * Bs[i][x];
        __syncthreads();
    }
    if (row < M && col < N)
        C[row * ldc + col] = beta == 0 ? alpha * sum : alpha * sum + beta * C[row * ldc + col];
}
"""


LARGE = 12  # parameter sets of a kernel


def parameter_sets(kernel: Kernel, arch: str) -> Iterator[Variant]:
    """The sets of the kernel's space on the architecture that the records come from, the default elsewhere:
    compiling all of them for all architectures takes half an hour, and running them on a GPU as long.
    HARNESS_ALL_SETS=1 does it. Of a large space those that bring a value which none before them has.
    """
    everything = list(kernel.variants())
    if os.environ.get("HARNESS_ALL_SETS") == "1":
        yield from everything
    elif arch != "sm_90a":
        yield kernel.variant()
    else:
        seen: set[tuple[str, int]] = set()
        for variant in everything:
            values = set(variant.params.items())
            if len(everything) <= LARGE or not values <= seen:
                yield variant
            seen |= values


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Never the user's cache nor table: what is in them must not decide a test."""
    os.environ["HARNESS_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["HARNESS_TABLE"] = str(tmp_path_factory.mktemp("table") / "matmul.json")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("session-cache"))


@pytest.fixture
def kernel_file(tmp_path: Path) -> Any:
    """Writes a small correct GEMM kernel; `extra` goes into its front matter, `body` replaces its code."""

    def write(name: str = "mine.cu", *, extra: str = "", body: str = BODY, title: str = "A kernel") -> Path:
        lines = "".join(f"// {line}\n" for line in extra.splitlines())
        path = tmp_path / name
        path.write_text(KERNEL.format(title=title, extra=lines, body=body))
        return path

    return write


@pytest.fixture
def gpu() -> Iterator[Any]:
    """A context on the first GPU, closed after the test."""
    from harness.driver import Context, Device

    with Context(Device.open()) as context:
        yield context


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The kill rates of tests/test_mutation.py, which a test that passes would keep to itself."""
    reports = [r for key in ("passed", "failed") for r in terminalreporter.getreports(key)]
    rates = sorted(
        value for r in reports for key, value in r.user_properties if key == "mutation" and r.when == "call"
    )
    if rates:
        terminalreporter.section("mutants")
        for line in rates:
            terminalreporter.write_line(line)
