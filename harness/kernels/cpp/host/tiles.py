"""Guess sizes and grids of kernels that go through tensors box by box, or row by row of a block.

A pipeline has to come around for what is wrong with its stages to show, and a persistent kernel to its second
tile: one box along each extent would hide both.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from harness.kernels import text
from harness.kernels.arch import SMS
from harness.kernels.cpp import extents
from harness.kernels.cpp.host import launches, values
from harness.kernels.cpp.host.tensors import Encoded
from harness.kernels.expr import Expr, ExprError

_STAGES = re.compile(r"(?i:\w*stage\w*|\w*pipe\w*|q_?size|\w*depth|num_?buf\w*|\w*queue\w*)")
_USUAL, _DEEPEST = 3, 12  # stages of a pipeline, where the text does not say, and at most
_TILES, _WIDE = 4, 256  # boxes along a size that the grid is over, and elements where these are more
_MOST = 2**17  # threads of a persistent kernel's launch
_REST = 8  # elements that are missing in the last tile: what vectors read is whole
COMPARED = r"(?<![-<>])[<>]=?\s*(?:\(\s*(?:int|unsigned|size_t)\s*\)\s*)?([A-Za-z_]\w*)\b"
_BROAD, _LARGEST = 2048, 2**20  # elements of a block's tile along an axis, and of an array of whole tiles
_LONG = 2**16  # a size for which an extent is computed
_INSIDE = 3  # variables in each other
_ROUNDED = re.compile(r"\+\s*\(*(?:\d+|\w+\s*-\s*1)\s*\)*\s*/")  # (n + 63) / 64, (n + TILE - 1) / TILE
_ASSERTED = r"\b(?:\w*_)?(?:assert|ASSERT)\s*\("
_BELOW = re.compile(rf"{_ASSERTED}\s*\(*\s*(\w+)\s*<\s*(\w+)")
_MULTIPLE = re.compile(rf"{_ASSERTED}[^;]*?\b(\w+)\s*%\s*(blockDim\.x|\w+)\s*\)*\s*==\s*0")
_COUNTED = re.compile(r"[mM]ultiProcessorCount|\bnum_sms\b")


def sizes(
    maps: Mapping[str, Encoded],
    launched: launches.Launch | None,
    entry: text.Entry,
    known: values.Values,
    grid: Sequence[Expr],
) -> dict[str, int]:
    """Return the sizes of a kernel that are extents of its tensor maps: some boxes long.

    Those in `grid`, over which its grid is, have several tiles, the last of them twice as many, so that rows
    that are taken for columns show. One that the body compares with, as a guard does, ends within a tile.
    One that is not in the grid goes around all stages of a pipeline, and twice through the first. So is one
    that is an extent of several maps where the grid is not known.
    """
    found, loops = dict[str, int](), dict[str, int]()
    over = frozenset[str]().union(*(blocks.names for blocks in grid))
    stages = _stages(entry, known)
    for name, boxes in _boxes(maps, launched, entry).items():
        whole = math.lcm(*boxes)
        tiles = whole * max(2, min(_TILES, _WIDE // whole))
        if name not in over if over else len(boxes) > 1:
            loops[name] = max(tiles, (stages + 2) * whole)
        else:
            found[name] = tiles
    wide = [*found][-1:] if len(found) > 1 and len({*found.values()}) == 1 else []
    found |= {name: 2 * found[name] for name in wide}
    outside = re.sub(r"\bfor\s*\([^;{}]*;[^;{}]*;", " ", entry.body)
    compared = {*re.findall(r"[\w)]\s*<\s*(\w+)\b(?!\s*[*/+])", outside)}
    guarded = [name for name, n in found.items() if name in compared and n > 4 * _REST]
    return loops | found | {name: found[name] - _REST for name in guarded}


def several(
    usual: Mapping[str, int], grid: Sequence[Expr], cluster: Sequence[int], fixed: Mapping[str, int]
) -> dict[str, int]:
    """Return sizes of a kernel with clusters that fill two of them along each axis: one may have idle blocks.

    Sizes are doubled that the grid along this axis alone depends on, and that are not `fixed`.
    """
    found = dict(usual)
    for along, blocks in zip(grid, cluster, strict=False):
        names = along.names - fixed.keys()
        for _ in range(_DEEPEST if blocks > 1 and len(names) == 1 and names <= found.keys() else 0):
            with contextlib.suppress(ExprError):
                if along({**fixed, **found}) < 2 * blocks:
                    found |= {name: 2 * found[name] for name in names}
    return found


def group(body: str, name: str) -> bool:
    """Return True for the elements of a group, of which a kernel counts ``(n + group - 1) / group``."""
    return bool(re.search(rf"\+\s*\(?\s*{name}\s*-\s*1\s*\)*\s*/\s*{name}\b", body))


def divisors(derived: Mapping[str, Expr]) -> dict[str, str]:
    """Return which parameters count tiles, ``ceil((float)n / rows)``, and which are the elements of each."""
    found = ((name, re.findall(r"//[\s(]*([A-Za-z_]\w*)", str(e))) for name, e in derived.items())
    return {name: by[0] for name, by in found if len({*by}) == 1}


def by_host(
    launched: launches.Launch | None,
    entry: text.Entry,
    tiled: Mapping[str, str],
    maps: Mapping[str, Encoded],
) -> dict[str, int]:
    """Return the numbers that host code gives parameters that are a tile's elements, and so no sizes.

    So it gives a kernel with im2col maps all of its numbers: their images are as host code has them.
    """
    given = dict(zip((p.name for p in entry.parameters), launched.numbers if launched else (), strict=False))
    images = any(encoded.lower for encoded in maps.values())
    wanted = (p.name for p in entry.parameters if not p.pointer) if images else tiled.values()
    return {n: number for n in wanted if (number := given.get(n))}


def around(
    usual: Mapping[str, int],
    fixed: Mapping[str, int],
    derived: Mapping[str, Expr],
    tiled: Mapping[str, str],
    body: str,
) -> dict[str, int]:
    """Return the sizes that are one tile long, some tiles long, where a loop goes through these.

    That is where host code counts tiles, by `divisors`: a loop that never comes around hides its faults.
    """
    found = dict[str, int]()
    for name in (n for n in tiled if n in derived):
        longer = [n for n in derived[name].names if n in usual and n not in fixed]
        loop = re.search(rf"\b(?:for|while)\s*\([^{{}}]*?<\s*{name}\b", body)
        with contextlib.suppress(ExprError):
            if loop and derived[name]({**usual, **fixed}) == 1:
                found |= {n: _USUAL * usual[n] for n in longer}
    return found


def asserted(entry: text.Entry, block: int, known: values.Values) -> dict[str, int]:
    """Return the parameters that a kernel asserts to be multiples, each with that of which it is one.

    It does by ``assert(n % 32 == 0)``, and by ``assert(i < n)`` where i is the number of a thread: each one
    has an element then.
    """
    found = dict[str, int]()
    for _, size in _by_thread(entry.body):
        found[size] = block if entry.threads == 1 else 1
    for size, by in _MULTIPLE.findall(entry.body):
        if each := block if by == "blockDim.x" else known.number(by):
            found[size] = math.lcm(each, found.get(size, 1))
    return {p.name: found[p.name] for p in entry.parameters if p.name in found}


def of_thread(body: str) -> int:
    """Return how many elements each thread has by what is asserted: 2 where ``i = 2 * pair`` is below n."""
    given = extents.assigned(body)
    of = (value for name, _ in _by_thread(body) for value in given.get(name, ()))
    times = (re.fullmatch(r"\s*(?:(\d+)\s*\*\s*[\w.]+|[\w.]+\s*\*\s*(\d+))\s*", value) for value in of)
    return max((int(at[1] or at[2]) for at in times if at), default=1)


def _by_thread(body: str) -> Iterator[tuple[str, str]]:
    """Yield (variable, size) of what is asserted of the number of a thread, ``assert(i < n)``."""
    given = extents.assigned(body)
    for name, size in _BELOW.findall(body):
        words = {name}
        for _ in range(_INSIDE):
            words |= {w for word in words for v in given.get(word, ()) for w in re.findall(r"\w+", v)}
        if "threadIdx" in words:
            yield name, size


def covered(
    grid: Sequence[Expr], block: Sequence[int], entry: text.Entry, usual: Mapping[str, int]
) -> dict[str, int]:
    """Return the sizes that a text compares with nothing, each as long as the blocks that cover it go.

    The ``(rows + 11) / 12`` blocks of a grid have 12 rows each: where nothing guards these they are whole. So
    are the ``(n - 8) / 32`` inside of a border.
    """
    compared, found = {*re.findall(COMPARED, entry.body)}, dict[str, int]()
    for axis, blocks in enumerate(grid):
        threads = block if len(block) > 1 or not axis else (1,)
        name = next(iter(blocks.names), "")
        if len(blocks.names) > 1 or name not in usual or name in compared:
            continue
        with contextlib.suppress(ExprError):
            last, after = _more(blocks, name, usual[name])
            if last and re.search(rf"\b{name}\s*-\s*[\d\s*()]+\)\s*/+\s*\(*\d", blocks.text):
                found[name] = usual[name] + last  # (n - 8) // 32 blocks: a border, and whole ones
                continue
            small = math.prod([*found.values(), usual[name] + last]) <= _LARGEST
            if small and last < after and after - last not in threads:  # one for each may want a guard
                found[name] = usual[name] + last - 1
    return found


def _more(blocks: Expr, name: str, size: int) -> tuple[int, int]:
    """Return how much more than `size` wants a block more, and how much two; 0 where that is not known."""
    last, count = 0, blocks({name: size})
    for more in range(1, 2 * max(size, _BROAD)):
        if blocks({name: size + more}) > count + (last > 0):
            if last:
                return last, more
            last = more
    return last, 0


def grid(launched: launches.Launch | None, entry: text.Entry, source: str, called: str) -> tuple[Expr, ...]:
    """Return the grid of a persistent kernel with tensor maps: that of its launch, or some multiprocessors.

    Nothing is returned for another one. `called` is its body with what it calls, and `source` the file.
    """
    sizes = [p for p in entry.parameters if not p.pointer and "int" in p.type]
    if launched is None or not sizes or all(p.type != "CUtensorMap" for p in entry.parameters):
        return ()
    if launched.grid:
        small = math.prod(launched.grid) * math.prod(launched.block) <= _MOST
        given = zip(entry.parameters, launched.numbers, strict=False)
        several = any(p in sizes and (n is None or n > 1) for p, n in given)
        return tuple(map(Expr.parse, launched.grid)) if small and several else ()
    persistent = re.search(r"\bgridDim\s*\.\s*x\b", called) or _COUNTED.search(source)
    cluster = math.prod(launches.cluster(source, entry.name))
    return (Expr.parse(SMS * cluster),) if persistent and not launched.blocks else ()


def _stages(entry: text.Entry, known: values.Values) -> int:
    """Return the stages of a kernel's pipeline, by what numbers in its text are called."""
    words = {w for w in re.findall(r"\w+", entry.body) if _STAGES.fullmatch(w)}
    found = [n for word in words if (n := known.number(word)) and 1 < n <= _DEEPEST]
    return max(found, default=_USUAL)


