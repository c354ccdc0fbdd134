"""Put the expressions of macros and of functions of one line in place of their calls."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from harness.kernels import text

_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\(([\w\s,]*)\)((?:\\\n|[^\n])*)$", re.MULTILINE)
_FUNCTION = re.compile(  # no `if (i >= n) { return; }`
    r"\b(?!(?:if|while|for|switch)\b)(\w+)\s*\(([^(){};]*)\)\s*(?:const\s*)?\{\s*return\b([^;{}]*);\s*\}"
)
_ROUNDS, _LONGEST = 4, 50_000  # macros in each other, and characters of a body


def body(source: str, entry: text.Entry, *, functions: bool = True) -> str:
    """Return the body of a kernel with the expressions that it calls for in their place.

    What ``x[IX(i, j)]`` multiplies is known where ``#define IX(i, j) ((i) + (N + 2) * (j))`` is read, too.
    So it is of ``x[flat(i, j, width)]`` where a device function returns an expression; not so without
    `functions`.
    """
    known = _expressions(source, functions)
    found = entry.body
    for _ in range(_ROUNDS):
        if (more := _once(found, known)) == found or len(more) > _LONGEST:
            break
        found = more
    return found


def functions(header: str) -> Iterator[str]:
    """Yield the functions of one line of a header that belong to no class, without their types."""
    plain = text.blank(header)
    for at in _FUNCTION.finditer(plain):
        before = plain[: at.start()]
        if before.count("{") - before.count("}") == len([*text.namespaces(before)]):
            yield at[0]


@functools.lru_cache(maxsize=4)
def _expressions(source: str, functions: bool) -> dict[str, tuple[list[str], str]]:
    """Return (parameters, expression) of macros, and of functions of one line, by their names."""
    found = {}
    macros, plain = text.COMMENT.sub(" ", source), text.blank(source) if functions else ""
    for name, given, expression in (*_MACRO.findall(macros), *_FUNCTION.findall(plain)):
        parameters = [words[-1] for p in text.split(given) if (words := re.findall(r"\w+", p))]
        whole = expression.replace("\\\n", " ").strip()
        if not re.search(r"[;{}=]", whole):
            found[name] = parameters, f"({whole})"
    return found


def _once(body: str, known: dict[str, tuple[list[str], str]]) -> str:
    """Return a body with the expressions of its outermost calls."""
    parts: list[str] = []
    done = 0
    for at in re.finditer(r"\b(\w+)\s*\(", body):
        if at.start() < done or at[1] not in known or (closed := text.closing(body, at.end() - 1)) < 0:
            continue
        parameters, expression = known[at[1]]
        given = text.split(body[at.end() : closed])
        if len(given) == len(parameters):
            parts += body[done : at.start()], _with(expression, dict(zip(parameters, given, strict=True)))
            done = closed + 1
    return "".join([*parts, body[done:]])


def renamed(expression: str, given: dict[str, str]) -> str:
    """Return an expression with other words for some of its names."""
    return re.sub(r"\w+", lambda word: given.get(word[0], word[0]), expression)


def _with(expression: str, given: dict[str, str]) -> str:
    """Return the expression of a macro with what it is given; of one word its ``( )`` go."""
    bare = {name: word for name, word in given.items() if re.fullmatch(r"\w+", word)}
    alone = re.sub(r"(?<![\w)])\(\s*(\w+)\s*\)", lambda at: bare.get(at[1], at[0]), expression)
    return renamed(alone, given)
