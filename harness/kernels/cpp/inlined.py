"""Put the index arithmetic of macros and one-line functions into the body of a kernel.

What ``x[IX(i, j)]`` multiplies is known where ``#define IX(i, j) ((i) + (N + 2) * (j))`` is read, too. So it
is of ``x[flat(i, j, width)]`` where a device function returns an expression.
"""

from __future__ import annotations

import re

from harness.kernels import text

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\(([\w\s,]*)\)((?:\\\n|[^\n])*)$", re.MULTILINE)
_FUNCTION = re.compile(r"\b(\w+)\s*\(([^(){};]*)\)\s*(?:const\s*)?\{\s*return\b([^;{}]*);\s*\}")
_ROUNDS, _LONGEST = 4, 50_000  # macros in each other, and characters of a body


def body(source: str, entry: text.Entry) -> str:
    """Return the body of a kernel with the expressions that it calls for."""
    known = _expressions(source)
    found = entry.body
    for _ in range(_ROUNDS):
        if (more := _once(found, known)) == found or len(more) > _LONGEST:
            break
        found = more
    return found


def _expressions(source: str) -> dict[str, tuple[list[str], str]]:
    """Return (parameters, expression) of macros and functions of one line, by their names."""
    found = {}
    macros, functions = _COMMENT.sub(" ", source), text.blank(source)
    for name, given, expression in (*_MACRO.findall(macros), *_FUNCTION.findall(functions)):
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


def _with(expression: str, given: dict[str, str]) -> str:
    """Return an expression with other words for some of its names."""
    return re.sub(r"\w+", lambda word: given.get(word[0], word[0]), expression)
