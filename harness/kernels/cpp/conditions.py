"""Leave out of a text what its ``#ifdef`` leave out: branches for names that nobody defines; name those."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence

_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else|endif)\b(.*)", re.DOTALL)
_DEFINED = re.compile(r"(!?)\s*defined\s*\(?\s*(\w+)\s*\)?\s*\Z")
_DEFINES = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
_COMPILERS = re.compile(r"_|CUDA|NDEBUG|WIN|NVCC")  # begin names that a compiler or CUDA's headers may define


def taken(texts: Sequence[str], given: Collection[str] = ()) -> tuple[str, ...]:
    """Return texts with empty lines for branches that no build takes without further macros.

    `given` are macros that are defined elsewhere. Of a condition that is not known both branches stay.
    """
    defined = {name for text in texts for name in _DEFINES.findall(text)} | set(given)
    return tuple(_taken(text, defined) for text in texts)


def around(source: str, kernel: str, given: Collection[str] = ()) -> str | None:
    """Return the macro that an ``#if`` around a kernel asks for, "" if that is not known; None without one.

    It is none that the text defines, nor one of those `given` elsewhere.
    """
    name = re.escape(kernel.rpartition("::")[2])
    place = re.search(rf"\b__global__\b[^;{{}}]*?\b{name}\s*\(", source)
    opened, defined = list[str](), {*_DEFINES.findall(source), *given}
    for line in source[: place.start()].splitlines() if place else ():
        if (directive := _DIRECTIVE.match(line)) is None:
            continue
        word, rest = directive.groups()
        if word in ("if", "ifdef", "ifndef"):
            opened.append(rest.partition("//")[0] if word != "ifndef" else "")
        elif opened:
            opened[-1:] = [] if word == "endif" else [""]
    asked = (
        n for rest in reversed(opened) for n in re.findall(r"(?<!!)\b(?!defined\b|_)([A-Za-z]\w*)", rest)
    )
    return next((n for n in asked if n not in defined), "") if opened else None


def branches(source: str) -> list[dict[int, int] | None]:
    """Return for each line the branch of each ``#if`` around it, by its number; None if no build takes it."""
    found: list[dict[int, int] | None] = []
    opened, count = dict[int, int](), 0
    (kept,) = taken([source])
    for line, own in zip(source.splitlines(), kept.splitlines(), strict=True):
        found.append(dict(opened) if own == line else None)
        if (directive := _DIRECTIVE.match(line)) is None:
            continue
        if directive[1].startswith("if"):
            count += 1
            opened[count] = 0
        elif opened and directive[1] == "endif":
            opened.popitem()
        elif opened:
            opened[max(opened)] += 1
    return found


def exclusive(places: Sequence[Mapping[int, int] | None]) -> bool:
    """Return True where two of these `branches` are of one ``#if``, of which a build takes one at most."""
    known = [place for place in places if place is not None]
    pairs = itertools.combinations(known, 2)
    return any(one[n] != other[n] for one, other in pairs for n in one.keys() & other.keys())


def _taken(text: str, defined: Collection[str]) -> str:
    kept = []
    # Of each open #if, whether this branch is taken and whether an earlier one was; None where not known.
    opened: list[tuple[bool | None, bool | None]] = []
    for line in text.splitlines(keepends=True):
        directive = _DIRECTIVE.match(line)
        if directive is None:
            kept.append("\n" if any(now is False for now, _ in opened) else line)
            continue
        kept.append(line)
        word, rest = directive.groups()
        if word.startswith("if"):
            now = _holds(word, rest, defined)
            opened.append((now, now))
        elif opened and word == "endif":
            opened.pop()
        elif opened:
            before = opened[-1][1]
            holds = True if word == "else" else _holds("if", rest, defined)
            now = False if before is True else holds if before is False or holds is False else None
            opened[-1] = now, True if True in (before, holds) else None if None in (before, holds) else False
    return "".join(kept)


def _holds(word: str, rest: str, defined: Collection[str]) -> bool | None:
    """Return whether the condition `rest` of a directive holds; None where that is not known."""
    rest = rest.strip()
    if word == "if" and rest in ("0", "1"):
        return rest == "1"
    asked = _DEFINED.match(rest if word == "if" else f"{'!' * (word == 'ifndef')}defined({rest})")
    if asked is None or asked[2] in defined or _COMPILERS.match(asked[2]):
        return None
    return bool(asked[1])
