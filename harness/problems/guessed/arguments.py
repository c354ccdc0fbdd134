"""Guess arguments for a kernel that nobody has described: by the types and names of its parameters.

There is no reference: such a launch shows races, memory faults and how memory is accessed, not whether the
numbers are right. Every guess is an axis, so that ``-a n=1000 -a x=4096`` replaces it: a scalar's value, and
of a pointer the number of elements behind it.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from harness.errors import UsageError
from harness.kernels import text
from harness.kernels.cpp import calls, elements, extents, guesses
from harness.kernels.cpp.host import launches, samplers, tensors, tiles
from harness.kernels.cpp.host.order import mistakes, refused
from harness.kernels.cpp.source import functors, macros, strided
from harness.kernels.cpp.source.anew import instances
from harness.kernels.expr import Expr, ExprError
from harness.kernels.spec import Kernel
from harness.problems.arrays import ArrayProblem
from harness.problems.guessed import allocated, contents, dimensions, pointed, sizes, variables
from harness.problems.guessed.buffers import Parameters
from harness.problems.guessed.pictures import images, textures
from harness.problems.protocol import Argument, Place

_OBJECT = (
    "no call such as tex2D<float>(tex, x, y) takes it here; in Python emulate(ptx, ..., "
    "arguments=[Texture(array=...)]) does"
)
_HINTS = {  # of types that stand for more than numbers
    "CUtensorMap": "its box is no number in this file: [tensormaps] of front matter says what it is. In "
    "Python it is emulate(..., arguments=[TensorMap(...)])",
    **dict.fromkeys(guesses.OBJECTS, _OBJECT),
}
_WRITE = "give it front matter and a problem: `harness new` writes both"
_DEEPER = (
    "numbers, structs, unions and pointers to these are, no more than one pointer deep: give it front matter "
    "and a problem, which `harness new` writes, with what lies deeper as operands of its own"
)
_RADIUS, _GROUP = 2, 16  # elements to each side of one, and of a group that has something in common
_ITEMS = 64  # blocks that have an item each, at most; of several dimensions with sizes the square


def problem_of(kernel: Kernel) -> type[ArrayProblem]:
    """Return the problem class of a kernel without front matter.

    Raises UsageError for a parameter of a type that cannot be guessed, such as ``float***``.
    """
    texts, host = calls.texts(kernel), calls.host(kernel)
    entry = _entry(kernel, host, texts)
    constants = variables.of(kernel, entry, calls.reached(texts, entry.body))
    known, launched = entry.types(kernel.entry), launches.of(host, kernel.entry)
    numbers = guesses.numbers(texts, entry, kernel.entry)
    axes, block = max(entry.dimensions, len(kernel.block)), [e({}) for e in kernel.block]
    maps, made = _maps(kernel, host, entry, texts, constants.names), samplers.of(host, entry, kernel.entry)
    pictures = images.of(textures.whole(texts, entry, kernel.entry), entry, texts, made)
    types: dict[str, Any] = {n: part.kind for n, part in constants.arrays.items()} | {
        p.name: pictures.kinds.get(p.name) or (maps[p.name].element.lower(), 1)
        if p.name in maps or p.name in pictures.used
        else _type(pointed.cast(_meant(p, known, texts), entry.body, known, texts), kernel, texts)
        for p in entry.parameters
    }
    entry = constants.added(entry)
    values, pointers = pointed.divided(entry, maps, types, pictures.used)
    shaped = dimensions.of(entry, types, block, numbers, launches.told(host, kernel.entry))
    given = [p for p in values if p.name not in shaped.ranks]
    fixed, powers, whole = _integers(host, kernel.entry, entry, texts, given, types)
    allocations = guesses.allocated(host, entry, kernel.entry)
    fixed |= constants.numbers(launched, entry, types, whole, exact=bool(allocations))
    layouts = sizes.layouts(entry, whole := [n for n in whole if n not in fixed], launched)
    depth, size = sizes.each(kernel, entry, whole, axes, tensors.longest(maps), shaped.usual, layouts)
    fixed |= dict.fromkeys(powers, size.bit_length() - 1) | guesses.as_threads(
        host, entry, kernel.entry, threads := math.prod(block)
    )
    apart, pitches, inside = sizes.strides(entry, whole, types, size, layouts, numbers)
    tiled = tiles.divisors(sizes.derived(launched, entry, whole))
    demanded, plain = refused.numbers(host, launched, entry), text.blank(texts[0])
    told = inside | apart | pitches | shaped.steps(whole) | tiles.by_host(launched, entry, tiled, maps)
    fixed, whole = fixed | told, [n for n in whole if n not in told]
    boxed = tiles.sizes(maps, launched, entry, numbers, kernel.grid) | demanded
    usual = sizes.usual(entry, whole, size, threads, numbers, launched) | {
        n: boxed[n] for n in whole if n in boxed
    }
    from_host = {
        **allocated.apart(layouts, types, whole),
        **pointed.lengths(constants.passed, types),
        **allocated.lengths(launched, entry, types, whole, fixed),
    }
    usual |= tiles.covered(kernel.grid if depth > 1 else (), block, entry, usual)
    derived = sizes.derived(launched, entry, [n for n in whole if n not in fixed])
    usual |= shaped.totals(whole, {}, fixed | usual) | tiles.around(usual, fixed, derived, tiled, entry.body)
    usual = tiles.several(usual, kernel.grid, launches.cluster(host, kernel.entry), fixed)
    usual |= _computed(derived, usual | fixed) | allocated.rooms(entry, usual, types, from_host)
    several = pointed.several(entry, maps, host, whole, numbers)
    few = {each.size: each.count for each in several.values() if each.size in usual}
    usual |= constants.rooms(usual) | few | {n: demanded[n] for n in whole if n in demanded}
    first = {p.name: fixed.get(p.name, usual.get(p.name, constants.given.get(p.name, 1.0))) for p in given}
    structs = {p.name: found for p in given if (found := pointed.by_value(types[p.name])) is not None}
    scalars = {n: first[n] if n in structs else pointed.scalar(types[n][0], first[n]) for n in first}
    names, body = [p.name for p in pointers], pointed.plain(entry.body, pointers, types)
    parameters = Parameters(
        values=values, pointers=pointers, types=types, whole=whole, scalars=scalars,
        indexed={p.name: extents.of(body, p.name, numbers) for p in (*values, *pointers)},
        holds={p.name: contents.of(body, shaped.called(p.name), numbers, plain, names) for p in pointers},
        held=_held(maps, allocations, types) | constants.lengths,
        lengths=from_host, constants=[*constants.arrays], launched=launched, several=several,
        ties=functors.tied(host, entry, launched),
        ended={p.name: n for p in pointers if (n := extents.ended(constants.called, p.name, whole))},
        depth=depth, size=size, grid=kernel.grid,
        entry=entry, numbers=numbers, threads=block[0] if len(block) == 1 else 0,
        parts=list(contents.parts(body, [*map(shaped.called, names)], shaped.widths(), numbers)),
        strides=list(apart), pitches=list(pitches), derived=derived,
        changed=[p.name for p in pointers if not p.const or p.name in maps], dimensions=shaped,
        images=replace(pictures, extents=images.extents(pictures, whole, numbers, size)),
        source="\n".join(map(text.blank, texts)), aliases=allocated.aliases(launched, entry, pointers, types),
    )  # fmt: skip

    passed = functools.partial(_passed, known=parameters, structs=structs, maps=maps)

    def shape(self: Any) -> tuple[int, ...]:
        limits = pointed.limits(entry.body, values, types) | pointed.chosen(entry.body, several)
        extents = _extents([getattr(self, n) for n in whole if n not in {*few, *tiled}], size, entry).items()
        extent = {axis: min(n, limits.get(axis, n)) for axis, n in extents}
        extent |= shaped.along(vars(self), parameters.integers(vars(self)))
        return tuple(1 if axis in entry.flat else extent[axis] for axis in "zyx"[-axes:])

    counted = parameters.counted({})
    others = (
        shaped.ragged(whole, fixed | usual, pictures.plain(constants.called))
        if shaped.ranks
        else sizes.ragged(
            replace(entry, body=pictures.plain(entry.body)),
            pictures.plain(constants.called),
            free := {} if powers else {n: usual[n] for n in whole if n not in {*fixed, *derived, *demanded}},
            depth,
            launched,
            layouts,
            tight=any(n in layouts and not length.names & told.keys() for n, length in from_host.items()),
            tile=kernel.tile[-1]({}) if kernel.tile else 0,
            threads=threads,
        )
        + sizes.rounds(entry, free if depth == 1 else {}, kernel.grid, threads)
    )
    attributes = {
        "__doc__": "Guessed arguments.",
        "axes": {
            n: x
            for n, x in {**counted, **scalars}.items()
            if n == shaped.called(n) and n not in constants.arrays
        },
        **parameters.written(counted),
        "verify_axes": ({}, *(sizes.with_strides(axes, apart, size) for axes in others)),
        "unverified": True,
        "extents": property(shape),
        "from_axes": classmethod(parameters.filled),
        "label": property(_label),
        "inputs": lambda self, seed: parameters.drawn(vars(self), np.random.default_rng(seed)),
        "reference": lambda self, inputs: None,
        "arguments": lambda self: variables.arguments(entry.parameters, passed(self), constants, size),
        "variables": lambda self: constants.held(passed(self), parameters, vars(self)),
        "_longer": parameters.longer,
        "_mistakes": mistakes.of(
            host, entry, kernel.entry, numbers, {p.name: elements.size(types[p.name]) for p in pointers}
        ),
        "_zeroed": constants.zeroed,
        "_aliases": parameters.aliases,
        "_parameters": parameters,
    }
    return type("Guessed", (ArrayProblem,), attributes)


def _passed(
    problem: Any,
    known: Parameters,
    structs: Mapping[str, np.dtype[Any]],
    maps: Mapping[str, tensors.Encoded],
) -> dict[str, Argument]:
    """Return what a problem passes for parameters that are no operands by themselves."""
    axes, types, shaped = vars(problem), known.types, known.dimensions
    found: dict[str, Argument] = {n: problem.scalar(n) for n in known.scalars if n not in structs}
    for name, kind in structs.items():
        told = pointed.told(kind, known.ties.get(name, ()), axes)
        found[name] = pointed.argument(name, kind, axes[name], maps, told)
    found |= {n: shaped.argument(n, types[n], axes) for n in shaped.ranks} | problem._aliases
    found |= {n: pointed.mapped(n, tensor) for n, tensor in maps.items()}
    found |= {n: pointed.array(n, maps[n], each.number(axes)) for n, each in known.several.items()}
    found |= known.images.arguments(axes) | {
        n: Place({n: n}, at * elements.size(types[n])) for n, at in known.places.items() if n not in found
    }
    tables = (p.name for p in known.pointers if any(elements.pointers(types[p.name])))
    return found | {n: pointed.table(n, types[n], axes[n]) for n in tables}


def _held(
    maps: Mapping[str, tensors.Encoded], lengths: Mapping[str, int], types: Mapping[str, Any]
) -> dict[str, int]:
    """Return the elements of tensors and of buffers whose `lengths` in bytes are known."""
    held = {n: tensor.bytes for n, tensor in maps.items()} | dict(lengths)
    return {n: max(1, count // elements.size(types[n])) for n, count in held.items()}


def _computed(derived: Mapping[str, Expr], numbers: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes that are computed from others, which are `numbers`."""
    found = dict[str, int]()
    for name, expression in derived.items():
        with contextlib.suppress(ExprError):
            if expression.names <= numbers.keys():
                found[name] = max(1, expression(numbers))
    return found


