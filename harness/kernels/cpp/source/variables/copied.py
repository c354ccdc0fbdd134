"""Follow what host code copies to variables: ``cudaMemcpyToSymbol(n, &count, sizeof(int))``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from harness.kernels import text
from harness.kernels.cpp.host.classes import Function
from harness.kernels.cpp.host.frames import Frame, Host
from harness.kernels.cpp.host.passed import base

if TYPE_CHECKING:
    from harness.kernels.cpp.source.variables.declared import Part, Variable

_TO = re.compile(r"\bcudaMemcpyToSymbol(?:Async)?\s*(?:<[^<>;]*>)?\s*(\()")
_ADDRESS = re.compile(r"\bcudaGetSymbolAddress\s*(\()")
_COPY = re.compile(r"\bcudaMemcpy(?:Async)?\s*(\()")
_SIMPLE = re.compile(r"[\w\s+\-*/%()]{1,100}")
_REAL = re.compile(r"[-+]?\s*(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[fF]?")
_LOOP = (  # that counts from a number to another one
    r"\bfor\s*\(\s*(?:[A-Za-z_]\w*\s+){0,2}?(\w+)\s*=\s*([^;]+);\s*\1\s*(<=?)\s*([^;]+);"
    r"\s*(?:\+\+\s*\1|\1\s*\+\+)\s*\)\s*\{?\s*"
)
_DATA = re.compile(r"\s*\.\s*data\s*\(\s*\)\s*\Z")  # of std::array, ``steps.data()``
_DEEPEST, _WAYS, _LONGEST = 6, 4, 4096  # calls in each other, frames of a copy, and elements of a list

Written = tuple[Frame, str]  # an expression, and where it stands


class Copies:
    """The copies of a text to the variables of its device code, by their names.

    headers: blank texts that may have the arrays that are copied
    """

    def __init__(self, code: Host, names: Sequence[str], headers: Sequence[str] = ()) -> None:
        self._code, self._headers = code, headers
        self._made: dict[str, list[tuple[int, str]]] = {}
        addresses = {base(to): base(of) for _, (to, of) in self._calls(_ADDRESS, 2)}
        calls = [(at, base(given[0]), given) for at, given in self._calls(_TO, 3)]
        calls += [(at, addresses.get(base(given[0]), ""), given) for at, given in self._calls(_COPY, 3)]
        for at, name, given in calls:
            whole = "ToSymbol" not in code.plain[at : at + 20] or not given[3:] or given[3].strip() == "0"
            if name in names:
                source = _DATA.sub("", given[1]) if whole else ""
                self._made.setdefault(name, []).append((at, source))

    def _calls(self, pattern: re.Pattern[str], least: int) -> Iterator[tuple[int, list[str]]]:
        """Yield (place, arguments) of the calls of a function with that many arguments or more."""
        for at in pattern.finditer(self._code.plain):
            given = text.split(self._code.plain[at.end() : text.closing(self._code.plain, at.start(1))])
            if len(given) >= least:
                yield at.start(), given if least > 2 else given[:2]

    def source(self, variable: str) -> Written | None:
        """Return what is copied to a variable, where it is no parameter; None if it is not one thing."""
        made = self._made.get(variable, [])
        found = dict[tuple[Function | None, str], Written]()
        for place, written in made:
            for frame in self._code.frames(place)[:_WAYS]:
                there, name = _from(frame, written)
                found[there.function, name] = there, name
        return next(iter(found.values())) if len(found) == 1 else None

    def expression(self, variable: Variable, part: Part, function: Function | None) -> str:
        """Return what a part of a variable is given, as a launch in a function may have it, or ""."""
        if (source := self.source(variable.name)) is None:
            return ""
        value = (source[0], source[1]) if not part.path else _member(*source, variable, part.path)
        if not part.kind:  # the name of a pointer or map, ``maps[1]``
            return value[1] if value else source[1] + part.path * part.path.startswith("[")
        if value is None:
            return ""
        frame, written = _from(*value)
        if frame.function is function and _SIMPLE.fullmatch(written):
            return written
        number = frame.number(written)
        return str(number) if number is not None else written if _REAL.fullmatch(written.strip()) else ""

    def elements(self, variable: Variable, part: Part) -> list[Written]:
        """Return what host code fills an array with, number by number; nothing where that is not known."""
        if (source := self.source(variable.name)) is None:
            return []
        value = source if not part.path else _member(*source, variable, part.path)
        if value and value[1].strip().startswith("{"):
            return _listed(value[0], value[1])
        if part.path or not source[1].isidentifier():
            return []
        return _initial(*source, self._headers) or _looped(*source, part.count)


def _from(frame: Frame, written: str) -> Written:
    """Return what is passed for a name, in the frame of the function whose own it is."""
    plain = base(written) or written.strip()
    for _ in range(_DEEPEST):
        given, outer = frame.passed(plain)
        if outer is None or not outer.place or not given:
            break
        frame, plain = outer, base(given) or given.strip()
    return frame, plain


def _around(frame: Frame) -> str:
    """Return the text of a frame's function up to its place."""
    own = frame.function
    return frame.host.plain[own.opened if own else 0 : frame.place]


