"""A user's problem that does not keep the protocol: told as its mistake, never a traceback or a pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.errors import SpecError
from harness.kernels import catalog
from harness.problems import checks
from harness.problems.copy import Copy
from harness.problems.protocol import Reference

N = 16


def changed(member: str, value: Any) -> type[Copy]:
    """A problem like Copy, of which `member` is or gives something else."""
    return type("Mine", (Copy,), {member: value})


def refers(**changes: Any) -> type[Copy]:
    """One whose reference differs in these fields."""

    def reference(self: Copy, inputs: Any) -> Reference:
        return replace(Copy.reference(self, inputs), **changes)

    return changed("reference", reference)


def gives(name: str, array: Any) -> type[Copy]:
    """One of whose operands is this."""
    return changed("inputs", lambda self, seed: {**Copy.inputs(self, seed), name: array})


ZEROS = np.zeros(N)
WRONG = {
    "no dictionary": (changed("inputs", lambda self, seed: None), "inputs: gave None"),
    "a list": (gives("src", [0.0] * N), "src is of type list, not a NumPy array"),
    "strided": (gives("src", np.zeros(2 * N, np.float32)[::2]), "src is not contiguous"),
    "no such output": (changed("output", "nope"), "output: names 'nope'.*\n.*src, dst"),
    "no such operand": (changed("arguments", lambda self: ("src", "zzz")), "no operand 'zzz'"),
    "a Python number": (
        changed("arguments", lambda self: ("src", "dst", 16)),
        "16 is of type int.*\n.*np.int32",
    ),
    "no reference": (changed("reference", lambda self, inputs: None), "reference: gave None"),
    "a list expected": (refers(expected=[0.0] * N), "expected: is of type list"),
    "float32 expected": (refers(expected=np.zeros(N, np.float32)), "expected: is float32"),
    "text expected": (refers(expected=np.full(N, "a")), "expected: is <U1"),
    "no bound": (refers(bound=None), "bound: is None"),
    "another bound": (refers(bound=np.zeros(7)), r"bound has shape \(7,\), expected \(16,\)"),
    "two dimensions": (
        refers(expected=np.zeros((4, 4)), bound=np.zeros((4, 4))),
        r"expected has shape \(4, 4\)",
    ),
    "too few": (refers(expected=np.zeros(8), bound=np.zeros(8)), r"shape \(8,\), where extents are \(16,\)"),
    "none": (refers(expected=np.zeros(0), bound=np.zeros(0)), r"shape \(0,\)"),
    "a negative bound": (refers(bound=ZEROS - 1), "negative or NaN"),
    "a bound of NaN": (refers(bound=np.where(np.arange(N) == 5, np.nan, 1.0)), "negative or NaN"),
    "no limit at all": (refers(bound=ZEROS + np.inf), "infinite everywhere"),
    "rms of NaN": (refers(rms_bound=np.nan), "rms_bound: is nan"),
    "rms as text": (refers(rms_bound="x"), "rms_bound: is 'x'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_no_kernel_could_be_measured_by(what: str) -> None:
    cls, message = WRONG[what]
    with pytest.raises(SpecError, match=rf"(?s)problem Mine: .*{message}"):
        checks.data(cls(N=N), 1)


def test_what_is_right_passes() -> None:
    inputs, reference = checks.data(Copy(N=N), 1)
    assert set(inputs) == {"src", "dst"} and (reference.expected == inputs["src"]).all()
    partly = refers(bound=np.where(np.arange(N) == 5, np.inf, 0.0), rms_bound=1)
    assert checks.data(partly(N=N), 1)[1].rms_bound == 1


def test_an_instance_is_one_of_the_class() -> None:
    assert checks.instance(Copy, {"N": N}).label == "16"
    with pytest.raises(SpecError, match="from_axes: gave None"):
        checks.instance(changed("from_axes", classmethod(lambda cls, axes: None)), {})
    with pytest.raises(SpecError, match="label: is of type int"):
        checks.instance(changed("label", 5), {"N": N})


USERS = """\
from harness.problems.copy import Copy

class Raises(Copy):
    def reference(self, inputs):
        return 1 / 0

class Exits(Copy):
    def inputs(self, seed):
        exit(3)

class Silent(Copy):
    def inputs(self, seed):
        assert False

class Nothing(Copy):
    verify_axes = ()

def function(): ...
"""
KERNEL = catalog.kernel("copy").path
SAID: dict[str, str] = {
    "Raises": "problem Raises, line 5 of p.py: ZeroDivisionError: division by zero",
    "Exits": "problem Exits, line 9 of p.py: SystemExit: 3",
    "Silent": "problem Silent, line 13 of p.py: AssertionError",
    "Nothing": "problem Nothing: verify_axes is empty",
    "function": "p.py has no class 'function'",
    "Nobody": "p.py has no class 'Nobody'",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAID)
def test_a_users_file_is_named_with_the_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "p.py").write_text(USERS)
    mine = tmp_path / "mine.cu"
    mine.write_text(KERNEL.read_text().replace('problem = "copy"', f'problem = "p.py:{name}"'))
    arguments = ["verify", str(mine), "-d", "emulator"]
    result = CliRunner().invoke(main, arguments if name == "Nothing" else [*arguments, "-a", "N=8"])
    assert isinstance(result.exception, SystemExit) and result.exit_code in (1, 2)
    assert SAID[name] in " ".join(result.output.split())
