"""Guess arguments for a kernel that nobody has described: by the types and names of its parameters.

There is no reference: such a launch shows races, memory faults and how memory is accessed, not whether the
numbers are right. Every guess is an axis, so that ``-a n=1000 -a x=4096`` replaces it: a scalar's value, and
of a pointer the number of elements behind it. That number follows from the sizes that are given: their
product, for as many as the text multiplies in an index.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError
from harness.kernels import text
from harness.kernels.dtypes import BF16
from harness.kernels.spec import Kernel
from harness.problems.arrays import ArrayProblem
from harness.problems.protocol import Argument, Axes

_SCALARS = {  # C types, without signs and the word int where those are put aside
    "float": "float32", "double": "float64", "half": "float16", "__half": "float16", "bool": "bool",
    "__nv_bfloat16": "bfloat16", "nv_bfloat16": "bfloat16", "char": "int8", "short": "int16", "int": "int32",
    "long": "int64", "long long": "int64", "size_t": "uint64", "uint": "uint32", "uchar": "uint8",
    "ushort": "uint16", "half2": "float16x2", "__half2": "float16x2", "void": "uint8",
    **{f"{u}int{bits}_t": f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
_VECTOR = re.compile(r"(u?)(char|short|int|long|longlong|float|double)([1234])\Z")
# A size by default, by the dimensions of the arrays. That of one dimension divides by no block, so that a
# missing guard shows. With more than three dimensions an array has up to so many elements.
_SIZES = {1: 1000, 2: 64, 3: 32}
_MOST = 2**16
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
            hint=f"name an instance: --entry '{entry.name}<float>'",
        )
    known = entry.types(kernel.entry)
    dimensions = max(entry.dimensions, len(kernel.block))
    types = {p.name: _numpy_type(known.get(p.type, p.type), p.name, kernel) for p in entry.parameters}
    pointers = [p for p in entry.parameters if p.pointer]
    values = [p for p in entry.parameters if not p.pointer]
    for p in values:
        if types[p.name][1] > 1 or types[p.name][0] == "bfloat16":
            raise _unknown(p.type, p.name, kernel)
    whole = [p.name for p in values if "int" in types[p.name][0]]
    depth = max(min(dimensions, 2), 1 + max((len(f.intersection(whole)) for f in entry.factors), default=0))
    size = _SIZES.get(depth, max(2, round(_MOST ** (1 / depth)))) if whole or depth > 1 else 1024
    scalars = {p.name: _scalar(types[p.name][0], size if p.name in whole else 1) for p in values}
    written = tuple(p.name for p in pointers if not p.const)
    order = tuple(p.name for p in entry.parameters)

    def inputs(self: Any, seed: int) -> dict[str, NDArray[Any]]:
        rng = np.random.default_rng(seed)
        least = min((getattr(self, name) for name in whole), default=1)
        return {p.name: _contents(rng, *types[p.name], getattr(self, p.name), least) for p in pointers}

    def arguments(self: Any) -> tuple[Argument, ...]:
        return tuple(self.scalar(name) if name in scalars else name for name in order)

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
            cls, {**{p.name: max(1, length) for p in pointers}, **axes}
        )
        return found

    members = {
        "__doc__": "Guessed arguments.",
        "axes": {**{p.name: size**depth for p in pointers}, **scalars},
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


def _scalar(kind: str, value: int) -> Any:
    """Return a number of a NumPy type, or the largest that it can hold."""
    dtype = np.dtype(kind)
    return dtype.type(min(value, np.iinfo(dtype).max) if dtype.kind in "iu" else value)


def _label(problem: Any) -> str:
    return " ".join(f"{name}={getattr(problem, name):g}" for name in problem.axes) or "no arguments"


def _numpy_type(declared: str, name: str, kernel: Kernel) -> tuple[str, int]:
    """Return the NumPy type of a C type, and how many of it an element has."""
    words = declared.replace("std::", "").split()
    unsigned = "unsigned" in words
    plain = " ".join(w for w in words if w not in ("unsigned", "signed")) or "int"
    plain = re.sub(r"\b(short|long|long long) int\b", r"\1", plain)
    if vector := _VECTOR.match(plain):
        kind = {"longlong": "long long"}.get(vector[2], vector[2])
        return ("u" if vector[1] else "") + _SCALARS[kind], int(vector[3])
    kind = _SCALARS.get(plain, "")
    if not kind:
        raise _unknown(declared, name, kernel)
    kind, _, lanes = kind.partition("x")
    return ("u" if unsigned and kind.startswith("int") else "") + kind, int(lanes or 1)


def _unknown(declared: str, name: str, kernel: Kernel) -> UsageError:
    return UsageError(
        f"{name} of {kernel.name} is a {declared}, for which no value can be guessed",
        where=str(kernel.path),
        hint="give it front matter and a problem: `harness new` writes both",
    )


def _contents(rng: np.random.Generator, kind: str, lanes: int, count: int, least: int) -> NDArray[Any]:
    """Return random contents: normal floats; integers from 0 that are indices below every size given."""
    shape = (count, lanes) if lanes > 1 else (count,)
    if kind == "bfloat16":
        return BF16.encode(rng.standard_normal(shape, dtype=np.float32))
    if "float" in kind:
        return rng.standard_normal(shape).astype(kind)
    most = max(1, min(least, np.iinfo(kind).max if kind != "bool" else 2))
    return rng.integers(0, most, shape).astype(kind)
