"""Follow host code through its functions: what a name means in one, where that follows from who calls it.

A frame is a place in a function with the calls that lead there. ``BM`` of ``template <int BM> void f(...)``
is 64 in the frame that ``f<64>(...)`` opens, and ``map`` is what that call passes.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from harness.kernels import text
from harness.kernels.cpp.host import values
from harness.kernels.cpp.host.classes import Class, Classes, Function, deduced, defaults, pointed
from harness.kernels.expr import Expr, ExprError

_NAMED = re.compile(r"(\w+)\s*\Z")
_TEMPLATE = re.compile(r"\btemplate\s*<((?:[^;{}<>]|<[^;{}<>]*>)*)>[^;{}]*\Z")
_WORD = re.compile(r"[A-Za-z_]\w*")
_QUALIFIED = re.compile(r"\b(?:[A-Za-z_]\w*\s*::\s*)+(?=[A-Za-z_])")
_INTEGER = r"(?:const\s+)?(?:(?:cu)?u?int(?:32|64)_t|(?:unsigned|int|long)(?:\s+(?:int|long))*|size_t)"
_MEMBER = re.compile(
    r"\b((?:[A-Za-z_]\w*\s*::\s*)*[A-Za-z_]\w*(?:\s*<[^;{}()<>]*>)?)\s*::\s*(\w+)\b(?!\s*[(<:])"
)
_VARIABLE = re.compile(r"\s*,?\s*\w+\s*[({]")
_WORDS = frozenset(("if", "for", "while", "switch", "catch", "return", "sizeof", "defined"))
_HEAD, _CALL = 400, 300  # characters before the parameters of a function, and of template arguments
_KEPT, _DEEPEST, _MOST = 4, 5, 64  # texts, calls in each other, and frames of one place
_NAMES = 8  # that mean each other


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A place in a function, and the one that called it: `given` is what it was given, by name.

    Without a function the place is outside of all. `call` is where the outer frame's call begins and ends.
    """

    host: Host = field(repr=False)
    place: int
    function: Function | None = None
    outer: Frame | None = None
    given: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def written(self) -> dict[str, str]:
        """Return what is written for names at this place, numbers for parameters that have one."""
        own = self.function
        found = dict(self.host.outside)
        if own is None:
            return found
        for name in (*own.parameters, *own.template):
            found.pop(name, None)
            written, frame = self.passed(name)
            if frame is not None and (value := frame.value(written)):
                found[name] = value
                if size := values.size(value):
                    found[values.SIZEOF + name] = str(size)
        local = {n: value for at, n, value in self.host.given if own.opened < at < self.place}
        return {n: value for n, value in (found | local).items() if value}

    @functools.cached_property
    def known(self) -> dict[str, str]:
        """Return what is written for names at this place, with numbers for members of classes."""
        return {n: self.members(v) for n, v in self.written.items()}

    @functools.cached_property
    def values(self) -> values.Values:
        """Return the numbers of names at this place."""
        return values.Values(self.known)

    def passed(self, name: str) -> tuple[str, Frame | None]:
        """Return what a parameter is given, and the frame in which that is meant; None for no parameter."""
        if name in self.given:
            return self.given[name], self.outer
        own = self.function
        if (
            own and self.outer and self.outer.function and name in own.template
        ):  # of T* x, if it is a T* there
            kinds = self.outer.function.pointed
            passed = (
                self.given.get(parameter, "") for parameter, kind in own.pointed.items() if kind == name
            )
            if kind := next((kinds[argument] for argument in passed if argument in kinds), ""):
                return kind, self.outer
        default = {**own.parameters, **own.template}.get(name, "") if own else ""
        return (default, Frame(host=self.host, place=0)) if default else ("", None)

    def number(self, written: str) -> int | None:
        """Return the value of an integer expression here, or None."""
        return self.values.number(self.plain(written))

    def plain(self, written: str) -> str:
        """Return an expression without casts and qualifiers: a number for ``Traits::kBlockM``."""
        return _plain(self.members(written))

    def members(self, written: str) -> str:
        """Return a text with numbers for members of classes."""
        return _MEMBER.sub(self._member, written)

    def _member(self, at: re.Match[str]) -> str:
        """Return the number that a member of a class is; itself where that is not known."""
        meant, frame = self.meant(at[1])
        of, given = self.host.classes.read(meant)
        if of is None or at[2] not in of.given:
            return at[0]
        try:
            known = {n: frame.value(a, plainly=True) for n, a in zip(of.template, given, strict=False)}
        except RecursionError:  # a class that is given itself
            return at[0]
        known |= {n: default for n, default in of.template.items() if n not in known}
        number = values.Values({**self.host.outside, **of.given, **known}).number(of.given[at[2]])
        return at[0] if number is None else str(number)

    def value(self, written: str, *, plainly: bool = False) -> str:
        """Return a number, or the type that is meant, as text; "" for what is neither.

        What is asked for `plainly` depends on no name that stands for a member of a class.
        """
        known = values.Values(self.written) if plainly else self.values
        if (number := known.number(self.plain(written))) is not None:
            return str(number)
        meant, frame = self.meant(written)
        if values.size(meant):
            return meant
        of, given = self.host.classes.read(meant)
        arguments = [frame.value(argument) for argument in given]
        if of is None or not all(arguments):
            return ""
        return f"{of.name}<{', '.join(arguments)}>" if arguments else of.name

    def meant(self, written: str) -> tuple[str, Frame]:
        """Return what a name stands for, through those who pass it, and the frame where that is written."""
        frame: Frame = self
        plain = written.strip()
        for _ in range(_NAMES):
            name = plain.lstrip("&* ")
            if not _WORD.fullmatch(name):
                break
            inner, outer = frame.passed(name)
            own = frame.function
            local = own and any(n == name and own.opened < at < frame.place for at, n, _ in frame.host.given)
            if outer is not None and not local:
                plain, frame = inner.strip(), outer
            elif alias := frame.alias(name):
                plain = alias
            elif (value := frame.written.get(name, "")) and value != name:
                plain = value.strip()
            else:
                break
        return plain, frame

    def alias(self, name: str) -> str:
        """Return the type that a name was last made to stand for before this place, or ""."""
        found = [
            (at, meant) for at, alias, meant in self.host.classes.aliases if alias == name and meant != name
        ]
        before = [meant for at, meant in found if at < self.place or not self.place]
        return next(reversed(before or [meant for _, meant in found]), "")

    def expression(self, written: str, kept: Collection[str]) -> Expr | None:
        """Return an integer expression in terms of the names `kept`, and of others that have no number."""
        with contextlib.suppress(ExprError, RecursionError):
            plain = self._expanded(self.plain(written), kept, _DEEPEST).replace("/", "//")
            return Expr.parse(" ".join(plain.split()))
        return None

    def _expanded(self, written: str, kept: Collection[str], depth: int) -> str:
        """Return an expression with numbers, and what callers pass, in place of names."""

        def meant(word: re.Match[str]) -> str:
            name = word[0]
            inner, outer = self.passed(name)
            inner, outer = (inner, outer) if outer else (self.known.get(name, ""), self)
            plain = outer.plain(inner)
            if plain and name not in kept and depth and re.fullmatch(r"[\w\s+*/()-]{1,300}", plain):
                return f"({outer._expanded(plain, kept, depth - 1)})"
            number = None if name in kept else self.values.number(name)
            return name if number is None else str(number)

        return _WORD.sub(meant, written)


