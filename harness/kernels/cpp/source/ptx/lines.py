"""Write single lines of the C++ of a PTX text, and leave out those that lead to nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from harness.kernels.cpp.source.ptx.assembly import name_of
from harness.kernels.cpp.source.ptx.conventions import Part
from harness.kernels.cpp.source.ptx.sums import Sum

_ATOMICS = ("add", "cas", "exch", "min", "max", "and", "or", "xor", "inc", "dec")
_GIVEN = re.compile(r"int (\w+) = ")


def access(parts: Sequence[str], place: str, value: str, given: Sequence[Sum]) -> str:
    """Return an access to one element in C++; `value` is the register that is loaded.

    given: the operands that are no places
    """
    if parts[0] in ("atom", "red"):
        called = next((p for p in parts if p in _ATOMICS), "add")
        name = "CAS" if called == "cas" else called.capitalize()
        return f"atomic{name}({', '.join([f'&{place}', *map(str, given[parts[0] == 'atom' :])])});"
    if parts[0] == "st":
        return f"{place} = {given[0]};"
    return f"{name_of(value)} = {place};" if value else f"{place};"


def part(part: Part) -> Sum:
    """Return what is loaded of a part: its name, or what follows from others."""
    if part.name:
        return Sum(base=part.name) if part.pointer else Sum({part.name: 1})
    return Sum({" * ".join(part.over): part.factor}) if part.over else Sum(number=part.factor)


def needed(lines: Sequence[str]) -> list[str]:
    """Return the lines without variables that lead to no access and no condition, such as random numbers."""
    kept = list(lines)
    while True:
        uses = Counter(word for line in kept for word in re.findall(r"\w+", line))
        found = [line for line in kept if (at := _GIVEN.match(line)) is None or uses[at[1]] > 1]
        if len(found) == len(kept):
            return found
        kept = found


def strides(name: str, body: str) -> bool:
    """Return True for a parameter that multiplies indices, and is neither compared nor divided by."""
    other = r"(?:param|stride)_\d+"
    times = rf"\b{name} \* (?!{other}\b)[\w(]*[A-Za-z]|[\w.)]*[A-Za-z)][\w.]* \* {name}\b"
    besides = rf"(?:[<>]=?|[=!]=|[/%]|\b{other} \*) {name}\b|\b{name} (?:[<>!]=?|==|[/%]|\* {other}\b)"
    return bool(re.search(times, body)) and not re.search(besides, body)
