"""Lengthen guessed buffers to where their kernel goes, where the indices of its text say that it means to.

A kernel of n threads that reads ``x[i * H * W + j]`` needs n * H * W elements, which a guess may miss. It
shows: the kernel goes exactly as far as such a product. One whose guard is missing or off by one goes to
another number, the end of its last block or one element too far, and stays a finding. One that goes much
farther, to where nothing leads, says more about the guess than about itself: its buffer is in doubt.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.kernels import text
from harness.kernels.cpp import extents
from harness.kernels.cpp.host.values import Values, value_at
from harness.kernels.expr import Expr, ExprError
from harness.problems.guessed import contents

_LARGEST = 4096  # a number of the text that counts elements
LONGEST = 2**24  # elements
_PAST, LITTLE = 1 / 4, 1 / 32  # of an end, and what is left over of a multiple
_MOST = 1 << 20  # elements before a number that ends them
_FEW, _OFTEN = 16, 16  # elements too far that are a little even where few are guessed; multiples of a guess
_DEEPEST, _LONG = 4, 300  # variables in each other, and characters of what they stand for
_WORD = r"(?<![\w.])(0[xX][\da-fA-F]+|\d+|[A-Za-z_]\w*)(?![\w.(\[])"
_FACTOR = re.compile(rf"\*\s*\(?\s*{_WORD}|(?={_WORD}\s*\)?\s*\*)")
_ADDED = re.compile(r"\s*([A-Za-z_]\w*)\s*\+\s*([A-Za-z_]\w*)\s*([-+]\s*\d{1,4})?\s*")
_THREADS = re.compile(r"\s*(?:blockDim\s*\.\s*x|\w+\s*\.\s*(?:size|num_threads)\s*\(\s*\))\s*")
_REST = re.compile(  # of the whole index: hash(key) & (CAPACITY - 1), (at + 1) % CAPACITY
    r"\s*(?:\w+\s*)?(?:\((?:[^()]|\([^()]*\))*\)\s*|(?<=\w)\s*)(?:&\s*\(\s*(\w+)\s*-\s*1\s*\)|%\s*(\w+))\s*"
)
_CAPACITY = 2**22  # elements of a table whose length is a number
_BLOCK = re.compile(r"\b(?:blockIdx|threadIdx|blockDim|gridDim)\b")


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What may explain how far a kernel goes.

    factors: by pointer the names and numbers by which its indices multiply, and up to which loops count
      whose variables stand there
    sums: by pointer the pairs of sizes whose sum is the end of what it writes
    values: the numbers that names have which are no parameters
    items: the axes of the grid along which each block has an item, such as a row
    shifted: by pointer how many elements there are up to the last index that adds a size to a variable
    """

    factors: Mapping[str, frozenset[str]]
    sums: Mapping[str, frozenset[tuple[str, str]]]
    values: Mapping[str, int]
    items: frozenset[str] = field(default_factory=frozenset)
    shifted: Mapping[str, tuple[Expr, ...]] = field(default_factory=dict)

    def ends(
        self,
        pointer: str,
        sizes: Mapping[str, int],
        given: Mapping[str, int],
        grid: Sequence[int],
    ) -> set[int]:
        """Return how many elements a kernel may go through, by the indices of a pointer.

        That is a product of a size, or of the blocks along an axis of items, and factors of the indices, each
        of them once; a sum of two sizes; and the end of the last row of a size, with a factor from one row to
        the next, ``(rows - 1) * PITCH + columns``. Of a kernel without `sizes` it is one of the blocks along
        any axis, and of indices with numbers alone two of these. `given` are parameters that are no sizes.
        """
        factors, by = self.factors.get(pointer, frozenset()), self._by(pointer, {**sizes, **given})
        blocks = [n for axis, n in zip("xyz", grid, strict=False) if axis in self.items or not sizes]
        alone = () if factors & (sizes.keys() | given.keys()) else factors - {"blockDim"}
        numbers = [n for name in alone if (n := self.values.get(name, 0)) > 1]
        rows = {n for n in sizes.values() if n > 1}
        found = _products({n for n in (*sizes.values(), *blocks) if n > 1}, by)
        found |= {sizes[a] + sizes[b] for a, b in self.sums.get(pointer, ())}
        found |= {a * b for a in numbers for b in numbers}
        found |= {(a - 1) * k + b for a in rows for b in rows for k in by if k > b}
        return {n for n in found if n <= LONGEST}

    def unguarded(self, pointer: str, known: Mapping[str, int], threads: Iterable[int]) -> set[int]:
        """Return how many elements a kernel goes through where each of `threads` along an axis has some."""
        return _products({n for n in threads if n > 1}, self._by(pointer, known))

    def _by(self, pointer: str, known: Mapping[str, int]) -> list[int]:
        """Return the numbers by which the indices of a pointer multiply, from 2 on."""
        known = {**self.values, **known}
        return [n for name in self.factors.get(pointer, ()) if (n := known.get(name, 0)) > 1]

    def shifts(self, pointer: str, sizes: Mapping[str, int]) -> set[int]:
        """Return how many elements there are up to the last index of a pointer that adds a size, n + m."""
        return {end(sizes) for end in self.shifted.get(pointer, ())}


