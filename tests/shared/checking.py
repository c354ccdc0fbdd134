"""`harness check` of a text, as a test asks for it."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from harness.cli import main


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
