"""Guess arguments for a kernel that nobody has described: by the types and names of its parameters.

There is no reference: such a launch shows races, memory faults and how memory is accessed, not whether the
numbers are right. Every guess is an axis, so that ``-a n=1000 -a x=4096`` replaces it: a scalar's value, and
of a pointer the number of elements behind it. That number follows from the sizes that are given: their
product, for as many as the text multiplies in an index.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError
from harness.kernels import text
from harness.kernels.cpp import calls, elements, extents, guesses, tensors
from harness.kernels.spec import Kernel
from harness.problems.arrays import ArrayProblem
from harness.problems.protocol import Argument, Axes, Struct, Tensor

# A size by default, by the dimensions of the arrays. That of one dimension divides by no block, so that a
# missing guard shows. With more than three dimensions an array has up to so many elements.
_SIZES = {1: 1000, 2: 64, 3: 32}
_MOST = 2**16
_TILED = 2**18  # as many as arrays may have so that sizes are no less than a tile
_LONGEST = 2**28  # elements of a guess
_HINTS = {  # of types that stand for more than numbers
    "CUtensorMap": "its box is no number in this file: [tensormaps] of front matter says what it is. In "
    "Python it is emulate(..., arguments=[TensorMap(...)])",
    "cudaTextureObject_t": "emulate(ptx, ..., arguments=[Texture(array=...)]) in Python takes one",
    "cudaSurfaceObject_t": "emulate(ptx, ..., arguments=[Texture(array=...)]) in Python takes one",
}
_ITEMS = 64  # blocks that have an item each, at most


def problem_of(kernel: Kernel) -> type[ArrayProblem]:
    """Return the problem class of a kernel without front matter.

    Raises UsageError for a parameter of a type that cannot be guessed, such as a union.
    """
    entry = _entry(kernel)
    known, texts = entry.types(kernel.entry), calls.texts(kernel)
    entry = guesses.axes(replace(entry, body=extents.inlined(kernel.source, entry)))
    numbers = guesses.constants(texts, entry, kernel.entry)
    dimensions = max(entry.dimensions, len(kernel.block))
    maps = tensors.of(kernel.source, entry, kernel.entry)
    types: dict[str, Any] = {
        p.name: (maps[p.name].element.lower(), 1)
        if p.name in maps
        else _type(replace(p, type=_instance(p.type, known)), kernel, texts)
        for p in entry.parameters
    }
    values, pointers = _divided(entry, maps, types)
    kinds = {p.name: elements.numbers(types[p.name]) for p in values}
    fixed = {p.name: 0 for p in values if elements.is_enum(p.type, texts)}
    ints = [p.name for p in values if p.name not in fixed and any("int" in kind for kind in kinds[p.name])]
    fixed |= guesses.no_sizes(kernel.source, entry, kernel.entry) | extents.offsets(entry.body, ints)
    whole = [name for name in ints if name not in fixed]
    alone = max((extent for tensor in maps.values() for extent in tensor.extents), default=1024)
    depth, size = _sizes(kernel, entry, whole, dimensions, alone)
    fixed |= guesses.as_threads(kernel.source, entry, kernel.entry, math.prod(e({}) for e in kernel.block))
    first = {p.name: fixed.get(p.name, size if p.name in whole else 1.0) for p in values}
    structs = {p.name: found for p in values if (found := _by_value(types[p.name])) is not None}
    scalars = {n: first[n] if n in structs else _scalar(types[n][0], first[n]) for n in first}
    indexed = {p.name: extents.of(entry.body, p.name, numbers) for p in (*values, *pointers)}
    mapped = {name: tensor.bytes for name, tensor in maps.items()}
    held = mapped | guesses.allocated(kernel.source, entry, kernel.entry)
    lengths = {name: max(1, size // elements.size(types[name])) for name, size in held.items()}
    written = tuple(p.name for p in pointers if not p.const or p.name in maps)

    def inputs(self: Any, seed: int) -> dict[str, NDArray[Any]]:
        rng = np.random.default_rng(seed)
        least = min((getattr(self, name) for name in whole), default=1)
        made = {p.name: elements.contents(rng, types[p.name], getattr(self, p.name), least) for p in pointers}
        return {name: np.sort(x, axis=0) if indexed[name].begins else x for name, x in made.items()}

    def arguments(self: Any) -> tuple[Argument, ...]:
        given: dict[str, Argument] = {n: _argument(n, kind, getattr(self, n)) for n, kind in structs.items()}
        given |= {n: self.scalar(n) for n in scalars if n not in given}
        given |= {n: _mapped(n, tensor) for n, tensor in maps.items()}
        return tuple(given.get(p.name, p.name) for p in entry.parameters)

    def shape(self: Any) -> tuple[int, ...]:
        sizes = [getattr(self, name) for name in whole] or [size]
        items = min(_ITEMS, *sizes)
        extent = dict.fromkeys("xyz", max(sizes)) | dict.fromkeys(entry.items, items)
        return tuple(1 if axis in entry.flat else extent[axis] for axis in "zyx"[-dimensions:])

    def counted(axes: Axes) -> dict[str, int]:
        border = max((indexed[n].border for n in whole), default=0)
        sizes = sorted(int(axes.get(n, scalars[n])) + border for n in whole) or [size]
        length = math.prod([*sizes[:1] * (depth - len(sizes)), *sizes[-depth:]])
        unknown = [p.name for p in pointers if p.name not in axes]
        if large := next((name for name, count in lengths.items() if count > _LONGEST), None):
            raise UsageError(
                f"{large} would have {lengths[large]:,} elements: four boxes along each extent",
                hint="front matter says what it is: [tensormaps]",
            )
        if length > _LONGEST and unknown:
            raise UsageError(
                f"{unknown[0]} would have {length:,} elements, the product of sizes",
                hint=f"say how many: -a {unknown[0]}=1000000",
            )
        each = {p.name: indexed[p.name] for p in pointers}
        return {name: max(1, length) * at.width + at.begins for name, at in each.items()} | lengths

    def filled(cls: type[ArrayProblem], axes: Axes) -> ArrayProblem:
        found: ArrayProblem = vars(ArrayProblem)["from_axes"].__func__(cls, {**counted(axes), **axes})
        return found

    attributes = {
        "__doc__": "Guessed arguments.",
        "axes": {**counted({}), **scalars},
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
    return type("Guessed", (ArrayProblem,), attributes)


def _entry(kernel: Kernel) -> text.Entry:
    """Return what the text says of a kernel. Raises UsageError where that is not enough."""
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
    return entry


def _divided(
    entry: text.Entry, maps: Collection[str], types: dict[str, Any]
) -> tuple[list[text.Parameter], list[text.Parameter]]:
    """Return the parameters that are values, and the pointers: parameters, and members of structs by value.

    The types of the latter go to `types`.
    """
    values = [p for p in entry.parameters if not p.pointer and p.name not in maps]
    pointers = [p for p in entry.parameters if p not in values]
    for p in values:
        for at in elements.pointers(types[p.name]):
            types[name := f"{p.name}{at.path}"] = at.kind
            pointers.append(text.Parameter(type="", name=name, pointer=True, const=at.const))
    return values, pointers


def _scalar(kind: str, value: float) -> Any:
    """Return a number of a NumPy type, or the largest that it can hold."""
    dtype = np.dtype(kind)
    return dtype.type(min(value, np.iinfo(dtype).max) if dtype.kind in "iu" else value)


def _by_value(kind: elements.Type) -> np.dtype[Any] | None:
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
            real = 1 if whole else _scalar(part.name, value)
            found[name] = initial.get(name, real) if part.kind == "f" else _scalar(part.name, value)
    return found[()]


def _argument(name: str, kind: np.dtype[Any], value: float) -> np.generic | Struct:
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


def _instance(declared: str, known: Mapping[str, str]) -> str:
    """Return a type with the arguments of a kernel's template in place of its parameters."""
    return re.sub(r"\w+", lambda word: known.get(word[0], word[0]), declared)


