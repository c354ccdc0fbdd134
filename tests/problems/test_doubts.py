"""A buffer whose kernel goes much farther than the text says is in doubt: no finding, and no success."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.launch import further
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


SLOTS = """__global__ void place(const int* key, int* next, int* order, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int k = key[i];
  k = k & 255;
  int at = atomicAdd(&next[k], 1);
  order[at] = i;
}
"""


def test_a_variable_that_is_made_of_itself_ends(tmp_path: Path) -> None:
    """Reading what slots are made of went on for ever."""
    assert check(tmp_path, SLOTS)[0] in (0, 1)


INDEX = """__global__ void k(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = 1;
}
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x[i]", "x[i * sizeof(float)]"),
        pytest.param("if (i < n) x[i]", "x[i / 4096 * 4096 + i % 4096]", marks=pytest.mark.slow),
        pytest.param("x[i]", "x[i + 9]", marks=pytest.mark.slow),
    ],
)
def test_a_wrong_index_is_in_no_doubt(tmp_path: Path, old: str, new: str) -> None:
    assert check(tmp_path, INDEX)[0] == 0
    code, output = check(tmp_path, INDEX.replace(old, new))
    assert code == 1 and "out of bounds" in output, output


@pytest.mark.slow
def test_an_offset_of_the_host_hides_no_missing_guard(tmp_path: Path) -> None:
    host = "void run(float* x, int n) { k<<<(n + 255) / 256, 256>>>(x + 64, n); }\n"
    assert check(tmp_path, INDEX + host)[0] == 0
    assert check(tmp_path, INDEX.replace("if (i < n) ", "") + host)[0] == 1
    assert check(tmp_path, INDEX.replace("i < n", "i <= n") + host)[0] == 1


@pytest.mark.slow
def test_other_verbs_tell_what_is_beyond_a_guess(tmp_path: Path) -> None:
    (path := tmp_path / "k.cu").write_text(FAR)
    assert CliRunner().invoke(main, ["bench", str(path)]).exit_code == 1


ROWS = """__global__ void rows(const int* begin, const int* n, const float* x, float* y, int m) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= m) return;
  float s = 0;
  for (int i = 0; i < n[r]; i++) s += x[begin[r] + i];
  y[r] = s;
}
"""


@pytest.mark.slow
def test_a_name_that_ends_like_another_one_is_its_own(tmp_path: Path) -> None:
    assert check(tmp_path, ROWS)[0] == 0
    assert check(tmp_path, ROWS.replace("i < n[r]", "i <= n[r]"))[0] == 1


@pytest.mark.slow
def test_a_length_that_no_launch_has_is_in_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overruns of buffers were told where a kernel did not end with buffers as long as it goes."""
    monkeypatch.setattr(further, "_LARGE", 1)
    code, output = check(tmp_path, FAR)
    assert code == 3 and "out of bounds" not in output and "-a y=2500 (1000 guessed)" in output, output
    code, output = check(tmp_path, FAR.replace("  __syncthreads();\n", ""))
    assert code == 1 and "RAW hazard" in output, output
    code, output = check(tmp_path, FAR.replace("if (i < n) y[i + n + half]", "y[i]"))
    assert code == 1 and "out of bounds" in output, output
