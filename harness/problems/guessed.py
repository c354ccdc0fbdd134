"""Guess arguments for a kernel that nobody has described: by the types and names of its parameters.

There is no reference: such a launch shows races, memory faults and how memory is accessed, not whether the
numbers are right. Every guess is an axis, so that ``-a n=1000 -a x=4096`` replaces it: a scalar's value, and
of a pointer the number of elements behind it. That number follows from the sizes that are given: their
product, for as many as the text multiplies in an index.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError
from harness.kernels import text
from harness.kernels.cpp import conditions, guesses, includes
from harness.kernels.dtypes import BF16
from harness.kernels.spec import Kernel
from harness.problems.arrays import ArrayProblem
from harness.problems.protocol import Argument, Axes

_SCALARS = {  # C types, without signs and the word int where those are put aside
    "float": "float32", "double": "float64", "half": "float16", "__half": "float16", "bool": "bool",
    "__nv_bfloat16": "bfloat16", "nv_bfloat16": "bfloat16", "char": "int8", "short": "int16", "int": "int32",
    "long": "int64", "long long": "int64", "size_t": "uint64", "uint": "uint32", "uchar": "uint8",
    "ushort": "uint16", "half2": "float16x2", "__half2": "float16x2", "void": "uint8",
    "__nv_bfloat162": "bfloat16x2", "nv_bfloat162": "bfloat16x2", "dim3": "uint32x3",
    **{f"{u}int{bits}_t": f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
_ALIAS = (
    r"\btypedef\s+([\w\s:]+?)\s+{0}\s*;|\busing\s+{0}\s*=\s*([\w\s:]+?)\s*;"
    r"|#[ \t]*define[ \t]+{0}[ \t]+(\w[\w ]*)"
)
_STRUCT = (  # the text before its members, these, and the name behind a typedef
    r"\bstruct\b([^;{{}}()]*(?:\(\s*\d+\s*\))?\s*{0})\s*\{{([^{{}}()]*)\}}"
    r"|\btypedef\s+struct\b([^;{{}}()]*(?:\(\s*\d+\s*\))?[^;{{}}()]*)\{{([^{{}}()]*)\}}\s*{0}\s*;"
)
_ENUM = (
    r"\benum\s+(?:class\s+|struct\s+)?{0}\s*(?::\s*([\w:]+(?:\s+\w+)*)\s*)?\{{"
    r"|\btypedef\s+enum\b[^{{}}]*\{{[^{{}}]*()\}}\s*{0}\s*;"
)
_MEMBER = re.compile(r"((?:[\w:]+\s+)+)([\w\s,\[\]]+)")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
Type = tuple[str, int] | np.dtype[Any]  # a NumPy type and how many of it an element has, or a struct
_DEEPEST = 8  # names for names, and structs in structs
_VECTOR = re.compile(r"(u?)(char|short|int|long|longlong|float|double)([1234])\Z")
# A size by default, by the dimensions of the arrays. That of one dimension divides by no block, so that a
# missing guard shows. With more than three dimensions an array has up to so many elements.
_SIZES = {1: 1000, 2: 64, 3: 32}
_MOST = 2**16
_TILED = 2**18  # as many as arrays may have so that sizes are no less than a tile
_LONGEST = 2**28  # elements of a guess
_ITEMS = 64  # blocks that have an item each, at most


def problem_of(kernel: Kernel) -> type[ArrayProblem]:
    """Return the problem class of a kernel without front matter.

    Raises UsageError for a parameter of a type that cannot be guessed, such as a struct.
    """
    entry = text.find(text.entries(kernel.source), kernel.entry)
    if entry is None:
        raise UsageError(
            f"the parameters of {kernel.entry} are not in the text",
            where=str(kernel.path),
            hint="give it front matter and a problem: `harness new` writes both",
        )
    if entry.template and "<" not in kernel.entry:
        raise UsageError(
            f"{entry} is a template",
            where=str(kernel.path),
            hint=f"name an instance: --entry '{guesses.example(entry)}'",
        )
    widths = [guesses.width(entry.body, p.name) for p in entry.parameters]
    entry, known = guesses.axes(entry), entry.types(kernel.entry)
    dimensions = max(entry.dimensions, len(kernel.block))
    types: dict[str, Any] = {
        p.name: _type(known.get(p.type, p.type), p.name, kernel) for p in entry.parameters
    }
    pointers = [p for p in entry.parameters if p.pointer]
    values = [p for p in entry.parameters if not p.pointer]
    kinds = {p.name: _numbers(types[p.name]) for p in values}
    for p in values:
        if "bfloat16" in kinds[p.name]:
            raise _unknown(p.type, p.name, kernel)
    fixed = {p.name: 0 for p in values if _is_enum(p.type, kernel)}
    fixed |= guesses.no_sizes(kernel.source, entry, kernel.entry)
    whole = [p.name for p in values if p.name not in fixed and any("int" in kind for kind in kinds[p.name])]
    depth = max(min(dimensions, 2), 1 + max((len(f.intersection(whole)) for f in entry.factors), default=0))
    size = _SIZES.get(depth, max(2, round(_MOST ** (1 / depth)))) if whole or depth > 1 else 1024
    if depth > 1:  # a tile that nothing guards is whole; that of one dimension may have a rest
        size = max([size, *(n for e in kernel.tile if (n := e({})) ** depth <= _TILED)])
    fixed |= guesses.as_threads(kernel.source, entry, kernel.entry)
    first = {p.name: fixed.get(p.name, size if p.name in whole else 1.0) for p in values}
    structs = {p.name: found for p in values if (found := _by_value(types[p.name])) is not None}
    scalars = {n: first[n] if n in structs else _scalar(types[n][0], first[n]) for n in first}
    times = {p.name: width for p, width in zip(entry.parameters, widths, strict=True) if p.pointer}
    held = guesses.allocated(kernel.source, entry, kernel.entry)
    lengths = {name: max(1, size // _size(types[name])) for name, size in held.items()}
    written = tuple(p.name for p in pointers if not p.const)
    order = tuple(p.name for p in entry.parameters)

    def inputs(self: Any, seed: int) -> dict[str, NDArray[Any]]:
        rng = np.random.default_rng(seed)
        least = min((getattr(self, name) for name in whole), default=1)
        return {p.name: _contents(rng, types[p.name], getattr(self, p.name), least) for p in pointers}

    def arguments(self: Any) -> tuple[Argument, ...]:
        return tuple(
            _filled(structs[n], getattr(self, n)) if n in structs else self.scalar(n) if n in scalars else n
            for n in order
        )

    def shape(self: Any) -> tuple[int, ...]:
        sizes = [getattr(self, name) for name in whole] or [size]
        items = min(_ITEMS, *sizes)
        extent = dict.fromkeys("xyz", max(sizes)) | dict.fromkeys(entry.items, items)
        return tuple(1 if axis in entry.flat else extent[axis] for axis in "zyx"[-dimensions:])

    def filled(cls: type[ArrayProblem], axes: Axes) -> ArrayProblem:
        sizes = sorted(int(axes.get(name, scalars[name])) for name in whole) or [size]
        length = math.prod([*sizes[:1] * (depth - len(sizes)), *sizes[-depth:]])
        unknown = [p.name for p in pointers if p.name not in axes]
        if length > _LONGEST and unknown:
            raise UsageError(
                f"{unknown[0]} would have {length:,} elements, the product of sizes",
                hint=f"say how many: -a {unknown[0]}=1000000",
            )
        found: ArrayProblem = vars(ArrayProblem)["from_axes"].__func__(
            cls, {**{name: max(1, length) * n for name, n in times.items()}, **lengths, **axes}
        )
        return found

    members = {
        "__doc__": "Guessed arguments.",
        "axes": {**{name: size**depth * n for name, n in times.items()}, **lengths, **scalars},
        "outputs": written or tuple(p.name for p in pointers[:1]) or ("nothing",),
        "updated": frozenset(written),
        "verify_axes": ({},),
        "unverified": True,
        "extents": property(shape),
        "from_axes": classmethod(filled),
        "label": property(_label),
        "inputs": inputs,
        "reference": lambda self, inputs: None,
        "arguments": arguments,
    }
    return type("Guessed", (ArrayProblem,), members)


def _scalar(kind: str, value: float) -> Any:
    """Return a number of a NumPy type, or the largest that it can hold."""
    dtype = np.dtype(kind)
    return dtype.type(min(value, np.iinfo(dtype).max) if dtype.kind in "iu" else value)


def _numbers(kind: Type) -> set[str]:
    """Return the NumPy types of the numbers in a type."""
    if not isinstance(kind, np.dtype):
        return {kind[0]}
    parts = [kind[name].base for name in kind.names or ()]
    return set().union(*(_numbers(part if part.names else (part.name, 1)) for part in parts))


def _by_value(kind: Type) -> np.dtype[Any] | None:
    """Return the layout of a struct or vector as an argument; None for a number."""
    if isinstance(kind, np.dtype):
        return kind
    return np.dtype([("m0", kind[0], (kind[1],))]) if kind[1] > 1 else None


def _filled(kind: np.dtype[Any], value: float) -> Any:
    """Return a struct whose integers are `value`, or the most they hold; beside them its floats are 1."""
    found = np.zeros((), kind)
    whole = any("int" in number for number in _numbers(kind))
    for name in kind.names or ():
        part = kind[name].base
        if part.names:
            found[name] = _filled(part, value)
        else:
            found[name] = 1 if part.kind == "f" and whole else _scalar(part.name, value)
    return found[()]


def _label(problem: Any) -> str:
    return " ".join(f"{name}={digits(getattr(problem, name))}" for name in problem.axes) or "no arguments"


def digits(value: float) -> str:
    """Return a guess as ``-a`` takes it: of a whole number all digits."""
    return str(int(value)) if float(value).is_integer() else f"{value:g}"


def _type(declared: str, name: str, kernel: Kernel) -> Type:
    """Return the type of a parameter, of a pointer that of what lies behind it.

    Raises UsageError for a type that is not known, as are structs with pointers.
    """
    texts = _texts(kernel)
    found = _found(declared, texts) or _struct(declared, texts)
    if found is None and (enums := _given(_ENUM, declared, texts)):
        found = _found(enums[0][0] or "int", texts)
    if found is None:
        raise _unknown(declared, name, kernel)
    return found


def _is_enum(declared: str, kernel: Kernel) -> bool:
    """Return True where a type is an enumeration, whose first value is 0 and no size."""
    return bool(_given(_ENUM, declared, _texts(kernel)))


def _texts(kernel: Kernel) -> tuple[str, ...]:
    """Return the texts of a kernel's file and own headers, without comments and branches not taken."""
    own = includes.included(kernel.path, kernel.source, kernel.include).own.values()
    whole = (kernel.source, *(h.decode(errors="replace") for h in own))
    return conditions.taken([_COMMENT.sub(" ", t) for t in whole], kernel.params)


