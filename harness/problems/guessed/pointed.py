"""Structs among guessed arguments: by value with pointers in them, and those that pointers lead to.

What the pointers of a struct lead to are operands, ``rows.x``, ``lists[3].data`` or ``image.planes[2]``. They
have one axis for all places of an array, ``lists.data``, that says how many elements each of them has.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from harness.kernels import text
from harness.kernels.cpp import elements, extents
from harness.kernels.cpp.host.launches import Launch
from harness.kernels.cpp.host.values import SIZEOF
from harness.kernels.expr import Expr, ExprError
from harness.problems.protocol import Struct, Table

_MOST, _FEWEST, _ELEMENTS = 1024, 64, 2**22  # pointers in a table, and elements behind all of them
_BYTES = 2**22  # of a buffer whose length host code knows


def divided(
    entry: text.Entry, maps: Collection[str], types: dict[str, Any]
) -> tuple[list[text.Parameter], list[text.Parameter]]:
    """Return the parameters that are values, and the pointers: parameters, and axes of those in structs.

    The types of the latter go to `types`.
    """
    values = [p for p in entry.parameters if not p.pointer and p.name not in maps]
    pointers = [p for p in entry.parameters if p not in values]
    for p in (*values, *pointers):
        for at in elements.pointers(types[p.name]):
            if (name := f"{p.name}{at.axis}") not in types:
                types[name] = at.kind
                pointers.append(text.Parameter(type="", name=name, pointer=True, const=at.const))
    return values, pointers


def operands(
    pointers: Sequence[text.Parameter], values: Sequence[text.Parameter], types: dict[str, Any], sizes: Any
) -> dict[str, list[str]]:
    """Return the names of the operands of each axis of `pointers`; `sizes` has the elements of each."""
    found: dict[str, list[str]] = {p.name: [] for p in pointers}
    for p in values:
        for at in elements.pointers(types[p.name]):
            found[f"{p.name}{at.axis}"].append(f"{p.name}{at.path}")
    for p in pointers:
        if not found[p.name]:
            found[p.name].append(p.name)
        for at in elements.pointers(types[p.name]):
            found[f"{p.name}{at.axis}"] += (f"{p.name}[{i}]{at.path}" for i in range(sizes[p.name]))
    return found


def table(name: str, kind: np.dtype[Any], count: int) -> Table:
    """Return a pointer to `count` structs with pointers as an argument."""
    inside = list(elements.pointers(kind))
    places = {i * kind.itemsize + at.offset: f"{name}[{i}]{at.path}" for i in range(count) for at in inside}
    return Table(operand=name, pointers=places)


def entries(size: int, length: int) -> int:
    """Return how many structs with pointers to guess, for a size, and `length` elements behind each."""
    return max(1, min(size, _MOST, max(_FEWEST, _ELEMENTS // max(length, 1))))


def plain(body: str, tables: Sequence[text.Parameter], types: dict[str, Any]) -> str:
    """Return a body whose pointers in structs are called as their axes: ``lists.data[i]``.

    So is ``lists[row].data[i]``, ``lists->data[i]`` and, of pointers to pointers, ``lists[row][i]``.
    """
    for p in tables:
        name, place = rf"\b{re.escape(p.name)}\s*", r"\[[^][]*\]\s*"
        if types[p.name].names == (elements.EACH,):
            body = re.sub(rf"{name}{place}(?=\[)", f"{p.name}.{elements.EACH}", body)
        else:
            body = re.sub(rf"{name}(?:{place}\.|->)\s*", f"{p.name}.", body)
    return body


def limits(body: str, values: Sequence[text.Parameter], types: dict[str, Any]) -> dict[str, int]:
    """Return how many blocks there are along an axis whose index is one of an array in a struct by value.

    So are 4 along y where ``lists.data[blockIdx.y]`` has a place in an array of four pointers.
    """
    found: dict[str, int] = {}
    for p in values:
        inside = elements.pointers(types[p.name])
        lengths = {at.path.partition("[")[0]: at.first for at in inside if at.first}
        for path, length in lengths.items():
            for index in re.findall(rf"\b{re.escape(p.name + path)}\s*\[\s*([\w.]+)\s*\]", body):
                given = re.search(rf"\b{re.escape(index)}\s*=\s*(blockIdx\.[xyz])\s*[,;]", body)
                block = re.fullmatch(r"blockIdx\.([xyz])", given[1] if given else index)
                if block:
                    found[block[1]] = min(length, found.get(block[1], length))
    return found


def by_value(kind: elements.Type) -> np.dtype[Any] | None:
    """Return the layout of a struct or vector as an argument; None for a number."""
    if isinstance(kind, np.dtype):
        return kind
    return np.dtype([("m0", kind[0], (kind[1],))]) if kind[1] > 1 else None


def _filled(kind: np.dtype[Any], value: float) -> Any:
    """Return a struct whose integers are `value`, or the most they hold.

    Its floats are what the text begins them with, or 1 where there are integers.
    """
    found = np.zeros((), kind)
    whole = any("int" in number for number in elements.numbers(kind))
    initial = dict(kind.metadata or {}).get("given", {})
    for name in kind.names or ():
        part = kind[name].base
        if part.metadata and not part.names:
            continue  # a pointer
        if part.names:
            found[name] = _filled(part, value)
        else:
            real = 1 if whole else scalar(part.name, value)
            found[name] = initial.get(name, real) if part.kind == "f" else scalar(part.name, value)
    return found[()]


def argument(name: str, kind: np.dtype[Any], value: float) -> np.generic | Struct:
    """Return a struct by value as an argument: with pointers the bytes between them, and their operands."""
    filled: np.generic = _filled(kind, value)
    if not (pointers := list(elements.pointers(kind))):
        return filled
    data, found, done = filled.tobytes(), dict[str, np.generic | str](), 0
    for at in (*pointers, None):
        end = at.offset if at else len(data)
        if end > done:
            found[f"from {done}"] = np.void(data[done:end])
        if at:
            found[at.path] = f"{name}{at.path}"
            done = at.offset + 8
    return Struct(found)


def scalar(kind: str, value: float) -> Any:
    """Return a number of a NumPy type, or the largest that it can hold."""
    dtype = np.dtype(kind)
    return dtype.type(min(value, np.iinfo(dtype).max) if dtype.kind in "iu" else value)


def lengths(
    launched: Launch | None, entry: text.Entry, types: Mapping[str, elements.Type], whole: Sequence[str]
) -> dict[str, Expr]:
    """Return the bytes that host code allocates for the pointers of a kernel, in terms of its values.

    The size of a type that is not known is that of an element, if the pointer leads to this type. A number
    counts, as of the bins of a histogram, unless one of the sizes `whole` is known to be no larger, or one
    that is not bounds a part of an index.
    """
    if launched is None:
        return {}
    names, integers = [p.name for p in entry.parameters], dict[str, int | None]()
    for p, number in zip(entry.parameters, launched.numbers, strict=False):
        if not p.pointer and any("int" in kind for kind in elements.numbers(types[p.name])):
            integers[p.name] = number
    # A name of the host that the kernel has, too, is a macro, and no parameter is another number.
    macros = {a for a, n in zip(launched.arguments, names, strict=False) if a.isidentifier() and a != n}
    macros &= {*re.findall(r"\w+", entry.body)} - {*names}
    known = ("" if macros & {*re.findall(r"\w+", length)} else length for length in launched.lengths)
    written, found = launched.over(names, list(known)), dict[str, Expr]()
    for p, length, number in zip(entry.parameters, written, launched.bytes, strict=False):
        size, own = elements.size(types[p.name]), re.findall(r"\w+", p.type)[-1:]
        kinds = {*re.findall(rf"\b{SIZEOF}(\w+)", length)} - {*own}
        same = not kinds or (own and _generic(own[0], entry)) or all(_generic(kind, entry) for kind in kinds)
        if p.pointer and length and same and (size > 1 or SIZEOF not in length):
            with contextlib.suppress(ExprError):
                found[p.name] = Expr.parse(re.sub(rf"\b{SIZEOF}\w*", str(size), length))
        elif (
            p.pointer
            and size <= number <= _BYTES
            and all(n is None or n * size > number for n in integers.values())
            and all(_bounds(entry.body, p.name, whole).values())
        ):
            found[p.name] = Expr.parse(number)
    return {pointer: length for pointer, length in found.items() if length.names <= integers.keys()}


def rooms(
    entry: text.Entry,
    usual: Mapping[str, int],
    types: Mapping[str, elements.Type],
    allocated: Mapping[str, Expr],
) -> dict[str, int]:
    """Return the sizes up to which a loop goes through a buffer that is shorter than usual: its length."""
    found = dict[str, int]()
    for name, length in allocated.items():
        if not length.names:
            count = length({}) // elements.size(types[name])
            found |= {n: min(count, found.get(n, usual[n])) for n in _bounds(entry.body, name, [*usual])}
    return found


def _bounds(body: str, pointer: str, sizes: Sequence[str]) -> dict[str, bool]:
    """Return the sizes below which a variable in the indices of a pointer stays, ``j`` of ``j < n``.

    It is True where such a variable is the whole index, ``x[j]``, each time.
    """
    found = dict[str, bool]()
    for place in extents.places(body, pointer):
        for size in sizes:
            below = re.findall(rf"\b(\w+)\s*<\s*{re.escape(size)}\b", body)
            if below and (at := re.search(rf"\b(?:{'|'.join(below)})\b", place)):
                found[size] = found.get(size, True) and place.strip() == at[0]
    return found


def _generic(kind: str, entry: text.Entry) -> bool:
    """Return True for what a template calls a type of its own, or one of the host does."""
    own = any(p.split()[-1] == kind for p in entry.template)
    return own or bool(re.fullmatch(r"T\w?|scalar_t|\w*(?:[Tt]ype|[Ss]calar|[Rr]eal)", kind))