def _boxes(
    maps: Mapping[str, Encoded], launched: launches.Launch | None, entry: text.Entry
) -> dict[str, list[int]]:
    """Return the boxes along each of a kernel's sizes, one for each map that it is an extent of.

    That is what a launch passes of the names that the extents depend on, or has such a name.
    """
    passed = launches.passed(launched, entry)
    sizes = {p.name: argument or p.name for p, argument in zip(entry.parameters, passed, strict=True)}
    sizes = {p.name: sizes[p.name] for p in entry.parameters if not p.pointer and p.type != "CUtensorMap"}
    kept = {word for written in (*sizes, *sizes.values()) for word in re.findall(r"[A-Za-z_]\w*", written)}
    found: dict[str, list[int]] = {}
    code = next((own.host for encoded in maps.values() for own, _ in encoded.written), None)
    if code is None:
        return found
    there = code.frames(code.place(launched.line) if launched else 0)[0]
    for encoded in maps.values():
        for (own, written), box in zip(encoded.written, encoded.box, strict=not encoded.lower):
            length = own.expression(written, kept)
            for name, argument in sizes.items() if length else ():
                for one in (argument, name):
                    size = there.expression(one, kept)
                    if size and length and (units := _units(length, size)):
                        found.setdefault(name, []).append(max(1, round(box * units)))
                        break
    return found


