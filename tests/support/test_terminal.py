"""Text and tables in the columns that a terminal has, and unbroken where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.results import tables
from harness.support import terminal
from shared.places import ROOT, record_file

LADDER, PROFILE = "h200/bench/ladder", "h200/profile/ladder"
LONG = "smsp__average_warps_issue_stalled_mio_throttle_per_issue_active.ratio"


@pytest.fixture
def eighty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(["bench", "05", "1*", "2*", "-a", "N=32"], marks=pytest.mark.exhaustive),
        ["bench", "01", "13", "14", "21", "28", "-a", "N=32", "--arch", "sm_75"],
        pytest.param(["verify", "03", "22", "-d", "emulator"], marks=pytest.mark.slow),
        pytest.param(["verify", "03", "20", "23", "28", "-d", "emulator"], marks=pytest.mark.exhaustive),
        pytest.param(["check", "05", "22", "-a", "N=32"], marks=pytest.mark.slow),
        pytest.param(["check", "05", "21", "20", "-a", "N=32"], marks=pytest.mark.slow),
        ["check", "tiled", "-a", "N=32", "--lines"],
        pytest.param(["build", "20", "23"], marks=pytest.mark.slow),
        pytest.param(["sass", "23", "20"], marks=pytest.mark.slow),
        pytest.param(
            ["explain", "coalesced", "tiled", "-a", "N=64", "--record", LADDER, "--record", PROFILE],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["explain", "--claims", "05", "07", "--record", LADDER, "--record", PROFILE],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["explain", "--claims", "0*", "1*", "--record", LADDER, "--record", PROFILE],
            marks=pytest.mark.exhaustive,
        ),
        ["profile", "--from", PROFILE],
        pytest.param(["compare", LADDER, LADDER], marks=pytest.mark.slow),
    ],
    ids=lambda args: " ".join(Path(a).name for a in args),
)
def test_nothing_is_wider_than_the_terminal(args: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # a path is one word: that of a deep checkout may be wider by itself
    args = [str(record_file(a).relative_to(ROOT)) if a in (LADDER, PROFILE) else a for a in args]
    runner = CliRunner()
    lines = runner.invoke(main, args, env={"COLUMNS": "80"}).output.splitlines()
    assert lines and [line for line in lines if len(line) > 80] == []
    whole = runner.invoke(main, args, env={"COLUMNS": None}).output.splitlines()
    assert max(map(len, whole)) > 80, "a command that never had too long a line says nothing"


def test_without_a_terminal_no_line_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    text = "word " * 100
    assert terminal.columns() is None and terminal.fill(text) == text
    assert f"{text.strip()}  1" in tables.plain_table([[text.strip(), "1"]], ["text", "n"])


@pytest.mark.usefixtures("eighty")
def test_lines_break_at_spaces_and_go_on_indented() -> None:
    lines = terminal.fill(f"short\n{'word ' * 20}{LONG * 2}", "    ").split("\n")
    assert lines[0] == "short" and lines[1] == ("word " * 16).strip()
    assert lines[2:] == ["    word word word word", f"    {LONG * 2}"]  # a path is still one word


@pytest.mark.usefixtures("eighty")
def test_the_index_of_a_thread_is_not_broken() -> None:
    for before in range(50, 80):
        said = terminal.fill("x" * before + ": thread (12, 0, 0) of block (3, 2, 1)")
        assert "(12, 0, 0)" in said and "(3, 2, 1)" in said and "\0" not in said
        assert max(map(len, said.splitlines())) <= max(80, before + 1)


@pytest.mark.usefixtures("eighty")
def test_cells_are_broken_and_lose_nothing() -> None:
    rows = [[f"{LONG}", "1,234", "it is said in many words " * 4, "5%"], ["a b", "2", "so", "6%"]]
    text = tables.plain_table(rows, ["metric", "value", "what is said", "share"])
    lines = text.split("\n")
    assert max(map(len, lines)) <= 80
    first = lines[1].index("  ")  # where the first column ends
    assert "".join(s[:first].strip() for s in lines[2:-1]) == LONG
    assert " ".join(text.split()).count("said") == 5
    (row,) = [s.split() for s in lines if "1,234" in s]
    assert row[-1] == "5%" and lines[-1].split() == ["a", "b", "2", "so", "6%"]
    assert lines[3].startswith("  "), "what goes on in the first column is no row of its own"


@pytest.mark.usefixtures("eighty")
def test_columns_beyond_go_into_tables_below() -> None:
    names = [f"kernel{i}" for i in range(20)]
    text = tables.plain_table([[LONG, *(f"{i},000,000" for i in range(20))]], ["metric", *names])
    parts = text.split("\n\n")
    assert len(parts) > 2 and all(part.startswith("metric ") for part in parts)
    assert max(map(len, text.split("\n"))) <= 80
    heads = [word for part in parts for word in part.split("\n")[0].split()[1:]]
    cells = [word for part in parts for word in part.split("\n")[2].split()[1:]]
    assert heads == names and cells == [f"{i},000,000" for i in range(20)]


@pytest.mark.parametrize("width", [1, 10, 20])
@pytest.mark.parametrize("rows", [[], [["a name", ""]]])
def test_a_column_with_nothing_in_it_is_no_error(
    monkeypatch: pytest.MonkeyPatch, rows: list[list[str]], width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = tables.plain_table(rows, ["kernels of the ladder", ""])
    words = "kernels of the ladder a name" if rows else "kernels of the ladder"
    assert " ".join(text.replace("-", "").split()) == words


@pytest.mark.usefixtures("eighty")
def test_csv_and_markdown_are_for_others_to_read() -> None:
    row = ["word " * 30 + "end", "1"]
    for style in ("csv", "md"):
        assert row[0] in tables.plain_table([row], ["text", "n"], style)


def test_loops_in_loops_are_indented() -> None:
    text = tables.plain_table([["0x10", "1"], ["  0x20", "2"]], ["loop", "n"])
    assert text.split("\n")[-1].startswith("  0x20")
