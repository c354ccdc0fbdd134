"""scripts/mutate.py: what it calls a failure, its list of survivors, and tests that find nothing."""

from __future__ import annotations

import ast
import functools
import importlib.util
import subprocess
import sys
from fractions import Fraction
from math import comb
from pathlib import Path
from types import ModuleType

import pytest

from shared.places import ROOT

SCRIPT = ROOT / "scripts" / "mutate.py"


def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutate", SCRIPT)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules["mutate"] = found  # where dataclasses look their module up
    try:
        spec.loader.exec_module(found)
    finally:
        del sys.modules["mutate"]
    return found


mutate = module()
REASON = mutate.Reason("equivalent", "as fast")


@functools.cache
def functions(file: str) -> dict[str, str]:
    """Return the source of each function and method of a module, without indentation."""
    text = (ROOT / file).read_text()
    found = {}
    for outer in ast.parse(text).body:
        inner = outer.body if isinstance(outer, ast.ClassDef) else [outer]
        for node in inner:
            if isinstance(node, ast.FunctionDef):
                name = node.name if node is outer else f"{outer.name}.{node.name}"  # type: ignore[attr-defined]
                source = ast.get_source_segment(text, node) or ""
                found[name] = "\n".join(line.strip() for line in source.splitlines())
    return found


# ---- the list ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_listed_survivor_is_a_change_of_a_line_that_there_is() -> None:
    """The mutants of that line are checked where mutmut runs."""
    known = mutate.listed(ROOT)
    assert known
    for fault in known:
        lines = functions(fault.file)[fault.function].splitlines()
        for line in fault.was.splitlines():
            assert any(line == s or line in s for s in lines), f"no longer there: {fault}"
        assert fault.was != fault.now


@pytest.mark.parametrize(
    "text",
    [
        'kind = "lazy"\nwhy = "x"\nnow = ["b"]',
        'kind = "text"\nwhy = ""\nnow = ["b"]',
        'kind = "text"\nwhy = "x"\nnow = ["b", " b "]',
    ],
)
def test_a_list_that_gives_no_reason_or_says_a_thing_twice_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / mutate.SURVIVORS
    path.parent.mkdir(parents=True)
    entry = '[[survivor]]\nfile = "f.py"\nfunction = "f"\nwas = "a"\n'
    path.write_text(entry + text)
    with pytest.raises(ValueError, match=r"survivors.toml"):
        mutate.listed(tmp_path)
    path.write_text(entry + 'kind = "text"\nwhy = "x"\nnow = ["b", "c"]')
    assert len(mutate.listed(tmp_path)) == 2 and mutate.listed(tmp_path / "none") == {}


# ---- what is a failure -------------------------------------------------------------------------------


def test_a_sample_fails_once_in_a_thousand_where_enough_are_found() -> None:
    for n in (10, 50, 100, 200):
        share, least = Fraction(92, 100), mutate.fewest(n)
        chance = [comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)]
        assert sum(chance[:least]) <= Fraction(1, 1000) < sum(chance[: least + 1])
    assert mutate.fewest(100) == 83


def faults(n: int) -> dict[str, object]:
    return {f"m{i}": mutate.Fault("a.py", "f", "x", str(i)) for i in range(n)}


def complaints(found: int, of: int, known: int = 0, *, sampled: bool = False) -> list[str]:
    """Judge a run in which the first `found` of `of` mutants are found, and the last `known` are listed."""
    made = faults(of)
    verdicts = {name: i < found for i, name in enumerate(made)}
    listed = dict.fromkeys(list(made.values())[of - known :], REASON)
    return list(mutate.complaints(made, verdicts, listed, sampled=sampled))


def test_survivors_are_few_and_all_are_listed() -> None:
    assert complaints(92, 100, known=8) == []
    assert complaints(91, 100, known=9) == ["91 of 100 found, 92 at least are expected"]
    assert complaints(98, 100, known=1) == ["survives: a.py, f:\n- x\n+ 98\n(m98)"]
    assert complaints(99, 100, known=2) == ["listed, but found: a.py, f:\n- x\n+ 98"]