def _found(declared: str, texts: Sequence[str], depth: int = 0) -> tuple[str, int] | None:
    """Return the NumPy type of a C type, and how many of it an element has; None if it is not known.

    A name that `texts` define in several ways, by conditions that are not known, stands for the widest one.
    """
    words = declared.replace("std::", "").split()
    unsigned = "unsigned" in words
    plain = " ".join(w for w in words if w not in ("unsigned", "signed")) or "int"
    plain = re.sub(r"\b(short|long|long long) int\b", r"\1", plain)
    if vector := _VECTOR.match(plain):
        kind = {"longlong": "long long"}.get(vector[2], vector[2])
        return ("u" if vector[1] else "") + _SCALARS[kind], int(vector[3])
    kind = _SCALARS.get(plain, "")
    if not kind:
        meant = (next(filter(None, f)) for f in _given(_ALIAS, plain, texts)) if depth < _DEEPEST else ()
        known = [t for m in meant if (t := _found(m, texts, depth + 1))]
        return max(known, key=lambda t: _width(t[0]) * t[1], default=None)
    kind, _, lanes = kind.partition("x")
    return ("u" if unsigned and kind.startswith("int") else "") + kind, int(lanes or 1)


def _given(pattern: str, name: str, texts: Sequence[str]) -> list[tuple[str, ...]]:
    """Return what a pattern with a name in it finds in all texts."""
    if not re.fullmatch(r"\w+", name):
        return []
    return [found for text in texts for found in re.findall(pattern.format(name), text)]