def _units(length: Expr, size: Expr) -> float:
    """Return how much of a size there is for each element of an extent: 0 where it does not depend on it.

    Of an extent of K / 64 it is 64 of K, and where rows / 16 is the size, 1/16 for each of the rows.
    """
    for name in sorted(length.names & size.names):
        with contextlib.suppress(ExprError):
            extent, whole = (e(dict.fromkeys(e.names, 1) | {name: _LONG}) for e in (length, size))
            if extent > 1 and whole > 1:
                return whole / extent
    return 0


def counted(entry: text.Entry) -> bool:
    """Return True where the number of a block is divided by one of tiles, such as ``(n + 63) / 64``.

    How many blocks there are is then what nobody but the host counts: one is never too many. So it is where
    a grid of several dimensions has no size among the parameters, as of compilers that know all shapes.
    """
    if all(p.pointer for p in entry.parameters) and re.search(r"blockIdx\s*\.\s*[yz]", entry.body):
        return True
    block = text.named(entry.body, r"blockIdx\s*\.\s*x")
    known = {n: v[0] for n, v in extents.assigned(entry.body).items() if len(v) == 1}

    def written(value: str, depth: int) -> str:
        def inner(name: re.Match[str]) -> str:
            return f"({written(known[name[0]], depth - 1)})" if depth and name[0] in known else name[0]

        return re.sub(r"[A-Za-z_]\w*", inner, value)

    by = re.findall(rf"\b(?:{block})\b\)?\s*[/%]\s*(\w+|\((?:[^()]|\([^()]*\))*\))", entry.body)
    return any(_ROUNDED.search(written(divisor, _INSIDE)) for divisor in by)


