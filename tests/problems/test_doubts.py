"""A buffer whose kernel goes much farther than the text says is in doubt: no finding, and no success."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.problems.guessed import reach

FAR = """__global__ void far(const float* x, float* y, int n) {
  __shared__ float s[256];
  int i = blockIdx.x * 256 + threadIdx.x, half = n / 2;
  s[threadIdx.x] = i < n ? x[i] : 0;
  __syncthreads();
  if (i < n) y[i + n + half] = s[255 - threadIdx.x];
}
"""


def check(folder: Path, source: str, *more: str) -> tuple[int, str]:
    """Return the exit code of `harness check`, and what it says."""
    (path := folder / "k.cu").write_text(source)
    ran = CliRunner().invoke(main, ["check", str(path), *more])
    return ran.exit_code, " ".join(ran.output.split())


def test_a_length_that_nothing_explains_is_in_doubt(tmp_path: Path) -> None:
    code, output = check(tmp_path, FAR)
    assert code == 3 and "out of bounds" not in output, output
    assert "IN DOUBT" in output and "-a y=2500 (1000 guessed)" in output, output


@pytest.mark.slow
def test_what_is_known_is_in_no_doubt(tmp_path: Path) -> None:
    assert check(tmp_path, FAR, "-a", "y=2500")[0] == 0
    code, output = check(tmp_path, FAR, "-a", "y=1000")
    assert code == 1 and "out of bounds" in output and "IN DOUBT" not in output, output
    made = "void run(float* x, float* y, int n) { cudaMalloc(&y, n * 4); far<<<n / 256, 256>>>(x, y, n); }\n"
    code, output = check(tmp_path, FAR + made)
    assert code == 1 and "out of bounds" in output and "IN DOUBT" not in output, output


@pytest.mark.slow
def test_a_doubt_hides_nothing_else(tmp_path: Path) -> None:
    code, output = check(tmp_path, FAR.replace("  __syncthreads();\n", ""))
    assert code == 1 and "IN DOUBT" in output and "RAW hazard" in output, output
    code, output = check(tmp_path, FAR.replace("? x[i]", "? x[i + 1]"))
    assert code == 1 and "IN DOUBT" in output and "of x, " in output, output


@pytest.mark.parametrize(
    ("elements", "ends", "guessed", "a_fault"),
    [
        (9000, (), 1000, False),
        (9001, (), 1000, True),
        (4608, (), 1000, False),
        (4608, (4096,), 1000, True),
        (4096, (4096,), 1000, False),
        (6000, (4096,), 1000, False),
    ],
)
def test_a_little_past_an_end_is_a_fault(
    elements: int, ends: tuple[int, ...], guessed: int, a_fault: bool
) -> None:
    assert reach.past(elements, ends, guessed) == a_fault
