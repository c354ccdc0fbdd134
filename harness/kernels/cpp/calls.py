"""Find what a kernel reaches in its file and headers: functions that it calls, classes that it names, and its
dynamic shared memory.
"""

from __future__ import annotations

import contextlib
import functools
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.kernels import text
from harness.kernels.cpp import conditions, includes
from harness.kernels.cpp.host import launches
from harness.kernels.cpp.host.values import Values
from harness.kernels.cpp.source import macros
from harness.kernels.cpp.source.anew import lambdas
from harness.kernels.cpp.source.ptx import decompiled
from harness.kernels.cpp.source.variables import parameters
from harness.kernels.expr import Expr, ExprError

if TYPE_CHECKING:
    from harness.kernels.spec import Kernel

_FUNCTION = re.compile(
    r"\b(?!(?:if|for|while|switch|catch)\b)(\w+)\s*\([^(){};]*\)\s*(?:const\s*|noexcept\s*)*\{"
)
_CLASS = re.compile(
    r"\b(?:struct|class)\s+(\w+)\s*(?:final\s*)?(?:<[^;{}()]*>\s*)?(?::[^;{}()]*)?\{"  # none of a template's
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_CALLED = re.compile(r"\b(\w+)\s*+(?:<[^;{}()]*>\s*+)?\(")
_DYNAMIC = re.compile(  # extern float __shared__ x[] is as good
    r"\bextern\s+(?:__align__\s*\([^)]*\)\s*|\w+\s+){0,3}?__shared__[^;{}]*?\b(\w+)\s*\[\s*\]"
)
_ASKS_THREAD = re.compile(
    r"threadIdx|blockDim|__shared__|__sync|_sync\b|__shfl|__ballot|__a(?:ny|ll|ctivemask)\b|thread|lane|tid\b"
    r"|\b(?:asm|cg|cooperative_groups|cub)\b"
)
_TELLS_NOTHING = re.compile(  # statements, C's and CUDA's functions
    r"if|for|while|switch|return|sizeof|printf|assert|atomic\w+|clock\w*|curand\w*|make_\w+|__[a-z]\w+"
    r"|f?(?:abs|min|max|r?sqrt|exp2?|log(?:2|10)?|pow|sin|cos|tan|a?tanh?2?|floor|ceil|round|mod|ma)f?"
    r"|int|float|double|char|bool|unsigned|long|u?int\d+_t|size_t"
)
_MACRO = re.compile(r"\b[A-Z][A-Z\d_]{2,}\b")
_KEPT = 8
_SHARED, _ASKED = 48 * 1024, 224 * 1024  # bytes of a block without asking, and nearly all that it can have
MOST_THREADS = 1024  # of a block
_FEWER = (128, 64, 32)  # threads that may have room there
_OPTS_IN = re.compile(r"MaxDynamicSharedMemorySize|MAX_DYNAMIC_SHARED_SIZE_BYTES")


def bounded(entry: text.Entry, source: str, values: Values) -> text.Entry:
    """Return an entry with the threads of ``__launch_bounds__(WARPS * 32)``, by numbers with names."""
    name = re.escape(entry.name.rpartition("::")[2])
    bounds = rf"__launch_bounds__\b\s*\(((?:[^(),]|\([^()]*\))+)(?:,[^()]*)?\)\s*(?:\w+\s+)*{name}\s*\("
    found = None if entry.bounds else re.search(bounds, text.blank(source))
    threads = values.number(found[1].strip()) if found else None
    return replace(entry, bounds=threads) if threads and threads <= MOST_THREADS else entry


def own(kernel: Kernel) -> str:
    """Return the CUDA C++ of a kernel's file: its text, or what its PTX computes."""
    return decompiled.of(kernel.source, kernel.path)


def entries(kernel: Kernel) -> list[text.Entry]:
    """Return the kernels of a kernel's file, with those that macros of its headers make."""
    return listed(own(kernel), includes.of(kernel).read)


def listed(source: str, headers: tuple[bytes, ...]) -> list[text.Entry]:
    """Return the kernels of a text, with those that macros of its headers make."""
    return text.entries(seen(source, headers).texts[0])


def texts(kernel: Kernel) -> tuple[str, ...]:
    """Return the texts of a kernel's file and own headers, without comments and branches not taken."""
    return _texts(own(kernel), includes.of(kernel).read, tuple(kernel.params))


@functools.lru_cache(maxsize=_KEPT)  # of a file with hundreds of kernels each asks for all
def _texts(source: str, headers: tuple[bytes, ...], given: tuple[str, ...]) -> tuple[str, ...]:
    return conditions.taken([text.COMMENT.sub(" ", t) for t in seen(source, headers).texts], given)


@functools.lru_cache(maxsize=_KEPT)
def seen(source: str, headers: tuple[bytes, ...]) -> parameters.Seen:
    """Return a file's text and those of its own headers as they are read.

    Constant variables are parameters of kernels there, host code makes objects where it has lambdas, what
    macros of headers make stands in their place, and pointers are spelled out.
    """
    known = [header.decode(errors="replace") for header in headers]
    made = lambdas.made(source)
    made = macros.launching(made, text.blank(made), known)
    whole = parameters.spelled((macros.with_headers(made, text.blank(made), known), *known))
    plain = tuple(text.COMMENT.sub(" ", one) for one in whole)
    return parameters.of(whole, lambda body: reached(plain, body))


def host(kernel: Kernel) -> str:
    """Return a kernel's text for what reads its launches: behind it, the numbers that its headers name."""
    return of_host(own(kernel), includes.of(kernel).read)


def of_host(source: str, headers: tuple[bytes, ...]) -> str:
    """Return the same of a text with `headers` of its own."""
    return launches.with_headers(seen(source, headers).texts[0], headers)


def launchable(kernel: Kernel) -> Kernel:
    """Return a kernel; one without front matter, with dynamic shared memory if it has such."""
    source = own(kernel)
    entry = text.find(entries(kernel), kernel.entry) if kernel.plain else None
    if entry is None or kernel.shared({}) or not dynamic(texts(kernel), entry.body):
        return kernel
    return replace(kernel, shared=Expr.parse(_ASKED if _OPTS_IN.search(source) else _SHARED))


def with_room(source: str, name: str, block: tuple[int, ...]) -> tuple[int, ...]:
    """Return a block of fewer threads where host code has one for each of n, and n * n numbers to share."""
    launched = launches.by_argument(source, name)
    if launched is None or not launched.room or len(block) > 1:
        return block
    with contextlib.suppress(ExprError):
        room = Expr.parse(launched.room)
        for threads in (block[0], *_FEWER):
            if room(dict.fromkeys(room.names, threads)) <= _SHARED:
                return (min(threads, block[0]),)
    return block


def of_one_thread(source: str, body: str) -> bool:
    """Return True where a kernel does not ask for its thread, nor does what it calls.

    A name that nothing in the text tells may be a function of a header that asks, or a macro.
    """
    functions, classes, _ = _functions((source,))
    whole = reached((source,), body)
    foreign = {name for name in _CALLED.findall(whole) if name not in functions} - classes.keys()
    told = all(_TELLS_NOTHING.fullmatch(name) for name in foreign)
    told &= all(re.search(rf"\b{name}\s*=\s*[\w.]+\s*[,;}}]", source) for name in _MACRO.findall(whole))
    return told and not _ASKS_THREAD.search(whole)


def dynamic(texts: tuple[str, ...], body: str) -> bool:
    """Return True where a kernel, or a function that it calls, has dynamic shared memory.

    It is declared there, in a class that they name, or outside of all functions and used there.
    """
    whole, (*_, outside) = reached(texts, body), _functions(texts)
    return bool(_DYNAMIC.search(whole)) or any(re.search(rf"\b{name}\b", whole) for name in outside)


def with_called(entry: text.Entry, texts: tuple[str, ...]) -> text.Entry:
    """Return a kernel with the dimensions of its indices, or of a function's where it has none itself.

    One that counts all threads, across the grid, says nothing of dimensions, and neither do overloads.
    """
    whole = entry.body
    if not re.search(text.INDICES, whole):
        functions, *_ = _functions(texts)
        called = (functions.get(name, []) for name in set(_CALLED.findall(whole)))
        whole = "".join(bodies[0] for bodies in called if len(bodies) == 1 and "gridDim" not in bodies[0])
    found = {n: text.dimensions(whole, n) for n in (text.INDICES, "threadIdx")}
    flat = entry.flat - {axis for axis in "yz" if re.search(rf"\bblockIdx\s*\.\s*{axis}\b", whole)}
    return replace(entry, dimensions=found[text.INDICES], threads=found["threadIdx"], flat=flat)


def reached(texts: tuple[str, ...], body: str) -> str:
    """Return a body, and those of the functions of `texts` that it calls and of the classes that it names."""
    functions, classes, _ = _functions(texts)
    seen, left, found = set[str](), [body], list[str]()
    while left:
        found.append(part := left.pop())
        called = functions.keys() & set(_CALLED.findall(part)) - seen
        named = classes.keys() & set(_WORD.findall(part)) - seen - called
        seen |= called | named
        left += [one for name in sorted(called) for one in functions[name]]
        left += [one for name in sorted(named) for one in classes[name]]
    return "".join(found)


@functools.lru_cache(maxsize=_KEPT)
def _functions(
    texts: tuple[str, ...],
) -> tuple[dict[str, list[str]], dict[str, list[str]], tuple[str, ...]]:
    """Return the bodies of functions and of classes by name, and the names of what is declared outside."""
    found: dict[str, list[str]] = {}
    classes: dict[str, list[str]] = {}
    names: list[str] = []
    for plain in map(text.blank, texts):
        for at in _CLASS.finditer(plain):
            body = plain[at.end() - 1 : text.closing(plain, at.end() - 1) + 1]
            classes.setdefault(at[1], []).append(body)
        done = 0
        for at in _FUNCTION.finditer(plain):
            closed = text.closing(plain, at.end() - 1)
            found.setdefault(at[1], []).append(plain[at.end() - 1 : closed + 1])
            if at.start() >= done and closed > 0:
                names += _DYNAMIC.findall(plain, done, at.start())
                done = closed + 1
        names += _DYNAMIC.findall(plain, done)
    return found, classes, tuple(names)
