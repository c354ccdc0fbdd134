"""How much memory there is, in a container too, and how well what an emulation takes is foretold."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from harness.bench import emulation
from harness.errors import OutOfMemory
from harness.launch.operands import Data
from harness.problems import checks
from harness.problems.copy import Copy
from harness.problems.gemm import Gemm
from harness.problems.protocol import Problem
from harness.support import processes, tools


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in the place of this process's control group, without a limit."""
    listed = Path("/proc/self/cgroup")
    if not listed.exists() or not re.search(r"^0::", listed.read_text(), re.MULTILINE):
        pytest.skip("no control groups of version 2")
    monkeypatch.setattr(processes, "CGROUPS", tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 300000\n")
    return tmp_path


def test_without_a_limit_it_is_the_machines(group: Path) -> None:
    assert processes.free_memory() > 2**26


def test_the_limit_of_a_container_holds_and_its_page_cache_counts(group: Path) -> None:
    (group / "memory.max").write_text("5000000\n")
    assert processes.free_memory() == 5_000_000 - 1_000_000 + 300_000


def test_an_emulation_beyond_it_is_refused(group: Path) -> None:
    (group / "memory.max").write_text("5000000\n")
    with pytest.raises(Exception, match="emulating it takes about"):
        emulation._inputs(Gemm(M=512, N=512, K=512), 1)


def test_data_beyond_it_are_refused_before_they_are_made(
    group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a run on a GPU, too; what fits is made."""
    problem = Gemm(M=64, N=64, K=64)
    assert Data.of(problem, 1).host.keys() == {"A", "B", "C"}
    monkeypatch.setattr(Gemm, "inputs", lambda *_: pytest.fail("made"))
    (group / "memory.max").write_text("1400000\n")
    with pytest.raises(OutOfMemory, match="^256: its data .* take about 0.00 GiB of host memory"):
        Data.of(Gemm(M=256, N=256, K=256), 1)


@pytest.mark.parametrize("dtype", ["float32", None, np.dtype("float16")])
def test_a_class_whose_dtype_is_something_else(dtype: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Copy, "dtype", dtype, raising=False)
    assert checks.host_bytes(Copy(N=1000)) == 8000 + 4 * 1000 + 20 * 1000


DATA = (
    "Gemm(M=64, N=64, K=400_000)", "Gemm(M=2500, N=2500, K=32)", "Gemm(M=1500, N=1500, K=1500)",
    "GEMMS['bf16'](M=2500, N=2500, K=32)", "GEMMS['bf16'](M=64, N=64, K=800_000)", "Copy(N=20_000_000)",
)  # fmt: skip
MADE = """
import resource
from harness.launch.operands import Data
from harness.problems import checks
from harness.problems.copy import Copy
from harness.problems.gemm import GEMMS, Gemm
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before, problem = peak(), {}
made = Data.of(problem, 1)
print(checks.host_bytes(problem) / (peak() - before))
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("problem", DATA)
def test_what_data_take_is_foretold_within_a_half(problem: str) -> None:
    code = MADE.format(problem)
    done = subprocess.run(
        [sys.executable, "-c", code], env=tools.environment(), capture_output=True, text=True, check=True
    )
    assert 1 / 1.5 <= float(done.stdout) <= 1.5


CASES: list[tuple[str, Problem, list[str]]] = [
    ("tiled", Gemm(M=64, N=64, K=100_000), ["M=64", "N=64", "K=100000"]),
    ("tiled", Gemm(M=640, N=640, K=32), ["M=640", "N=640", "K=32"]),
    ("21_mma_sync", Gemm(M=3072, N=3072, K=16), ["M=3072", "N=3072", "K=16"]),
    ("copy", Copy(N=20_000_000), ["N=20000000"]),
]
PEAK = """
import resource, sys
from harness.cli import main
try:
    main()
finally:
    print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kernel", "problem", "axes"), CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_the_peak_is_within_a_half_of_what_was_foretold(
    kernel: str, problem: Problem, axes: list[str]
) -> None:
    sizes = [word for axis in axes for word in ("-a", axis)]
    done = subprocess.run(
        [sys.executable, "-c", PEAK, "check", kernel, *sizes],
        env=tools.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    peak = int(done.stdout.rpartition("peak ")[2])
    foretold = emulation._needed(problem)
    assert 1 / 1.5 <= foretold / peak <= 1.5, (foretold / 2**30, peak / 2**30)
