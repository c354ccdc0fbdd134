"""Follow what host code makes, such as a tensor map, through the names that it is passed under.

A function makes it for a parameter, ``make(&map)``, or returns it, ``map = make()``; it may be copied to the
device, ``cudaMemcpy(on_device, &map, ...)``, become a member, or be passed on to a function that launches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from harness.kernels import text
from harness.kernels.cpp.host.classes import Function
from harness.kernels.cpp.host.frames import Frame, Host

_CAST = re.compile(r"\A\s*(?:\([\w\s:]+\*+\s*\)|(?:reinterpret|static|const)_cast\s*<[^<>]*>\s*(?=\())\s*")
_NAME = re.compile(r"(?:[A-Za-z_]\w*\s*(?:\.|->|::)\s*)*([A-Za-z_]\w*)(?:\s*\[[^]]*\]|\.get\(\)|\.data\(\))*")
_COPIED = re.compile(r"\bcu(?:da)?Memcpy\w*\s*(\()")
_PLACE = re.compile(r"&?\s*(\w+\[\d+\])\s*")
_ROUNDS = 6  # names after names


def base(written: str) -> str:
    """Return the name in what is passed: ``map`` of ``&map``, ``(void*)args->map`` or ``*map``; or ""."""
    plain = written.strip()
    while cast := _CAST.match(plain):
        plain = plain[cast.end() :]
    found = _NAME.fullmatch(plain.strip("&*() "))
    return found[1] if found else ""


class Passed:
    """Tell which of several things a name means: each is made in a frame, under a name there."""

    def __init__(self, code: Host, made: Sequence[tuple[Frame, str]]) -> None:
        self._code, self._known = code, dict[tuple[Function | None, str], int]()
        self._plain = code.plain
        for n, (frame, name) in enumerate(made):
            self._up(frame, {name}, n)
        for _ in range(_ROUNDS):
            before = len(self._known)
            for (function, name), n in list(self._known.items()):
                for further in self._elsewhere(function, name):
                    self._known.setdefault(further, n)
            if len(self._known) == before:
                break

    def which(self, function: Function | None, written: str) -> int | None:
        """Return the index of what is passed in a function; None where that is not known."""
        if (exact := self._known.get((function, "".join(written.strip("&* ").split())))) is not None:
            return exact
        name = base(written)
        known = [n for (_, other), n in self._known.items() if other == name and name]
        return self._known.get((function, name), known[0] if known else None)

    def _up(self, frame: Frame, names: set[str], n: int) -> None:
        """Name it in the frames of those who call: what they pass for it, or what they call what they get."""
        here: Frame | None = frame
        while here is not None and names:
            for name in (names := names | self._aliases(here.function, names)):
                self._known.setdefault((here.function, name), n)
            if (own := here.function) is None or here.outer is None:
                break
            given = [here.given[name] for name in names if name in here.given]
            outer = {*map(base, given), *(one[1] for one in map(_PLACE.fullmatch, given) if one)}
            if own.makes:
                outer |= {*re.findall(r"(\w+)\s*\Z", self._plain[: here.outer.place])}
            if self._returned(own, names):
                outer |= self._assigned(here.outer.place)
            names, here = outer - {""}, here.outer

    def _aliases(self, function: Function | None, names: set[str]) -> set[str]:
        """Return the names to which a function copies what has others."""
        body = self._plain[function.opened : function.closed] if function else ""
        found = set[str]()
        for at in _COPIED.finditer(body):
            given = text.split(body[at.end() : text.closing(body, at.start(1))])
            if len(given) > 1 and base(given[1]) in names:
                found.add(base(given[0]))
        for name in names:
            found |= {
                *re.findall(rf"\b(\w+)\s*(?:\[[^]]*\]\s*)?=\s*[&*]?\s*{re.escape(name)}\s*[;,}}]", body)
            }
        return found - {""}

    def _returned(self, function: Function, names: set[str]) -> bool:
        """Return True where a function returns what has one of these names, or the call that made it."""
        body = self._plain[function.opened : function.closed]
        either = "|".join(map(re.escape, names))
        return bool(re.search(rf"\breturn\s+[*&]?\s*(?:std\s*::\s*move\s*\(\s*)?(?:{either})\b", body)) or (
            "#" in names
        )

    def _assigned(self, place: int) -> set[str]:
        """Return what the result of the call at a place is called, ``map = make()``; "#" where it is
        returned.
        """
        before = self._plain[max(0, place - 200) : place]
        before = re.sub(r"(?:[A-Za-z_]\w*\s*::\s*)+\Z", "", before)
        if re.search(r"\breturn\s*\Z", before):
            return {"#"}
        at = re.search(r"\b(\w+)\s*(\[[^]]*\]\s*)?[={(]\s*[*&]?\s*\Z", before)
        return {at[1], "".join(f"{at[1]}{at[2] or ''}".split())} if at else set()

    def _elsewhere(self, function: Function | None, name: str) -> Iterator[tuple[Function | None, str]]:
        """Yield what something is called in functions to which its own one passes it."""
        if function is None:
            return
        for other in self._code.functions:
            if other is function or not other.parameters:
                continue
            for place, given in self._code.calls(other):
                if function.opened < place < function.closed:
                    yield from ((other, p) for p, a in given.items() if base(a) == name)
        for alias in self._aliases(function, {name}):
            yield function, alias
