"""Parse expectations about machine code: ``LDS.128 in loop``, ``no LDL``, ``registers <= 128``.

The grammar, in which words in quotes stand for themselves::

    expectation = "no" OPCODE [scope]                      the scope has no such instruction
                | OPCODE [scope] [compare NUMBER]          their number; without one, at least one
                | OPCODE "share" [scope] compare NUMBER    their share of the instructions in the scope
                | METRIC compare NUMBER
    scope       = "in" "kernel"                            the default
                | "in" "loop"                              the hot loop: with the most floating-point or
                                                           matrix work in blocks of its own
                | "in" "loop" "at" LINE                    the innermost loop with code of that source line
                                                           and the most arithmetic
    compare     = ">=" | "<=" | "==" | "!=" | ">" | "<"
    METRIC      = "registers" | "spills" | "stack" | "shared" | "instructions" | "loops"

OPCODE matches by dotted components, in order: ``LDS.128`` matches ``LDS.U.128`` and not ``LDSM.128``. NUMBER
is an integer or a decimal; for a share it lies between 0 and 1, or is a percentage (``90%``). LINE counts
from 1. ``registers`` is per thread, ``spills`` and ``stack`` are bytes per thread, ``shared`` is bytes per
block, static and dynamic; ``instructions`` and ``loops`` count those in the code.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from harness.errors import UsageError
from harness.kernels.expr import Expr

COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
METRICS = ("registers", "spills", "stack", "shared", "instructions", "loops")
_TOKEN = re.compile(r"\s*(?:(>=|<=|==|!=|>|<)|([A-Za-z_][\w.]*)|([0-9]+(?:\.[0-9]+)?%?)|(\S))")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?\Z")
_LINE = re.compile(r"[1-9][0-9]{0,8}\Z")
_OPCODE = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Za-z0-9_]+)*\Z")
_COUNT, _SHARE, _METRIC = "count", "share", "metric"


@dataclass(frozen=True)
class Scope:
    """The part of the code that is counted, ``kernel`` or ``loop``.

    `line` picks the innermost loop with code of that source line.
    """

    name: str = "kernel"
    line: int | None = None

    def __str__(self) -> str:
        return self.name if self.line is None else f"{self.name} at {self.line}"


@dataclass(frozen=True)
class Expectation:
    """One expectation, parsed.

    `kind` is "count", "share" or "metric". `subject` is an opcode pattern, or a metric's name. `condition`
    says, in a kernel's file, of which parameter sets it is expected: those for which it is not 0.
    """

    text: str
    kind: str
    subject: str
    scope: Scope
    compare: str
    value: float
    condition: Expr | None = None

    def holds(self, actual: float) -> bool:
        """Return True where the value found in the code meets the expectation."""
        return COMPARE[self.compare](actual, self.value)

    def __str__(self) -> str:
        return self.text


class _Parser:
    """A recursive-descent parser. Each error points at the token that could not be read."""

    def __init__(self, text: str) -> None:
        self.text = text = re.sub(r"\s", " ", text)  # a line break would part text and pointer
        self.tokens = [(m.group().strip(), m.start(m.lastindex or 0)) for m in _TOKEN.finditer(text)]
        self.at = 0

    def fail(self, wanted: str) -> UsageError:
        position = self.tokens[self.at][1] if self.at < len(self.tokens) else len(self.text.rstrip())
        found = f"{self.tokens[self.at][0]!r}" if self.at < len(self.tokens) else "the end"
        return UsageError(
            f"cannot read the expectation: {wanted} expected, not {found}\n    {self.text}\n"
            f"    {' ' * position}^",
            hint="as in 'LDS.128 in loop', 'LDG.E.128 >= 4', 'FFMA share in loop >= 0.9', 'no LDL', "
            "'registers <= 128'",
        )

    def peek(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def take(self, *words: str) -> bool:
        if self.peek() in words:
            self.at += 1
            return True
        return False

    def opcode(self) -> str:
        token = self.peek()
        if not _OPCODE.match(token):
            raise self.fail("an opcode such as LDS.128")
        self.at += 1
        return token

    def number(self, share: bool) -> float:
        token = self.peek()
        percent = share and token.endswith("%")
        if not _NUMBER.match(token.removesuffix("%") if percent else token):
            raise self.fail("a number")
        value = float(token[:-1]) / 100 if percent else float(token)
        if share and value > 1:
            raise self.fail("a share between 0 and 1, or 0% and 100%,")
        self.at += 1
        return value

    def scope(self) -> Scope:
        if not self.take("in"):
            return Scope()
        if self.take("kernel"):
            return Scope()
        if not self.take("loop"):
            raise self.fail("'loop' or 'kernel'")
        if not self.take("at"):
            return Scope("loop")
        line = self.peek()
        if not _LINE.match(line):
            raise self.fail("a source line")
        self.at += 1
        return Scope("loop", int(line))

    def comparison(self, *, share: bool = False) -> tuple[str, float]:
        compare = self.peek()
        if not self.take(*COMPARE):
            raise self.fail("one of " + " ".join(COMPARE))
        return compare, self.number(share)

    def expectation(self) -> Expectation:
        if self.peek() in METRICS:
            metric = self.peek()
            self.at += 1
            return self.end(_METRIC, metric, Scope(), *self.comparison())
        if self.take("no"):
            return self.end(_COUNT, self.opcode(), self.scope(), "==", 0)
        subject = self.opcode()
        if self.take("share"):
            return self.end(_SHARE, subject, self.scope(), *self.comparison(share=True))
        scope = self.scope()
        compare, value = self.comparison() if self.at < len(self.tokens) else (">=", 1.0)
        return self.end(_COUNT, subject, scope, compare, value)

    def end(self, kind: str, subject: str, scope: Scope, compare: str, value: float) -> Expectation:
        if self.at < len(self.tokens):
            raise self.fail("the end")
        return Expectation(self.text.strip(), kind, subject, scope, compare, value)


def parse(text: str) -> Expectation:
    """Parse one expectation. Raises UsageError that shows the text and points at the offending token."""
    return _Parser(text).expectation()
