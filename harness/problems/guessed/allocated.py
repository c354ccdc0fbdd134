"""Take from host code how long buffers are, in terms of what a launch gives the kernel."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.kernels import text
from harness.kernels.cpp import calls, elements, extents, guesses
from harness.kernels.cpp.host import allocations, launches
from harness.kernels.cpp.host.launches import Launch
from harness.kernels.cpp.host.values import SIZEOF, Values
from harness.kernels.expr import Expr, ExprError
from harness.kernels.spec import Kernel
from harness.problems.protocol import Problem

FEW = 1024  # numbers of the host in constant memory that are taken as they stand
_MOST = 224 * 1024  # bytes of shared memory
_BYTES = 2**22  # of a buffer whose length is a number
_CAST = re.compile(r"\A\(\s*(?:const\s+)?[\w:]+(?:\s+const)?\s*\*\s*(?:__restrict__\s*)?\)\s*")
_CALLED = re.compile(r"(?:(?:thrust\s*::\s*)?raw_pointer_cast|\w+_cast\s*<[^<>]*>)\s*\(\s*(.*?)\s*\)")
_BUFFER = re.compile(  # the same each time: d_x, this->x, x[0], x.data(), x.data_ptr<float>()
    r"(?:(?:this|\w+)\s*->\s*)?[A-Za-z_]\w*(?:\s*(?:\.|->)\s*\w+|\[\w+\])*"
    r"(?:\s*(?:\.|->)\s*(?:data|get|(?:mutable_|const_)?data_ptr)\s*(?:<[^<>()]*>)?\s*\(\s*\))?"
)
_INTO = re.compile(r"[\w.>-]+?\s*\+\s*([\w\s*+()-]+)|&\s*\w+\s*\[([^][]+)\]")  # x + RADIUS, &x[RADIUS]
_NONE = {"", "NULL", "nullptr", "0"}


def lengths(
    launched: Launch | None,
    entry: text.Entry,
    types: Mapping[str, elements.Type],
    whole: Sequence[str],
    fixed: Iterable[str] = (),
) -> dict[str, Expr]:
    """Return the bytes that host code allocates for the pointers of a kernel, in terms of its values.

    Where it does not, a filter whose size is one of the numbers `fixed` has its weights. The size of a type
    that is not known is that of an element, if the pointer leads to this type. A number counts, as of the
    bins of a histogram, unless one of the sizes `whole` is known to be no larger, or one that is not bounds a
    part of an index.
    """
    weights = _filters(entry, types, fixed)
    if launched is None:
        return weights
    names, integers = [p.name for p in entry.parameters], dict[str, int | None]()
    for p, number in zip(entry.parameters, launched.numbers, strict=False):
        if not p.pointer and any("int" in kind for kind in elements.numbers(types[p.name])):
            integers[p.name] = None if p.constant and (number or 0) <= FEW else number  # that of the host
    # A name of the host that the kernel has, too, is a macro, and no parameter is another number.
    macros = {a for a, n in zip(launched.arguments, names, strict=False) if a.isidentifier() and a != n}
    macros &= {*re.findall(r"\w+", entry.body)} - {*names}
    known = ("" if macros & {*re.findall(r"\w+", length)} else length for length in launched.lengths)
    written, found = launched.over(names, list(known)), dict[str, Expr]()
    for p, length, number in zip(entry.parameters, written, launched.bytes, strict=False):
        size, own = elements.size(types[p.name]), re.findall(r"\w+", p.type)[-1:]
        kinds = {*re.findall(rf"\b{SIZEOF}(\w+)", length)} - {*own}
        same = not kinds or (own and _generic(own[0], entry)) or all(_generic(kind, entry) for kind in kinds)
        if p.pointer and length and same and (size > 1 or SIZEOF not in length):
            with contextlib.suppress(ExprError):
                found[p.name] = Expr.parse(re.sub(rf"\b{SIZEOF}\w*", str(size), length))
        elif (
            p.pointer
            and size <= number <= _BYTES
            and all(n is None or n * size > number for n in integers.values())
            and all(_bounds(entry.body, p.name, whole).values())
        ):
            found[p.name] = Expr.parse(number)
    return weights | {pointer: length for pointer, length in found.items() if length.names <= integers.keys()}


def apart(
    layouts: Mapping[str, Sequence[str]], types: Mapping[str, elements.Type], whole: Sequence[str]
) -> dict[str, Expr]:
    """Return the bytes of the arrays that have strides: the outermost one, as often as the largest size."""
    most = f"max({', '.join(['1', *whole])})" if whole else "1"
    return {
        name: Expr.parse(f"{strides[0]} * {most} * {elements.size(types[name])}")
        for name, strides in layouts.items()
        if whole
    }


def _filters(entry: text.Entry, types: Mapping[str, elements.Type], fixed: Iterable[str]) -> dict[str, Expr]:
    """Return the bytes of a filter's weights, of which nothing but its own loops is an index: k or k * k."""
    found = dict[str, Expr]()
    for k in (name for name in fixed if extents.window(entry.body, name)):
        halves = extents.halves(entry.body, k)
        counted = "|".join([k, *halves])
        own = {k, *halves, *re.findall(rf"\b(\w+)\s*<=?\s*(?:{counted})\s*;", entry.body)}
        for p in (p for p in entry.parameters if p.pointer):
            places = extents.places(entry.body, p.name)
            words = {word for place in places for word in re.findall(r"[A-Za-z_]\w*", place)}
            if places and words <= own and not words <= {k, *halves}:
                rows = any(re.search(rf"\*\s*{k}\b|\b{k}\s*\*", place) for place in places)
                found[p.name] = Expr.parse(f"{k} * {k if rows else 1} * {elements.size(types[p.name])}")
    return found


