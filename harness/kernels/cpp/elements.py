"""Read the types of a kernel's parameters: what an element is in NumPy, and what may stand in it."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.kernels import text
from harness.kernels.cpp import members as structs
from harness.kernels.cpp.host.values import Values, constants
from harness.kernels.dtypes import BF16

_SCALARS = {  # C types, without signs and the word int where those are put aside
    "float": "float32", "double": "float64", "half": "float16", "__half": "float16", "bool": "bool",
    "__nv_bfloat16": "bfloat16", "nv_bfloat16": "bfloat16", "char": "int8", "short": "int16", "int": "int32",
    "long": "int64", "long long": "int64", "size_t": "uint64", "uint": "uint32", "uchar": "uint8",
    "ushort": "uint16", "half2": "float16x2", "__half2": "float16x2", "void": "uint8",
    "__nv_bfloat162": "bfloat16x2", "nv_bfloat162": "bfloat16x2", "dim3": "uint32x3",
    **dict.fromkeys(("at::Half", "c10::Half", "torch::Half"), "float16"),
    **dict.fromkeys(("at::BFloat16", "c10::BFloat16", "torch::BFloat16"), "bfloat16"),
    **{f"{u}int{bits}_t": f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"u_int{bits}_t": f"uint{bits}" for bits in (8, 16, 32, 64)}, "uintptr_t": "uint64",
    "clock_t": "int64", **dict.fromkeys(("__nv_fp8_e4m3", "__nv_fp8_e5m2", "__nv_fp8_storage_t"), "uint8"),
    "cuComplex": "float32x2", "cuFloatComplex": "float32x2", "cufftComplex": "float32x2",
    "cuDoubleComplex": "float64x2", "cufftDoubleComplex": "float64x2", "cufftReal": "float32",
    "cufftDoubleReal": "float64",
    **{f"curandState{of}{t}": "uint32x12" for of in ("", "XORWOW", "MRG32k3a") for t in ("", "_t")},
    **{f"curandStatePhilox4_32_10{t}": "uint32x16" for t in ("", "_t")},
}  # fmt: skip
_ALIAS = (
    r"\btypedef\s+([\w:]+(?:\s+[\w:]+)*?(?:\s*<[\w\s:,<>]*>)?)\s*\b{0}\s*;"
    r"|\busing\s+{0}\s*=\s*([\w:]+(?:\s+[\w:]+)*?(?:\s*<[\w\s:,<>]*>)?)\s*;"
    r"|#[ \t]*define[ \t]+{0}[ \t]+(\w[\w ]*)"
)
_ENUM = (
    r"\benum\s+(?:class\s+|struct\s+)?{0}\s*(?::\s*([\w:]+(?:\s+\w+)*)\s*)?\{{"
    r"|\btypedef\s+enum\b[^{{}}]*\{{[^{{}}]*()\}}\s*{0}\s*;"
)
_BASE = re.compile(r"[^*\[]*?(?=\s*\*|\s+\w+\s*(?:\[.*)?\Z)")
_NAMED = re.compile(r"(?:\w+::)*(\w+)\s*(?:<(.*)>)?\Z", re.DOTALL)
Type = tuple[str, int] | np.dtype[Any]  # a NumPy type and how many of it an element has, or a struct
_CUDA = (  # structs of <cuda_runtime.h>
    "struct cudaExtent { size_t width; size_t height; size_t depth; };",
    "struct cudaPos { size_t x; size_t y; size_t z; };",
)
_LABELS = re.compile(r"((?:(?:\bcase\s+[\w:\s]+|\bdefault\s*):(?!:)\s*)+)([^;:]*)")  # and what is done first
_DEEPEST = 8  # names for names, and structs in structs
_LARGEST = 2**28  # bytes of a struct
_POINTED = 2**15  # and of one with pointers, more than a kernel's parameters take
MAP = "CUtensorMap"
MAPPED = np.dtype("V128", metadata={"align": 64, "map": True})
EACH = "each"  # the name of what pointers lead to that a pointer leads to
_KEPT = 512  # answers: names for names lead to the same ones again and again
_VECTOR = re.compile(r"(u?)(char|short|int|long|longlong|float|double)([1234])\Z")


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """A pointer in a struct: the path to it, ``.rows[1].data``, its place in bytes, and what lies behind it.

    axis: the path without the places in arrays, ``.rows.data``: what lies behind these is alike
    first: the length of the first array on the path; 0 where there is none
    """

    path: str
    axis: str
    first: int = 0
    offset: int
    kind: Type
    const: bool


def numbers(kind: Type) -> set[str]:
    """Return the NumPy types of the numbers in a type."""
    if not isinstance(kind, np.dtype):
        return {kind[0]}
    parts = [base for name in kind.names or () if not (base := kind[name].base).metadata or base.names]
    return set().union(*(numbers(part if part.names else (part.name, 1)) for part in parts))


def of(declared: str, texts: Sequence[str]) -> Type | None:
    """Return the type of a parameter, of a pointer that of what lies behind it.

    None is returned for a type that is not known.
    """
    whole = tuple(texts)
    if declared.endswith("*"):
        return _table(declared, whole)
    found = _found(declared, whole) or _struct(declared, whole)
    if found is None and (enums := _given(_ENUM, declared, whole)):
        found = _found(enums[0][0] or "int", whole)
    return found


def variable(declared: str, texts: Sequence[str]) -> np.dtype[Any] | None:
    """Return a struct with the variable of a declaration alone, ``float x[3]``; None for an unknown type."""
    return _laid_out(structs.Members(head="", declared=(declared,), given={}), tuple(texts), 0)


def _table(declared: str, texts: tuple[str, ...]) -> np.dtype[Any] | None:
    """Return the type of a pointer that a pointer leads to, ``const float*``: a struct of it alone."""
    inner = declared.removeprefix("const ").removesuffix("*").strip()
    kind = None if inner.endswith("*") else of(inner, texts)
    if kind is None or any(pointers(kind)):
        return None
    points: Any = {"pointer": (kind, declared.startswith("const "))}
    return np.dtype([(EACH, np.dtype(np.uint64, metadata=points), (1,))])


def enumerator(declared: str, texts: Sequence[str], body: str) -> int | None:
    """Return a value of an enumeration, None of another type: 0, or the first that `body` has a case for.

    What no case of a ``switch`` takes may lead to a trap.
    """
    if not _given(_ENUM, declared, tuple(texts)):
        return None
    name, values, last = declared.rpartition("::")[2], dict[str, int](), -1
    listed = rf"{name}\b[^;{{}}]*\{{([^{{}}]*)\}}|\benum\b[^;{{}}]*\{{([^{{}}]*)\}}\s*{name}\s*;"
    for at in re.findall(rf"\benum\s+(?:class\s+|struct\s+)?{listed}", "".join(texts)):
        for one in filter(str.strip, (at[0] or at[1]).split(",")):
            called, _, value = one.partition("=")
            last = int(value) if value.strip().isdecimal() else last + 1
            values.setdefault(called.strip(), last)
    kept = (labels for labels, done in _LABELS.findall(body) if not re.search("(?i)trap|assert|abort", done))
    cases = {called for labels in kept for called in re.findall(r"(\w+)\s*:(?!:)", labels)}
    return next((value for called, value in values.items() if called in cases), 0)


@functools.lru_cache(maxsize=_KEPT)
def _found(declared: str, texts: tuple[str, ...], depth: int = 0) -> tuple[str, int] | None:
    """Return the NumPy type of a C type, and how many of it an element has; None if it is not known.

    A name that `texts` define in several ways, by conditions that are not known, stands for the widest one.
    """
    words = declared.replace("std::", "").split()
    unsigned = "unsigned" in words
    plain = " ".join(w for w in words if w not in ("unsigned", "signed", "const")) or "int"
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


@functools.lru_cache(maxsize=_KEPT)
def _given(pattern: str, name: str, texts: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Return what a pattern with a name in it finds in all texts, each once."""
    name = name.rpartition("::")[2]  # of whatever namespace
    if not re.fullmatch(r"\w+", name):
        return ()
    return tuple(dict.fromkeys(found for text in texts for found in re.findall(pattern.format(name), text)))


