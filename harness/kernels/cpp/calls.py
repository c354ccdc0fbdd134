"""Find what a kernel reaches in its file and headers: functions that it calls, and classes that it names."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from harness.kernels import text
from harness.kernels.cpp import conditions, includes

if TYPE_CHECKING:
    from harness.kernels.spec import Kernel

_FUNCTION = re.compile(
    r"\b(?!(?:if|for|while|switch|catch)\b)(\w+)\s*\([^(){};]*\)\s*(?:const\s*|noexcept\s*)*\{"
)
_CLASS = re.compile(
    r"\b(?:struct|class)\s+(\w+)\s*(?:final\s*)?(?:<[^;{}()]*>\s*)?(?::[^;{}()]*)?\{"  # none of a template's
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_CALLED = re.compile(r"\b(\w+)\s*(?:<[^;{}()]*>)?\s*\(")
_DYNAMIC = re.compile(r"\bextern\s+(?:__align__\s*\([^)]*\)\s*)?__shared__[^;{}]*?\b(\w+)\s*\[\s*\]")
_KEPT = 8


def texts(kernel: Kernel) -> tuple[str, ...]:
    """Return the texts of a kernel's file and own headers, without comments and branches not taken."""
    own = includes.of(kernel).own.values()
    whole = (kernel.source, *(h.decode(errors="replace") for h in own))
    return conditions.taken([text.COMMENT.sub(" ", t) for t in whole], kernel.params)


def dynamic(texts: tuple[str, ...], body: str) -> bool:
    """Return True where a kernel, or a function that it calls, has dynamic shared memory.

    It is declared there, in a class that they name, or outside of all functions and used there.
    """
    whole, (*_, outside) = reached(texts, body), _functions(texts)
    return bool(_DYNAMIC.search(whole)) or any(re.search(rf"\b{name}\b", whole) for name in outside)


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
