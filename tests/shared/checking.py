"""`harness check` of a text, as a test asks for it, and tests of the programs in a folder of tests/data/."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.cli import main
from shared.places import DATA
from shared.sweeps import sweep


def check(folder: Path, source: str, *more: str) -> tuple[int, str]:
    """Write a text to a file, and return the exit code of `harness check` for it and all that it says.

    What it says is one line, in which no word is broken; `more` are options.
    """
    (path := folder / "k.cu").write_text(source, encoding="utf-8")
    return check_file(path, *more)


def check_file(path: Path, *more: str) -> tuple[int, str]:
    """Return the same of a file."""
    ran = CliRunner().invoke(main, ["check", str(path), *more], env={"COLUMNS": "200"})
    return ran.exit_code, " ".join(ran.output.split())


def check_clean(folder: Path, source: str, said: str) -> None:
    """Assert that `harness check` finds nothing in a text, and says this of it."""
    code, found = check(folder, source)
    assert code == 0 and said in found, found


def check_fault(folder: Path, source: str, old: str, new: str) -> None:
    """Assert that `harness check` finds a fault planted in a text, `new` in the place of the only `old`."""
    assert source.count(old) == 1
    code, found = check(folder, source.replace(old, new))
    assert code == 1 and "takes" not in found, found


def programs(*folders: str) -> dict[str, str]:
    """Return the texts of the programs in folders of tests/data/, by their names."""
    found = (path for folder in folders for path in (DATA / folder).glob("*.cu"))
    return {path.stem: path.read_text(encoding="utf-8") for path in found}


def of_programs(
    texts: Mapping[str, str],
    said: Mapping[str, str],
    faults: Iterable[tuple[str, str, str]],
    quick: Iterable[str],
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Return three tests of programs: all are tried, right ones are clean, and planted faults are found.

    said: what is said of each; faults: the program, what stands there, what takes its place
    quick: the programs that a plain run tries
    """

    def test_all_are_tried() -> None:
        assert texts.keys() == said.keys()

    @pytest.mark.parametrize("name", sweep(sorted(said), lambda name: name in quick))
    def test_a_right_program_is_clean(name: str, tmp_path: Path) -> None:
        check_clean(tmp_path, texts[name], said[name])

    @pytest.mark.parametrize(("name", "old", "new"), sweep(faults, lambda name, *_: name in quick))
    def test_a_planted_fault_is_found(name: str, old: str, new: str, tmp_path: Path) -> None:
        check_fault(tmp_path, texts[name], old, new)

    return test_all_are_tried, test_a_right_program_is_clean, test_a_planted_fault_is_found