def _extents(sizes: Sequence[int], size: int, entry: text.Entry) -> dict[str, int]:
    """Return how far the grid goes along each axis by `sizes`, or without these one `size`."""
    several = max(1, len(entry.items))
    most = round((_ITEMS * (_ITEMS if sizes and several > 1 else 1)) ** (1 / several))
    items = min([most, *(sizes or [size])])
    return dict.fromkeys("xyz", max(sizes or [size])) | dict.fromkeys(entry.items, items)


def _integers(
    host: str,
    name: str,
    entry: text.Entry,
    texts: tuple[str, ...],
    values: Sequence[text.Parameter],
    types: Mapping[str, Any],
) -> tuple[dict[str, int], set[str], list[str]]:
    """Return the parameters with numbers of their own, those that count bits, and the sizes."""
    kinds = {p.name: elements.numbers(types[p.name]) for p in values}
    used = calls.reached(texts, entry.body)
    enums = ((p.name, elements.enumerator(p.type, texts, used)) for p in values)
    fixed = {name: value for name, value in enums if value is not None}
    ties = functors.tied(host, entry, launches.of(host, name))
    done = {*fixed, *(n for n, given in ties.items() if n in kinds and pointed.settled(types[n], given))}
    ints = [p.name for p in values if p.name not in done and any("int" in kind for kind in kinds[p.name])]
    few = guesses.no_sizes(host, entry, name)
    powers = {n for n in ints if few.get(n, 2) > 1 and extents.shift(entry.body, n)}
    small = {n for n, number in few.items() if number > 1}
    unused = {n for n in small if not re.search(rf"\b{n}\b", entry.body)}
    dimensions = any(extents.dimension(entry.body, n) for n in small)  # with one of them all stay sizes
    kept = powers | (small if dimensions else unused)
    told = {n: number for n, number in few.items() if n not in kept}
    fixed |= strided.steps(entry.body, ints) | told | strided.offsets(entry.body, ints)
    around = {n: _RADIUS for n in ints if n not in fixed | few and extents.radius(used, n)}
    around |= {n: few.get(n, 2 * _RADIUS + 1) for n in ints if n not in fixed and extents.window(used, n)}
    around |= {n: few.get(n, _GROUP) for n in ints if n not in fixed and tiles.group(entry.body, n)}
    fixed |= around if len(around) < len(ints) else {}
    whole = [n for n in ints if n not in powers | fixed.keys()]
    return fixed, powers, whole


