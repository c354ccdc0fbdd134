"""Read the functions of host code, and its classes with their constants: ``Traits<128, 64>::kBlockM``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.kernels import text
from harness.kernels.cpp.host import values
from harness.kernels.cpp.source import items

_CLASS = re.compile(
    r"(?:\btemplate\s*<((?:[^;{}<>]|<[^;{}<>]*>)*)>\s*)?\b(?:struct|class)\s+(?:alignas\s*\([^()]*\)\s*)?"
    r"(\w+)\s*(?:final\s*)?(?::(?!:)[^;{}()]*)?\{"
)
_ALIAS = re.compile(r"\busing\s+(\w+)\s*=\s*([^;{}=]{1,300});|\btypedef\s+([^;{}]{1,300}?)\s+(\w+)\s*;")
_TEMPLATE = re.compile(r"\btemplate\s*<([^;{}<>]*)>\s*using\s+(\w+)\s*=\s*([^;{}]{1,300});")
_INSTANCE = re.compile(r"(?:typename\s+)?(?:\w+\s*::\s*)*(\w+)\s*(?:<(.*)>)?", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class Class:
    """A class of a text: its `name` with namespaces, its braces, and what its members are given.

    `template` has the defaults of a template's parameters by name, "" without one.
    """

    name: str
    opened: int
    closed: int
    template: Mapping[str, str]
    given: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Function:
    """A function of a text: where its head begins, its braces, and what it is given.

    `parameters` and `template` have the defaults by name, "" without one, in their order; the latter begin
    with those of the class that it is a member of. `pointed` has the types that parameters lead to.
    """

    name: str
    begin: int
    opened: int
    closed: int
    parameters: Mapping[str, str]
    template: Mapping[str, str]
    member_of: Class | None = None
    pointed: Mapping[str, str] = field(default_factory=dict)

    @property
    def makes(self) -> bool:
        """Return True for a constructor."""
        return self.member_of is not None and self.member_of.name.rpartition("::")[2] == self.name


class Classes:
    """Find the classes of a blank text, and what its aliases stand for."""

    def __init__(self, plain: str) -> None:
        self.found: dict[str, Class] = {}
        for at in _CLASS.finditer(plain):
            closed = text.closing(plain, at.end() - 1)
            if closed > 0 and at[2] not in self.found:
                inside = values.given(values.outside(plain[at.end() : closed]))
                self.found[at[2]] = Class(
                    name="::".join([*items.namespaces(plain[: at.start()]), at[2]]),
                    opened=at.end() - 1,
                    closed=closed,
                    template=defaults(at[1] or ""),
                    given={name: value for _, name, value in inside if value},
                )
        self.templates = {at[2]: (defaults(at[1]), at[3].strip()) for at in _TEMPLATE.finditer(plain)}
        self.aliases = [
            (at.start(), at[1] or at[4], (at[2] or at[3]).strip()) for at in _ALIAS.finditer(plain)
        ]

    def around(self, place: int) -> Class | None:
        """Return the innermost class that a place is in."""
        inside = [one for one in self.found.values() if one.opened < place < one.closed]
        return max(inside, key=lambda one: one.opened, default=None)

    def read(self, written: str) -> tuple[Class | None, list[str]]:
        """Return the class that a type is an instance of, with its arguments: ``Traits<128, 64>``."""
        at = _INSTANCE.fullmatch(written.strip())
        if at and at[1] in self.templates:  # template <int R> using Row = Tile<R, 1>;
            names, meant = self.templates[at[1]]
            given = dict(zip(names, text.split(at[2] or ""), strict=False))
            at = _INSTANCE.fullmatch(_WORD.sub(lambda word: given.get(word[0], word[0]), meant))
        return (self.found.get(at[1]), text.split(at[2] or "")) if at else (None, [])


def defaults(written: str) -> dict[str, str]:
    """Return the names of parameters with their defaults, "" without one."""
    found = {}
    for n, part in enumerate(text.split(written)):
        declared, _, default = part.partition("=")
        words = _WORD.findall(re.sub(r"\[[^]]*\]", "", declared))
        found[words[-1] if len(words) > 1 else f"#{n}"] = default.strip()
    return found


def pointed(written: str) -> dict[str, str]:
    """Return the types that parameters lead to by their names, ``T`` of ``const T* x``."""
    found = (
        re.fullmatch(r"(?:const\s+)?(\w+)\s*(?:const\s*)?\*\s*(?:const\s+)?(\w+)", p)
        for p in text.split(written)
    )
    return {at[2]: at[1] for at in found if at}


def deduced(function: Function, given: Mapping[str, str]) -> dict[str, str]:
    """Return template arguments that casts of what is passed tell: ``(half*)x`` for ``T* x``."""
    casts = {
        kind: re.match(r"(?:\w+_cast\s*<|\()\s*(?:const\s+)?([\w:]+)\s*(?:const\s*)?\*", given.get(name, ""))
        for name, kind in function.pointed.items()
        if kind in function.template
    }
    return {kind: cast[1] for kind, cast in casts.items() if cast}
