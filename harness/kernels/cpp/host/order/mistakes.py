"""Find what host code does wrong before a launch, whatever data come: a rest that no block has, or no copy.

Of a grid that is too small, and of a copy that is too short, the kernel itself shows nothing: it runs on what
it is given. Only what both texts say without doubt is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from harness.kernels import text
from harness.kernels.cpp import extents
from harness.kernels.cpp.host import launches
from harness.kernels.cpp.host.launches import Launch
from harness.kernels.cpp.host.order import host_calls, steps
from harness.kernels.cpp.host.values import Values
from harness.kernels.expr import Expr, ExprError

_ANY = 1 << 20  # what stands for a name of the host that has no number; a copy of elements is a part of it
_Ends = dict[str, tuple[str, str, int]]  # by axis what `_end` says
_ATOMIC = r"\batomic(?:Add|Sub|Max|Min|Inc|Dec|And|Or|Xor)\s*\(\s*&?\s*"


def of(source: str, entry: text.Entry, name: str, known: Values, sizes: Mapping[str, int]) -> list[str]:
    """Return what is wrong with the first launch of the kernel `name`, a sentence each.

    `entry` is what the text says of it, `known` are the numbers there, and `sizes` the bytes of an element of
    each of its pointers.
    """
    launched = launches.of(source, name)
    if launched is None:
        return []
    before, ends = steps.before(source, name), _ends(entry, launched, known)
    given = dict(zip((p.name for p in entry.parameters), launched.numbers, strict=False))
    rest = _too_few(launched, ends, given) if _read(source, before) else ()
    exchanged = _exchanged(entry, launched, ends, given)
    return [*rest, *exchanged, *_too_short(entry, before, sizes), *_unset(entry, before)]


def _read(source: str, before: steps.Before) -> bool:
    """Return False where the host allocates what it gives a kernel, and copies nothing of it back.

    What is only timed, or tried out, may be a part.
    """
    given = set(before.steps[-1].buffers) - {""} if before.steps else set[str]()
    made = {b for step in before.steps if step.kind == host_calls.ALLOCATE for b in step.buffers}
    names = "|".join(re.escape(steps.written(name)) for name in given) or "(?!)"
    back = rf"\bcudaMemcpy\w*\s*\([^;]*\b(?:{names})\b[^;]*(?:DeviceToHost|MemcpyDefault)"
    return not given & made or "cudaMallocManaged" in source or bool(re.search(back, source))


def _too_few(launched: Launch, ends: _Ends, numbers: Mapping[str, int | None]) -> Iterator[str]:
    """Yield the axes along which blocks leave out the last elements."""
    block = dict(zip("xyz", (*launched.block, 1, 1), strict=False))
    grid = dict(zip("xyz", launched.grid, strict=False))
    for axis, (variable, size, less) in ends.items():
        number, blocks = numbers.get(size), grid.get(axis, 0)
        threads = blocks * block[axis]
        if number and blocks and threads < number - less:
            yield (
                f"line {launched.line} launches {blocks} blocks of {block[axis]} threads along {axis}, "
                f"but {size} is {number}: {variable} from {threads} on is left out"
            )


def _exchanged(
    entry: text.Entry, launched: Launch, ends: _Ends, numbers: Mapping[str, int | None]
) -> Iterator[str]:
    """Yield the pairs of axes along which a grid has as many blocks as the other one takes."""
    names = [p.name for p in entry.parameters]
    written = zip("xyz", map(_names, launched.over(names, launched.blocks)), strict=False)
    asked = {axis: words for axis, words in written if axis in ends}
    for axis, other in (pair for pair in (("x", "y"), ("y", "z"), ("x", "z")) if {*pair} <= asked.keys()):
        a, b = ends[axis][1], ends[other][1]
        if a != b and asked[axis] == {b} and asked[other] == {a} and not (numbers.get(a) and numbers.get(b)):
            yield (
                f"line {launched.line} launches as many blocks along {axis} as {b} takes, and along {other} "
                f"as {a}, but the kernel compares {ends[axis][0]} with {a} and {ends[other][0]} with {b}"
            )


def _ends(entry: text.Entry, launched: Launch, known: Values) -> _Ends:
    """Return what ends the elements along each axis, by `_end`: each thread has one of them."""
    names = [p.name for p in entry.parameters]
    block = zip("xyz", (*launched.block, 1, 1), strict=False)
    return {axis: end for axis, n in block if (end := _end(entry.body, axis, names, known, n))}


def _end(
    body: str, axis: str, sizes: Sequence[str], known: Values, threads: int
) -> tuple[str, str, int] | None:
    """Return the variable that is a thread's number along an axis, the size that ends it, and what less.

    None is returned where a thread may have several elements, or not each below that size is meant.
    """
    block, thread = rf"blockIdx\.{axis}", f"(?:{text.named(body, rf'threadIdx[.]{axis}')})"
    each = "|".join(
        [rf"blockDim\.{axis}", *(w for w in {*re.findall(r"\w+", body)} if known.number(w) == threads)]
    )
    first = rf"(?:{block}\s*\*\s*(?:{each})\b|\b(?:{each})\s*\*\s*{block})"
    numbered = rf"\b(\w+)\s*=\s*(?:{first}\s*\+\s*{thread}|{thread}\s*\+\s*{first})\s*[;,]"
    found = re.findall(numbered, body)
    if len(found) != 1 or re.search(r"\bgridDim\b", body) or len(re.findall(block, body)) > 1:
        return None  # of a thread that has several elements
    variable = found[0]
    written = re.findall(rf"(?<![\w.]){variable}\s*(?:<|>=)(?![<=])\s*([^;&|?)]*)", body)
    ends = [re.fullmatch(r"(\w+)\s*(?:-\s*(\d+))?\s*", end) for end in written]
    named = {at[1]: int(at[2] or 0) for at in ends if at}
    if len(named) != 1 or not all(ends) or len(extents.assigned(body)[variable]) > 1:
        return None
    size, less = named.popitem()
    more = rf"(?<![\w.]){variable}\s*(?:[-+*/]=|\+\+|[-+]\s*[\w.]+\s*(?:<|>=))"
    return (variable, size, less) if size in sizes and not re.search(more, body) else None


def _names(written: str) -> frozenset[str]:
    try:
        return Expr.parse(written).names if written else frozenset()
    except ExprError:
        return frozenset()


def _too_short(entry: text.Entry, before: steps.Before, sizes: Mapping[str, int]) -> Iterator[str]:
    """Yield the buffers that one copy of the host fills, which has as many bytes as they have elements."""
    for p, buffer in _arguments(entry, before):
        done = [step for step in before.steps[:-1] if buffer in step.buffers]
        kinds = [step.kind for step in done]
        if kinds == [host_calls.ALLOCATE, host_calls.GIVEN] and done[1].values and sizes.get(p.name, 1) > 1:
            whole, copied = (_bytes(step.values[0], before.numbers) for step in done)
            if whole and whole == copied * sizes[p.name]:
                yield f"the host copies {done[1].values[0]} bytes to {buffer}, which are its elements: " + (
                    f"the rest of {p.name} is never written"
                )


def _unset(entry: text.Entry, before: steps.Before) -> Iterator[str]:
    """Yield the buffers that the host allocates and nobody sets before an atomic adds to them."""
    arguments = list(_arguments(entry, before))
    given = {b for step in before.steps[:-1] if step.kind != host_calls.ALLOCATE for b in step.buffers}
    made = {b for step in before.steps[:-1] if step.kind == host_calls.ALLOCATE for b in step.buffers}
    for p, buffer in arguments:
        others = {other for _, other in arguments} - {buffer}
        if buffer in before.fresh - given and others and others <= given | before.fresh | ({*others} - made):
            uses = len(re.findall(rf"\b{p.name}\b", entry.body))
            adds = len(re.findall(rf"{_ATOMIC}{p.name}\b", entry.body))
            if adds and adds == uses and others - (made - given):
                yield f"nothing sets {buffer} before an atomic adds to {p.name}"


def _arguments(entry: text.Entry, before: steps.Before) -> Iterator[tuple[text.Parameter, str]]:
    """Yield the pointers of a kernel with the buffers that the host gives it, each of them once."""
    given = before.steps[-1].buffers if before.steps else ()
    for p, buffer in zip(entry.parameters, given, strict=False):
        if p.pointer and buffer and given.count(buffer) == 1:
            yield p, buffer


def _bytes(written: str, numbers: Mapping[str, int]) -> int:
    """Return a number of bytes, of which names that have none are like any other; 0 where it is none."""
    try:
        expression = Expr.parse(written)
        return expression({name: numbers.get(name, _ANY) for name in expression.names})
    except ExprError:
        return 0