def rests(body: str, source: str, pointer: str, values: Values) -> Iterator[int]:
    """Yield the numbers of which an index of a pointer is a rest, ``slot = hash(key) & (CAPACITY - 1)``.

    A function of `source` may return it.
    """
    given = extents.assigned(body)
    places = extents.places(body, pointer)
    names = filter(str.isidentifier, map(str.strip, places))
    written = [*places, *(value for name in names for value in given.get(name, ()))]
    for called in re.findall(r"^\s*(\w+)\s*\(", "\n".join(written), re.MULTILINE):
        if made := re.search(rf"\b{called}\s*\([^(){{}};]*\)\s*\{{", source):
            written += re.findall(
                r"\breturn\b([^;]*)", source[made.end() : text.closing(source, made.end() - 1)]
            )
    for value in written:
        if at := _REST.fullmatch(_inside(value.strip())):
            number = values.number(at[1] or at[2]) or 0
            yield from (number,) if 1 < number <= _CAPACITY else ()


def _inside(value: str) -> str:
    """Return a value without the brackets that are around all of it."""
    while value.startswith("(") and text.closing(value, 0) == len(value) - 1:
        value = value[1:-1].strip()
    return value


def _products(found: set[int], by: Sequence[int]) -> set[int]:
    """Return numbers and their products with some of others, each of them once."""
    for n in by:
        found = found | {n * each for each in found if n * each <= LONGEST}
    return found


def past(elements: int, ends: Iterable[int], guessed: int) -> bool:
    """Return True where a kernel goes a little past one of some ends, or past a multiple of what is guessed.

    That is what a guard does that is missing or off: the rest of a block, a row, an element.
    """
    over = elements % guessed if elements <= _OFTEN * guessed else 0
    few = elements - guessed <= _FEW
    return few or 0 < over <= LITTLE * guessed or near(elements, ends)


def near(elements: int, ends: Iterable[int], share: float = _PAST) -> bool:
    """Return True where a kernel goes a little past one of some ends."""
    return any(end < elements <= (1 + share) * end for end in ends)


def of(
    entry: text.Entry,
    pointers: Sequence[str],
    sizes: Sequence[str],
    values: Values,
    threads: int,
    source: str = "",
) -> Reach:
    """Return what the body of a kernel says of its pointers, with the numbers that `values` give names.

    Its block has so many `threads` along x. `source` has the functions to which it may pass pointers.
    """
    tiles = {step for axis, step, added in entry.steps if added and axis not in entry.items}
    bodies = {n: ((entry.body, n), *contents.passed(source, entry.body, n)) for n in pointers}
    multiplied = {
        name: frozenset(word for body, called in inside for word in factors(body, called)) - tiles
        for name, inside in bodies.items()
    }
    words = {word for found in multiplied.values() for word in found}
    numbers = {word: values.literal(word) for word in words}
    return Reach(
        factors=multiplied,
        sums={name: frozenset(_sums(entry.body, name, sizes)) for name in pointers},
        values={w: n for w, n in numbers.items() if n is not None and n <= _LARGEST} | {"blockDim": threads},
        items=entry.items,
        shifted={name: tuple(_shifted(entry.body, name, sizes)) for name in pointers},
    )


