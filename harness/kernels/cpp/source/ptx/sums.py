"""Integers and conditions that PTX computes, as sums written in C++: what an index is made of."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_BETWEEN = {"and": "&", "xor": "^", "div": "/", "rem": "%", "shl": "<<", "shr": ">>"}
_COMPARED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="} | {
    "lo": "<", "ls": "<=", "hi": ">", "hs": ">=",
}  # fmt: skip
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_SIZE = re.compile(r"(?:param|stride)_\d\w*")


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

    def as_number(self) -> Sum:
        """Return this value with a pointer as a term."""
        return Sum({self.base: 1, **self.terms}, self.number) if self.base else self

    def times(self, other: Sum) -> Sum:
        """Return the product with `other`: each term's where one is a number."""
        if self.terms and other.terms:
            (a, times), (b, more) = self._apart(), other._apart()
            return Sum({f"{a.factor()} * {b.factor()}": times * more})
        few, many = (self, other) if not self.terms else (other, self)
        return Sum({n: f * few.number for n, f in many.terms.items() if few.number}, many.number * few.number)

    def _apart(self) -> tuple[Sum, int]:
        """Return the value by what divides all of it, and that, as the bytes of a stride."""
        by = math.gcd(self.number, *self.terms.values())
        return Sum({name: factor // by for name, factor in self.terms.items()}, self.number // by), by

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
    """Return what an instruction on integers computes; None of one that is not known.

    A parameter of 64 bits is a pointer where something is added to it alone; elsewhere it is a number.
    """
    if base in ("add", "or") and not (values[0].base and values[1].base):  # of disjoint bits, in an address
        return values[0].plus(values[1])
    a, b, *more = (value.as_number() for value in values)
    power = 1 << b.number if not b.terms and 0 <= b.number < 64 else 0
    match base:
        case "add" | "or":
            return a.plus(b)
        case "sub":
            return values[0].plus(b, -1)
        case "mul" | "mul24" if "hi" not in parts:
            return a.times(b)
        case "mad" | "mad24" if "hi" not in parts and more:
            return a.times(b).plus(values[2])
        case "shl" if power:
            return a.times(Sum(number=power))
        case "shr" if power in (1 << 31, 1 << 63):
            return Sum()  # the sign, of what is divided by a power of two: sizes have none
        case "shr" | "and" if not a.terms and not a.number:
            return a
        case "shr" if power:
            return Sum({f"{a.factor()} / {power}": 1})
        case "min" | "max":
            return Sum({f"{base}({a}, {b})": 1})
        case _ if base in _BETWEEN:
            return Sum({f"({a.factor()} {_BETWEEN[base]} {b.factor()})": 1})
    return None


def compared(a: Sum, by: str, b: Sum) -> str:
    """Return a comparison as it is written mostly: with a size behind the sign, ``i < n`` for ``n > i``."""
    sign = _COMPARED.get(by, "==")
    sizes = [bool(each.terms) and all(map(_SIZE.fullmatch, each.terms)) for each in (a, b)]
    if sizes == [True, False] and b.terms:
        return f"{b} {_MIRRORED.get(sign, sign)} {a}"
    return f"{a} {sign} {b}"


def simple(value: Sum) -> bool:
    """Return True for a name, a multiple of one, and a number."""
    return bool(re.fullmatch(r"[\w.]+(?: \* \d+)?|-?\d+", str(value)))


def _tight(name: str) -> str:
    return f"({name})" if re.search(r" [-+] ", name) and not name.startswith("(") else name


def negated(condition: str) -> str:
    """Return the contrary of a condition; of one comparison the other one."""
    other = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}
    found = re.fullmatch(r"([^&|<>=!]+) (<|>=|>|<=|==|!=) ([^&|<>=!]+)", condition)
    return f"{found[1]} {other[found[2]]} {found[3]}" if found else f"!({condition})"