def test_a_sample_is_held_to_its_own_number_only() -> None:
    assert complaints(83, 100, sampled=True) == complaints(100, 100, known=3, sampled=True) == []
    assert complaints(82, 100, sampled=True) == ["82 of 100 found, 83 at least are expected"]


def test_a_listed_one_that_is_no_longer_made_is_told_in_a_sample_too() -> None:
    gone = mutate.Fault("a.py", "f", "x", "other")
    for sampled in (True, False):
        wrong = mutate.complaints(faults(9), dict.fromkeys(faults(9), True), {gone: REASON}, sampled=sampled)
        assert wrong == [f"listed, but no longer made: {gone}"]


def test_the_table_counts_by_module_and_kind() -> None:
    made = {**faults(4), "n": mutate.Fault("b.py", "g", "y", "z")}
    found = {"m0": True, "m1": True, "m2": False, "m3": False, "n": True}
    known = {made["m3"]: mutate.Reason("cost", "slower")}
    lines = [line.split() for line in mutate.table(made, found, known).splitlines()]
    assert lines[2] == ["a.py", "4", "2", "50.0%", "1", "1"]
    assert lines[3] == ["b.py", "1", "1", "100.0%"]
    assert lines[4] == ["all", "5", "3", "60.0%", "1", "1"]


# ---- the control -------------------------------------------------------------------------------------

PROJECT = """
[tool.mutmut]
source_paths = ["small"]
pytest_add_cli_args_test_selection = ["tests"]
"""
CODE = "def clamp(x, low, high):\n    if x < low:\n        return low\n    return high if x > high else x\n"
SHARP = "assert [clamp(x, 0, 4) for x in (-1, 0, 1, 4, 5)] == [0, 0, 1, 4, 4]"
TOOTHLESS = "clamp(1, 0, 4)"


def sampled(folder: Path, code: str, test: str) -> subprocess.CompletedProcess[str]:
    """Run a sample of 50 of a project that has this code and one test."""
    pytest.importorskip("mutmut")
    (folder / "small").mkdir()
    (folder / "tests").mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "small" / "__init__.py").write_text(code)
    (folder / "tests" / "test_small.py").write_text(f"from small import *\n\n\ndef test_it():\n    {test}\n")
    command = [sys.executable, str(SCRIPT), "--root", str(folder), "--sample", "50", "--seed", "1"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(("test", "code"), [(SHARP, 0), (TOOTHLESS, 1)])
def test_tests_without_teeth_fail_the_sample(tmp_path: Path, test: str, code: int) -> None:
    done = sampled(tmp_path, CODE, test)
    assert done.returncode == code, done.stdout + done.stderr
    assert "--seed 1 repeats it" in done.stdout and "small/__init__.py" in done.stdout
    assert ("at least are expected" in done.stdout) == bool(code)


@pytest.mark.slow
def test_a_test_that_fails_by_itself_is_named(tmp_path: Path) -> None:
    done = sampled(tmp_path, CODE, "assert clamp(1, 0, 4) == 2")
    assert done.returncode == 2
    assert done.stderr == "these tests fail without any fault:\ntests/test_small.py::test_it\n"


@pytest.mark.slow
def test_mutants_that_no_test_reaches_are_no_survivors(tmp_path: Path) -> None:
    """Find no test that reaches a mutant, as where they import the package from another place."""
    done = sampled(tmp_path, CODE, "pass")
    assert (done.returncode, done.stderr[:55]) == (
        2,
        "no test reached a function that is mutated: was another",
    )


@pytest.mark.exhaustive  # it takes the seconds of processor time that a test has
def test_a_mutant_that_never_ends_is_found(tmp_path: Path) -> None:
    done = sampled(
        tmp_path, "def down(x):\n    while x > 0:\n        x -= 1\n    return x\n", "assert down(3) == 0"
    )
    assert done.returncode == 0 and "100.0%" in done.stdout, done.stdout + done.stderr


@pytest.mark.exhaustive  # scripts/mutate.py, which CI runs, says it too
def test_each_listed_survivor_is_a_mutant_that_is_made() -> None:
    pytest.importorskip("mutmut")
    code = "import sys; sys.path.insert(0, 'scripts'); import mutate; root = mutate.ROOT\n"
    code += "print(*(mutate.listed(root).keys() - mutate.faults(root).values()), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