def _width(kind: str) -> int:
    """Return the bytes of a NumPy type."""
    return 2 if kind == "bfloat16" else np.dtype(kind).itemsize


def size(kind: Type) -> int:
    """Return the bytes of an element."""
    return kind.itemsize if isinstance(kind, np.dtype) else _width(kind[0]) * kind[1]


def pointers(kind: Type) -> Iterator[Pointer]:
    """Yield the pointers in a struct, by their place."""
    if not isinstance(kind, np.dtype):
        return
    for name in kind.names or ():
        part, at = kind.fields[name][:2] if kind.fields else (kind, 0)
        meant = dict(part.base.metadata or {}).get("pointer")
        inside = tuple(pointers(part.base))
        if not (meant or inside):
            continue
        own = "" if name.startswith(structs.ANONYMOUS) else f".{name}"
        lengths = part.shape[:-1]  # the last one counts the lanes of a vector
        for number, place in enumerate(np.ndindex(lengths)):
            begin = at + number * part.base.itemsize
            path = own + "".join(f"[{i}]" for i in place)
            if meant:
                kind_, const = meant
                yield Pointer(
                    path=path, axis=own, first=sum(lengths[:1]), offset=begin, kind=kind_, const=const
                )
            for inner in inside:
                path_, axis = f"{path}{inner.path}", f"{own}{inner.axis}"
                first = sum(lengths[:1]) or inner.first
                yield replace(inner, path=path_, axis=axis, first=first, offset=begin + inner.offset)