class Host:
    """The functions of a text, and what it gives names to."""

    def __init__(self, source: str) -> None:
        self.plain = text.blank(source)
        self.classes = Classes(self.plain)
        self.functions = list(self._functions())
        self.given = values.given(self.plain)
        whole = values.outside(self.plain)
        self.outside = values.defined(source) | {name: v for _, name, v in values.given(whole) if v}

    def function(self, place: int) -> Function | None:
        """Return the function that a place is in."""
        return next((f for f in self.functions if f.opened < place < f.closed), None)

    def place(self, line: int) -> int:
        """Return the place of the last character of a line."""
        return sum(len(one) + 1 for one in self.plain.split("\n")[:line]) - 1

    def frames(self, place: int, depth: int = _DEEPEST) -> list[Frame]:
        """Return the frames of a place: one for each way in which calls lead there."""
        function = self.function(place)
        if function is None:
            return [Frame(host=self, place=place)]
        found = list[Frame]()
        for at, given in self.calls(function) if depth else ():
            outer = self.function(at)
            if outer is function:
                continue
            for frame in self.frames(at, depth - 1):
                found.append(Frame(host=self, place=place, function=function, outer=frame, given=given))
        return found[:_MOST] or [Frame(host=self, place=place, function=function)]

    def calls(self, function: Function) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield (place, what is given by name) for the calls of a function, but for its declarations.

        Those of a constructor are the variables that it makes: the place is behind their names.
        """
        if function.makes:
            yield from self._made(function)
            return
        name = function.name  # which comes first: letters are found faster than what must not stand before
        pattern = rf"({name})(?<![\w.]{name})\s*(<[^;{{}}()]{{0,{_CALL}}}>)?\s*(\()"
        for at in re.finditer(pattern, self.plain):
            closed = text.closing(self.plain, at.start(3))
            if closed < 0 or function.begin <= at.start() <= function.opened:
                continue
            passed = text.split(self.plain[at.end() : closed])
            if self.function(at.start()) is None and not _initialises(self.plain[: at.start()]):
                continue
            own = [
                n for n in function.template if not function.member_of or n not in function.member_of.template
            ]
            given = dict(zip(own, text.split((at[2] or "")[1:-1]), strict=False))
            given |= self._of_class(function, at.start())
            given |= dict(zip(function.parameters, passed, strict=False))
            yield at.start(), deduced(function, given) | given

    def _made(self, function: Function) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield (place, what is given by name) for the variables of a class, ``Map map(x, 64), y{z};``."""
        of = function.member_of
        names = {function.name} | {name for _, name, meant in self.classes.aliases if self._of(meant) is of}
        named = rf"(?:\w+\s*::\s*)*(?:{'|'.join(map(re.escape, names))})(?:\s*<[^;{{}}()]*>)?"
        pattern = rf"(?<![\w.])({named})\s+(?=\w+\s*[({{])"
        for at in re.finditer(pattern, self.plain):
            meant, _ = Frame(host=self, place=at.start()).meant(at[1].rpartition("::")[2])
            given = dict(zip(function.template, self.classes.read(meant)[1], strict=False))
            place = at.end()
            while one := _VARIABLE.match(self.plain, place):
                closed = text.closing(self.plain, one.end() - 1)
                passed = text.split(self.plain[one.end() : closed])
                yield one.end() - 1, given | dict(zip(function.parameters, passed, strict=False))
                place = closed + 1

    def _of(self, written: str) -> Class | None:
        return self.classes.read(written)[0]

    def _of_class(self, function: Function, place: int) -> dict[str, str]:
        """Return the template arguments of the class whose member is called there, ``Gemm<64>::run(...)``."""
        of = function.member_of
        if of is None or not of.template:
            return {}
        if of is self.classes.around(place):
            return {name: name for name in of.template}
        before = self.plain[max(0, place - _CALL) : place]
        at = re.search(r"((?:\w+\s*::\s*)*\w+\s*(?:<[^;{}()]*>)?)\s*::\s*\Z", before)
        meant, _ = Frame(host=self, place=place).meant(at[1]) if at else ("", None)
        return dict(zip(of.template, self.classes.read(meant)[1], strict=False))

    def _functions(self) -> Iterator[Function]:
        for begin, opened, closed, _ in values.bodies(self.plain):
            before = self.plain[max(0, begin - _HEAD) : begin]
            name, template = _NAMED.search(before), _TEMPLATE.search(before)
            if name is None or name[1] in _WORDS:
                continue
            end, of = text.closing(self.plain, begin), self.classes.around(begin)
            yield Function(
                name=name[1],
                begin=begin - len(before) + name.start(),
                opened=opened,
                closed=closed,
                parameters=defaults(self.plain[begin + 1 : end]),
                template=dict(of.template if of else {}) | defaults(template[1] if template else ""),
                member_of=of,
                pointed=pointed(self.plain[begin + 1 : end]),
            )


