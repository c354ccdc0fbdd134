"""A kernel's fault takes the process's context, and costs its own row: the others come from new processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes import gemm as fake_gemm
from harness.cli.children import apart, isolation
from harness.problems.gemm import Gemm
from harness.results import record
from harness.support.children import Ended, failure
from shared.command import FAST, fake, harness  # noqa: F401  (fixtures)
from shared.places import ROOT

SIZES = "N=[16,32,48]"
TILED, COALESCED = 16, 32  # the widths of their blocks
SAID = "each row that is left has a process of its own"


class Here:
    """Stands for child processes: the same command in this one, with a context that is not lost."""

    def __init__(self, fake: Any, folder: Path) -> None:
        self.fake, self.folder, self.told = fake, folder, list[list[str]]()
        self.new = True  # whether a new process has a new context

    def __call__(self, command: list[str], timeout: float) -> isolation.Outcome:
        self.told.append(command)
        path = self.folder / f"rows{len(self.told)}"
        path.touch()
        self.fake.sticky = 0 if self.new else self.fake.sticky
        result = harness(*command[3:], "--rows", str(path))
        self.fake.sticky = 0 if self.new else self.fake.sticky
        about, *rows = [json.loads(line) for line in path.read_text().splitlines()] or [{}]
        error = failure(Ended(code=result.exit_code, said=result.stderr))
        return isolation.Outcome(rows=tuple(rows), about=about, error=error)

    @property
    def axes(self) -> list[str]:
        """Return the file's name and the size of each child."""
        return [f"{Path(c[4]).stem} {' '.join(w for w in c if w.startswith('--axis'))}" for c in self.told]


