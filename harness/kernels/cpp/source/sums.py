"""Integers and conditions that PTX computes, as sums written in C++: what an index is made of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_BETWEEN = {"and": "&", "xor": "^", "div": "/", "rem": "%", "shl": "<<", "shr": ">>"}


@dataclass(frozen=True)
class Sum:
    """A value as a sum: factors by what they multiply, a number, and the pointer that it is added to."""

    terms: Mapping[str, int] = field(default_factory=dict)
    number: int = 0
    base: str = ""

    def plus(self, other: Sum, sign: int = 1) -> Sum:
        """Return this value and `other`, `sign` times."""
        terms = dict(self.terms)
        for name, factor in other.terms.items():
            terms[name] = terms.get(name, 0) + sign * factor
        kept = {name: factor for name, factor in terms.items() if factor}
        return Sum(kept, self.number + sign * other.number, self.base or other.base)

    def times(self, other: Sum) -> Sum:
        """Return the product with `other`: each term's where one is a number."""
        if self.terms and other.terms:
            return Sum({f"{self.factor()} * {other.factor()}": 1})
        few, many = (self, other) if not self.terms else (other, self)
        return Sum({n: f * few.number for n, f in many.terms.items() if few.number}, many.number * few.number)

    def over(self, bytes: int) -> Sum:
        """Return the elements of so many `bytes` each; what is no whole number of them stays a division."""
        whole = {n: f // bytes for n, f in self.terms.items() if f % bytes == 0}
        rest = Sum({n: f for n, f in self.terms.items() if f % bytes})
        found = Sum(whole, self.number // bytes)
        return found.plus(Sum({f"({rest}) / {bytes}": 1})) if rest.terms else found

    def factor(self) -> str:
        """Return the value as it stands beside a star."""
        written = str(self)
        return written if re.fullmatch(r"[\w.]+|\([^()]*\)", written) else f"({written})"

    def __str__(self) -> str:
        parts = [str(n) if f == 1 else f"{_tight(n)} * {f}" for n, f in self.terms.items()]
        if self.number or not parts:
            parts.append(str(self.number))
        return " + ".join(parts).replace("+ -", "- ")


def computed(base: str, parts: Sequence[str], values: Sequence[Sum]) -> Sum | None:
    """Return what an instruction on integers computes."""
    a, b, *more = values
    if base in ("add", "or"):  # of disjoint bits, in an address
        return a.plus(b)
    if base == "sub":
        return a.plus(b, -1)
    if base in ("mul", "mul24") and "hi" not in parts:
        return _product(a, b)
    if base in ("mad", "mad24") and "hi" not in parts and more:
        return _product(a, b).plus(more[0])
    if base == "shl" and not b.terms and 0 <= b.number < 32:
        return _product(a, Sum(number=1 << b.number))
    if base == "shr" and parts[-1].startswith("s") and not b.terms and b.number in (31, 63):
        return Sum()  # the sign, of what is divided by a power of two: sizes have none
    if base == "shr" and not a.terms:
        return a
    if base == "shr" and not b.terms and 0 <= b.number < 32:
        return Sum({f"{a.factor()} / {1 << b.number}": 1})
    if base in _BETWEEN:
        return Sum({f"({a.factor()} {_BETWEEN[base]} {b.factor()})": 1})
    if base in ("min", "max"):
        return Sum({f"{base}({a}, {b})": 1})
    return None


def _product(a: Sum, b: Sum) -> Sum:
    return Sum({f"{n}": 1 for n in ("?",)}) if a.base or b.base else a.times(b)


def simple(value: Sum) -> bool:
    """Return True for a name, a multiple of one, and a number."""
    return bool(re.fullmatch(r"[\w.]+(?: \* \d+)?|-?\d+", str(value)))


def _tight(name: str) -> str:
    return f"({name})" if re.search(r" [-+?] ", name) and not name.startswith("(") else name


def negated(condition: str) -> str:
    """Return the contrary of a condition; of one comparison the other one."""
    other = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}
    found = re.fullmatch(r"([^&|<>=!]+) (<|>=|>|<=|==|!=) ([^&|<>=!]+)", condition)
    return f"{found[1]} {other[found[2]]} {found[3]}" if found else f"!({condition})"
