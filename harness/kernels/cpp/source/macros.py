"""Expand the macros that make kernels: those with ``__global__`` in their text, and those that call these.

They are a text's own, or those of its headers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(\([^()]*\))?((?:\\\r?\n|[^\n])*)", re.MULTILINE)
_NOISE = re.compile(r"""/\*.*?\*/|//.*|"(?:\\.|[^"\\])*\"""")
_WORD = re.compile(r"[A-Za-z_]\w*")
_BRACKET = re.compile(r"[()\[\]{},]")
_LAUNCH = re.compile(r"<<\s*<|\bcudaLaunch\w*Kernel")
_TELLS = re.compile(r"\b(?:constexpr|const|using|typedef)\b.*(?:__VA_ARGS__|\b\w+\s*\(\s*\))", re.DOTALL)
_LONGEST = 2**18  # characters of all that macros make


@dataclass(frozen=True, kw_only=True)
class Macro:
    """A macro that is defined at `place`; `parameters` is None for one without parentheses."""

    place: int
    parameters: tuple[str, ...] | None
    body: str

    def called(self, given: Sequence[str]) -> str:
        """Return what it stands for with these arguments."""
        names = dict(zip(self.parameters or (), given, strict=False))
        if names.pop("...", None) is not None:
            names["__VA_ARGS__"] = ", ".join(given[len(names) :])
        whole = re.sub(r"(?<!#)#\s*(?=[A-Za-z_])", "", self.body)
        whole = _WORD.sub(lambda word: names.get(word[0], word[0]), whole)
        return re.sub(r"\s*##\s*", "", whole)


def makers(source: str, words: str) -> set[str]:
    """Return the macros whose text has one of `words`, a pattern, or calls one that has."""
    return _makers(_defined(source), words)


def expanded(source: str, plain: str) -> str:
    """Return `plain`, which is `source` without directives, with the kernels that macros make in it."""
    known = _defined(source)
    made = _makers(known, "__global__")
    return _Expansion(known, made).of(plain) if made else plain


def with_headers(source: str, plain: str, headers: Sequence[str]) -> str:
    """Return a text with the kernels that macros of its `headers` make in it; `plain` is it without noise.

    Its lines stay: what a macro stands for has none.
    """
    known: dict[str, list[Macro]] = {}
    for header in headers if any("__global__" in header for header in headers) else ():
        for name, found in _defined(header).items():
            known.setdefault(name, []).extend(replace(macro, place=-1) for macro in found)
    own = _defined(source)
    known |= {name: [*known.get(name, ()), *found] for name, found in own.items()}
    made = _makers(known, "__global__") - _makers(own, "__global__")
    parts, done = list[str](), 0
    for begin, end, body in _Expansion(known, made).edits(plain) if made else ():
        parts += source[done:begin], body, "\n" * source.count("\n", begin, end)
        done = end
    return "".join([*parts, source[done:]])


def launching(source: str, plain: str, headers: Sequence[str]) -> str:
    """Return a text with what its macros, or those of its headers, stand for where these launch kernels.

    So it is where they tell a launch among their arguments its numbers or types: ``SWITCH(d, D, [&] {
    k<D><<<1, 64>>>(x); })``, with ``constexpr int D = 64;`` in its text. `plain` is the text without noise.
    Its lines stay.
    """
    if not _LAUNCH.search(source):
        return source
    known: dict[str, list[Macro]] = {}
    for header in headers:
        for name, found in _defined(header).items():
            known.setdefault(name, []).extend(replace(macro, place=-1) for macro in found)
    for name, found in _defined(source).items():
        known[name] = [*known.get(name, ()), *found]
    bodies = {name: " ".join(macro.body for macro in found) for name, found in known.items()}
    made = {n for n, body in bodies.items() if _LAUNCH.search(body) and "__VA_ARGS__" not in body}
    around = frozenset(n for n, body in bodies.items() if _TELLS.search(body)) - made
    parts, done = list[str](), 0
    for begin, end, body in _Expansion(known, made, around).edits(plain) if made | around else ():
        parts += source[done:begin], body.replace("\n", " "), "\n" * source.count("\n", begin, end)
        done = end
    return "".join([*parts, source[done:]])