@pytest.fixture
def here(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    found = Here(fake, tmp_path)
    monkeypatch.setattr(isolation, "run_child", found)
    return found


def statuses(path: Path) -> list[tuple[str, str, str]]:
    return [(r["kernel"], r["shape"], r["status"]) for r in record.load(path)["rows"]]


def expected(*faults: tuple[str, str]) -> list[tuple[str, str, str]]:
    kernels = ("03_tiled", "02_coalesced")
    return [(k, n, "error" if (k, n) in faults else "ok") for n in ("16", "32", "48") for k in kernels]


def run(path: Path, *args: str, verb: str = "bench") -> Any:
    fast = FAST if verb == "bench" else []
    return harness(verb, "tiled", "coalesced", "-a", SIZES, *args, *fast, "--json", str(path))


def test_a_fault_costs_its_row(here: Here, tmp_path: Path) -> None:
    here.fake.execute = fake_gemm.Faulting(here.fake, {(TILED, 32)})
    result = run(tmp_path / "r.json", "--kernel-timeout", "9", "--regime", "hot")
    assert result.exit_code == 1 and " ".join(result.stderr.split()).count(SAID) == 1
    assert statuses(tmp_path / "r.json") == expected(("03_tiled", "32"))
    assert here.axes == ["03_tiled --axis=N=48", "02_coalesced --axis=N=32", "02_coalesced --axis=N=48"]
    assert all("--regime=hot" in c and "--isolate" not in c for c in here.told)
    assert [s.split()[1] for s in result.stdout.splitlines() if s.startswith("gemm ")] == [
        "16:",
        "32:",
        "48:",
    ]
    content = json.loads((tmp_path / "r.json").read_text())
    assert content["meta"]["ended"] == "complete"
    (row,) = [r for r in record.load(tmp_path / "r.json")["rows"] if r["status"] == "error"]
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in row["detail"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--isolate",)])
def test_several_faults_cost_their_rows(here: Here, tmp_path: Path, options: tuple[str, ...]) -> None:
    here.fake.execute = fake_gemm.Faulting(here.fake, {(TILED, 16), (TILED, 32), (COALESCED, 32)})
    result = run(tmp_path / "r.json", *options)
    faults = ("03_tiled", "16"), ("03_tiled", "32"), ("02_coalesced", "32")
    assert result.exit_code == 1 and statuses(tmp_path / "r.json") == expected(*faults)
    assert (SAID in " ".join(result.stderr.split())) == (not options)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--isolate",)])
def test_a_fault_of_the_reference_leaves_the_other_sizes(
    here: Here, tmp_path: Path, options: tuple[str, ...]
) -> None:
    here.fake.execute, out = fake_gemm.Faulting(here.fake, {(COALESCED, 32)}), tmp_path / "r.json"
    command = ["bench", "tiled", "--ref", "coalesced", "-a", SIZES, *options, *FAST, "--json", str(out)]
    assert harness(*command).exit_code == 1
    assert statuses(out) == [
        ("02_coalesced", "16", "ok"), ("03_tiled", "16", "ok"),
        ("02_coalesced", "32", "error"), ("03_tiled", "32", "error"),
        ("02_coalesced", "48", "ok"), ("03_tiled", "48", "ok"),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_kernel_that_hangs_is_not_tried_again(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_child(command: list[str], timeout: float) -> isolation.Outcome:
        found = here(command, timeout)
        if "03_tiled.cu" in command[4]:  # what was measured beside it is there
            return isolation.Outcome(rows=found.rows[:1], about=found.about, error="it hangs", hung=True)
        return found

    monkeypatch.setattr(isolation, "run_child", run_child)
    here.fake.execute = fake_gemm.Faulting(here.fake, {(COALESCED, 16)})
    result = run(tmp_path / "r.json", "--ref", "tiled_v4")
    assert result.exit_code == 1 and "03_tiled" in here.axes[0]
    rows = [row for row in statuses(tmp_path / "r.json") if row[0] != "08_tiled_v4"]
    faults = ("02_coalesced", "16"), ("03_tiled", "32"), ("03_tiled", "48")
    assert rows == expected(*faults) and here.axes.count("03_tiled --axis=N=32") == 1
    assert "03_tiled --axis=N=48" not in here.axes


@pytest.mark.slow
def test_where_a_new_process_has_no_context_either_all_is_an_error(here: Here, tmp_path: Path) -> None:
    """The control: what the rows above show is not there by itself. A kernel is not tried again then."""
    here.fake.execute, here.new = fake_gemm.Faulting(here.fake, {(TILED, 32)}), False
    assert run(tmp_path / "r.json").exit_code == 1
    assert [status for *_, status in statuses(tmp_path / "r.json")] == ["ok"] * 2 + ["error"] * 4
    assert here.axes == ["03_tiled --axis=N=48", "02_coalesced --axis=N=32"]


def test_without_new_processes_rows_are_missing(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: as it was before."""
    here.fake.execute = fake_gemm.Faulting(here.fake, {(TILED, 32)})
    monkeypatch.setattr(apart, "go_on", lambda _children, _built, _points, rows, _left, fault: (rows, fault))
    assert run(tmp_path / "r.json").exit_code == 1
    assert statuses(tmp_path / "r.json") == expected(("03_tiled", "32"))[:3]


@pytest.mark.slow
def test_a_fault_that_no_row_tells_is_told_in_the_end(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.fake.fail("cuMemAlloc", 0, 700)  # before the first row: what faulted is not known
    result = run(tmp_path / "r.json")
    assert result.exit_code == 1 and "ILLEGAL_ADDRESS" in result.stderr
    assert statuses(tmp_path / "r.json") == expected()


@pytest.mark.slow
def test_two_files_of_one_name_and_a_reference_that_is_also_measured(
    here: Here, tmp_path: Path, kernel_file: Any
) -> None:
    """Rows are told apart by their source, and from those of --ref, which every process measures again."""
    first = kernel_file("mine.cu")
    (tmp_path / "b").mkdir()
    second = first.rename(tmp_path / "b" / "mine.cu")
    first = kernel_file("mine.cu", title="Another text")
    here.fake.execute = fake_gemm.Faulting(here.fake, {(TILED, 32)})
    out = tmp_path / "r.json"
    command = [str(first), "tiled", str(second), "coalesced", "--ref", "coalesced", "-a", "N=[16,32]"]
    assert harness("bench", *command, *FAST, "--json", str(out)).exit_code == 1
    found = [(r["kernel"], r["shape"], r["baseline"]) for r in record.load(out)["rows"]]
    measured = ["mine", "03_tiled", "mine", "02_coalesced"]
    assert found == [
        (kernel, n, i == 0)
        for n in ("16", "32")
        for i, kernel in enumerate(["02_coalesced", *measured])
    ]  # fmt: skip


@pytest.mark.slow
def test_what_the_dispatcher_chooses_goes_on_too(here: Here, tmp_path: Path) -> None:
    here.fake.functions["matmul"] = None
    here.fake.execute, out = fake_gemm.Faulting(here.fake, {(TILED, 40)}), tmp_path / "r.json"
    assert harness("bench", "tiled", "matmul", "-a", "N=[40,300]", *FAST, "--json", str(out)).exit_code == 1
    assert sorted(statuses(out)) == [
        ("03_tiled", "300", "ok"), ("03_tiled", "40", "error"),
        ("matmul", "300", "ok"), ("matmul", "40", "ok"),
    ]  # fmt: skip
    assert [c[4] for c in here.told].count("matmul") == 2


def test_verify_loses_a_row_only(here: Here, tmp_path: Path) -> None:
    here.fake.execute = fake_gemm.Faulting(here.fake, {(TILED, 32)})
    result = run(tmp_path / "r.json", "--repeat", "3", verb="verify")
    assert result.exit_code == 1 and " ".join(result.stderr.split()).count(SAID) == 1
    assert statuses(tmp_path / "r.json") == expected(("03_tiled", "32"))
    cells = [s.split() for s in result.stdout.splitlines() if "/3" in s]
    assert [(c[0], next(w for w in c if "/3" in w)) for c in cells] == [
        ("03_tiled", "2/3"), ("02_coalesced", "3/3"),
    ]  # fmt: skip
    assert len(here.told) == 3 and all("--repeat=3" in c for c in here.told)


@pytest.mark.slow
def test_sizes_that_a_kernel_does_not_take_are_left_out_once(here: Here, kernel_file: Any) -> None:
    path = str(kernel_file(extra='requires = ["N % 4 == 0"]'))
    plain = harness("verify", path)
    assert plain.exit_code == 0 and "left out: " in plain.stdout
    first = Gemm.from_axes(Gemm.verify_axes[0])
    here.fake.execute = fake_gemm.Faulting(here.fake, {(here.fake.launches[0].block[0], first.N)})
    result = harness("verify", path)

    def told(text: str) -> str:
        return text.partition("left out: ")[2].partition("mine")[0]

    assert here.told and told(result.stdout) == told(plain.stdout)


@pytest.mark.slow
def test_real_processes(tmp_path: Path) -> None:
    faults = tmp_path / "faults"
    faults.write_text("GPU-a0000000-0000-0000-0000-000000000000 launch:16:32 700\n")
    folders = [ROOT, ROOT / "tests", ROOT / "tests" / "fakes" / "processes"]
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, folders)), "HARNESS_FAKE_GPUS": "1",
        "HARNESS_FAKE_FAULTS": str(faults), "HARNESS_CACHE_DIR": str(tmp_path / "cache"),
    }  # fmt: skip
    out = tmp_path / "r.json"
    command = [sys.executable, "-m", "harness", "bench", "tiled", "coalesced", "-a", SIZES, *FAST]
    done = subprocess.run(
        [*command, "--json", str(out)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert " ".join(done.stderr.split()).count(SAID) == 1
    assert statuses(out) == expected(("03_tiled", "32"))
