"""How expectations are checked, on machine code written by hand: scopes, shares, evidence, and reasons.
test_contract checks the shipped kernels.
"""

from __future__ import annotations

from typing import Any

import pytest

from harness.kernels.expectation import parse
from harness.sass.code import Code
from harness.sass.contract import Finding, check
from harness.sass.instructions import Instruction, Sass


def code(text: str, **known: Any) -> Code:
    """Return code of one instruction a word: ``LDS.128@7`` is one of line 7, and ``<2`` a branch back to the
    second before it.
    """
    instructions = []
    for at, word in enumerate(text.split()):
        opcode, _, line = word.partition("@")
        back = opcode.startswith("<")
        instructions.append(
            Instruction(
                address=16 * at,
                opcode="BRA" if back else opcode,
                operands=hex(16 * (at - int(opcode[1:]))) if back else "",
                predicate="@P0" if back else "",
                line=int(line or 0),
            )
        )
    sass = Sass(function="f", arch="sm_90", instructions=tuple(instructions))
    return Code(origin="f", variant="", sass=sass, **{"registers": 8, "shared": 0, "stack": 0, **known})


def finding(text: str, of: Code) -> Finding:
    (found,) = check([parse(text)], of)
    assert found.expectation == parse(text)
    return found


LOOPED = "LDG@1 MOV@1 FFMA@2 FFMA@3 LDS.U.128@2 <3@2 STG@4 EXIT@4"


# ---- counts and shares -------------------------------------------------------------------------------


def test_findings_come_in_the_order_of_the_expectations() -> None:
    asked = [parse(text) for text in ("LDG", "no STG", "registers <= 4", "FFMA in loop == 2")]
    found = check(asked, code(LOOPED))
    assert [f.expectation for f in found] == asked
    assert [f.holds for f in found] == [True, False, False, True]
    assert [f.actual for f in found] == [1, 1, 8, 2]


def test_the_evidence_is_what_was_counted() -> None:
    whole = finding("FFMA >= 3", code("FFMA " + LOOPED))
    assert whole.holds and [i.address for i in whole.evidence] == [0, 48, 64] and whole.note == ""
    inside = finding("FFMA in loop", code("FFMA " + LOOPED))
    assert [i.address for i in inside.evidence] == [48, 64]
    none = finding("STS", code(LOOPED))
    assert (none.holds, none.actual, none.evidence, none.note) == (False, 0, (), "")


def test_a_share_is_of_the_instructions_of_its_scope() -> None:
    loop = finding("FFMA share in loop >= 50%", code(LOOPED))
    assert loop.holds and loop.actual == 0.5 and len(loop.evidence) == 2 and loop.amount == "50.0%"
    whole = finding("FFMA share >= 50%", code(LOOPED))
    assert not whole.holds and whole.actual == 0.25 and whole.amount == "25.0%"
    counted = finding("FFMA >= 3", code(LOOPED))
    assert (counted.holds, counted.amount) == (False, "2")


# ---- metrics -----------------------------------------------------------------------------------------


def test_metrics_are_compared_and_have_no_evidence() -> None:
    known = code(LOOPED, registers=64, shared=2048, stack=16, spills=12)
    for text in ("registers == 64", "shared == 2048", "stack == 16", "spills == 12", "instructions == 8"):
        found = finding(text, known)
        assert (found.holds, found.evidence, found.note) == (True, (), "")
        assert found.actual == found.expectation.value and found.amount == f"{found.actual:g}"
    high = finding("registers <= 63", known)
    assert (high.holds, high.actual) == (False, 64)
    assert finding("spills == 0", code(LOOPED, spills=0)).holds  # none is known, and not nothing known


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("spills >= 0", "a cubin does not say; 'no STL' and 'no LDL' look at the code itself"),
        ("registers >= 0", "a device function: its callers' count"),
        ("stack >= 0", "a device function: its callers' count"),
    ],
)
def test_a_metric_that_is_not_known_never_holds(text: str, why: str) -> None:
    found = finding(text, code(LOOPED, registers=None, stack=None, spills=None))
    assert (found.holds, found.actual, found.evidence) == (False, None, ())
    assert found.note == found.amount == why


# ---- loops -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["no STS in loop", "FFMA in loop >= 0", "no STS in loop at 2"])
def test_where_no_loop_is_nothing_holds_in_it(text: str) -> None:
    found = finding(text, code("LDG@1 FFMA@2 EXIT@3"))
    assert (found.holds, found.actual, found.note) == (False, None, "the code has no loop")


def test_lines_that_are_not_known_say_why() -> None:
    found = finding("no STS in loop at 2", code("MOV FFMA <1 EXIT"))
    assert (found.holds, found.actual) == (False, None)
    assert (
        found.note == ("the code has no source lines (CUDA C++ and nvdisasm 13.4 or newer give them)")
        and not finding("no STS in loop at 9", code(LOOPED)).holds
    )
    assert finding("no STS in loop at 9", code(LOOPED)).note == "no loop has code of line 9"
    assert finding("no STS in loop at 1", code(LOOPED)).note == "no loop has code of line 1"  # it is outside


def test_the_hot_loop_is_the_scope() -> None:
    two = code("MOV FADD <1 MOV FFMA FFMA <2 EXIT")
    assert finding("FFMA in loop", two).holds and finding("no FADD in loop", two).holds
    assert not finding("no FADD", two).holds and finding("FFMA in kernel == 2", two).holds


def test_of_loops_with_a_line_the_innermost_with_the_most_work() -> None:
    """Line 5 is in a small remainder, in the unrolled loop, and in the loop around that."""
    nested = code("MOV@5 FFMA@5 <1@5 MUFU@4 FFMA@5 FFMA@5 FFMA@5 <3@5 STG@4 <6@4 EXIT@6")
    assert finding("loops == 3", nested).holds
    at = finding("FFMA in loop at 5 == 3", nested)
    assert at.holds and at.actual == 3
    assert finding("no STG in loop at 5", nested).holds  # that is of the outer one
    assert finding("STG in loop at 4 == 1", nested).holds
    assert finding("FFMA in loop at 4 == 3", nested).holds


def test_matrix_instructions_are_more_work_than_many_others() -> None:
    both = code("MOV@5 FFMA@5 FFMA@5 FFMA@5 <3@5 HMMA@5 <1@5 EXIT@6")
    assert finding("HMMA in loop at 5", both).holds and finding("no FFMA in loop at 5", both).holds


# ---- spelling ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opcode", "note"),
    [
        ("LDSS.128", "LDSS is no opcode known here; did you mean LDS?"),
        ("LDLL", "LDLL is no opcode known here; did you mean LDL?"),
        ("FFFMA", "FFFMA is no opcode known here; did you mean FFMA?"),
        ("QQQQQQQQ", "QQQQQQQQ is no opcode known here"),
        ("LDL", ""),
        ("LDS.12.34", ""),
        ("ZZNEW.X", ""),  # unknown, but the code has it under other modifiers
    ],
)
def test_an_opcode_that_nobody_knows_is_said(opcode: str, note: str) -> None:
    found = finding(f"no {opcode}", code(LOOPED + " ZZNEW.Y.Z"))
    assert found.holds and found.actual == 0 and found.note == note
    assert finding(f"{opcode} in loop", code(LOOPED + " ZZNEW.Y.Z")).note == note


def test_the_nearest_is_sought_in_the_code_too() -> None:
    assert finding("no ZZNEWW", code("ZZNEW.A EXIT")).note.endswith("did you mean ZZNEW?")
