"""Guess sizes, and strides that lead from one row or one item to the next.

A stride is no size: it is a factor, and is compared with nothing. Beside two sizes or more an item may be a
whole matrix, as all heads of a token: with a stride of one size items would overlap. A pitch that is added to
a pointer to bytes is in bytes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from harness.kernels import text
from harness.kernels.cpp import elements, extents
from harness.kernels.cpp.host import tiles
from harness.kernels.cpp.host.launches import Launch
from harness.kernels.cpp.host.values import Values
from harness.kernels.cpp.source import strided
from harness.kernels.expr import Expr, ExprError
from harness.kernels.spec import Kernel

# A size by default, by the dimensions of the arrays. That of one dimension divides by no block, so that a
# missing guard shows. With more than three dimensions an array has up to so many elements.
_SIZES = {1: 1000, 2: 64, 3: 32}
_ALONE = 50  # of a kernel of one thread, which may sort by comparing each with each
_MOST = 2**16
_TILED = 2**18  # as many as arrays may have so that sizes are no less than a tile
_BYTES = (
    r"(?:\(\s*(?:const\s+)?(?:unsigned\s+)?(?:char|u?int8_t|uchar|Npp8u)\s*(?:const\s*)?\*\s*\)"
    r"|reinterpret_cast\s*<\s*(?:const\s+)?(?:unsigned\s+)?(?:char|u?int8_t)\s*(?:const\s*)?\*\s*>)"
)
_CALLED = re.compile(r"\w*stride\w*", re.IGNORECASE)
_VECTOR = r"(?:u?(?:char|short|int|long|longlong)[234]|float[234]|double[24]|(?:__)?(?:half2|nv_bfloat162))"
_WHOLE = re.compile(  # what takes several elements at once; a vector by itself is one element
    rf"\b(?:{_VECTOR}\s*(?:const\s*)?\*|(?:reinterpret_cast|__shfl\w*|cooperative_groups|cg)\b)"
)
_MATRICES = re.compile(  # ``float4;`` stands for vectors of PTX
    r"\b(?:(?:wmma|mma|asm|cp_async\w*|__pipeline\w*|CUtensorMap)\b|float4;)"
)
_STEPS = re.compile(r"\+\+|--|blockDim|gridDim|step|stride|warp|lane|\b32\b", re.IGNORECASE)  # not of tiles
_WIDEST = 16  # bytes of an element to which a pitch in bytes leads
_FEW, _UNEQUAL, _APART = 16, 3, (0, 5, 9)
_ROUND, _REST = 2**14, 64  # threads of a grid that goes around, at most, and what is left for a last round


def layouts(entry: text.Entry, whole: Sequence[str], launched: Launch | None) -> dict[str, list[str]]:
    """Return by pointer the strides that its indices have, where there are two or more: ``i * stride_m +
    j * stride_n``. They stand in the order of the parameters, the outermost first, and "" behind them where
    an index is added as it is, ``i * stride_b + j * stride_m + k``. What host code computes,
    `launched`, is known.
    """
    compared = {*re.findall(tiles.COMPARED, entry.body)}
    free = [name for name in whole if _CALLED.fullmatch(name) and name not in compared]
    told = derived(launched, entry, whole)
    free = [name for name in free if name not in told and not strided.multiplied(entry.body, name)]
    pointers = (p.name for p in entry.parameters if p.pointer and free)
    found = {pointer: strided.layout(entry.body, pointer, free) for pointer in pointers}
    return {pointer: names for pointer, names in found.items() if names}


def each(
    kernel: Kernel,
    entry: text.Entry,
    whole: Sequence[str],
    dimensions: int,
    alone: int,
    most: int,
    apart: Mapping[str, Sequence[str]],
) -> tuple[int, int]:
    """Return how many sizes an array is the product of, and each, no more than `most`.

    `alone` is one that no parameter says, `apart` are the strides of arrays by `layouts`.
    """
    own = [name for name in whole if not any(name in names for names in apart.values())]
    over = 3 if entry.threads == 3 <= len(own) else min(dimensions, 2)  # a block's z may be a batch
    depth = max([over, 1 + extents.factors(entry.body, own), *map(len, apart.values())])
    size = _SIZES.get(depth, max(2, round(_MOST ** (1 / depth)))) if whole or depth > 1 else alone
    one = kernel.grid and all(str(n) == "1" for n in (*kernel.grid, *kernel.block))
    size = min(size, _ALONE) if one else size
    if depth > 1:  # a tile that nothing guards is whole; that of one dimension may have a rest
        size = max([size, *(n for e in kernel.tile if (n := e({})) ** depth <= _TILED)])
    return depth, min(size, most)


def usual(
    entry: text.Entry,
    whole: Sequence[str],
    size: int,
    threads: int,
    numbers: Values,
    launched: Launch | None,
) -> dict[str, int]:
    """Return what each of the sizes `whole` is by default: `size`, or what the text makes of it.

    What host code gives, `launched`, is not cut to the room of an array: one with less is too small.
    """
    parts = divided(entry, threads, numbers)
    found = {n: math.ceil(size / parts.get(n, 1)) * parts.get(n, 1) for n in whole}
    given = zip((p.name for p in entry.parameters), launched.numbers if launched else (), strict=False)
    host = {name: number or 0 for name, number in given}
    rooms = {n: most for n in whole if (most := extents.room(entry.body, n, numbers))}
    found |= {n: min(found[n], most) for n, most in rooms.items() if host.get(n, 0) <= most}
    found |= {n: min(found[n], threads) for n in whole if threads > 1 and tiles.in_one_block(entry, n)}
    alone = [n for n in whole if threads > 1 and tiles.a_thread_each(entry, n) and host.get(n, 0) <= threads]
    found |= {n: min(found[n], threads - 1) for n in alone}  # so that guards show
    found |= {n: of_bits for n in whole if (of_bits := masked(entry.body, n, size))}
    found |= {n: size - 1 for n in whole if extents.last(entry.body, n)}
    rest = [
        n for n in whole if re.search(rf"%\s*{n}\b", entry.body) and not re.search(rf"/\s*{n}\b", entry.body)
    ]
    found |= {n: host[n] for n in rest if len(whole) > 1 < host.get(n, 0) < found[n]}  # bins that are shared
    return found | {n: leaves for n, leaves in halved(entry, threads).items() if n in whole}


def derived(launched: Launch | None, entry: text.Entry, whole: Sequence[str]) -> dict[str, Expr]:
    """Return the sizes that host code computes from others of a launch, ``n / 2`` or ``rows * cols``."""
    names, found = [p.name for p in entry.parameters], dict[str, Expr]()
    written = launched.over(names, launched.derived) if launched else []
    for name, expression in zip(names, written, strict=False):
        with contextlib.suppress(ExprError):
            if name in whole and expression and (read := Expr.parse(expression)).names <= {*names} - {name}:
                found[name] = read
    return {name: e for name, e in found.items() if not e.names & found.keys()}


def halved(entry: text.Entry, block: int) -> dict[str, int]:
    """Return the parameters that a loop halves or doubles to, each with the elements of a `block`.

    ``for (d = n >> 1; d > 0; d >>= 1) if (threadIdx.x < d)`` goes up a tree of n leaves, a power of two: each
    thread has one of them, or two where it says ``2 * threadIdx.x`` or ``threadIdx.x + n / 2``. In a network
    that sorts, ``for (k = 2; k <= n; k <<= 1)`` with ``threadIdx.x ^ j`` in it, each has one.
    """
    thread = text.named(entry.body, r"threadIdx\.x")
    leaves = 1 << block.bit_length() - 1
    found = {}
    for size in (p.name for p in entry.parameters if not p.pointer):
        half = rf"\(?\s*{size}\s*(?:>>\s*1|/\s*2)\s*\)?"
        once = r"(?:>>=\s*1|/=\s*2|=\s*\1\s*(?:>>\s*1|/\s*2))"
        head = rf"\b(\w+)\s*=\s*{half}\s*;\s*\1\s*(?:>\s*0|>=\s*1)?\s*;\s*\1\s*{once}"
        loop = re.search(head, entry.body)
        doubled = rf"\b(\w+)\s*=\s*2\s*;\s*\1\s*<=\s*{size}\s*;\s*\1\s*(?:<<=\s*1|\*=\s*2)"
        if re.search(doubled, entry.body) and re.search(rf"(?:{thread})\s*\^", entry.body):
            found[size] = leaves
        if loop and re.search(rf"(?:{thread})\s*<\s*{loop[1]}\b", entry.body):
            two = rf"\b2\s*\*\s*(?:{thread})\b|\b(?:{thread})\s*(?:\*\s*2\b|<<\s*1\b|\+\s*{half})"
            found[size] = 2 * leaves if re.search(two, entry.body) else leaves
    return found


def divided(entry: text.Entry, block: int, values: Values) -> dict[str, int]:
    """Return the parameters of which a text takes whole blocks or tiles alone, each with the elements of one.

    ``n / blockDim.x`` tiles leave the rest out, if nothing is added to that: such an n is a multiple.
    """
    found = {}
    for size in (p.name for p in entry.parameters if not p.pointer):
        by = re.findall(rf"(?<![\w.])\b{size}\s*/\s*(blockDim\.x|\w+)\s*(?![\w\s+.(\[])", entry.body)
        parts = {block if word == "blockDim.x" else values.number(word) for word in by} - {None, 2}
        if len(parts) == 1 and (each := parts.pop()) and each > 2:
            found[size] = each
    return found | tiles.asserted(entry, block, values)


def masked(body: str, name: str, size: int) -> int:
    """Return what is a power of two, as in ``hash & (capacity - 1)``, or one less, ``hash & mask``; or 0."""
    if re.search(rf"(?<!&)&=?\s*\(\s*{name}\s*-\s*1u?\s*\)|\(\s*{name}\s*-\s*1u?\s*\)\s*&(?!&)", body):
        return 2 << (size - 1).bit_length()  # of a hash table no more than a half is full
    if "mask" in name.lower() and re.search(rf"(?<!&)&=?\s*{name}\b|\b{name}\s*&(?!&)", body):
        return (1 << (size.bit_length() - 1)) - 1
    return 0


def strides(
    entry: text.Entry,
    whole: Sequence[str],
    types: Mapping[str, elements.Type],
    size: int,
    layouts: Mapping[str, Sequence[str]],
    numbers: Values,
) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Return the strides among the parameters `whole`, where a size is `size`: what each is to be.

    The first are of elements, also of a row longer than a size by one of the `numbers`, the second pitches in
    bytes, the third those of `layouts`: 1 the innermost, the others as long as what they skip; one of several
    arrays is as long as the largest needs.
    """
    inside = strided.inside(layouts, size)
    whole = [name for name in whole if name not in inside]
    rows = {name: strided.longest(entry.body, name, numbers) for name in whole if _CALLED.fullmatch(name)}
    rows = {name: most for name, most in rows.items() if most > size}
    whole = [name for name in whole if name not in rows]
    pointers = [p.name for p in entry.parameters if p.pointer]
    compared = {*re.findall(tiles.COMPARED, entry.body)}
    free = [name for name in whole if name not in compared]
    widest = max((elements.size(types[name]) for name in pointers), default=1)
    pitches = {name: size * min(widest, _WIDEST) for name in free if in_bytes(entry.body, name)}
    alone = [name for name in free if name not in pitches and apart(entry.body, name, pointers, whole)]
    parts = (set(re.findall(r"\w+", part)) for part in re.split(r"[;{},=\[\]]", entry.body))
    several = {name for part in parts if len(part & set(alone)) > 1 for name in part}
    if len(set(whole) - pitches.keys() - set(alone)) < 2:
        return rows, pitches, inside
    return rows | {name: size * size for name in alone if name not in several}, pitches, inside


