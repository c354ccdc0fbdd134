"""Structs among guessed arguments: by value with pointers in them, and those that pointers lead to.

What the pointers of a struct lead to are operands, ``rows.x``, ``lists[3].data`` or ``image.planes[2]``. They
have one axis for all places of an array, ``lists.data``, that says how many elements each of them has.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from harness.kernels import text
from harness.kernels.cpp import elements, extents, members
from harness.kernels.cpp.host.tensors import Encoded
from harness.kernels.cpp.host.values import Values
from harness.kernels.cpp.source.ptx.conventions import Part
from harness.kernels.expr import Expr
from harness.problems.protocol import Argument, Member, Struct, Table, Tensor

_GROUPS = 4  # tensor maps behind a pointer
_MOST, _FEWEST, _ELEMENTS = 1024, 64, 2**22  # pointers in a table, and elements behind all of them


def cast(
    parameter: text.Parameter, body: str, known: Mapping[str, str], texts: Sequence[str]
) -> text.Parameter:
    """Return a pointer to nothing as one to what a body takes it for, ``(half*)x``; else to float.

    known: the template arguments of the kernel
    """
    if not parameter.pointer or parameter.type != "void":
        return parameter
    kind = r"\s*(?:const\s+)?(?:typename\s+)?([A-Za-z_][\w: ]*?)\s*(?:const\s*)?\*\s*(?:__restrict__\s*)?"
    name = rf"(?:\(\s*)?{re.escape(parameter.name)}\b"
    taken = {*re.findall(rf"\({kind}\)\s*{name}", body), *re.findall(rf"_cast\s*<{kind}>\s*{name}", body)}
    found = {known.get(one, one): elements.of(known.get(one, one), texts) for one in taken - {"void"}}
    sizes = {one: elements.size(of) if of else 0 for one, of in found.items()}
    if not sizes:
        return parameter
    widest = max(sizes, key=lambda one: sizes[one])
    return replace(parameter, type=widest if sizes[widest] else "float")


def divided(
    entry: text.Entry, maps: Mapping[str, Encoded], types: dict[str, Any], images: Collection[str] = ()
) -> tuple[list[text.Parameter], list[text.Parameter]]:
    """Return the parameters that are values, and the pointers: parameters, and axes of those in structs.

    The types of the latter go to `types`. So do those of the tensors of which a struct has `maps`. Of
    textures and surfaces, `images`, neither has any.
    """
    parameters = [p for p in entry.parameters if p.name not in images]
    values = [p for p in parameters if not p.pointer and p.name not in maps]
    pointers = [p for p in parameters if p not in values]
    for p in (*values, *pointers):
        for at in elements.pointers(types[p.name]):
            if (name := f"{p.name}{at.axis}") not in types:
                types[name] = at.kind
                pointers.append(text.Parameter(type="", name=name, pointer=True, const=at.const))
        for name in (f"{p.name}{path}" for path, _ in elements.maps(types[p.name])):
            types[name] = (maps[name].element.lower(), 1)
            pointers.append(text.Parameter(type=elements.MAP, name=name, pointer=True))
    return values, pointers


@dataclass(frozen=True)
class Several:
    """An array of so many tensor maps behind a pointer, or as many as a `size` says, if that is more."""

    count: int
    size: str = ""

    def number(self, sizes: Mapping[str, Any]) -> int:
        """Return how many there are."""
        return min(_MOST, max(self.count, int(sizes.get(self.size, 0))))


def several(
    entry: text.Entry, maps: Mapping[str, Encoded], host: str, integers: Sequence[str], numbers: Values
) -> dict[str, Several]:
    """Return the pointers to tensor maps of which a kernel chooses one, ``&maps[group]``."""
    found = dict[str, Several]()
    arrays = re.findall(rf"\b{elements.MAP}\b[^;(){{}}\[]*\[\s*(\w+)\s*\]", text.blank(host))
    known = [n for length in arrays if (n := numbers.number(length)) and n <= _FEWEST]
    for p in (p for p in entry.parameters if p.pointer and p.name in maps):
        places = extents.places(entry.body, p.name)
        words = re.findall(r"\b[A-Za-z_]\w*", " ".join(places))
        chosen = max((int(n) + 1 for place in places for n in re.findall(r"\b\d+\b", place)), default=1)
        ends = (re.search(rf"\b{word}\s*(?:<|>=)\s*(\w+)\b", entry.body) for word in words)
        size = next((end[1] for end in ends if end and end[1] in integers), "")
        if words or chosen > 1:
            found[p.name] = Several(max(known, default=max(_GROUPS, chosen)), size)
    return found


def chosen(body: str, known: Mapping[str, Several]) -> dict[str, int]:
    """Return how many blocks there are along an axis whose index chooses a tensor map."""
    found = dict[str, int]()
    for name, one in known.items():
        for word in re.findall(r"\b[A-Za-z_][\w.]*", " ".join(extents.places(body, name))):
            if block := re.search(
                rf"\b{re.escape(word)}\s*=\s*blockIdx\.([xyz])\s*[,;]", f"{body}{word} = {word};"
            ):
                found[block[1]] = one.count
    return found


def operands(
    pointers: Sequence[text.Parameter],
    values: Sequence[text.Parameter],
    types: dict[str, Any],
    sizes: Any,
    arrays: Mapping[str, Several],
) -> dict[str, list[str]]:
    """Return the names of the operands of each axis of `pointers`; `sizes` has the elements of each.

    Those of `arrays` have one for each tensor map.
    """
    found: dict[str, list[str]] = {p.name: [] for p in pointers}
    for p in values:
        for at in elements.pointers(types[p.name]):
            found[f"{p.name}{at.axis}"].append(f"{p.name}{at.path}")
    for p in pointers:
        if p.name in arrays:
            found[p.name] += (f"{p.name}[{i}]" for i in range(arrays[p.name].number(sizes)))
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


def plain(body: str, pointers: Sequence[text.Parameter], types: dict[str, Any]) -> str:
    """Return a body whose pointers in structs that `pointers` lead to are called as axes: ``lists.data[i]``.

    So is ``lists[row].data[i]``, ``lists->data[i]`` and, of pointers to pointers, ``lists[row][i]``.
    """
    for p in (p for p in pointers if any(elements.pointers(types[p.name]))):
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


def passed(kind: elements.Type) -> bool:
    """Return True for what a kernel may be given by value: no bfloat16, and no array, which is a pointer."""
    array = isinstance(kind, np.dtype) and kind.names == (members.ARRAY,)
    return not array and "bfloat16" not in elements.numbers(kind)


def by_value(kind: elements.Type) -> np.dtype[Any] | None:
    """Return the layout of a struct or vector as an argument; None for a number."""
    if isinstance(kind, np.dtype):
        return kind
    return np.dtype([("m0", kind[0], (kind[1],))]) if kind[1] > 1 else None


def _filled(kind: np.dtype[Any], value: float, told: Mapping[str, float] = MappingProxyType({})) -> Any:
    """Return a struct whose integers are `value`, or the most they hold, but for members that are `told`.

    Its floats are what the text begins them with, or 1 where there are integers.
    """
    found = np.zeros((), kind)
    whole = any("int" in number for number in elements.numbers(kind))
    initial = dict(kind.metadata or {}).get("given", {})
    for name in kind.names or ():
        part = kind[name].base
        if part.metadata and not part.names:
            continue  # a pointer
        if name in told and part.kind in "iuf" and not part.names:
            found[name] = scalar(part.name, told[name])
        elif part.names:
            found[name] = _filled(part, value)
        else:
            real = 1 if whole else scalar(part.name, value)
            found[name] = initial.get(name, real) if part.kind == "f" else scalar(part.name, value)
    return found[()]


def argument(
    name: str,
    kind: np.dtype[Any],
    value: float,
    maps: Mapping[str, Encoded],
    told: Mapping[str, float] = MappingProxyType({}),
) -> np.generic | Struct:
    """Return a struct by value as an argument: with pointers the bytes between them, and their operands.

    So it is with the tensors of `maps`. Members that are `told` have these numbers.
    """
    filled: np.generic = _filled(kind, value, told)
    inside: list[tuple[int, str, int]] = [(at.offset, at.path, 8) for at in elements.pointers(kind)]
    inside += [(offset, path, elements.size(elements.MAPPED)) for path, offset in elements.maps(kind)]
    if not inside:
        return filled
    data, found, done = filled.tobytes(), dict[str, Member](), 0
    for offset, path, size in (*sorted(inside), (len(data), "", 0)):
        if offset > done:
            found[f"from {done}"] = np.void(data[done:offset])
        if path:
            operand = f"{name}{path}"
            found[path] = mapped(operand, maps[operand]) if operand in maps else operand
        done = offset + size
    return Struct(found)


def array(name: str, tensor: Encoded, count: int) -> Struct:
    """Return an array of tensor maps, each of an operand of its own, as what a pointer leads to."""
    return Struct({f"{name}[{i}]": mapped(f"{name}[{i}]", tensor) for i in range(count)})


def assembled(parts: Sequence[Part], held: Mapping[str, Any], *, whole: int) -> Argument:
    """Return a parameter of PTX of its parts: `whole` bytes of a struct, or 0 of what is one by itself.

    held: the names of operands, and numbers, by the names of parts
    """
    found, done = dict[str, Member](), 0
    for part in parts:
        number = part.factor * math.prod([int(held[name]) for name in part.over])
        member: Member = (
            held.get(part.name, part.name) if part.name else scalar(f"uint{part.type[1:]}", number)
        )
        if not whole:
            return member
        if part.at > done:
            found[f"from {done}"] = np.void(bytes(part.at - done))
        found[f"at {part.at}"], done = member, part.at + int(part.type[1:]) // 8
    if whole > done:
        found[f"from {done}"] = np.void(bytes(whole - done))
    return Struct(found)


def lengths(passed: Iterable[tuple[Any, Sequence[Part]]], types: Mapping[str, Any]) -> dict[str, Expr]:
    """Return the bytes of arrays of several dimensions that a compiler passes with their lengths."""
    arrays = (part for _, parts in passed for part in parts if part.pointer and len(part.over) > 1)
    return {
        part.name: Expr.parse(f"{' * '.join(part.over)} * {part.factor or elements.size(types[part.name])}")
        for part in arrays
    }


def settled(kind: elements.Type, ties: Sequence[str | int | None]) -> bool:
    """Return True where host code says what all integers of a struct are."""
    names = kind.names or () if isinstance(kind, np.dtype) else ()
    parts = (
        ((kind[n].base, tie) for n, tie in zip(names, ties, strict=False))
        if isinstance(kind, np.dtype)
        else ()
    )
    open_ = (part.names or (part.kind in "iu" and not part.metadata and tie is None) for part, tie in parts)
    return bool(ties) and len(names) == len(ties) and not any(open_)


def told(kind: np.dtype[Any], ties: Sequence[str | int | None], axes: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of members that host code gives something, where parameters are these `axes`."""
    known = {
        name: axes.get(tie) if isinstance(tie, str) else tie
        for name, tie in zip(kind.names or (), ties, strict=False)
    }
    return {name: n for name, n in known.items() if isinstance(n, int | float)}


def mapped(name: str, tensor: Encoded) -> Tensor:
    """Return the tensor map of an operand as an argument."""
    return Tensor(
        operand=name,
        element=tensor.element,
        extents=tensor.extents,
        strides=tensor.strides,
        box=tensor.box,
        swizzle=tensor.swizzle,
        lower=tensor.lower,
        upper=tensor.upper,
        steps=tensor.steps,
    )


def scalar(kind: str, value: float) -> Any:
    """Return a number of a NumPy type, or the largest that it can hold."""
    dtype = np.dtype(kind)
    return dtype.type(min(value, np.iinfo(dtype).max) if dtype.kind in "iu" else value)
