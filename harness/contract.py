"""Expectations against machine code -> findings, each with its evidence."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from harness.code import Code
from harness.expect import Expectation, Scope
from harness.opcodes import OPCODES
from harness.sass import Instruction

_NOT_IN_CUBIN = "a cubin does not say; 'no STL' and 'no LDL' look at the code itself"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """`actual` is what was counted; None where there was nothing to count in, for the reason in `note`.

    `evidence` holds the instructions that were counted, in address order. `note` may also warn that an
    opcode is one that no architecture is known to have.
    """

    expectation: Expectation
    holds: bool
    actual: float | None
    evidence: tuple[Instruction, ...] = ()
    note: str = ""

    @property
    def amount(self) -> str:
        """``4``, ``28.1%``, or why there was nothing to count in."""
        if self.actual is None:
            return self.note
        return f"{self.actual:.1%}" if self.expectation.kind == "share" else f"{self.actual:g}"


def check(expectations: Sequence[Expectation], code: Code) -> list[Finding]:
    """Every expectation, in order. One whose scope is not there does not hold, not even ``no X in loop``."""
    return [_check(e, code) for e in expectations]


def _check(e: Expectation, code: Code) -> Finding:
    if e.kind == "metric":
        known = code.metric(e.subject)
        if known is None:
            note = _NOT_IN_CUBIN if e.subject == "spills" else "a device function: its callers' count"
            return Finding(expectation=e, holds=False, actual=None, note=note)
        return Finding(expectation=e, holds=e.holds(known), actual=known)
    instructions, missing = _instructions(e.scope, code)
    if instructions is None:
        return Finding(expectation=e, holds=False, actual=None, note=missing)
    evidence = tuple(i for i in instructions if i.matches(e.subject))
    actual = len(evidence) / len(instructions) if e.kind == "share" else len(evidence)
    note = "" if evidence else _spelling(e.subject, code)
    return Finding(expectation=e, holds=e.holds(actual), actual=actual, evidence=evidence, note=note)


def _instructions(scope: Scope, code: Code) -> tuple[tuple[Instruction, ...] | None, str]:
    """Those of a scope; None and the reason where there is no such loop."""
    if scope.name == "kernel":
        return code.sass.instructions, ""
    if not code.loops:
        return None, "the code has no loop"
    if scope.line is None:
        return code.hot_loop.instructions if code.hot_loop else None, ""
    if not code.sass.has_lines:
        return None, "the code has no source lines (CUDA C++ and nvdisasm 13.4 or newer give them)"
    at = [loop for loop in code.loops if any(i.line == scope.line for i in loop.instructions)]
    if not at:
        return None, f"no loop has code of line {scope.line}"
    inner = [a for a in at if not any(a.contains(b) for b in at)]  # unrolled, and its remainder, say
    return max(inner, key=lambda loop: loop.work).instructions, ""


def _spelling(pattern: str, code: Code) -> str:
    """A warning for an opcode that nothing is known to have: ``no LDLL`` would always hold."""
    base = pattern.split(".", maxsplit=1)[0]
    here = {i.opcode.split(".")[0] for i in code.sass.instructions}
    if base in here | OPCODES:
        return ""
    close = difflib.get_close_matches(base, sorted(here | OPCODES), n=1)
    return f"{base} is no opcode known here" + (f"; did you mean {close[0]}?" if close else "")
