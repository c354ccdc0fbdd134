"""Python that a kernel's file names: only from beside it, and not at all where it is not trusted."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from harness.kernels import spec
from harness.problems import registry
from harness.support.files import SHIPPED
from shared.command import harness, no_gpu

PROBLEM = "from harness.problems.copy import Copy\nopen({mark!r}, 'w').close()\nclass P(Copy):\n    pass\n"


@pytest.mark.slow
@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("place", "named", "options", "runs"),
    [
        ("p.py", "p.py:P", [], True),  # the control: it is executed, as the pages say
        ("sub/p.py", "sub/p.py:P", [], True),
        ("p.py", "p.py:P", ["--untrusted"], False),
        ("../p.py", "../p.py:P", [], False),
        ("../p.py", "{folder}/../p.py:P", [], False),
        ("p.py", "sub/../../{name}/p.py:P", [], True),
    ],
)
def test_where_a_problem_may_lie(
    place: str, named: str, options: list[str], runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HARNESS_UNTRUSTED", raising=False)
    monkeypatch.setenv("HARNESS_UNTRUSTED", "")  # so that what the command sets is taken back
    folder, mark = tmp_path / "kernels", tmp_path / "executed"
    file = folder / place
    (folder / "sub").mkdir(parents=True)
    file.write_text(PROBLEM.format(mark=str(mark)))
    kernel = folder / "k.cu"
    problem = named.format(folder=folder, name=folder.name)
    kernel.write_text(SOURCE.replace("PROBLEM", problem))
    result = harness(*options, "verify", str(kernel))
    assert mark.exists() == runs, result.output
    if not runs:
        assert result.exit_code == 2 and "problem" in result.output


@pytest.mark.slow
@pytest.mark.usefixtures("no_gpu")
def test_a_first_execution_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each file, also where there is no cache to remember it; not of harness's own examples."""
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("HARNESS_UNTRUSTED", raising=False)

    def told(kernel: Path, problem: str) -> bool:
        registry._log_first.cache_clear()  # as in a process of its own
        result = harness("check", str(kernel), "-a", "N=32")
        assert f"{kernel.stem}  " in result.stdout
        return f"note: executing {kernel.parent / problem} for the first time" in result.stderr

    (tmp_path / "p.py").write_text(PROBLEM.format(mark=str(tmp_path / "executed")))
    (tmp_path / "k.cu").write_text(SOURCE.replace("PROBLEM", "p.py:P"))
    assert [told(tmp_path / "k.cu", "p.py") for _ in range(2)] == [True, False]
    assert not told(SHIPPED / "examples" / "scale" / "01_simple.cu", "scale.py")
    assert logging.getLogger("harness").handlers == []
    (tmp_path / "full").write_text("no folder")
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "full"))
    assert told(tmp_path / "k.cu", "p.py")


def test_a_script_is_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What names a problem there is Python itself; a suite that turns warnings into errors goes on."""
    (tmp_path / "k.py").write_text(PROBLEM.format(mark=str(tmp_path / "executed")))
    (tmp_path / "k.cu").write_text(SOURCE.replace("PROBLEM", "k.py:P"))
    registry.resolve(spec.load(tmp_path / "k.cu"))
    assert (tmp_path / "executed").exists() and caplog.records == []


SOURCE = """// A copy
//
// /// kernel
// entry = "f"
// problem = "PROBLEM"
// block = 32
// tile = 32
// ///
extern "C" __global__ void f() {}
"""


__all__ = ["no_gpu"]