def meant(source: str, call: str) -> str:
    """Return what a call of a macro of a text stands for, ``ACCESSOR(float, 2)``; itself if it is none.

    One without parentheses stands for an instance of a template, ``Accessor<float, 2>``.
    """
    name = _WORD.match(call)
    given, known = list[str](), _defined(source).get(name[0], []) if name else []
    if name and known and known[-1].parameters is None and call == name[0] and "<" in known[-1].body:
        return known[-1].body
    if not known or not name or _arguments(call, name.end(), given) != len(call):
        return call
    return known[-1].called(given)


@functools.lru_cache(maxsize=8)  # of a file with hundreds of kernels each asks for all
def _defined(source: str) -> dict[str, list[Macro]]:
    """Return the macros of a text by name: several where it defines one anew, or in branches."""
    found: dict[str, list[Macro]] = {}
    for at in _DEFINE.finditer(source):
        given = None if at[2] is None else tuple(re.findall(r"\w+|\.\.\.", at[2]))
        body = _NOISE.sub(" ", re.sub(r"\\\r?\n", " ", at[3])).strip()
        if body:  # __global__ is nothing to a compiler of the host
            found.setdefault(at[1], []).append(Macro(place=at.start(), parameters=given, body=body))
    return found


def _makers(known: dict[str, list[Macro]], words: str) -> set[str]:
    bodies = {name: " ".join(macro.body for macro in macros) for name, macros in known.items()}
    found = {name for name, body in bodies.items() if re.search(rf"\b(?:{words})\b", body)}
    while more := {n for n in bodies.keys() - found if found.intersection(_WORD.findall(bodies[n]))}:
        found |= more
    return found


class _Expansion:
    """Expand the macros `known`: those that make kernels, and all that are called in their texts.

    So are those of `around` that have a launch among their arguments.
    """

    def __init__(
        self, known: dict[str, list[Macro]], made: set[str], around: frozenset[str] = frozenset()
    ) -> None:
        self._known, self._made, self._around, self._room = known, made, around, _LONGEST

    def of(self, plain: str, place: int | None = None, within: frozenset[str] = frozenset()) -> str:
        """Return a text with what it calls; that of a macro has the `place` of its call.

        As in C++ a macro is none `within` its own text.
        """
        parts, done = list[str](), 0
        for begin, end, body in self.edits(plain, place, within):
            parts += plain[done:begin], body
            done = end
        return "".join([*parts, plain[done:]])

    def edits(
        self, plain: str, place: int | None = None, within: frozenset[str] = frozenset()
    ) -> Iterator[tuple[int, int, str]]:
        """Yield (begin, end, text) of what is called, and what it stands for; arguments are as of `of`."""
        done = 0
        for word in _WORD.finditer(plain):
            here = word.start() if place is None else place
            before = [macro for macro in self._known.get(word[0], ()) if macro.place < here]
            if word.start() < done or not before or self._room < 0 or word[0] in within:
                continue
            given, end = list[str](), word.end()
            if before[-1].parameters is not None and not (end := _arguments(plain, end, given)):
                continue
            if word[0] in self._around and any(map(_LAUNCH.search, given)):
                given = [self.of(one, here, within) if _LAUNCH.search(one) else one for one in given]
                body = before[-1].called(given)
                self._room -= len(body)
                yield word.start(), end, body
                done = end
                continue
            named = self._made.intersection(_WORD.findall(" ".join([word[0], *given])))
            if named or (place is not None and given):
                body = before[-1].called(given)
                self._room -= len(body)
                yield word.start(), end, self.of(body, here, within | {word[0]})
                done = end


def _arguments(plain: str, at: int, given: list[str]) -> int:
    """Add the arguments of a call, whose name ends at `at`, to `given`; return where it ends, or 0."""
    opened = re.compile(r"\s*\(").match(plain, at)
    depth, begin = 0, opened.end() if opened else 0
    for mark in _BRACKET.finditer(plain, begin) if opened else ():
        if depth == 0 and mark[0] in ",)":
            given.append(plain[begin : mark.start()].strip())
            begin = mark.end()
            if mark[0] == ")":
                return begin
        depth += (mark[0] in "([{") - (mark[0] in ")]}")
    return 0