def _entry(kernel: Kernel, host: str, texts: Sequence[str]) -> text.Entry:
    """Return what the text says of a kernel, with the macros of `host` in their place, by axes.

    What it does by objects that it is given stands behind it, and what host code asserts of its sizes.

    Raises UsageError where that is not enough.
    """
    entry = text.find(text.entries(host), kernel.entry)
    if entry is None:
        raise UsageError(
            f"the parameters of {kernel.entry} are not in the text",
            where=str(kernel.path),
            hint=_WRITE,
        )
    if entry.template and "<" not in kernel.entry:
        raise UsageError(
            f"{entry} is a template",
            where=str(kernel.path),
            hint=f"name an instance: --entry '{instances.example(entry)}'",
        )
    whole = guesses.axes(guesses.read(functors.unpacked(entry, kernel.entry), host, kernel.entry))
    whole = functors.shown(whole, texts, entry.types(kernel.entry))
    return refused.asserted(host, launches.of(host, kernel.entry), whole)


def _maps(
    kernel: Kernel, host: str, entry: text.Entry, texts: Sequence[str], read: Collection[str]
) -> dict[str, tensors.Encoded]:
    """Return the tensor maps of a kernel as host code encodes them, also of structs by value.

    Raises UsageError for one in a struct of which nothing is known, and for one in a variable, but for those
    that are `read` as parameters.
    """
    known, inside = entry.types(kernel.entry), dict[str, text.Parameter]()
    for p in (p for p in entry.parameters if not p.pointer and any(elements.MAP in t for t in texts)):
        kind = elements.of(_meant(p, known, texts).type, texts)
        inside |= {f"{p.name}{path}": p for path, _ in elements.maps(kind or ("int", 1))}
    found = tensors.of(host, entry, kernel.entry, [*inside])
    variables = tensors.variables(texts, calls.reached(tuple(texts), entry.body))
    if variable := next((name for name in variables if name not in read), None):
        raise UsageError(
            f"{variable}, which {kernel.name} reads, is a CUtensorMap that the host copies to a variable",
            where=str(kernel.path),
            hint="pass it as a parameter, const __grid_constant__ CUtensorMap, and its box is read",
        )
    if unknown := next((name for name in inside if name not in found), None):
        raise UsageError(
            f"{unknown} of {kernel.name} is a CUtensorMap, for which no value can be guessed",
            where=str(kernel.path),
            hint=_HINTS[elements.MAP],
        )
    return found


