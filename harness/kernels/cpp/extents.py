"""Guess by the indices of a kernel how long its buffers are."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.kernels import text
from harness.kernels.cpp.host.values import Values

_WIDEST = 16  # elements that belong together
_MOST = 4096  # elements of a thread
OF_WARPS = r"\s*(?:/\s*(?:32|\w*(?i:warp)\w*)|>>\s*5)"  # behind a number of threads
_PLANES = (
    re.compile(r"(?:(?P<number>\d)\s*\*\s*)?(?P<size>[A-Za-z_]\w*)\s*\+\s*(?P<i>[A-Za-z_]\w*)"),
    re.compile(r"(?P<i>[A-Za-z_]\w*)\s*\+\s*(?:(?P<number>\d)\s*\*\s*)?(?P<size>[A-Za-z_]\w*)"),
)
_PAIR = re.compile(r"2\s*\*\s*([A-Za-z_]\w*)\s*\+\s*1")
_FAR = 8  # cells of a border
_OWN = re.compile(r"(?:\A|[;{}])\s*(?:const\s+)?[\w:]+\s+([A-Za-z_]\w*)\s*\[\s*(\w+)\s*\]\s*[;=,]")  # own[8];
_FACTOR = re.compile(r"[\w.]+")
_MULTIPLE = re.compile(r"(?:\w+|\([^()]*\))\s*\*\s*\d+|\d+\s*\*\s*(?:\w+|\([^()]*\))")
_SET = re.compile(r"\b(\w+)\s*(?:\+=|=(?!=))(?=\s*([^;{}]*))")  # also by +=
_ASSIGNED = re.compile(r"\b(\w+)\s*=(?=([^;{}=]*))")


@dataclass(frozen=True, kw_only=True)
class Indexed:
    """The findings of `width`, `border`, `last` and `shares` for a parameter."""

    width: int
    border: int
    last: bool = False
    shares: int = 0


def of(body: str, name: str, values: Values) -> Indexed:
    """Return what the indices of a body say of a parameter, a pointer or a size."""
    return Indexed(
        width=width(body, name, values),
        border=border(body, name),
        last=last(body, name),
        shares=shares(body, name, values),
    )


def width(body: str, pointer: str, values: Values) -> int:
    """Return how many elements of a pointer belong together.

    That is 3 for ``x[n * 3 + 2]``, where none goes further, and for ``x[n * 3 + k]``, where k stays below 3.
    It is K, as `values` have it, for ``x[i * K]``, where i is the number of a thread in the grid. Pairs are
    not told from the halves of a block, ``x[2 * i + 1]``.
    """
    given = _once_given(body)
    indices = [
        re.sub(r"\A\s*(\w+)", lambda word: f"({given[word[1]]})" if word[1] in given else word[0], index)
        for index in re.findall(rf"\b{re.escape(pointer)}\s*\[((?:[^][;]|\[[^][;]*\])*)\]", body)
    ]
    last = re.compile(r"(?:\*\s*(\d+)|\b(\d+)\s*\*\s*(?:\w+|\([^()]*\)))\s*\)?\s*\+\s*(\d+)\s*\Z")
    found = [(int(at[1] or at[2]), int(at[3])) for index in indices if (at := last.search(index))]
    together = [n for n, rest in found if 2 < n == rest + 1 <= _WIDEST]
    together += (n for n in _looped(indices, body, values) if n <= _WIDEST)
    together += [
        2
        for name in _flat_pairs(body, given)
        if re.search(rf"\b{re.escape(pointer)}\s*\[\s*{name}\s*\+\s*1\s*\]", body)
    ]
    threads = "|".join(
        re.escape(name)
        for name, value in _ASSIGNED.findall(body)
        if "blockIdx" in value and "threadIdx" in value
    )
    if threads:
        times = re.compile(rf"\b(?:{threads})\b\)?\s*\*\s*(\w+)|\b(\w+)\s*\*\s*\(?\b(?:{threads})\b")
        places = [*indices, *re.findall(rf"\b{re.escape(pointer)}\s*\+\s*([^;]*)", body)]
        factors = [left or right for place in places for left, right in times.findall(place)]
        known = [(factor.isdecimal(), values.number(factor) or 1) for factor in factors]
        together += [n for literal, n in known if 1 + literal < n <= _MOST]
    together += _items([*indices, *_offsets(body, pointer)], values)
    together += _planes(indices, body)
    together += _in_blocks(indices, [*indices, *_offsets(body, pointer)], body, values)
    return max(together, default=1)


def assigned(body: str) -> dict[str, list[str]]:
    """Return what a body assigns to its variables, by their names."""
    given: dict[str, list[str]] = {}
    for name, value in _SET.findall(body):
        given.setdefault(name, []).append(value.partition(",")[0])
    return given


def places(body: str, pointer: str) -> list[str]:
    """Return the indices of a pointer in a body, and what it adds to the pointer."""
    return [*re.findall(rf"\b{re.escape(pointer)}\s*\[([^][;]*)\]", body), *_offsets(body, pointer)]


def _offsets(body: str, pointer: str) -> list[str]:
    """Return what a body adds to a pointer."""
    return re.findall(rf"\b{re.escape(pointer)}\s*\+=?\s*((?:\((?:\([^()]*\)|[^()])*\)|[^;,()])*)", body)


def _in_blocks(indices: Sequence[str], places: Sequence[str], body: str, values: Values) -> Iterator[int]:
    """Yield the numbers N of indices that begin at ``item * N``, where an item is not a block's alone.

    Such are ``tile * N + threadIdx.x``, ``(blockIdx.x + i * gridDim.x) * N`` and ``at + i`` with
    ``at = blockIdx.y * rows * N``, or that in place of ``at``.
    """
    given = dict(_ASSIGNED.findall(body))
    for place in places:
        if at := re.match(r"(?:\(\s*\w+\s*\)\s*)?\([^()]*\bgridDim\b[^()]*\)\s*\*\s*(\w+)", place.strip()):
            number = values.number(at[1]) or 1
            yield number if number <= _MOST else 1
    for index in indices:
        if at := re.fullmatch(r"\s*([A-Za-z_]\w*)\s*\*\s*(\w+)\s*\+\s*threadIdx\.x\s*", index):
            number = 1 if "blockIdx" in given.get(at[1], "") else values.number(at[2]) or 1
            yield number if number <= _MOST else 1
    names = set(re.findall(r"\b[A-Za-z_]\w*", " ".join(places))) & given.keys()
    for written in (*(given[name] for name in names), *places):
        factors = re.split(r"\s*\*\s*", re.sub(r"\(\s*\w+(?:\s+\w+)?\s*\)", "", written).strip())
        meant = ((f, given.get(f, "").partition(",")[0].strip()) for f in factors)
        factors = [value if value.startswith("blockIdx.") else f for f, value in meant]
        if not any(f.startswith("blockIdx.") for f in factors) or not all(map(_FACTOR.fullmatch, factors)):
            continue
        numbers = [values.number(f) for f in factors if not f.startswith("blockIdx.")]
        known = [n for n in numbers if n]
        if known and len(known) < len(numbers) and math.prod(known) <= _MOST:
            yield math.prod(known)


def shares(body: str, pointer: str, values: Values) -> int:
    """Return N where the block of number ``blockIdx.x`` has the elements from ``blockIdx.x * N``; else 0.

    ``int row = blockIdx.x;`` is that number, too.
    """
    found = 0
    block = text.named(body, r"blockIdx\.x")
    for place in places(body, pointer):
        if at := re.search(rf"\b(?:{block})((?:\s*\*\s*\w+)+)", place):
            numbers = [values.number(word) or 0 for word in re.findall(r"\w+", at[1])]
            found = max(found, math.prod(numbers))
    return found if found <= _MOST else 0


def _looped(indices: Sequence[str], body: str, values: Values) -> Iterator[int]:
    """Yield the numbers N of indices ``... * N + k``, or ``N * i + k``, where k stays below N."""
    rest = r"\s*\)?\s*\+\s*([A-Za-z_]\w*)\s*\Z"
    below = set(re.findall(r"\b(\w+)\s*<\s*(\w+)\b", body)) if indices else set()
    for index in indices:
        for factor in (r"\*\s*(\w+)", r"\b(\w+)\s*\*\s*(?:\w+|\([^()]*\))"):
            at = re.search(factor + rest, index)
            if at and (at[2], at[1]) in below:
                yield values.number(at[1]) or 1


def _items(places: Sequence[str], values: Values) -> Iterator[int]:
    """Yield the large numbers N of places ``(head * rows + row) * N``, as many items as two sizes say."""
    for place in places:
        for rows, n in re.findall(r"\(\s*\w+\s*\*\s*(\w+)\s*\+\s*\w+\s*\)\s*\*\s*(\w+)", place):
            number = values.number(n) or 1
            yield number if values.number(rows) is None and _WIDEST < number <= _MOST else 1


def _planes(indices: Sequence[str], body: str) -> Iterator[int]:
    """Yield how many planes of n an array has with ``x[n + i]`` or ``x[i + 2 * n]``, 2 with ``x[2 * i + 1]``.

    So it is where ``i < n``, or i is read from a buffer, and for planes only where there is ``x[i]``, too:
    ``x[i + n]`` alone goes too far.
    """
    changed, plain = {name for name, _ in _ASSIGNED.findall(body)}, {index.strip() for index in indices}
    for index in plain:
        for at in filter(None, (pattern.fullmatch(index) for pattern in _PLANES)):
            read = at["i"] in plain and re.search(rf"\b{at['i']}\s*=\s*\w+\s*\[", body)
            known = read or (at["i"] in plain and at["size"] in _ends(body, at["i"]))
            if at["size"] not in changed and known:
                yield int(at["number"] or 1) + 1
        if (pair := _PAIR.fullmatch(index)) and _ends(body, pair[1]) - changed:
            yield 2


def _ends(body: str, name: str) -> set[str]:
    """Return the names below which a variable stays, or the one that it is a copy of."""
    same = "|".join({name, *re.findall(rf"\b{name}\s*=\s*([A-Za-z_]\w*)\s*[;,]", body)})
    return {*re.findall(rf"\b(?:{same})\s*(?:<|>=)\s*([A-Za-z_]\w*)\b(?!\s*[-+*/>])", body)}


def ended(body: str, pointer: str, sizes: Sequence[str]) -> str:
    """Return the size below which each index of a pointer stays, as of ``bias[col]`` where ``col < cols``.

    "" is returned where one is more than a variable and a number, or that is compared with anything else, or
    where the pointer is more than indexed.
    """
    name = rf"(?<![\w.]){re.escape(pointer)}\b"
    indices = re.findall(rf"{name}\s*\[\s*([A-Za-z_]\w*)\s*(?:[-+]\s*\d+\s*)?\]", body)
    if not indices or len(indices) < len(re.findall(name, body)):
        return ""
    found = set[str]()
    for index in set(indices):
        ends = re.findall(rf"(?<![\w.]){index}\s*(?:<|>=)\s*([^;&|?)]*)", body)
        found |= {end.strip() for end in ends} or {""}
    return found.pop() if len(found) == 1 and found <= {*sizes} else ""


def _flat_pairs(body: str, given: Mapping[str, str]) -> Iterator[str]:
    """Yield the variables that are twice an index of several dimensions: ``e = 2 * i``, of complex numbers.

    That index is set once, too, with a product in a product: ``i = (z * ny + y) * nx + x``.
    """
    for name, value in given.items():
        twice = re.fullmatch(r"\s*(?:2\s*\*\s*\(?(\w+)\)?|\(?(\w+)\)?\s*\*\s*2)\s*", value)
        index = twice and re.findall(rf"\b{twice[1] or twice[2]}\s*=(?!=)\s*([^;]*);", body)
        if index and len(index) == 1 and re.search(r"\([^()]*\*[^()]*\)\s*\*|\*\s*\([^()]*\*", index[0]):
            yield name


def _once_given(body: str) -> dict[str, str]:
    """Return the variables that a body sets once, to a multiple of a number: ``at = (y * w + x) * 3``."""
    found: dict[str, list[str]] = {}
    for name, value in _ASSIGNED.findall(body):
        found.setdefault(name, []).append("".join(text.split(value)[:1]))
    return {n: v[0] for n, v in found.items() if len(v) == 1 and _MULTIPLE.fullmatch(v[0])}


def factors(body: str, names: Sequence[str]) -> int:
    """Return how many of `names` are factors in one index, or in one offset of a pointer, of a body.

    Two are in ``x[(c * H + y) * W + i]`` and in ``x[(c * N * N + i]``, and one in ``x[j * (N + 2) + i]`` and,
    where x is a struct that has an index operator, in ``x(i, j)``.
    """
    most = max((n - 1 for name in names for n in _called_with(body, name) if n <= 3), default=0)
    body = re.sub(r"\b\w+\s*(?:\.|->)\s*\w+\s*(?=\[)", " ", body)  # a struct's array is no size of it
    alike = {
        n: "|".join([re.escape(n), *(p for p, of in text.divided(body).items() if of == n)]) for n in names
    }
    words = [rf"(?:\b(?:{one})\b|\(\s*(?:{one})\s*[-+]\s*\d\s*\))" for one in alike.values()]
    times = [re.compile(rf"{word}\s*\*|\*\s*(?:\([\w\s]+\)\s*)?{word}") for word in words]
    twice = [re.compile(rf"\*\s*{word}\s*\*\s*{word}|{word}\s*\*\s*{word}\s*\*") for word in words]
    for part in re.split(r"[][;,=<>?{}]", body):
        most = max(most, sum(bool(one.search(part)) for one in (*times, *twice)))
    return most


def _called_with(body: str, name: str) -> Iterator[int]:
    """Yield the numbers of arguments of the calls of a struct's index operator, or of its ``at()``."""
    for at in re.finditer(rf"\b{re.escape(name)}\s*(?:\.\s*[aA]t\s*)?\(", body):
        closed = text.closing(body, at.end() - 1)
        yield len(text.split(body[at.end() : closed]))


def shared(body: str, values: Values) -> Iterator[tuple[str, int]]:
    """Yield the arrays in shared memory of one dimension whose elements are known, with their number."""
    for name, length in re.findall(r"\b__shared__[^;=]*?(\w+)\s*\[([^]]*)\]\s*[;,]", body):
        if number := values.number(length.strip()):
            yield name, number


def _arrays(body: str, values: Values) -> Iterator[tuple[str, int]]:
    """Yield the arrays of a block or thread of one dimension whose elements are known, with their number."""
    yield from shared(body, values)
    for name, length in _OWN.findall(body):
        if number := values.number(length):
            yield name, number


def room(body: str, size: str, values: Values) -> int | None:
    """Return the least elements of the own arrays that a loop up to a size goes through; None of none."""
    ends = re.findall(rf"\b(\w+)\s*<\s*{size}\s*(?:\+\s*(\d+)\s*)?;", body)
    whole = [(name, n, i, int(more or 0)) for name, n in _arrays(body, values) for i, more in ends]
    filled = (n - more for name, n, i, more in whole if re.search(rf"\b{name}\s*\[\s*{i}\s*\]", body))
    return min(filled, default=None)


def radius(body: str, name: str) -> bool:
    """Return True for how far a kernel looks to both sides: from ``-r`` to ``r``, ``2 * r + 1`` elements.

    So does one from ``max(0, i - r)`` to ``min(n - 1, i + r)``. ``2 * r + 1`` counts where r is called so
    only: it may be a size.
    """
    word = rf"\b{re.escape(name)}\b"
    before = re.findall(rf"\bmax\s*\(\s*0\s*,\s*(\w+)\s*-\s*{word}\s*\)", body)
    if any(re.search(rf"\bmin\s*\([^;]*\b{at}\s*\+\s*{word}", body) for at in before):
        return True
    if re.search(rf"=\s*-\s*{word}\s*;[^;{{}}]*<=\s*{word}", body):
        return True
    twice = rf"(?:\b2\s*\*\s*{word}|{word}\s*(?:\*\s*2\b|<<\s*1\b))\s*\)?\s*\+\s*1\b"
    called = re.fullmatch(r"(?i:\w*rad(?:ius)?|\w*halo|\w*_r|r|\w+R)", name)
    return bool(called and re.search(twice, body))


def window(body: str, name: str) -> bool:
    """Return True for the size of a filter, of which a half is how far a kernel looks to both sides.

    ``r = n / 2;`` and ``for (k = -r; k <= r; k++)`` go through ``2 * r + 1`` elements, which is an odd n. So
    does ``for (k = 0; k < n; k++)`` where k is added to ``i - r``.
    """
    known = halves(body, name)
    around = [
        rf"-\s*{half}\s*\+\s*{k}\b|\b{k}\s*-\s*{half}\b"
        for half in known
        for k in re.findall(rf"\b(\w+)\s*<\s*{re.escape(name)}\s*;", body)
    ]
    return any(radius(body, half) for half in known) or any(re.search(one, body) for one in around)


def halves(body: str, name: str) -> list[str]:
    """Return the variables that are half of one, ``r`` of ``r = n / 2;``."""
    return re.findall(rf"\b(\w+)\s*=\s*{re.escape(name)}\s*(?:/\s*2|>>\s*1)\s*[;,]", body)


def shift(body: str, name: str) -> bool:
    """Return True where a body shifts by a parameter, as in ``1 << order``: it counts bits."""
    word = rf"(?:(?:32|64)\s*-\s*)?{re.escape(name)}"
    return bool(re.search(rf"(?:<<|>>)=?\s*\(?\s*{word}\b(?!\s*[*/.\[])", body))


def dimension(body: str, name: str) -> bool:
    """Return True where what a body multiplies is compared with a size: rows, of ``x[r * n + i]``.

    So it is with what multiplies a variable or an index, ``i * stride`` and ``blockIdx.y * size``.
    """
    word = re.escape(name)
    if re.search(rf"(?:\b[A-Za-z_][\w.]*|[\])])\s*\*\s*{word}\b|\b{word}\s*\*\s*[A-Za-z_(]", body):
        return True
    compared = re.findall(rf"\b([A-Za-z_]\w*)\s*[<>]=?\s*{word}\b", body)
    return any(re.search(rf"\b{v}\b\s*\*|\*\s*\(?\b{v}\b", body) for v in compared)


def last(body: str, name: str) -> bool:
    """Return True for what is called a position and is one: a loop goes up to it, ``t <= pos``."""
    called = re.fullmatch(r"(?:\w*_)?(?:pos|position|last|end|idx|index)", name, re.IGNORECASE)
    return bool(called and re.search(rf"<=\s*{name}\b", body) and not re.search(rf"<\s*{name}\b", body))


def border(body: str, size: str) -> int:
    """Return how many cells are added to a size where it is a factor: 2 for ``x[i + (N + 2) * j]``."""
    more = rf"\(\s*{re.escape(size)}\s*\+\s*(\d)\s*\)"
    found = re.findall(rf"{more}\s*\*|\*\s*{more}", body)
    return max((n for pair in found if (n := int("".join(pair))) <= _FAR), default=0)