def in_bytes(body: str, name: str) -> bool:
    """Return True for a pitch in bytes: ``(float*)((char*)image + y * pitch)``."""
    factor = rf"(?:\*\s*{name}\b|\b{name}\s*\*)"
    return bool(re.search(rf"{_BYTES}\s*\(?\s*[\w.>-]+\s*\)?\s*\+[^;\[\],]*?{factor}", body))


def apart(body: str, name: str, pointers: Sequence[str], others: Sequence[str] = ()) -> bool:
    """Return True for what is called a stride and leads to an item that has sizes of its own.

    It is added to a pointer, ``A + id * stride``, or in an index to another product, also to one by a size of
    `others` in a variable. That of rows alone, ``y * stride + x``, is one size.
    """
    factor = rf"(?:[\w)\]]\s*\*\s*(?:\(\w+\)\s*)?{name}\b|\b{name}\s*\*\s*[\w(])"
    if not _CALLED.fullmatch(name) or not re.search(factor, body):
        return False
    added = "|".join(map(re.escape, pointers)) or r"(?!)"
    indices = [index for index in re.findall(r"\[([^][;]*)\]", body) if re.search(factor, index)]
    sizes = "|".join(other for other in others if other != name) or "(?!)"
    placed = re.findall(rf"(\w+)\s*=(?!=)\s*([^;=,]*?{factor}[^;=,]*)", body)
    return bool(
        re.search(rf"\b(?:{added})\s*\+\s*[^;,=]*?{factor}", body)
        or (indices and all(index.count("*") > 1 for index in indices))
        or any(n.count("*") > 1 and re.search(rf"\b(?:{added})\s*\+\s*{at}\b", body) for at, n in placed)
        or any(re.search(rf"\*\s*(?:{sizes})\b", n) and re.search(rf"\[\s*{at}\b", body) for at, n in placed)
    )


