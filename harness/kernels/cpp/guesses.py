"""Guess how a kernel without front matter is launched: as host code in its text does, else by its indices.

``blockIdx.y * BM`` says how many elements a block covers along y, where BM is a number; beside it,
``+ threadIdx.y`` says that so many threads do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.kernels import text
from harness.kernels.cpp import calls, conditions, extents
from harness.kernels.cpp.host import frames, launches, tiles
from harness.kernels.cpp.host.values import Values, constants
from harness.kernels.cpp.source import inlined
from harness.kernels.cpp.source.anew import instances
from harness.kernels.expr import Expr, ExprError

_FEW, _ITEMS = 16, 64  # what is no size beside larger numbers, and blocks that have an item each, at most
_PARTS = 2  # blocks along an axis of which the kernel asks how many there are, and host code does not say
_WARP, _STRIDED = 32, 2**13  # the last: threads of a launch whose grid the kernel asks for
_MOST_BYTES, _LONGEST = 2**26, 2**20  # of buffers, and threads of a launch, that are taken from host code
_BLOCKS, _WIDE = 4, 1024  # blocks of such a launch that is longer, and a number that may be a part of it
OBJECTS = ("cudaTextureObject_t", "cudaSurfaceObject_t")
_REAL = ("float", "double", "half", "__half")
# Attributes of problems, of which each axis is one, too.
_TAKEN = frozenset(
    re.findall(
        r"\w+",
        """_after _aliases _doubted _given _lengthened _longer _mistakes _operands _parameters _still _types
        _zeroed accumulates arguments atol axes bench_axes buffer_bytes bytes constants element_types extents
        flops from_axes inputs intensity label outputs reference rtol scalar self unverified updated variables
        verify_axes""",
    )
)
# What tells a kernel its block, or may: macros and headers of others.
_GRID = re.compile(r"blockIdx|grid|ctaid|cluster|#\s*include\s*\"|\b[A-Z][A-Z\d_]{4,}\s*\(")
_SHORT = ("bs", "bx", "nt")  # names of a template's parameter that is a block's size
_PER_BLOCK = re.compile(r"(?:n(?:um)?_?)?threads_?per_?block|tpb|block_?dim(?:_?x)?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Guess:
    """The block, tile, grid and shared memory of a launch, as front matter has them."""

    block: tuple[int, ...]
    tile: tuple[int, ...]
    grid: tuple[Expr, ...]
    shared: int


def absent(source: str, name: str, given: Collection[str]) -> str:
    """Return what may help where the compiled code has no kernel called `name`; `given` are macros."""
    known = text.entries(source)
    template = next((e for e in known if e.name == name and e.template), None)
    if template is not None:
        return (
            f"it is a template: name an instance, --entry '{instances.example(template)}' or in front matter"
        )
    if (entry := text.find(known, name)) is not None:
        asked = conditions.around(source, entry.name, given)
        if asked is not None:
            return f"its #if or #ifdef leaves it out: -p {asked or 'NAME'}=1 defines what that asks for"
    return "entry must name a __global__ function, with its namespace and template arguments"


def of(source: str, entry: text.Entry | None, name: str, *, ptx: tuple[int, ...] | None = None) -> Guess:
    """Return the guess for the kernel `name` of a text; `entry` is what the text says of it, if it does.

    Of PTX, which may say the block, `ptx`, there is one block where it counts tiles by the number of a block.
    In C++ as many as a size has show what is wrong with guards.
    """
    launched = launches.of(source, name)
    shared = (launched.shared if launched else None) or 0
    if entry is None:
        block = launched.block if launched else (256,)
        return Guess(block=block, tile=block, grid=_grid(launched, None), shared=shared)
    entry = calls.bounded(read(entry, source, name), source, numbers([source], entry, name))
    steps = _steps(source, entry, name)
    said = launched.block if launched else ptx
    block = said or calls.with_room(source, name, _block(source, entry, steps, name))
    while len(block) > 1 and block[-1] == 1:  # dim3(256, 1, 1) has one dimension
        block = block[:-1]
    axes = "xyz"[: max(len(block), entry.dimensions)][::-1]
    times, whole = _times(entry, numbers([source], entry, name)), zip(axes, entry.tile(block), strict=True)
    tile = tuple(steps.get(axis, n * times.get(axis, 1)) for axis, n in whole)
    if (each := tiles.of_thread(entry.body)) > 1:
        tile = (*tile[:-1], tile[-1] * each)
    if _by_warps(entry):
        tile = (*tile[:-1], max(1, tile[-1] // _WARP))
    grid = _grid(launched, entry)
    if launched is None:
        one, counts = launches.one_block(source, name), ptx is not None and tiles.counted(entry)
        if one or (one is None and not _asks_its_block(source, entry)) or counts:
            grid = (Expr.parse(1),)
    grid = grid or tiles.grid(launched, entry, source, calls.reached((source,), entry.body))
    host = math.prod(launched.grid + block) if launched and launched.grid else _LONGEST + 1
    strided = "gridDim" in entry.body and not grid and host <= _STRIDED  # any grid is right
    if launched and not grid and sum(launched.bytes) > _MOST_BYTES and allocated(source, entry, name):
        grid = (Expr.parse(_BLOCKS),)
    elif launched and (strided or (host <= _LONGEST and allocated(source, entry, name))):
        grid = tuple(map(Expr.parse, launched.grid))
    return Guess(block=block, tile=tile, grid=grid, shared=shared)


def read(entry: text.Entry, source: str, name: str) -> text.Entry:
    """Return a kernel with the macros and functions of one line of a text in their place in its body.

    Its dimensions are those of its indices, also where a macro or a function that it calls has them. Of the
    instance `name` there are numbers in place of the members of classes, ``Traits::kRows``.
    """
    if entry.template and "::" in entry.body:
        entry = entry.with_body(frames.with_members(source, entry, entry.types(name)))
    own = replace(whole := inlined.called(source, entry), body=inlined.body(source, whole, functions=False))
    return replace(calls.with_called(own, (source,)), body=inlined.body(source, whole))


def _asks_its_block(source: str, entry: text.Entry) -> bool:
    """Return whether a kernel, or what it reaches in its text, asks which block it is in, or may."""
    if calls.of_one_thread(source, entry.body):
        return "blockIdx" in calls.reached((source,), entry.body)
    directives = "".join(re.findall(r"(?m)^[ \t]*#(?:\\\n|.)*", source))
    return bool(_GRID.search(calls.reached((source,), entry.body) + directives))


def axes(entry: text.Entry) -> text.Entry:
    """Return an entry whose parameters have names for axes: ``inputs_``, as problems have `inputs`."""
    names = {p.name: axis(p.name) for p in entry.parameters}
    return replace(
        entry,
        parameters=tuple(replace(p, name=names[p.name]) for p in entry.parameters),
        body=re.sub(r"\w+", lambda word: names.get(word[0], word[0]), entry.body),
    )


def axis(name: str) -> str:
    """Return the axis of a parameter."""
    return f"{name}_" if name in _TAKEN else name


def allocated(source: str, entry: text.Entry, name: str) -> dict[str, int]:
    """Return the bytes that host code allocates for the pointers of the kernel `name`, by `axes`.

    None are returned where the kernel or its grid reads sizes among its parameters, by which both scale, but
    for those with known numbers in constant memory, or of which the block is made. One without fits its host
    code alone. So do long buffers, but for those of which each block has a share: a few blocks have theirs.
    """
    if (launched := launches.of(source, name)) is None:
        return {}
    parameters = (found := axes(entry)).parameters
    read = " ".join([found.body, *launched.over([p.name for p in parameters], launched.blocks)])
    sizes = [p for p in parameters if not p.pointer and p.type not in (*_REAL, *OBJECTS)]
    sizes = [p for p in sizes if not (p.constant and p.type == "CUtensorMap")]
    made = as_threads(source, entry, name, 0)
    scaling = [p for p in sizes if not p.constant and made.get(p.name, 0) < 1]
    if any(not launched.blocks or re.search(rf"\b{p.name}\b", read) for p in scaling):
        return {}
    passed = dict(zip((p.name for p in parameters), launched.numbers, strict=False))
    large = math.prod(launched.grid + launched.block) > _LONGEST
    if sizes and (large or any(passed.get(p.name) is None for p in sizes)):
        return {}
    given = {p.name: size for p, size in zip(parameters, launched.bytes, strict=False) if p.pointer}
    whole = launched.grid and len(given) == sum(p.pointer for p in parameters) and all(given.values())
    if not whole or sum(given.values()) <= _MOST_BYTES:
        return given if whole else {}
    blocks, known = math.prod(launched.grid), numbers([source], entry, name)
    plain = re.sub(r"[<>]=?\s*\w+", " ", found.body)  # what guards compare with
    long = any((known.number(word) or 0) > _WIDE for word in {*re.findall(r"\b[A-Za-z_]\w*", plain)})
    if sizes or long or blocks <= _BLOCKS or launched.grid[0] != blocks:
        return {}
    if any(size % blocks for size in given.values()):
        return {}
    return {pointer: _BLOCKS * (size // blocks) for pointer, size in given.items()}


def no_sizes(source: str, entry: text.Entry, name: str) -> dict[str, int]:
    """Return the parameters, by `axes`, to which host code gives numbers that are hardly sizes.

    These are 0 and 1, offsets and steps, and beside larger numbers those up to `_FEW`, such as a radius.
    """
    launched = launches.of(source, name)
    numbers = launched.numbers if launched else ()
    given = [(p, n) for p, n in zip(axes(entry).parameters, numbers, strict=False) if not p.pointer]
    most = _FEW if any(n is None or n > _FEW for p, n in given if p.type not in _REAL) else 1
    return {p.name: n for p, n in given if n is not None and 0 <= n <= (1 if p.type in _REAL else most)}


def as_threads(source: str, entry: text.Entry, name: str, block: int) -> dict[str, int]:
    """Return the parameters, by `axes`, of which the block is made, with their numbers there.

    One that is called as the threads of a block has their number, `block`.
    """
    launched = launches.of(source, name) or launches.by_argument(source, name)
    parameters = axes(entry).parameters
    given = zip(parameters, launched.threads if launched else (), strict=False)
    called = {p.name: block for p in parameters if not p.pointer and _PER_BLOCK.fullmatch(p.name)}
    made = {p.name: threads for p, threads in given if not p.pointer and threads not in (0, 1)}
    return called | {name: block if threads < 0 else threads for name, threads in made.items()}


def numbers(texts: Sequence[str], entry: text.Entry, name: str) -> Values:
    """Return the numbers that texts give names to, of those that the kernel `name` may use."""
    own = {p.name for p in entry.parameters} | {p.split()[-1] for p in entry.template}
    members = frames.members(texts[0], entry.name, entry.types(name)) if texts and entry.template else {}
    return constants(texts, own, members | entry.types(name))


def _grid(launched: launches.Launch | None, entry: text.Entry | None) -> tuple[Expr, ...]:
    """Return the grid of a launch over the kernel's own parameters; empty where it follows from others, too.

    One that does not depend on them fits a size of its own, and is not taken, unless it is one block.
    """
    if launched is None or (entry is None and set(launched.grid) != {1}):
        return ()
    if entry is None or set(launched.grid) == {1}:
        return (Expr.parse(1),)
    entry = axes(entry)
    sizes = {p.name for p in entry.parameters if not p.pointer}
    found = []
    try:
        over = launched.over([p.name for p in entry.parameters], launched.blocks)
        for axis, known in zip("xyz", over, strict=False):
            parts = re.search(rf"\bgridDim\s*\.\s*{axis}\b", entry.body) and str(_PARTS)
            written = known or parts or ""
            most = f"(({written}) <= {_ITEMS}) * ({written}) + (({written}) > {_ITEMS}) * {_ITEMS}"
            blocks = most if axis in entry.items else written
            found.append(Expr.parse(f"({blocks}) + (({blocks}) < 1) * (1 - ({blocks}))"))
    except ExprError:  # longer than an expression may be, or none of ours
        return ()
    asked = frozenset().union(*(blocks.names for blocks in found))
    return tuple(found) if asked and asked <= sizes else ()


def _block(source: str, entry: text.Entry, steps: Mapping[str, int], name: str) -> tuple[int, ...]:
    """Return a block with as many threads along an axis as elements that it covers, where each has one.

    An instance, ``k<128>``, may have the number of threads among its arguments, and a text among the
    constants that the kernel uses.
    """
    given, used = entry.types(name), dict.fromkeys(re.findall(r"\w+", entry.body))
    values = numbers([source], entry, name)
    beside = "threadIdx[^;]*\\b{0}\\b|\\b{0}\\b[^;]*threadIdx|__shared__[^;]*\\b{0}\\b"
    short = [n for n in _SHORT if re.search(beside.format(n), entry.body)]
    own = [n for n in given if instances.THREADS.fullmatch(n) or n in short]
    known = [given[n] for n in own if given[n].isdecimal()]
    known += [str(n) for word in used if instances.THREADS.fullmatch(word) and (n := values.number(word))]
    threads = next((int(v) for v in known if len(v) < 5 and 0 < int(v) <= calls.MOST_THREADS), 0)
    if entry.threads == 1 and entry.bounds is None and (threads or calls.of_one_thread(source, entry.body)):
        return (threads or 1,)
    if entry.threads == 1 and entry.bounds is None and (fewer := _held(entry, values)) < entry.block[0]:
        return (fewer,)
    rows = {values.number(step) for axis, step, added in entry.steps if axis == "x" and added}
    alone = entry.threads == 1 and entry.bounds is None and "x" in entry.items and len(rows) == 1
    if alone and (elements := rows.pop()) and 1 < elements <= calls.MOST_THREADS:
        return (elements,)  # row * 32 + threadIdx.x
    axes = {axis for axis, _, added in entry.steps if added}
    block = tuple(
        _strided(entry, axis, steps[axis], values) if axis in axes and axis in steps else threads
        for axis, threads in zip("xyz", entry.block, strict=False)
    )
    if entry.bounds is not None or math.prod(block) > calls.MOST_THREADS:
        return entry.block
    if _by_warps(entry) and "x" not in steps and block[0] % _WARP:
        return (4 * _WARP, 4, 1)[: len(block)]  # whole warps along x
    return block


def _strided(entry: text.Entry, axis: str, step: int, values: Values) -> int:
    """Return the threads for `step` elements along an axis: fewer if each has some, ``threadIdx.y + j``.

    So it is with ``at + j * width``, rows of a tile from which j is not far, and ``threadIdx.x * TN``.
    """
    thread = text.named(entry.body, rf"threadIdx\s*\.\s*{axis}")
    step = tiles.threads(entry.body, thread, step, values)
    sizes = "|".join(p.name for p in entry.parameters if not p.pointer and axis == "y") or "(?!)"
    for name, apart in re.findall(r"\bfor\s*\([^;]*;[^;]*;\s*(\w+)\s*\+=\s*(\w+)\s*\)", entry.body):
        added = rf"\b(?:{thread})\s*\+\s*{name}\b|\b{name}\s*\+\s*(?:{thread})\b"
        added += rf"|\w\s*\+\s*{name}\s*\*\s*(?:{sizes})\b"
        if (number := values.number(apart)) and step % number == 0 and re.search(added, entry.body):
            return number
    return step


def _by_warps(entry: text.Entry) -> bool:
    """Return True where each warp has an item of its own, such as a row: it counts the warps of the grid."""
    over = extents.OF_WARPS
    first = r"blockIdx\.x\s*\*\s*blockDim\.x|blockDim\.x\s*\*\s*blockIdx\.x"
    of_grid = rf"(?:{first})\s*\+\s*threadIdx\.x|threadIdx\.x\s*\+\s*(?:{first})"
    named = "|".join(re.findall(rf"\b(\w+)\s*=\s*(?:{of_grid})\s*[;,]", entry.body)) or r"(?!)"
    of_block = rf"blockIdx\.x\s*\*\s*\(?\s*blockDim\.x{over}"
    return bool(re.search(rf"{of_block}|\(\s*(?:{of_grid})\s*\){over}|\b(?:{named})\b{over}", entry.body))


def _held(entry: text.Entry, values: Values) -> int:
    """Return how many threads find a place in the shared arrays that they index by their own number alone."""
    threads = text.named(entry.body, r"threadIdx\.x")
    found = [calls.MOST_THREADS]
    for name, length in extents.shared(entry.body, values):
        written = rf"{name}\s*\[\s*(?:{threads})\s*\]\s*=(?!=)"
        if any(
            not _chosen(entry.body, at.end(1)) for at in re.finditer(rf"([;{{}}])\s*{written}", entry.body)
        ):
            found.append(length)
    return min((n for n in found if n >= _WARP), default=calls.MOST_THREADS)


def _chosen(body: str, place: int) -> bool:
    """Return True where a place is in the braces of a condition, to which not all threads need come."""
    heads: list[str] = []
    for mark in re.finditer(r"[{}]", body[:place]):
        if mark[0] == "{":
            begin = max(body.rfind(end, 0, mark.start()) for end in ";{}") + 1
            heads.append(body[begin : mark.start()])
        elif heads:
            heads.pop()
    return any(re.search(r"\b(?:if|else|switch)\b", head) for head in heads)


def _steps(source: str, entry: text.Entry, name: str) -> dict[str, int]:
    """Return the elements that a block covers by axis, for the axes where the text says a number."""
    values = numbers([source], entry, name)
    found = {}
    for axis in set("xyz") - entry.items:
        written = {_elements(step, entry, values) for along, step, _ in entry.steps if along == axis}
        number = written.pop() if len(written) == 1 else None
        if number is not None and number > (axis == "x"):  # a row of a block is one along y
            found[axis] = number
    return found


def _times(entry: text.Entry, values: Values) -> dict[str, int]:
    """Return how many elements a block covers for a thread by axis, 2 of ``blockIdx.x * blockDim.x * 2``."""
    found: dict[str, set[int]] = {}
    once = {name: f"({given[0]})" for name, given in extents.assigned(entry.body).items() if len(given) == 1}
    for axis, written, _ in entry.steps:
        threads = text.named(entry.body, rf"blockDim\s*\.\s*{axis}")
        step = re.sub(r"(?<!\.)\b\w+", lambda word: once.get(word[0], word[0]), written)
        rest, many = re.subn(rf"\b(?:{threads})\b", "1", step)
        found.setdefault(axis, set()).add((values.number(rest) if many == 1 else None) or 1)
    return {axis: numbers.pop() for axis, numbers in found.items() if len(numbers) == 1}


def _elements(step: str, entry: text.Entry, values: Values) -> int | None:
    """Return the number in a step, 128 of ``BM`` or of ``BM * K``, rows of K; None where it is not known."""
    sizes = {p.name for p in entry.parameters if not p.pointer}
    factors = [factor for part in step.split("*") if (factor := part.strip()) not in sizes]
    return values.number(" * ".join(factors)) if factors else None
