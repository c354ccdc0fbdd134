"""`harness bench` and `verify` without a GPU: in the emulator, and what that refuses is said once."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.cli import main, running
from harness.support import tools
from shared.command import harness, no_gpu  # noqa: F401  (a fixture)
from shared.kernels import MAD, MEMBAR, RARE, TILED, refused
from shared.sweeps import sweep


@pytest.mark.slow
@pytest.mark.usefixtures("no_gpu")
def test_bench_without_a_gpu_is_emulated_and_says_so(tmp_path: Path) -> None:
    result = harness("bench", "0*", refused(tmp_path, "one"))
    assert result.exit_code == 0, "a rung that needs a GPU is no failure"
    lines = result.stdout.splitlines()
    (row,) = [s for s in lines if s.startswith("03_tiled ")]
    assert row.split() == [
        "03_tiled",
        *row.split()[1:2],  # registers, which compilers choose
        "2048",
        "4",
        "100%",
        "3.89",
        "4",
        "1",
        "ok",
    ]
    assert "No GPU (libcuda was not found): in the emulator; `harness check` tells more" in lines
    assert any(line.startswith("05_tiled_no_sync") and line.endswith("broken") for line in lines)
    assert any(line.startswith("one") and line.endswith("GPU only") for line in lines)
    assert "GFLOP/s" not in result.stdout
    assert max(map(len, lines[: lines.index("")])) <= 80


@pytest.mark.usefixtures("no_gpu")
def test_verify_without_a_gpu_is_emulated() -> None:
    result = harness("verify", "tiled")
    assert result.exit_code == 0 and "5/5" in result.stdout
    assert "No GPU (libcuda was not found): in the emulator" in result.stdout
    assert harness("verify", "tiled", "-d", "0").exit_code == 1, "a GPU was asked for"


@pytest.mark.usefixtures("no_gpu")
def test_require_gpu() -> None:
    result = harness("bench", "tiled", "--require-gpu")
    assert result.exit_code == 1 and "libcuda was not found" in result.stderr


@pytest.mark.usefixtures("no_gpu")
def test_bench_without_a_gpu_fails_for_a_race(kernel_file: Any) -> None:
    racy = kernel_file(body=TILED.replace("        __syncthreads();\n    }", "    }"))
    result = harness("bench", str(racy), "-a", "N=48")
    assert result.exit_code == 1 and "WAR hazard" in result.stdout


@pytest.mark.slow
def test_csv_without_a_gpu_tells_what_the_emulator_found() -> None:
    result = harness("bench", "tiled", "16", "-a", "N=16", "--csv")
    tiled, pipeline = csv.DictReader(io.StringIO(result.stdout))
    assert (tiled["shape"], tiled["status"], tiled["emulated.ways"]) == ("16", "ok", "1.0")
    assert pipeline["status"] == "ok"


@pytest.mark.usefixtures("no_gpu")
def test_bench_without_nvdisasm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its own column is lost."""
    monkeypatch.setattr(tools, "find", lambda _name: None)
    result = harness("bench", "tiled")
    assert result.exit_code == 0 and "03_tiled" in result.stdout and "LDS.128" not in result.stdout
    assert "pip install 'nvidia-cuda-nvdisasm" in harness("sass", "tiled").stderr


@pytest.mark.slow
def test_shapes_fit_80_columns_and_one_refusal_is_said_once(tmp_path: Path) -> None:
    one = refused(tmp_path, "one")
    result = CliRunner().invoke(main, ["verify", one, "03"], env={"COLUMNS": "80"})
    lines = result.output.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("shapes: "))
    shown = [line for line in lines[first:] if line.startswith(("shapes: ", "        "))]
    assert len(shown) > 2 and max(map(len, shown)) <= 80
    assert "129x132x17 lda=20 ldb=140 ldc=135 alpha=-1.5" in "\n".join(shown)  # no label is broken in two
    told = " ".join(result.output.split())  # the name is long, so a line is broken before it
    assert told.count(f"one: the emulator does not know {MEMBAR}") == 1
    assert told.count("does not know") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("command", sweep(["bench", "verify", "check"], lambda command: command == "check"))
def test_what_the_emulator_refuses_is_said_once_with_the_kernels_it_holds_for(
    command: str, tmp_path: Path
) -> None:
    given = (("one", MAD), ("two", MEMBAR), ("three", MEMBAR))
    one, two, three = (refused(tmp_path, *each) for each in given)
    result = harness(command, one, two, three, "-a", "N=[64,65]")
    lines = [line for line in result.output.splitlines() if "does not know" in line]
    assert lines == [
        f"one: the emulator does not know {MAD}",
        f"two, three: the emulator does not know {MEMBAR}",
    ]
    alone = harness(command, one, "-a", "N=[64,128]").output
    (line,) = re.findall(r"line (\d+) \(PTX line ", alone)
    assert "INSTRUCTION" in RARE.splitlines()[int(line) - 1]
    assert f"'{MAD} a" in alone


def test_what_the_emulator_refuses_has_no_error_to_show(tmp_path: Path) -> None:
    lines = harness("verify", refused(tmp_path, "one"), "-a", "N=16").stdout.splitlines()
    assert "> 100" not in lines[2] and lines[2].split()[-4:] == ["-", "needs", "a", "GPU"]


def test_a_reason_that_holds_for_some_rows_of_a_kernel_says_how_many(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def row(kernel: str, status: str) -> dict[str, Any]:
        return {"kernel": kernel, "params": {}, "shape": "64", "status": status, "detail": "it is wrong"}

    running.explain([row("a", "FAILED"), row("b", "FAILED"), row("b", "ok")], [])
    assert capsys.readouterr().out == "a, b (1 of 2): it is wrong\n"
    running.explain([row("a", "FAILED"), row("a", "ok")], [])
    assert capsys.readouterr().out == "a, 64: it is wrong\n"


@pytest.mark.usefixtures("no_gpu")
def test_skipped_for_one_reason_is_said_once() -> None:
    result = CliRunner().invoke(
        main, ["bench", "01", "13", "14", "-a", "N=32", "--arch", "sm_75"], env={"COLUMNS": "200"}
    )
    assert [s for s in result.output.splitlines() if s.startswith("skipped")] == [
        "skipped 13_cp_async, 14_warp_tiles, sm_75: needs sm_80, asked for sm_75"
    ]


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("words", [("bench", "--rounds", "5"), ("verify",), ("check",), ("check", "--lines")])
def test_the_bar_is_full_at_the_end(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    @contextmanager
    def progress(total: int, about: str = "") -> Iterator[Callable[[str], None]]:
        yield seen.append
        seen.append(f"{total} steps {about}".strip())

    monkeypatch.setattr(running, "progress", progress)
    assert harness(words[0], "tiled", "naive", "-a", "N=[16,17]", *words[1:]).exit_code == 0
    *steps, total = seen
    ahead = " No GPU (libcuda was not found): in the emulator, 2 kernels, each some seconds"
    assert total == f"{len(steps)} steps{ahead if words[0] == 'bench' else ''}"


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_ahead_is_said_on_a_terminal(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with running.progress(2, "two steps") as step:
        step("one")
        step("another")
    said = capsys.readouterr().err
    assert said.startswith("two steps\n") and "1/2" in said if terminal else said == ""