def _label(problem: Any) -> str:
    return " ".join(f"{name}={digits(getattr(problem, name))}" for name in problem.axes) or "no arguments"


def digits(value: float) -> str:
    """Return a guess as ``-a`` takes it: of a whole number all digits."""
    return str(int(value)) if float(value).is_integer() else f"{value:g}"


def _mapped(name: str, tensor: tensors.Encoded) -> Tensor:
    """Return the tensor map of an operand as an argument."""
    return Tensor(
        operand=name,
        element=tensor.element,
        extents=tensor.extents,
        strides=tensor.strides,
        box=tensor.box,
        swizzle=tensor.swizzle,
    )


def _type(parameter: text.Parameter, kernel: Kernel, texts: Sequence[str]) -> elements.Type:
    """Return the type of a parameter. Raises UsageError for one of which no value can be made."""
    found = elements.of(parameter.type, texts)
    inside = found is not None and parameter.pointer and any(elements.pointers(found))
    if found is None or inside or (not parameter.pointer and "bfloat16" in elements.numbers(found)):
        raise UsageError(
            f"{parameter.name} of {kernel.name} is a {parameter.type}, for which no value can be guessed",
            where=str(kernel.path),
            hint=_HINTS.get(parameter.type, "give it front matter and a problem: `harness new` writes both"),
        )
    return found


def _sizes(
    kernel: Kernel, entry: text.Entry, whole: Sequence[str], dimensions: int, alone: int
) -> tuple[int, int]:
    """Return how many sizes an array is the product of, and each; `alone` is one that no parameter says."""
    over = 3 if entry.threads == 3 <= len(whole) else min(dimensions, 2)  # a block's z may be a batch
    depth = max(over, 1 + extents.factors(entry.body, whole))
    size = _SIZES.get(depth, max(2, round(_MOST ** (1 / depth)))) if whole or depth > 1 else alone
    if depth > 1:  # a tile that nothing guards is whole; that of one dimension may have a rest
        size = max([size, *(n for e in kernel.tile if (n := e({})) ** depth <= _TILED)])
    return depth, size