def factors(body: str, pointer: str) -> Iterator[str]:
    """Yield the factors in the places of a pointer, and in those of the variables that stand there.

    What a variable of a thread or a block is made of says how many of them there are, which is no length.
    """
    given = extents.assigned(body)
    named = (name for name, values in given.items() if any(map(_THREADS.fullmatch, values)))
    threads = "|".join([_THREADS.pattern, *named])
    seen, left = set[str](), [*extents.places(body, pointer), *_of_vectors(body, pointer)]
    for _ in range(_DEEPEST):
        for place in left:
            yield from (word for words in _FACTOR.findall(place) for word in words if word)
        names = {name for place in left for name in re.findall(r"[A-Za-z_]\w*", place)} - seen
        seen |= names
        meant = [*left, *(value for name in names for value in given.get(name, ()))]
        if any(re.search(rf"(?<![.\w])[A-Za-z_]\w*\s*\*(?:{threads})", value) for value in meant):
            yield "blockDim"  # of an item that blocks go through, not of a block's own number
        for name in names:
            ends = {name, *re.findall(rf"\b{name}\s*<=\s*([A-Za-z_]\w*)\s*;", body)}  # j <= i
            yield from (word for end in ends for word in re.findall(rf"\b{end}\s*<=?\s*{_WORD}", body))
        left = [v for name in names for v in given.get(name, ()) if not _BLOCK.search(v)]


def _of_vectors(body: str, pointer: str) -> Iterator[str]:
    """Yield the places of a pointer that is read as one to vectors: ``(i) * 4`` of ``((float4*)x)[i]``."""
    kind = r"\s*(?:const\s+)?\w*?([2-8])\s*(?:const\s*)?\*\s*"
    name = rf"\(?\s*{re.escape(pointer)}\s*\)\s*(?:\[([^][;]*)\]|\)?\s*\+\s*([^;,]*))"
    for cast in (rf"\({kind}\)\s*{name}", rf"\w+_cast\s*<{kind}>\s*{name}"):
        for lanes, index, added in re.findall(cast, body):
            yield f"({index or added}) * {lanes}"


def _sums(body: str, pointer: str, sizes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of sizes whose sum a body has, for a pointer that it writes to by a variable or two."""
    if re.search(rf"\b{re.escape(pointer)}\s*\[\s*\w+\s*(?:\+\s*\w+\s*)?\]\s*=(?!=)", body):
        for a, b in re.findall(r"\b([A-Za-z_]\w*)\s*\+\s*([A-Za-z_]\w*)\b", body):
            if a in sizes and b in sizes:
                yield a, b


def _shifted(body: str, pointer: str, sizes: Sequence[str]) -> Iterator[Expr]:
    """Yield n + m - 1 for ``x[i + m - 1]`` where i is below n, of sizes; a variable may be the index.

    So it is for ``x[j + 1]`` with such a variable, which goes past that end.
    """
    given = extents.assigned(body)
    for place in extents.places(body, pointer):
        name = re.sub(r"(?<=\w)\s*[-+]\s*\d{1,4}\s*\Z", "", place.strip())
        name = name if name.isidentifier() else place.strip()
        for index in [value for value in given.get(name, ()) if not value.strip().isdecimal()] or [name]:
            if (added := _ADDED.fullmatch(index)) is None:
                continue
            for i, m in ((added[1], added[2]), (added[2], added[1])):
                guards = re.findall(rf"\b{i}\s*(?:<|>=)\s*(\w+)\b(?!\s*[-+*/%.(\[])", body)
                for n in {*guards} & {*sizes} if m in sizes else ():
                    yield Expr.parse(f"{n} + {m} {added[3] or '+ 0'}")


def ends(body: str, pointer: str, values: Values) -> Iterator[Expr]:
    """Yield the products of several names that a variable stays below which is the whole index of a pointer.

    Of ``int whole = rows * (2 * pad + columns); if (i < whole) x[i] = 0`` these are parameters. Numbers,
    ``i < COUNT``, are yielded, too, also of ``x[i + 1]``.
    """
    given = {name: values[0] for name, values in extents.assigned(body).items() if len(values) == 1}
    places = {re.sub(r"\s*[-+]\s*\d{1,4}\Z", "", p.strip()) for p in extents.places(body, pointer)}
    for name in filter(str.isidentifier, places):
        for at in re.finditer(rf"\b{name}\s*(?:<|>=)(?!=)", body):
            end = re.split(r"&&|\|\||\?", value_at(body, at.end()))[0]
            if _FEW < (number := values.number(end) or 0) <= _MOST:
                yield Expr.parse(number)
            for _ in range(_DEEPEST):
                if len(end) < _LONG:
                    end = re.sub(_WORD, lambda word: f"({given.get(word[1], word[1])})", end)
            with contextlib.suppress(ExprError):
                found = Expr.parse(end.replace("/", "//"))
                if "*" in end and len(found.names) > 1:
                    yield found