def maps(kind: Type, path: str = "", begin: int = 0) -> Iterator[tuple[str, int]]:
    """Yield the path and place of each tensor map in a struct; of an array of them only the places have."""
    fields: Mapping[str, Any] = (kind.fields or {}) if isinstance(kind, np.dtype) else {}
    for name, (part, at, *_) in fields.items():
        lengths = part.shape[:-1]
        for number, place in enumerate(np.ndindex(lengths)):
            inner = f"{path}.{name}" + "".join(f"[{i}]" for i in place)
            offset = begin + at + number * part.base.itemsize
            if dict(part.base.metadata or {}).get("map"):
                yield inner, offset
            yield from maps(part.base, inner, offset)


@functools.lru_cache(maxsize=_KEPT)
def _struct(name: str, texts: tuple[str, ...], depth: int = 0) -> np.dtype[Any] | None:
    """Return a struct as C++ lays it out; None for members other than numbers, pointers to them, arrays of
    these and structs.
    """
    named = _NAMED.fullmatch(name.removeprefix("struct "))
    if not named or depth >= _DEEPEST:
        return None
    members = structs.of(named[1], texts) or structs.of(named[1], _CUDA)
    if members is None:
        template = structs.aliased(named[1], text.split(named[2] or ""), texts)
        meant = [template] if template else [next(filter(None, f)) for f in _given(_ALIAS, named[1], texts)]
        return next((s for m in meant if (s := _struct(m, texts, depth + 1))), None)
    instance = members.instance(text.split(named[2] or ""))
    return None if instance is None else _laid_out(instance, (*texts, *instance.nested), depth)