def _member(frame: Frame, name: str, variable: Variable, path: str) -> Written | None:
    """Return what a member of a struct was given last before a place, ``h.n = 4;``, or begins with."""
    member = re.escape(path.lstrip(".")).replace(r"\.", r"\s*\.\s*")
    given = re.compile(rf"\b{name}\s*(?:\.|->)\s*{member}\s*=(?!=)\s*([^;]+);")
    before = _around(frame)
    if found := [*given.finditer(before)]:
        return frame, found[-1][1].strip()
    if listed := [*re.finditer(rf"\b{name}\s*(?:=\s*(?:\w+\s*)?)?\{{", before)]:
        opened = listed[-1].end() - 1
        parts = text.split(before[opened + 1 : text.closing(before, opened)])
        named = {at[1]: at[2] for p in parts if (at := re.match(r"\.\s*(\w+)\s*=?\s*(.*)", p, re.DOTALL))}
        known: Mapping[str, str] = named or dict(zip(variable.members, parts, strict=False))
        value = known.get(path.lstrip("."), "")
        return (frame, value.strip()) if value else None
    elsewhere = [*given.finditer(frame.host.plain)]
    if len(elsewhere) != 1:
        return None
    place = elsewhere[0].start()
    return frame.host.frames(place)[0], elsewhere[0][1].strip()


def _initial(frame: Frame, name: str, headers: Sequence[str]) -> list[Written]:
    """Return the list that an array begins with, ``int h[3] = {1, 2, 3};``."""
    pattern = re.compile(rf"\b{name}\s*(?:\[[^]]*\]\s*)*(?:=\s*)?\{{")
    for whole in (_around(frame), frame.host.plain, *headers):
        if found := [*pattern.finditer(whole)]:
            opened = found[-1].end() - 1
            return _listed(frame, whole[opened : text.closing(whole, opened) + 1])
    return []


def _listed(frame: Frame, braced: str) -> list[Written]:
    """Return the numbers of a list, also of lists in it."""
    return [(frame, part) for part in text.split(re.sub(r"[{}]", " ", braced))][:_LONGEST]


def _looped(frame: Frame, name: str, count: int) -> list[Written]:
    """Return what a loop gives to an array, ``for (int i = 0; i < 8; i++) h[i] = 4 * i;``."""
    given = re.compile(rf"{_LOOP}{name}\s*\[\s*\1\s*\]\s*=(?!=)\s*([^;]+);")
    found = [*given.finditer(_around(frame))]
    if not found or len(re.findall(rf"\b{name}\s*\[[^]]*\]\s*[-+*/|&^]?=(?!=)", _around(frame))) > 1:
        return []
    counter, first, compared, end, value = found[-1].groups()
    begin, last = frame.number(first), frame.number(end)
    if begin != 0 or last is None or not _SIMPLE.fullmatch(value.strip()):
        return []
    numbers = range(min(last + (compared == "<="), count))
    return [(frame, re.sub(rf"\b{counter}\b", f"({n})", value.strip())) for n in numbers]