def shared(kernel: Kernel, problem: type[Problem]) -> Kernel:
    """Return a kernel with the dynamic shared memory that host code gives it by its arguments, if it does.

    It is what the largest of the guessed sizes take.
    """
    host = calls.host(kernel)
    launched = launches.of(host, kernel.entry) or launches.by_argument(host, kernel.entry)
    entry = text.find(text.entries(host), kernel.entry)
    if launched is None or entry is None or not launched.room:
        return kernel
    (written,) = launched.over([p.name for p in guesses.axes(entry).parameters], [launched.room])
    most = 0
    with contextlib.suppress(ExprError):
        room = Expr.parse(written)
        for axes in problem.verify_axes:
            sizes = vars(problem.from_axes(axes))
            most = max(most, room({name: int(sizes[name]) for name in room.names & sizes.keys()}))
        return replace(kernel, shared=Expr.parse(most)) if 0 < most <= _MOST else kernel
    return kernel


def places(launched: Launch | None, entry: text.Entry, known: Values) -> dict[str, int]:
    """Return the pointers that lead into a buffer of the host, ``k<<<g, b>>>(x + RADIUS)``, and how far."""
    found = dict[str, int]()
    for p, written in zip(entry.parameters, launches.passed(launched, entry), strict=True):
        at = _INTO.fullmatch(allocations.uncast(written))
        number = known.number(at[1] or at[2]) if at and p.pointer and not p.constant else None
        if number and 0 < number <= FEW:
            found[p.name] = number
    return found


def aliases(
    launched: Launch | None, entry: text.Entry, pointers: Sequence[text.Parameter], types: Mapping[str, Any]
) -> dict[str, str]:
    """Return the pointers that host code gives the buffer of another, ``k<<<g, b>>>(a, a)``, and of which."""
    names, given = {p.name for p in pointers if not p.constant}, list[tuple[text.Parameter, str]]()
    for p, written in zip(entry.parameters, launches.passed(launched, entry), strict=True):
        called = _CALLED.fullmatch(buffer := _CAST.sub("", written.strip()))
        buffer = called[1] if called else buffer
        if p.pointer and p.name in names and _BUFFER.fullmatch(buffer) and buffer not in _NONE:
            given.append((p, buffer))
    return together(given, types)


def together(given: Iterable[tuple[text.Parameter, str]], types: Mapping[str, Any]) -> dict[str, str]:
    """Return the pointers that are `given` a buffer that another one of the same type has, and which.

    That is the first one through which the kernel may write, if there is one.
    """
    found = dict[str, str]()
    buffers = dict[tuple[str, elements.Type], list[text.Parameter]]()
    for p, buffer in given:
        if not any(elements.pointers(types[p.name])):
            buffers.setdefault((buffer, types[p.name]), []).append(p)
    for several in buffers.values():
        chosen = next((p for p in several if not p.const), several[0])
        found |= {p.name: chosen.name for p in several if p is not chosen}
    return found


def rooms(
    entry: text.Entry,
    usual: Mapping[str, int],
    types: Mapping[str, elements.Type],
    allocated: Mapping[str, Expr],
) -> dict[str, int]:
    """Return the sizes up to which a loop goes through a buffer that is shorter than usual: its length."""
    found = dict[str, int]()
    for name, length in allocated.items():
        if not length.names:
            count = length({}) // elements.size(types[name])
            found |= {n: min(count, found.get(n, usual[n])) for n in _bounds(entry.body, name, [*usual])}
    return found


def _bounds(body: str, pointer: str, sizes: Sequence[str]) -> dict[str, bool]:
    """Return the sizes below which a variable in the indices of a pointer stays, ``j`` of ``j < n``.

    It is True where such a variable is the whole index, ``x[j]``, each time.
    """
    found = dict[str, bool]()
    for place in extents.places(body, pointer):
        for size in sizes:
            below = re.findall(rf"\b(\w+)\s*<\s*{re.escape(size)}\b", body)
            if below and (at := re.search(rf"\b(?:{'|'.join(below)})\b", place)):
                found[size] = found.get(size, True) and place.strip() == at[0]
    return found


def _generic(kind: str, entry: text.Entry) -> bool:
    """Return True for what a template calls a type of its own, or one of the host does."""
    own = any(p.split()[-1] == kind for p in entry.template)
    return own or bool(re.fullmatch(r"T\w?|scalar_t|\w*(?:[Tt]ype|[Ss]calar|[Rr]eal)", kind))
