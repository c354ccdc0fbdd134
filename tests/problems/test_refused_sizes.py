"""Sizes that host code refuses: the line counts where it is in the launch's way, and hides no fault else."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main

BARE = """__global__ void k(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; x[i] = 2; }
__global__ void other(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = 2; }
bool slow(float*, int);
"""
LAUNCH = "k<<<(n + 255) / 256, 256>>>(x, n);"
REFUSED = {
    "a return": f"void run(float* x, int n) {{\n  if (n % 256 != 0) return;\n  {LAUNCH}\n}}",
    "in one line": f"void run(float* x, int n) {{ if (n % 256) return; {LAUNCH} }}",
    "a block": f'void run(float* x, int n) {{\n  if (n % 256) {{ puts("no"); throw 1; }}\n  {LAUNCH}\n}}',
    "around it": f"void run(float* x, int n, int way) {{ if (way) {{ assert(n % 256 == 0); {LAUNCH} }} }}",
}
ELSEWHERE = {
    "another branch": "if (way == 1) { if (n % 256) return; other<<<n / 256, 256>>>(x, n); } else {",
    "another case": "switch (way) { case 1: { if (n % 256) return; break; } default: break; } {",
    "on a condition": "if (n % 256) { if (slow(x, n)) return; n += 1; } {",
    "a lambda": "auto run = [&](int n) { if (n % 256) return 1; return 0; }; {",
    "changed since": "if (n % 256) return; n = n - 1; {",
    "only said": "CHECK_WARN(n % 256 == 0); {",
    "the contrary": "ASSERT_FALSE(n == 512); {",
    "two numbers": "if (way) { if (n != 300) return; } else { if (n != 700) return; } {",
    "an else": "if (way) way = 2; else if (n % 256) return; {",
}
QUICK = ("a return", "another branch")


def check(folder: Path, source: str) -> tuple[int, str]:
    """Return the exit code of `harness check`, and what it says."""
    (path := folder / "k.cu").write_text(source)
    ran = CliRunner().invoke(main, ["check", str(path)])
    return ran.exit_code, " ".join(ran.output.split())


@pytest.mark.parametrize(
    "what", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in REFUSED]
)
def test_what_is_refused_needs_no_guard(tmp_path: Path, what: str) -> None:
    assert check(tmp_path, BARE + REFUSED[what])[0] == 0
    code, output = check(tmp_path, BARE + REFUSED[what].replace("% 256", "% 100"))
    assert code == 1 and "out of bounds" in output, output


@pytest.mark.parametrize(
    "what", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in ELSEWHERE]
)
def test_what_is_said_elsewhere_hides_no_fault(tmp_path: Path, what: str) -> None:
    host = f"void run(float* x, int n, int way) {{ {ELSEWHERE[what]} {LAUNCH} }} }}"
    code, output = check(tmp_path, BARE + host)
    assert code == 1 and "out of bounds" in output, output


PRODUCT = """__global__ void mm(const float* A, const float* B, float* C, int M, int N, int K) {
  int r = blockIdx.y * 16 + threadIdx.y, c = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  if (r < M && c < N) {
    for (int k = 0; k < K; k++) sum += A[r * K + k] * B[k * N + c];
    C[r * N + c] = sum;
  }
}
void run(float* A, float* B, float* C, int M, int N, int K) {
  if (K != 64) return;
  mm<<<dim3((N + 15) / 16, (M + 15) / 16), dim3(16, 16)>>>(A, B, C, M, N, K);
}
"""


def test_a_number_that_is_demanded_stays_a_size(tmp_path: Path) -> None:
    """Lengths of buffers, and all else that follows from it, follow still."""
    assert check(tmp_path, PRODUCT)[0] == 0
    code, output = check(tmp_path, PRODUCT.replace("k < K", "k <= K"))
    assert code == 1 and "out of bounds" in output, output


@pytest.mark.slow
def test_a_demanded_number_hides_no_missing_guard(tmp_path: Path) -> None:
    host = f"void run(float* x, int n) {{\n  if (n != 500) return;\n  {LAUNCH}\n}}"
    assert check(tmp_path, BARE + host)[0] == 1
    assert check(tmp_path, BARE + host.replace("500", "512"))[0] == 0
