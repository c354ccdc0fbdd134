"""Tell what lies behind pointers of a PTX text: by what its registers are used as, and by how it loads."""

from __future__ import annotations

import re
from collections.abc import Iterable

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
_REGISTER = re.compile(r"%[\w$]+(?:\.[xyz])?")


def used(statements: Iterable[str]) -> dict[str, set[str]]:
    """Return what the registers of some statements are used as: floats, or integers to compute with."""
    found = dict[str, set[str]]()
    for s in statements:
        if at := _CONVERTED.match(s):
            for kind, register in ((at[1], at[3]), (at[2], at[4])):
                found.setdefault(register, set()).add(kind)
        elif at := _TYPED.match(s):
            for register in _REGISTER.findall(s):
                found.setdefault(register, set()).add(at[1])
    return found


def element(kinds: set[str], width: int) -> str:
    """Return the C++ of an element of so many bytes: as its values are used, else as they are loaded."""
    order = [k for k in CPP if k in kinds and not k.startswith("b")] + [k for k in CPP if k in kinds]
    fitting = [k for k in order if int(re.findall(r"8|16|32|64", k)[0]) == 8 * width]
    return CPP[(fitting or order or ["b8"])[0]]
