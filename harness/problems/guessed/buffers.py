"""Guess how many elements lie behind each pointer of a kernel, and what they are.

The number follows from the sizes that are given: their product, for as many as the text multiplies in an
index, or what host code allocates.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError
from harness.kernels import text
from harness.kernels.cpp import elements, extents
from harness.kernels.cpp.host.launches import Launch
from harness.kernels.cpp.host.values import Values
from harness.kernels.expr import Expr, ExprError
from harness.problems.arrays import ArrayProblem
from harness.problems.guessed import allocated, contents, pointed, reach
from harness.problems.guessed.dimensions import Dimensions
from harness.problems.guessed.pictures.images import Images
from harness.problems.protocol import Axes, lengthened
from harness.problems.protocol import doubted as in_doubt

_LONGEST = 2**28  # elements of a guess


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Hold what is known of the parameters of a kernel, and find how long its buffers are then.

    types: by name, of `pointers` that of an element; also by the axes of pointers in structs
    whole: the sizes among `values`; `scalars` has what each value is by default
    held: elements of pointers that follow from host code or tensor maps
    derived: sizes that host code computes from others
    lengths: bytes of pointers that host code allocates, in terms of the values
    changed: the pointers through which the kernel may write
    depth, size: of how many sizes an array is the product, and each
    grid: as host code launches it
    numbers: those to which the text gives names
    threads: of a block of one dimension, else 0
    images: its textures and surfaces
    parts: where parts of buffers begin, and where they end (True) or how long they are
    strides, pitches: what leads from one item to the next, and from one row in bytes
    dimensions: of PyTorch's accessors, whose buffers are as long as these say
    constants: the pointers that are arrays in constant memory, and no operands
    launched: the launch of host code
    ties: what host code gives to members of objects by value
    ended: of pointers that are vectors the size that ends them
    several: the pointers that lead to arrays of tensor maps
    source: the texts of the kernel, which have functions that it calls
    aliases: the pointers that host code gives the buffer of another one, and which
    """

    values: Sequence[text.Parameter]
    pointers: Sequence[text.Parameter]
    types: dict[str, Any]
    whole: Sequence[str]
    indexed: Mapping[str, extents.Indexed]
    holds: Mapping[str, contents.Held]
    scalars: Mapping[str, Any]
    held: Mapping[str, int]
    derived: Mapping[str, Expr]
    lengths: Mapping[str, Expr]
    changed: Sequence[str]
    depth: int
    size: int
    grid: Sequence[Expr]
    entry: text.Entry
    numbers: Values
    threads: int
    strides: Sequence[str]
    pitches: Sequence[str]
    images: Images
    dimensions: Dimensions
    parts: Sequence[tuple[contents.Column, contents.Column, bool]]
    constants: Sequence[str] = ()
    launched: Launch | None = None
    ties: Mapping[str, Sequence[str | int | None]] = field(default_factory=dict)
    ended: Mapping[str, str] = field(default_factory=dict)
    several: Mapping[str, pointed.Several] = field(default_factory=dict)
    source: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def _ends(self) -> dict[str, list[Expr]]:
        """Return what the indices of pointers stay below, by name."""
        found = {p.name: [*reach.ends(self.entry.body, p.name, self.numbers)] for p in self.pointers}
        for name in found:
            found[name] += map(Expr.parse, reach.rests(self.entry.body, self.source, name, self.numbers))
        return found

    @functools.cached_property
    def places(self) -> dict[str, int]:
        """Return how far into a buffer host code lets pointers lead."""
        return allocated.places(self.launched, self.entry, self.numbers)

    @functools.cached_property
    def _told(self) -> dict[str, int]:
        """Return the bytes that host code allocates for pointers, where it gives a number."""
        told = zip(self.entry.parameters, self.launched.bytes if self.launched else (), strict=False)
        return {p.name: size for p, size in told if size}

    @functools.cached_property
    def _made(self) -> set[str]:
        """Return the pointers that host code allocates, be it as long as nothing tells."""
        bytes_of = self.launched and zip(self.launched.bytes, self.launched.lengths, strict=False)
        told = zip(self.entry.parameters, bytes_of or (), strict=False)
        return {p.name for p, known in told if any(known)}

    def least(self, sizes: Mapping[str, Any]) -> int:
        """Return the least size, below which integers are indices."""
        return min((sizes[name] for name in (*self.whole, *self.dimensions.variable)), default=1)

    def blocks(self, sizes: Mapping[str, int]) -> int:
        """Return how many blocks host code launches along x; 0 where that is not known."""
        known = self.grid and self.grid[0].names <= sizes.keys()
        with contextlib.suppress(ExprError):  # a launch has none then, and says so
            return self.grid[0](sizes) if known else 0
        return 0

    def counted(self, axes: Axes) -> dict[str, int]:
        """Return the elements of each pointer, and the dimensions of accessors, where `axes` are given."""
        border = max((self.indexed[n].border for n in self.whole), default=0)
        counted = {n: int(axes.get(n, self.scalars[n])) + self.indexed[n].last for n in self.whole}
        sizes = sorted(n + border for n in counted.values()) or [self.size]
        length = math.prod([*sizes[:1] * (self.depth - len(sizes)), *sizes[-self.depth :]])
        alone = sorted(n + border for name, n in counted.items() if name not in self.derived)
        if self.depth > 2 and 1 < len(alone) < len(sizes):  # nx * ny is a factor in place of two
            length = min(length, max(math.prod(alone[-self.depth :]), alone[-1] * sizes[-1]))
        apart = max((int(axes.get(n, self.scalars[n])) for n in self.strides), default=0)
        length = max(length, apart * sizes[-1])
        rows = max((int(axes.get(n, self.scalars[n])) for n in self.pitches), default=0) * sizes[-1]
        dimensions = self.dimensions.sizes(axes, self.integers(axes))
        whole = self.dimensions.elements(dimensions)
        unknown = [p.name for p in self.pointers if p.name not in {*axes, *whole}]
        if large := next((name for name, count in self.held.items() if count > _LONGEST), None):
            raise UsageError(
                f"{large} would have {self.held[large]:,} elements: four boxes along each extent",
                hint="front matter says what it is: [tensormaps]",
            )
        if length > _LONGEST and unknown:
            raise UsageError(
                f"{unknown[0]} would have {length:,} elements, the product of sizes",
                hint=f"say how many: -a {unknown[0]}=1000000",
            )
        each = {p.name: self.indexed[p.name] for p in self.pointers}
        found = {name: max(1, length) * at.width + self.holds[name].begins for name, at in each.items()}
        if not apart:
            vectors = {n: counted[size] for n, size in self.ended.items() if size in counted}
            found |= {n: max(1, count) + self.holds[n].begins for n, count in vectors.items()}
        found = {n: max(count, rows // elements.size(self.types[n])) for n, count in found.items()}
        for name in self.places.keys() & found.keys():  # a halo has as much behind the end
            halo = any(re.search(r"[-+]", place) for place in extents.places(self.entry.body, name))
            found[name] += self.places[name] * (1 + halo)
        blocks = self.blocks(self.integers(axes))
        for name, at in each.items():  # what is no multiple of a block shows a guard that is missing
            if at.shares * blocks >= (1 if "x" in self.entry.items else 2) * found[name]:
                found[name] = at.shares * blocks
        integers = self.integers(axes)
        for name, ends in self._ends.items():
            whole_ends = (end(integers) for end in ends if end.names <= integers.keys())
            most = max(whole_ends, default=0)
            if most >= 2 * found[name] and most * elements.size(self.types[name]) <= _LONGEST:
                found[name] = most
        few = pointed.entries(max(sizes), length)
        tables = {name: few for name in found if any(elements.pointers(self.types[name]))}
        if large := next((name for name, count in whole.items() if count > _LONGEST), None):
            raise UsageError(
                f"{large} would have {whole[large]:,} elements, the product of its dimensions",
                hint=f"say how long one is: -a {large.partition('.')[0]}.0=16",
            )
        images = self.images.counted(axes, self.integers(axes))
        found = {**dimensions, **found, **self._allocated(axes), **tables, **self.held, **images, **whole}
        for name, other in self.aliases.items():
            found[name] = found[other] = max(found[name], found[other])
        return found

    def filled(self, cls: type[ArrayProblem], axes: Axes) -> ArrayProblem:
        """Return a problem of a class with the axes that are given, and what follows from them."""
        given, axes = dict(axes), {**self.following(axes), **axes}
        found: Any = vars(ArrayProblem)["from_axes"].__func__(cls, {**self.counted(axes), **axes})
        found._given = given
        written = self.written(vars(found))
        found.__dict__.update({name: x for name, x in written.items() if name not in found.axes})
        problem: ArrayProblem = found
        return problem

    def integers(self, axes: Axes) -> dict[str, int]:
        """Return the values as integers."""
        return {name: int(axes.get(name, value)) for name, value in self.scalars.items()}

    def following(self, axes: Axes) -> dict[str, int]:
        """Return the sizes that host code computes from others, where any of these is given."""
        numbers, found = self.integers(axes), {}
        for name, expression in self.derived.items():
            with contextlib.suppress(ExprError):
                if expression.names & axes.keys():
                    found[name] = max(0, expression(numbers))
        return found

    def _allocated(self, axes: Axes) -> dict[str, int]:
        """Return the elements of the pointers that host code allocates, where `axes` are given."""
        numbers, found = self.integers(axes), {}
        for name, length in self.lengths.items():
            with contextlib.suppress(ExprError):
                found[name] = -(-length(numbers) // elements.size(self.types[name]))
        return {name: count for name, count in found.items() if 0 < count <= _LONGEST}

    def longer(
        self, problem: Any, reached: Mapping[str, int], grid: Sequence[int], doubts: bool = False
    ) -> ArrayProblem | None:
        """Return the problem with the pointers that are longer than guessed; None if there are none.

        With sizes they are at least twice as long: one that is a little shorter than its kernel goes was
        guessed right, and the kernel goes too far. One that ends at a sum of sizes is not. Where nothing
        explains how far the kernel goes, but it is twice as far, the guess is in doubt, and not the kernel:
        with `doubts` it gets that length. An index in bytes, ``x[i * sizeof(float)]``, is a fault.

        reached: how far the kernel went, in bytes
        """
        sizes = {name: getattr(problem, name) for name in self.whole}
        fixed = {x: n for x in self.scalars.keys() - sizes if isinstance(n := getattr(problem, x), int)}
        threads = [n * self.dimensions.block.get(axis, 1) for n, axis in zip(grid, "xyz", strict=False)]
        given, more, doubted = problem._given, dict[str, int](), dict[str, int]()
        guessed = reached.keys() - given.keys() - self.held.keys() - self.lengths.keys()
        beyond = [p for p in self.pointers if p.name in guessed and p.name == self.dimensions.called(p.name)]
        names = [p.name for p in beyond]
        means = reach.of(self.entry, names, self.whole, self.numbers, self.threads, self.source)
        for name in names:
            count, rest = divmod(reached[name], elements.size(self.types[name]))
            twice = count >= 2 * (first := getattr(problem, name))
            ends, shifts = means.ends(name, sizes, fixed, grid), means.shifts(name, sizes)
            if count > reach.LONGEST:
                continue
            in_bytes = any("sizeof" in place for place in extents.places(self.entry.body, name))
            past = reach.past(count, ends | shifts, first)
            if not in_bytes and not past and self._unbounded(name, reached[name], ends | shifts, means):
                sure = not reach.near(count, ends)
                (more if sure or count in ends else doubted)[name] = count + (rest > 0)
                continue
            if not rest and (((twice or not sizes) and count in ends) or count in shifts):
                more[name] = count
            elif not doubts or in_bytes:
                continue
            elif twice and name not in self._made:
                far = count in means.unguarded(name, sizes | fixed, threads)
                if not far and not past:
                    doubted[name] = count + (rest > 0)
            elif name in in_doubt(problem):
                doubted[name] = count + (rest > 0)
        if not more | doubted:
            return None
        lengths = {name: getattr(problem, name) for name in (*more, *doubted)}
        known = {**lengthened(problem), **in_doubt(problem)}  # of the launch before
        before = {name: getattr(problem, name) for name in known}
        found: Any = type(problem).from_axes({**given, **before, **more, **doubted})
        found._given = given
        found._lengthened = {name: lengths[name] for name in more} | dict(lengthened(problem))
        found._doubted = {name: lengths[name] for name in doubted} | dict(in_doubt(problem))
        found._aliases = problem._aliases
        longer: ArrayProblem = found
        return longer

    def _unbounded(self, name: str, end: int, ends: set[int], means: reach.Reach) -> bool:
        """Return True where nothing says that a buffer is shorter than `end`, in bytes: there are no sizes.

        That is so where host code has more there, or where neither that nor a number in the text ends it. An
        index that nothing multiplies is that of the launch, whose threads have an element each.
        """
        if self.whole or name in self.lengths:
            return False
        if name in self._made:
            return end <= self._told.get(name, 0)
        count = -(-end // elements.size(self.types[name]))
        free = not self._ends[name] and bool(means.factors[name] - {"blockDim"})
        return free and not reach.near(count, ends, reach.LITTLE)

    def written(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes of a problem that name its outputs, where pointers have so many elements."""
        behind = pointed.operands(self.pointers, self.values, self.types, sizes, self.several)
        names = (*(name for axis in self.changed for name in behind[axis]), *self.images.written)
        own = tuple(p.name for p in self.pointers if p.name not in self.constants)
        held = names or own[:1]  # of a kernel that only prints the first, which it reads
        outputs = held or ("nothing",)
        return {"outputs": outputs, "output": outputs[0], "updated": frozenset(held)}

    def drawn(self, sizes: Mapping[str, Any], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        """Return every operand by name."""
        least, made = self.least(sizes), {}
        operands = pointed.operands(self.pointers, self.values, self.types, sizes, self.several)
        for axis, names in ((axis, n) for axis, n in operands.items() if axis not in self.constants):
            held, first = self.holds[axis], self.holds[axis].counts
            into = (self.several[n].number(sizes) if n in self.several else sizes[n] for n in held.into)
            # As many places that all differ need that many, also where another size is smaller.
            vector = held.targets and sizes[axis] in {sizes[n] for n in self.whole}
            places = max(least, sizes[axis]) if vector else least
            most = min([places, *into, *([held.room] if held.room is not None else [])])
            for name in names:
                x = elements.contents(rng, self.types[axis], sizes[axis], most)
                if held.targets and x.dtype.kind in "iu" and x.ndim == 1:  # no two the same
                    x[...] = np.resize(rng.permutation(min(most, np.iinfo(x.dtype).max)), len(x))
                if first is not None and x.dtype.kind in "iu" and isinstance(self.types[axis], tuple):
                    x[...] = np.array(first).astype(x.dtype)
                elif first is not None and (
                    key := contents.exchanged(self.entry.body, axis, self.types[axis])
                ):
                    x.view(self.types[axis])[key] = np.array(first).astype(self.types[axis][key])
                if held.summed and first is None and x.dtype.kind in "iu" and x.ndim == 1:  # up to a size
                    sums = np.sort(x[:least])
                    sums[-1:] = min(least, np.iinfo(x.dtype).max)  # so that one element too many shows
                    x[:least], x[least:] = np.diff(sums, prepend=x.dtype.type(0)), 0
                if held.begins:
                    x = np.sort(x, axis=0)
                    if x.dtype.kind in "iu" and x.ndim == 1:  # the last row ends where what it leads to does
                        x[-1] = min(most, np.iinfo(x.dtype).max)
                made[name] = x
        self._divide(made, least, rng)
        for counters, keys in contents.slots(self.entry.body, [*made]):
            c, k = made[counters], made[keys]
            if c.dtype.kind in "iu" and k.dtype.kind in "iu" and c.ndim == k.ndim == 1 and k.max() < len(c):
                many = np.bincount(k, minlength=len(c))
                c[...] = (np.cumsum(many) - many).astype(c.dtype)
        return made | self.images.drawn(sizes, rng, least)

    def _divide(self, made: Mapping[str, NDArray[Any]], least: int, rng: np.random.Generator) -> None:
        """Let what `parts` says divide all of a buffer, whose length is at least `least`."""
        named = {self.dimensions.called(name): x for name, x in made.items()}
        for begin, end, until in self.parts:
            columns = [at.of(x) for at in (begin, end) if (x := named.get(at.pointer)) is not None]
            if len(columns) < 2 or any(x.dtype.kind not in "iu" or x.ndim > 1 for x in columns):
                continue
            rows = min(map(len, columns))
            most = min(least, *(np.iinfo(x.dtype).max for x in columns))
            bounds = np.sort(rng.integers(0, most + 1, rows + 1))
            bounds[-1] = most
            columns[0][:rows], columns[1][:rows] = bounds[:-1], bounds[1:] if until else np.diff(bounds)