def rounds(
    entry: text.Entry, usual: Mapping[str, int], grid: Sequence[Expr], threads: int
) -> list[dict[str, int]]:
    """Return a size at which the blocks of the host's grid go on to other items, two or three times each.

    That is for a loop whose step is `gridDim`, and one size; a grid of that many blocks covers the usual one.
    """
    blocks = grid[0]({}) if grid and not any(e.names for e in grid) else 0
    steps = re.search(r"\+=[^;)]*\bgridDim\b|=\s*\w+\s*\+\s*gridDim\b", entry.body)
    if not steps or len(usual) != 1 or not 0 < blocks * threads <= _ROUND:
        return []
    size = 2 * blocks * threads + _REST
    return [dict.fromkeys(usual, size)] if max(usual.values()) < size else []


def ragged(
    entry: text.Entry,
    called: str,
    usual: Mapping[str, int],
    depth: int,
    launched: Launch | None,
    layouts: Mapping[str, Sequence[str]],
    *,
    tight: bool = False,
    tile: int = 0,
    threads: int = 0,
) -> list[dict[str, int]]:
    """Return other sizes for a text that guards its indices, no multiples of its blocks; or nothing.

    Up to three are unequal, so that rows taken for columns show, too: in the order of the numbers that they
    have as `launched`, and equal where one variable is both. What is compared with nothing may be a pitch,
    and is as long as the longest. Nothing is returned where a size may have to be a multiple: the text
    divides one or goes through one in tiles, or more is known of one than the number that is `usual` for
    all. Where it or what is `called` with it reads vectors or shuffles, those alone change that a warp
    compares as a whole, such as rows. One of one dimension does where `tile` elements of a block divide it,
    or where these are several for each of its `threads`: then some of the last block's have none.
    With strides of `layouts` there are equal ones, too, at which the end of each row is that of the array;
    these alone where such an array has no more room, `tight`.
    """
    loops = list(_loops(entry.body))
    compared = {*re.findall(tiles.COMPARED, entry.body)} & usual.keys()
    outside = entry.body
    for head in loops:
        outside = outside.replace(head, " ")
    guarded = {*re.findall(tiles.COMPARED, outside)} & compared
    whole = vectors(called)
    free = {n for n in guarded if tiles.by_warp(entry.body, outside, n, launched)} if whole else usual.keys()
    named = (rf"(?<![.\w]){n}\b" for n in free)
    parts = "|".join(rf"{n}\s*(?:/|%|>>)|[/%]\s*{n}|&=?\s*\(\s*{n}\s*-\s*1\b" for n in named)
    own = re.compile(rf"=\s*(?:{text.named(entry.body, r'threadIdx[.]x')})\s*[;,]")  # of each thread
    by_tiles = any(
        {*re.findall(tiles.COMPARED, head)} & compared & free
        and not _STEPS.search(head)
        and not own.search(head)
        for head in loops
    )
    by_tiles = by_tiles or bool(tiles.asserted(entry, 1, Values({})))
    if not free & guarded or len({*usual.values()}) > 1 or by_tiles or re.search(parts, entry.body):
        return []
    size = next(iter(usual.values()))
    if _MATRICES.search(called) or size <= _FEW:
        return []
    if depth < 2:
        others = [size - _APART[1]] if tile > 1 and not size % tile else []
        if tile > threads > 1 and size % tile >= threads:
            others.append(size - size % tile + 3 * threads // 4 - 1)
        return [{**usual, **dict.fromkeys(free, n)} for n in others]
    least = size - size // 4 - (size - size // 4) % 4 + 2
    if whole:
        rows = zip((n for n in usual if n in free), itertools.cycle(_APART))
        return [{**usual, **{n: least + more for n, more in rows}}] if not layouts else []
    if len(compared) > _UNEQUAL:
        return [dict.fromkeys(usual, least)]
    # What only loops end at, else the last, is the least: the product of the others is a whole array.
    ordered = sorted((n for n in usual if n in compared), key=lambda n: n in guarded)
    if len(ordered) == _UNEQUAL and guarded >= compared:
        ordered = [*ordered[2:], *ordered[:2]]
    names = [p.name for p in entry.parameters]
    numbers = dict(zip(names, launched.numbers, strict=False)) if launched else {}
    if all(numbers.get(n) for n in ordered):
        ordered.sort(key=lambda n: numbers[n] or 0)
    given = zip(names, launched.arguments, strict=False) if launched else ()
    same = {n: n for n in usual} | {n: f"={argument}" for n, argument in given if argument.isidentifier()}
    unequal = {
        n: least + more for n, more in zip(dict.fromkeys(map(same.get, ordered)), _APART, strict=False)
    }
    most = max(unequal.values())
    ended = layouts and not any(strided.ENDLESS in names for names in layouts.values())
    close = [dict.fromkeys(usual, least) | strided.inside(layouts, least)] if ended else []
    if tight:
        return close
    return [*close, {n: unequal.get(same[n], most) for n in usual} | strided.inside(layouts, max(size, most))]


def with_strides(found: Mapping[str, int], apart: Mapping[str, int], size: int) -> dict[str, int]:
    """Return other sizes with the strides that are `apart`: no longer than an item of these sizes.

    Where a size was `size`, an item was its square; a row that a number says stays as long.
    """
    items = [name for name, stride in apart.items() if stride == size * size]
    return {**dict.fromkeys(items, max(found.values()) ** 2), **found} if found else {}


def vectors(called: str) -> bool:
    """Return True for a text that takes several elements at once, whose sizes may be multiples."""
    return bool(_WHOLE.search(called) or _MATRICES.search(called))


def _loops(body: str) -> Iterator[str]:
    """Yield the heads of the loops of a body, ``for (...)``."""
    for at in re.finditer(r"\b(?:for|while)\s*\(", body):
        if (end := text.closing(body, at.end() - 1)) > 0:
            yield body[at.start() : end + 1]
