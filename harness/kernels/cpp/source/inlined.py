"""Put the expressions of macros and of functions of one line in place of their calls.

So is the body of a function that is all that a kernel calls, and what a function that rounds up gives.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from harness.kernels import text
from harness.kernels.cpp.source import items

_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\(([\w\s,]*)\)((?:\\\n|[^\n])*)$", re.MULTILINE)
_FUNCTION = re.compile(  # no `if (i >= n) { return; }`
    r"\b(?!(?:if|while|for|switch)\b)(\w+)\s*\(([^(){};]*)\)\s*(?:const\s*)?\{\s*return\b([^;{}]*);\s*\}"
)
_DEFINED = re.compile(
    r"(?:\btemplate\s*<([^;{}()]*)>[^;{}()]*?)?\b(?!(?:if|while|for|switch|catch)\b)(\w+)\s*\(([^(){};]*)\)\s*(\{)"
)
_CALL = re.compile(r"\b(\w+)\s*(?:<([^;(){}]*)>\s*)?(\()")
_CAST = re.compile(r"(?:\w+_cast\s*<[^;(){}]*>|\([\w\s:]+\*\s*\))\s*\(?\s*(\w+)\s*\)?")
_NAME = re.compile(r"(?<![\w.])(?<!->)[A-Za-z_]\w*")  # no member's
_ROUNDED_UP = re.compile(r"\b(\w*(?:ceil|up|cdiv|pad|align)\w*)\s*\(([^(),]+),([^(),]+)\)", re.IGNORECASE)
_DIVIDES = re.compile(r"(?i:div|ceil)|(?:\A|_)up\Z|U[pP]\Z")  # divUp(n, 256); roundUp(n, 256) is a multiple
_MULTIPLIES = re.compile("round|align|pad|multiple|next", re.IGNORECASE)
_CEIL = re.compile(r"\b(?:std\s*::\s*)?ceil[fl]?\s*(\()")
_REAL = re.compile(  # and numbers such as 256.0f
    r"\(\s*(?:float|double)\s*\)|\bstatic_cast\s*<\s*(?:float|double)\s*>|\b(?:float|double)\s*(?=\()"
    r"|(?<![\w.])(\d+)\.0*[fF]?(?![\w.])"
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


def called(source: str, entry: text.Entry) -> text.Entry:
    """Return a kernel that hands all on to one function of its text with the body of that function.

    Such kernels give names to instances, ``extern "C" __global__ void sum_f32(...) { sum<float>(...); }``.
    """
    for _ in range(_ROUNDS):
        if re.search(rf"\b{text.INDICES}\b", entry.body):
            break
        known = _bodies(source)
        calls = [at for at in _CALL.finditer(entry.body) if at[1] in known]
        closed = text.closing(entry.body, calls[0].start(3)) if len(calls) == 1 else -1
        if closed < 0 or not _alone(entry.body, calls[0].start(), closed):
            break
        call, (template, parameters, inner) = calls[0], known[calls[0][1]]
        given = [_CAST.sub(r"\1", part) for part in text.split(entry.body[call.end() : closed])]
        if len(given) != len(parameters):
            break
        names = dict(zip(template, text.split(call[2] or ""), strict=False))
        names |= {n: g if g.isidentifier() else f"({g})" for n, g in zip(parameters, given, strict=True)}
        inner = _NAME.sub(functools.partial(_given, names), inner)
        whole = f"{entry.body[: call.start()]}{inner}{entry.body[closed + 1 :]}"
        if len(whole) > _LONGEST:
            break
        entry = entry.with_body(whole)
    return entry


def _alone(body: str, begin: int, closed: int) -> bool:
    """Return True for a call that is a statement, ``detail::sum(x, n);``, and no part of one."""
    before = re.sub(r"(?:\w+\s*::\s*)+\Z", "", body[:begin]).rstrip()
    return before[-1:] in ("{", "}", ";") and body[closed + 1 :].lstrip()[:1] == ";"


def _given(names: dict[str, str], word: re.Match[str]) -> str:
    return names.get(word[0], word[0])


@functools.lru_cache(maxsize=4)
def _bodies(source: str) -> dict[str, tuple[list[str], list[str], str]]:
    """Return (template parameters, parameters, body) of the functions of a text that has one of the name."""
    plain = text.blank(source)
    found: dict[str, list[tuple[list[str], list[str], str]]] = {}
    done = 0
    for at in _DEFINED.finditer(plain):
        if at.start(2) < done or (done := text.closing(plain, at.start(4))) < 0:
            continue  # a loop of a macro's in a body
        template, own = ([text.parameter(p, "").name for p in text.split(at[n] or "")] for n in (1, 3))
        found.setdefault(at[2], []).append((template, own, plain[at.start(4) : done + 1]))
    return {name: bodies[0] for name, bodies in found.items() if len(bodies) == 1}


def functions(header: str) -> Iterator[str]:
    """Yield the functions of one line of a header that belong to no class, without their types."""
    plain = text.blank(header)
    for at in _FUNCTION.finditer(plain):
        before = plain[: at.start()]
        if before.count("{") - before.count("}") == len([*items.namespaces(before)]):
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


def rounded_up(written: str) -> str:
    """Return an expression with divisions in place of functions that round up, by their names."""
    return _ROUNDED_UP.sub(_rounded_up, written)


def _rounded_up(at: re.Match[str]) -> str:
    """Return what a function that rounds up gives, by its name; its call where that does not tell."""
    if _MULTIPLIES.search(at[1]):
        return f"((({at[2]}) + ({at[3]}) - 1) / ({at[3]}) * ({at[3]}))"
    return f"((({at[2]}) + ({at[3]}) - 1) / ({at[3]}))" if _DIVIDES.search(at[1]) else at[0]


def ceiled(written: str) -> str:
    """Return an expression with integers for ``ceil((float)n / 256)`` and ``ceil(n / 256.0)``.

    One without a float in it divides integers, and rounds down.
    """
    found, done = "", 0
    for at in _CEIL.finditer(written):
        closed = text.closing(written, at.start(1))
        inner = written[at.end() : closed]
        whole = _REAL.sub(lambda real: real[1] or "", inner)
        parts = [
            n for n, c in enumerate(whole) if c == "/" and whole.count("(", 0, n) == whole.count(")", 0, n)
        ]
        if at.start() < done or closed < 0 or whole == inner or not parts:
            continue
        over, under = whole[: parts[-1]], whole[parts[-1] + 1 :]
        found += f"{written[done : at.start()]}((({over}) + ({under}) - 1) / ({under}))"
        done = closed + 1
    return found + written[done:]