def a_thread_each(entry: text.Entry, name: str) -> bool:
    """Return True for a size of which each element has a thread of its block, which has a row of these.

    ``if (threadIdx.x < n) x[blockIdx.x * n + threadIdx.x]`` leaves elements out where a block has fewer.
    """
    thread = text.named(entry.body, r"threadIdx\.x")
    ends = re.findall(rf"(\w+)\s*(?:\.\s*x\s*)?<\s*{name}\b\s*([;)&])", entry.body)
    stepped = re.search(rf"<\s*{name}\b\s*;[^;{{}}()]*\+=", entry.body)
    own = re.search(rf"\bif\s*\(\s*(?:{thread})\s*<\s*{name}\s*\)", entry.body)
    row = re.search(
        rf"\*\s*{name}\s*\+\s*(?:{thread})\b|\b{name}\s*\*\s*\w+\s*\+\s*(?:{thread})\b", entry.body
    )
    others = {word for word, mark in ends if mark != ";"} - {"threadIdx", *thread.split("|")}
    return bool(own and row and "x" in entry.items and not stepped and not others)


def in_one_block(entry: text.Entry, name: str) -> bool:
    """Return True for a size that the threads of the only block are compared with one by one.

    ``for (int j = 0; j < n; j++) if (threadIdx.x >= j)`` works on a matrix of n columns, a thread each.
    """
    thread = text.named(entry.body, r"threadIdx\.x")
    counted = "|".join(re.findall(rf"\b(\w+)\s*<\s*{name}\s*;", entry.body)) or "(?!)"
    compared = rf"(?:{thread})\s*(?:[<>]=?|==)\s*(?:{counted})\b"
    return "blockIdx" not in entry.body and bool(re.search(compared, entry.body))


def by_warp(body: str, outside: str, size: str, launched: launches.Launch | None) -> bool:
    """Return True where all threads of a warp compare the same variables with a size, `outside` of loops."""
    lanes = r"threadIdx\s*\.\s*x"
    if not launched or launched.block[0] % 32:
        lanes = r"threadIdx\b"
    before = outside.rpartition("__shfl")[0] or outside  # behind the last shuffle each lane is its own
    sides = re.compile(rf"(\S+)\s*[<>]=?\s*{size}\b")
    left = sides.findall(outside if "reinterpret_cast" in outside else before)
    given, names, seen = extents.assigned(body), {word.lstrip("(!") for word in left}, set[str]()
    if any(name.isidentifier() and name not in given for name in names):
        return False
    while more := names - seen:
        seen |= more
        values = [name for name in more if not name.isidentifier()]
        of_warps = rf"(?:\b[\w.]+|\([^()]*\)){extents.OF_WARPS}"
        values += (re.sub(of_warps, "", value) for name in more for value in given.get(name, ()))
        if any(re.search(rf"{lanes}|\+\+|rank", value) for value in values):
            return False
        names |= {word for value in values for word in re.findall(r"[A-Za-z_]\w*", value)}
    return bool(sides.search(outside))


def threads(body: str, thread: str, elements: int, known: values.Values) -> int:
    """Return the threads of a block for `elements` along an axis, ``blockIdx.x * BN + threadIdx.x * TN``.

    Each has as many of these, where nothing else is added to a block's first; `thread` is a pattern of its
    index.
    """
    places = " ".join(s for s in re.split(r"[;{}]", body) if re.search(r"\bblockIdx\b", s))
    times = re.findall(rf"\+\s*(?:{thread})(?:\s*\*\s*(\w+)\b)?", places)
    own = {known.number(n or "1") or 1 for n in times}
    each = own.pop() if len(own) == 1 else 1
    return elements // each if each > 1 and elements % each == 0 < elements - each else elements