def _meant(parameter: text.Parameter, known: Mapping[str, str], texts: Sequence[str]) -> text.Parameter:
    """Return a parameter of the type that macros and the arguments `known` of a template make of its own."""
    return replace(parameter, type=_instance(macros.meant("\n".join(texts), parameter.type), known))


def _instance(declared: str, known: Mapping[str, str]) -> str:
    """Return a type with the arguments of a kernel's template in place of its parameters."""
    return re.sub(r"\w+", lambda word: known.get(word[0], word[0]), declared)


def _label(problem: Any) -> str:
    return " ".join(f"{name}={digits(getattr(problem, name))}" for name in problem.axes) or "no arguments"


def digits(value: float) -> str:
    """Return a guess as ``-a`` takes it: of a whole number all digits."""
    return str(int(value)) if float(value).is_integer() else f"{value:g}"


def _type(parameter: text.Parameter, kernel: Kernel, texts: Sequence[str]) -> elements.Type:
    """Return the type of a parameter. Raises UsageError for one of which no value can be made."""
    const = "const " if parameter.const and parameter.type.endswith("*") else ""
    found = elements.of(const + parameter.type, texts)
    if found is None or not (parameter.pointer or pointed.passed(found)):
        raise UsageError(
            f"{parameter.name} of {kernel.name} is a {parameter.type}, for which no value can be guessed",
            where=str(kernel.path),
            hint=_HINTS.get(parameter.type, _DEEPER if found is None and parameter.pointer else _WRITE),
        )
    return found
