"""Find what a kernel reaches by calls in its file and headers: dynamic shared memory of other functions."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.kernels import text
from harness.kernels.cpp import conditions, includes

if TYPE_CHECKING:
    from harness.kernels.spec import Kernel

_FUNCTION = re.compile(
    r"\b(?!(?:if|for|while|switch|catch)\b)(\w+)\s*\([^(){};]*\)\s*(?:const\s*|noexcept\s*)*\{"
)
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

    It is declared there, or outside of all functions and used there.
    """
    whole, (_, outside) = "".join(_reached(texts, body)), _functions(texts)
    return bool(_DYNAMIC.search(whole)) or any(re.search(rf"\b{name}\b", whole) for name in outside)


def _reached(texts: tuple[str, ...], body: str) -> Iterator[str]:
    """Yield a body, and those of the functions of `texts` that it calls."""
    known, _ = _functions(texts)
    seen, left = set[str](), [body]
    while left:
        yield (part := left.pop())
        called = known.keys() & set(_CALLED.findall(part)) - seen
        seen |= called
        left += [function for name in sorted(called) for function in known[name]]


@functools.lru_cache(maxsize=_KEPT)
def _functions(texts: tuple[str, ...]) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Return the bodies of functions by name, and the names of what is declared outside of them."""
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for plain in map(text.blank, texts):
        done = 0
        for at in _FUNCTION.finditer(plain):
            closed = text.closing(plain, at.end() - 1)
            found.setdefault(at[1], []).append(plain[at.end() - 1 : closed + 1])
            if at.start() >= done and closed > 0:
                names += _DYNAMIC.findall(plain, done, at.start())
                done = closed + 1
        names += _DYNAMIC.findall(plain, done)
    return found, tuple(names)
