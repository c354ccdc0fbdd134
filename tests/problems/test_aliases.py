"""One buffer that host code passes for two parameters is one here, too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.emulator import Emulation, emulate
from harness.kernels import text
from harness.kernels.cpp.host import launches
from harness.problems.guessed import allocated
from shared.checking import check
from shared.emulator_kernels import compile_ptx

HEAD = """
__global__ void k(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
"""
SCALE = HEAD + "  if (i < n) y[i] = 2 * x[i];\n}\n"
BLUR = HEAD + "  if (i > 0 && i < n - 1) y[i] = x[i - 1] + x[i] + x[i + 1];\n}\n"
# Each block reads its tile before it writes it.
REVERSED = """
__global__ void k(const float* x, float* y, int n) {
  __shared__ float tile[256];
  int i = blockIdx.x * 256 + threadIdx.x;
  tile[threadIdx.x] = i < n ? x[i] : 0;
  __syncthreads();
  int from = min(256, n - blockIdx.x * 256) - 1 - threadIdx.x;
  if (i < n) y[i] = tile[from];
}
"""
HOST = """
int main() {
  int n = 5000;
  float *a, *b;
  cudaMalloc(&a, n * sizeof(float)), cudaMalloc(&b, n * sizeof(float));
  k<<<(n + 255) / 256, 256>>>(GIVEN, n);
}
"""
SAID = "y and x are one buffer"


@pytest.mark.parametrize(
    ("kernel", "given", "code"),
    [
        (SCALE, "a, a", 0),
        (REVERSED, "a, a", 0),
        (BLUR, "a, b", 0),
        (BLUR, "a, a", 1),
        *[
            pytest.param(kernel, given, code, marks=pytest.mark.slow)
            for kernel, given, code in [
                (REVERSED.replace("- 1 - thread", "- thread"), "a, a", 1),
                (REVERSED.replace("x[i] : 0", "x[n - 1 - i] : 0"), "a, a", 1),
                (REVERSED.replace("x[i] : 0", "x[n - 1 - i] : 0"), "a, b", 0),
                (BLUR, "(const float*)a, a", 1),
                (BLUR, "thrust::raw_pointer_cast(a), a", 1),
            ]
        ],
    ],
)
def test_faults_of_a_kernel_in_place(tmp_path: Path, kernel: str, given: str, code: int) -> None:
    ended, said = check(tmp_path, kernel + HOST.replace("GIVEN", given))
    assert ended == code, said
    assert (SAID in said) == ("b" not in given)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("a, a", {"x": "y"}),
        ("this->a, this->a", {"x": "y"}),
        ("t.data_ptr<float>(), t.data_ptr<float>()", {"x": "y"}),
        ("bufs[0], bufs[0]", {"x": "y"}),
        ("bufs[0], bufs[1]", {}),
        ("a, a + n", {}),
        ("nullptr, nullptr", {}),
        ("next(), next()", {}),
        ("p++, p++", {}),
    ],
)
def test_what_is_one_buffer(given: str, wanted: dict[str, str]) -> None:
    source = SCALE + HOST.replace("GIVEN", given)
    (entry,) = text.entries(source)
    types = dict.fromkeys("xy", ("float", 1))
    launched = launches.of(source, "k")
    assert launched is not None
    assert allocated.aliases(launched, entry, entry.parameters[:2], types) == wanted
    assert not allocated.aliases(launched, entry, entry.parameters[:2], types | {"x": ("int", 1)})
    assert not allocated.aliases(None, entry, entry.parameters[:2], types)


def test_of_pointers_that_are_read_only_the_first_one_stays() -> None:
    source = (SCALE + HOST).replace("float* y", "const float* y").replace("GIVEN", "a, a")
    (entry,) = text.entries(source)
    types = dict.fromkeys("xy", ("float", 1))
    assert allocated.aliases(launches.of(source, "k"), entry, entry.parameters[:2], types) == {"y": "x"}


def test_an_array_that_is_given_twice_is_one_buffer() -> None:
    ptx = compile_ptx(BLUR.replace("__global__", 'extern "C" __global__'))

    def run(*arrays: np.ndarray) -> Emulation:
        return emulate(ptx, "k", grid=(1,), block=(64,), arguments=[*arrays, np.int32(64)])

    x, y = np.ones((2, 64), np.float32)
    assert not run(x, y).findings and y[1] == 3
    assert {finding.kind for finding in run(x, x).findings} == {"WAR hazard"}
