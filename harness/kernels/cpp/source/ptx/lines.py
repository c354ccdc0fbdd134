"""Write single lines of the C++ of a PTX text, and types; leave out the lines that lead to nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from harness.kernels.cpp.source.ptx.assembly import bytes_of, name_of
from harness.kernels.cpp.source.ptx.conventions import Part
from harness.kernels.cpp.source.ptx.sums import Sum

CPP = {  # types of elements by how registers with them are used
    "f64": "double", "f32": "float", "f16": "__half", "f16x2": "__half", "bf16": "__nv_bfloat16",
    "bf16x2": "__nv_bfloat16", "b8": "unsigned char", "u8": "unsigned char", "s8": "signed char",
    "b16": "__half", "u16": "unsigned short", "s16": "short", "b32": "float", "u32": "unsigned int",
    "s32": "int", "b64": "long long", "u64": "unsigned long long", "s64": "long long",
}  # fmt: skip
NUMBERS = {"u64": "long long", "b64": "long long", "b32": "int", "u32": "int", "b16": "short"}
ELEMENTS = dict(  # of tensor maps, by PTX's numbers
    enumerate(("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32", "f64", "bf16", "f32", "f32"))
)
_TYPED = re.compile(
    r"(?:@\S+ )?(?!cvt|mov|st|ld|red|atom)\S*?\.(f64|f32|f16x2|f16|bf16x2|bf16|[us](?:16|32|64))\b"
)
_CONVERTED = re.compile(r"(?:@\S+ )?cvt\S*?\.(\w+)\.(\w+) (%[\w$]+), *(%[\w$]+)")
REGISTER = re.compile(r"%[\w$]+(?:\.[xyz])?")
_ATOMICS = ("add", "cas", "exch", "min", "max", "and", "or", "xor", "inc", "dec")
_GIVEN = re.compile(r"int (\w+) = ")


def used(statements: Iterable[str]) -> dict[str, set[str]]:
    """Return what the registers of some statements are used as: floats, or integers to compute with."""
    found = dict[str, set[str]]()
    for s in statements:
        if at := _CONVERTED.match(s):
            for kind, register in ((at[1], at[3]), (at[2], at[4])):
                found.setdefault(register, set()).add(kind)
        elif at := _TYPED.match(s):
            for register in REGISTER.findall(s):
                found.setdefault(register, set()).add(at[1])
    return found


def element(kinds: set[str], width: int) -> str:
    """Return the C++ of an element of so many bytes: as its values are used, else as they are loaded."""
    order = [k for k in CPP if k in kinds and not k.startswith("b")] + [k for k in CPP if k in kinds]
    fitting = [k for k in order if bytes_of(k) == width]
    return CPP[(fitting or order or ["b8"])[0]]


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
        found = list[str]()
        for line in reversed(kept):  # what a line without use has used may be without one, too
            if (at := _GIVEN.match(line)) is None or uses[at[1]] > 1:
                found.append(line)
            else:
                uses.subtract(re.findall(r"\w+", line))
        if len(found) == len(kept):
            return kept
        kept = found[::-1]


def strides(name: str, body: str) -> bool:
    """Return True for a parameter that multiplies indices, and is neither compared nor divided by."""
    other = r"(?:param|stride)_\d+"
    times = rf"\b{name} \* (?!{other}\b)[\w(]*[A-Za-z]|[\w.)]*[A-Za-z)][\w.]* \* {name}\b"
    besides = rf"(?:[<>]=?|[=!]=|[/%]|\b{other} \*) {name}\b|\b{name} (?:[<>!]=?|==|[/%]|\* {other}\b)"
    return bool(re.search(times, body)) and not re.search(besides, body)