def _plain(written: str) -> str:
    """Return an expression without qualifiers and casts: ``BM * 2`` of ``(uint32_t)Config::BM * 2``."""
    plain = _QUALIFIED.sub("", values.uncast(written))
    plain = re.sub(
        rf"\(\s*{_INTEGER}\s*\)|\b{_INTEGER}\s*(?=[({{])|\bstatic_cast\s*<\s*{_INTEGER}\s*>", "", plain
    )
    return plain.replace("{", "(").replace("}", ")").replace("sizeof (", "sizeof(")


def _initialises(before: str) -> bool:
    """Return True where a call after this text is the value of a variable, not a declaration."""
    return before.rstrip()[-1:] in ("=", "{", "(", ",")


@functools.lru_cache(maxsize=_KEPT)
def host(source: str) -> Host:
    """Return the host code of a text."""
    return Host(source)


def members(source: str, kernel: str, types: Mapping[str, str]) -> dict[str, str]:
    """Return the numbers that a kernel takes from classes, ``int kBlockM = T::kBlockM;``, by their names.

    types: its template arguments
    """
    if (frame := _inside(source, kernel, types)) is None or (own := frame.function) is None:
        return {}
    given = frame.host.given
    local = (n for at, n, value in given if own.opened < at < own.closed and "::" in value)
    found = {n: frame.number(frame.known[n]) for n in local if n in frame.known}
    return {n: str(number) for n, number in found.items() if number is not None}


def with_members(source: str, entry: text.Entry, types: Mapping[str, str]) -> str:
    """Return the body of a kernel with numbers for members of classes, with these template arguments."""
    frame = _inside(source, entry.name, types)
    return frame.members(entry.body) if frame else entry.body


def _inside(source: str, kernel: str, types: Mapping[str, str]) -> Frame | None:
    """Return the frame of a kernel with these template arguments, at its end."""
    code, name = host(source), kernel.rpartition("::")[2]
    function = next((f for f in code.functions if f.name == name), None)
    if function is None:
        return None
    outer = Frame(host=code, place=0)
    return Frame(host=code, place=function.closed, function=function, outer=outer, given=types)
