"""Declarations of PTX variables: state space, type, size, offset and initial values.

Grammar: PTX ISA, "State Spaces, Types, and Variables".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.emulator.ptx.literals import declared_integer, initial_values, value_bytes
from harness.errors import EmulatorError

# Bytes of a value by its PTX type.
BYTES = {"b8": 1, "b16": 2, "b32": 4, "b64": 8, "b128": 16, "f16": 2, "bf16": 2, "f16x2": 4, "bf16x2": 4} | {
    f"{kind}{bits}": bits // 8 for kind in "us" for bits in (8, 16, 32, 64)
}
BYTES |= {"f32": 4, "f64": 8, "tf32": 4, "pred": 1}

_NUMBER = r"(?:0[xX][\da-fA-F]+|\d+)U?"
_ATTRIBUTES = re.compile(rf"(?:\.\w+(?:\s*\([^()]*\))?\s+(?:{_NUMBER}\s+)?)+")
_DECLARED = re.compile(
    rf"\s*(?P<name>[\w$%]+)\s*(?P<shape>(?:\[\s*(?:{_NUMBER})?\s*\]\s*)*)(?:=(?P<values>.*))?$", re.DOTALL
)
OPAQUE = ("texref", "surfref", "samplerref")  # types of references, which a launch binds to objects
RESERVED, RESERVED_BYTES = "%reserved", 1024  # shared memory of the system's, from sm_80 on
LARGEST = 1 << 32  # bytes of a variable or a parameter; more is an error in the text

_NUMBERS = re.compile(r"[\d\s,{}]*")  # initial values without signs and names


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A declared variable.

    space: ``shared``, ``global``, ``const``, ``local`` or, of what a call passes, ``param``
    type: the type of an element, a key of `BYTES` or one of `OPAQUE`
    offset: bytes from the start of the space
    size: bytes; 0 for dynamic shared memory
    values: the text of the initialiser, "" without one
    align: bytes of which the offset is a multiple
    frame: the register with the address that the offset counts from; "" for the start of the space
    """

    name: str
    space: str
    type: str
    offset: int
    size: int
    values: str = ""
    align: int = 1
    frame: str = ""


def declare(
    text: str,
    line: int,
    variables: dict[str, Variable],
    sizes: dict[str, int],
    named: Callable[[str], str] = str,
) -> None:
    """Add the variables of one declaration, such as ``.shared .align 16 .f32 a[8], b``.

    line: the PTX line, for messages
    variables: gets the variables, by name
    sizes: bytes in use of each space, which grow
    named: returns the name under which a declared name is kept

    Raises EmulatorError for text that is not a declaration.
    """
    attributes = _ATTRIBUTES.match(text)
    words = re.sub(r"\(.*?\)", " ", attributes[0]).replace(".", " ").split() if attributes else []
    space = next((w for w in words if w in ("shared", "global", "const", "local", "param")), "")
    kind = next((w for w in words if w in BYTES or w in OPAQUE), "")
    if "tex" in words:  # ``.tex .u64 name``, the old form of ``.global .texref name``
        space, kind = "global", OPAQUE[0]
    found = [_DECLARED.match(declared) for declared in _apart(text[attributes.end() :] if attributes else "")]
    for match in found:
        try:
            if not match or not kind:
                raise ValueError
            size = BYTES.get(kind, 8) * next((int(w[1:]) for w in words if w in ("v2", "v4", "v8")), 1)
            align = declared_integer([*words, ""][words.index("align") + 1]) if "align" in words else size
            for count in _extents(match["shape"], match["values"]):
                size *= count
        except ValueError:
            raise EmulatorError(f"not a declaration: {text[:60]!r}", where=f"PTX line {line}") from None
        name = named(match["name"])
        if size > LARGEST:
            raise EmulatorError(f"variable {name} is {size} bytes large", where=f"PTX line {line}")
        offset = aligned(sizes.get(space, 0), align, line)
        sizes[space] = offset + size
        variables[name] = Variable(
            name=name,
            space=space,
            type=kind,
            offset=offset,
            size=size,
            values="" if kind in OPAQUE else match["values"] or "",
            align=align,
        )


def _extents(shape: str, values: str | None) -> list[int]:
    """Return the extents of an array, [1] for a scalar.

    A first extent that is left out follows from the initial values, and is 0 without any.
    """
    first, *others = re.findall(r"\[\s*(\w*)\s*\]", shape) or ["1"]
    extents = [declared_integer(count) for count in others]
    if first:
        return [declared_integer(first), *extents]
    row = math.prod(extents)
    return [-(-len(initial_values(values or "")) // row) if row else 0, *extents]


def _apart(text: str) -> list[str]:
    """Split the declared names at the commas between them, not at those within braces."""
    parts, depth, begin = [], 0, 0
    for mark in re.finditer("[{},]", text):  # a table may have megabytes
        depth += (mark[0] == "{") - (mark[0] == "}")
        if mark[0] == "," and not depth:
            parts.append(text[begin : mark.start()])
            begin = mark.end()
    return [*parts, text[begin:]]


def aligned(offset: int, step: int, line: int) -> int:
    """Round `offset` up to a multiple of `step`. Raises EmulatorError, with the PTX line, if `step` < 1."""
    if step < 1:
        raise EmulatorError(f"an alignment of {step}", where=f"PTX line {line}")
    return -(-offset // step) * step


def values_of(variable: Variable) -> NDArray[Any]:
    """Return the bytes of a variable, uint8: its initial values in order, then zeros.

    Raises EmulatorError for more values than fit, and for a value that is not a number.
    """
    size = BYTES[variable.type]
    data = np.zeros(variable.size, np.uint8)
    tokens = initial_values(variable.values)
    plain = size <= 8 and _NUMBERS.fullmatch(variable.values) and len(max(tokens, key=len, default="")) < 19
    if plain and len(tokens) * size <= len(data):  # a table may have a hundred thousand
        numbers = np.array([int(token) for token in tokens], np.uint64).astype(f"<u{size}")
        data[: numbers.nbytes] = numbers.view(np.uint8)
        return data
    for place, token in enumerate(tokens):
        raw = bytes(size) if _pointer(token) else value_bytes(token, size, variable.type, variable.name)
        if (place + 1) * size > len(data):
            raise EmulatorError(f"variable {variable.name} has more values than room")
        data[place * size : (place + 1) * size] = np.frombuffer(raw, np.uint8)
    return data


def pointers_of(variable: Variable) -> list[tuple[int, str, int]]:
    """Return (byte, name, addend) of each initial value that is the address of a variable, ``a + 4``."""
    size = BYTES.get(variable.type, 8)
    tokens = initial_values(variable.values) if re.search(r"[A-Za-z_$]\w{2}", variable.values) else []
    found = ((place * size, _pointer(token)) for place, token in enumerate(tokens))
    return [(place, match[1], int(match[2] or 0)) for place, match in found if match]


def _pointer(token: str) -> re.Match[str] | None:
    """Return the match of an initial value that names a variable: its name, and what is added."""
    return re.fullmatch(r"(?:generic\()?([A-Za-z_$][\w$]*|%[\w$]+)\)?(?:\+(\d+))?", token)
