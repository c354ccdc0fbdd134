"""Python that a kernel's file names: only from beside it, and not at all where it is not trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

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