def _width(kind: str) -> int:
    """Return the bytes of a NumPy type."""
    return 2 if kind == "bfloat16" else np.dtype(kind).itemsize


def _size(kind: Type) -> int:
    """Return the bytes of an element."""
    return kind.itemsize if isinstance(kind, np.dtype) else _width(kind[0]) * kind[1]


def _struct(name: str, texts: Sequence[str], depth: int = 0) -> np.dtype[Any] | None:
    """Return a struct as C++ lays it out; None for members other than numbers, arrays of them and structs."""
    name = name.removeprefix("struct ")
    given = _given(_STRUCT, name, texts) if depth < _DEEPEST else []
    if not given:
        meant = (next(filter(None, f)) for f in _given(_ALIAS, name, texts)) if depth < _DEEPEST else ()
        return next((s for m in meant if (s := _struct(m, texts, depth + 1))), None)
    head, members = given[0][:2] if given[0][1] else given[0][2:]
    asked = re.search(r"\(\s*(\d+)\s*\)", head)
    at, most = 0, int(asked[1]) if asked else 1
    kinds: list[Any] = []
    offsets = []
    for member in filter(None, map(str.strip, members.split(";"))):
        parts = _MEMBER.fullmatch(member)
        kind = parts and (_found(parts[1], texts, depth) or _struct(parts[1].strip(), texts, depth + 1))
        if not parts or not kind or (isinstance(kind, tuple) and kind[0] == "bfloat16"):
            return None
        for declared in text.split(parts[2]):
            lengths = [_length(n, texts) for n in re.findall(r"\[([^\]]*)\]", declared)]
            if not all(lengths):
                return None
            one, lanes = (np.dtype(kind[0]), kind[1]) if isinstance(kind, tuple) else (kind, 1)
            align = dict(one.metadata or {}).get("align") or one.itemsize * (lanes if lanes in (2, 4) else 1)
            at, most = -(-at // min(align, 16)) * min(align, 16), max(most, min(align, 16))
            kinds.append((one, (*lengths, lanes)))
            offsets.append(at)
            at += one.itemsize * lanes * math.prod(lengths)
    names = [f"m{n}" for n in range(len(kinds))]
    size = -(-max(at, 1) // most) * most
    return np.dtype(
        {"names": names, "formats": kinds, "offsets": offsets, "itemsize": size}, metadata={"align": most}
    )


def _length(written: str, texts: Sequence[str]) -> int:
    """Return the length of an array, a number or a macro that is one; 0 if it is not known."""
    meant = [next(filter(None, found)) for found in _given(_ALIAS, written.strip(), texts)]
    number = next(iter(meant), written).strip()
    return int(number) if number.isdecimal() and len(number) < 9 else 0


def _unknown(declared: str, name: str, kernel: Kernel) -> UsageError:
    hint = "give it front matter and a problem: `harness new` writes both"
    if "CUtensorMap" in declared:
        hint += "; [tensormaps] says what a box is. In Python it is emulate(..., arguments=[TensorMap(...)])"
    return UsageError(
        f"{name} of {kernel.name} is a {declared}, for which no value can be guessed",
        where=str(kernel.path),
        hint=hint,
    )


def _contents(rng: np.random.Generator, kind: Type, count: int, least: int) -> NDArray[Any]:
    """Return random contents: normal floats; integers from 0 that are indices below every size given.

    Of structs their bytes.
    """
    if isinstance(kind, np.dtype):
        found = np.zeros(count, kind)
        for name in kind.names or ():
            of_one, shape = found.dtype[name].subdtype or (found.dtype[name], ())
            values = _contents(rng, of_one if of_one.names else (of_one.name, 1), found[name].size, least)
            found[name] = (values.view(of_one) if of_one.names else values).reshape(count, *shape)
        return found.view(np.uint8).reshape(count, kind.itemsize)
    named, lanes = kind
    shape = (count, lanes) if lanes > 1 else (count,)
    if named == "bfloat16":
        return BF16.encode(rng.standard_normal(shape, dtype=np.float32))
    if "float" in named:
        return rng.standard_normal(shape).astype(named)
    most = max(1, min(least, np.iinfo(named).max if named != "bool" else 2))
    return rng.integers(0, most, shape).astype(named)