def _laid_out(members: structs.Members, texts: tuple[str, ...], depth: int) -> np.dtype[Any] | None:
    """Return the layout of a struct: its bases, then its members, each at a multiple of its alignment."""
    asked = re.search(r"\(\s*(\d+)\s*\)", members.head)
    at, end, most = 0, 0, max(1, int(asked[1])) if asked else 1  # alignas(0) asks for nothing
    names: list[str] = []
    kinds: list[Any] = []
    offsets: list[int] = []
    bases = [(name, name, True) for name in members.bases]
    for name, declared, base in (*bases, *((*member, False) for member in _members(members))):
        lengths = [_length(n, texts) for n in re.findall(r"\[([^\]]*)\]", declared)]
        kind = _member(re.sub(r"\[.*", "", declared), texts, depth)
        if kind is None or not all(lengths) or (base and not _whole(kind[0])):
            return None
        one, lanes = kind
        align = dict(one.metadata or {}).get("align") or one.itemsize * (lanes if lanes in (2, 4) else 1)
        align, count = min(align, members.pack), math.prod(lengths)
        at, most = 0 if members.union else -(-at // align) * align, max(most, align)
        pointed = "pointer" in dict(one.metadata or {}) or any(pointers(one))
        if at + one.itemsize * count > (_POINTED if pointed else _LARGEST) or most > _LARGEST:
            return None
        if one.names == () and base:  # one without members takes no room
            continue
        end = max(end, at + one.itemsize * lanes * count)
        if members.union and names:  # it holds its first member
            if not _places(one, (*lengths, lanes)) <= _places(*kinds[0]):
                return None
            continue
        names.append(name)
        kinds.append((one, (*lengths, lanes)))
        offsets.append(at)
        at = end
    if len(set(names)) < len(names):
        return None
    size = -(-max(end, 1) // most) * most
    laid_out: Any = {"names": names, "formats": kinds, "offsets": offsets, "itemsize": size}
    found: np.dtype[Any] = np.dtype(
        laid_out,
        metadata={
            "align": most,
            "end": end,
            "given": {n: members.given[n] for n in names if n in members.given},
        },
    )
    return found


def _places(kind: np.dtype[Any], lengths: tuple[int, ...]) -> set[int]:
    """Return the places of the pointers in a member."""
    return {at.offset for at in pointers(np.dtype([("", kind, lengths)]))}


def _members(members: structs.Members) -> Iterator[tuple[str, str]]:
    """Yield the name of each member, and its declaration of its own: of ``float *x, *y`` two."""
    for member in members.declared:
        first, *others = text.split(re.sub(r"\[\[.*?\]\]", " ", member)) or [""]
        base = _BASE.match(first)
        kind = base[0] if base else first
        for declared in (first, *(f"{kind} {other}" for other in others)):
            words = re.findall(r"\w+", declared.partition("[")[0])
            yield (words or [""])[-1], declared  # without a name it is of no known type either


def _whole(base: np.dtype[Any]) -> bool:
    """Return True where nothing of a derived struct can lie in the padding of a base."""
    return not base.names or dict(base.metadata or {})["end"] == base.itemsize


def _member(declared: str, texts: tuple[str, ...], depth: int) -> tuple[np.dtype[Any], int] | None:
    """Return the type of a member, or of a base, and how many of it there are; None if it is not known."""
    parameter = text.parameter(declared, "")
    if parameter.type == MAP and not parameter.pointer:
        return MAPPED, 1
    kind: Type | None = _found(parameter.type, texts, depth) or _struct(parameter.type, texts, depth + 1)
    if kind is None or "&" in declared or ":" in declared.replace("::", ""):
        return None
    if parameter.pointer:
        inside = any(pointers(kind))
        points: Any = {"pointer": (kind, parameter.const)}
        return None if inside else (np.dtype(np.uint64, metadata=points), 1)
    if isinstance(kind, np.dtype):
        return kind, 1
    return None if kind[0] == "bfloat16" else (np.dtype(kind[0]), kind[1])


def _length(written: str, texts: tuple[str, ...]) -> int:
    """Return the length of an array, of numbers and names that the texts give one; 0 if it is not known."""
    plain = written.strip().isdecimal() and len(written) < 9
    number = (int(written) if plain else _values(texts).number(written)) or 0
    return number if 0 < number < 10**8 else 0


@functools.lru_cache(maxsize=8)
def _values(texts: tuple[str, ...]) -> Values:
    return constants(texts, (), {})


def contents(rng: np.random.Generator, kind: Type, count: int, least: int) -> NDArray[Any]:
    """Return random contents: normal floats; integers from 0 that are indices below every size given.

    Of structs their bytes.
    """
    if isinstance(kind, np.dtype):
        found = np.zeros(count, kind)
        for name in kind.names or ():
            of_one, shape = found.dtype[name].subdtype or (found.dtype[name], ())
            if of_one.names == ():
                continue
            values = contents(rng, of_one if of_one.names else (of_one.name, 1), found[name].size, least)
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
