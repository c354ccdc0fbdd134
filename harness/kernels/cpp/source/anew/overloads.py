"""Give the kernels of one name, overloads, names of their own: ``add_overload_1`` and ``add_overload_2``.

Names are what compilers, launches and rows are found by. The text keeps its lines. Launches get the name of
the overload that takes their arguments. People see ``add(float*,...)`` in place of these names.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.kernels import text
from harness.kernels.cpp import conditions
from harness.kernels.cpp.host import calling, deduced

_GLOBAL = re.compile(r"\b__global__\b")
_NAMED = re.compile(r"(.+)_overload_\d+\Z", re.DOTALL)
_KEPT = 8


@dataclass(frozen=True, kw_only=True)
class _Function:
    """A ``__global__`` function, and where the text has its name; `defined` is False for a declaration."""

    entry: text.Entry
    place: int
    defined: bool

    @property
    def name(self) -> str:
        return self.entry.name.partition("<")[0]

    @property
    def signature(self) -> tuple[str, ...]:
        """Return what tells it from other overloads: the types of its parameters, and if it is a template."""
        return ("<>" * bool(self.entry.template), *_types(self.entry))


@functools.lru_cache(maxsize=_KEPT)
def apart(source: str) -> str:
    """Return a text in which each overload of a kernel has a name of its own."""
    plain = text.blank(source)
    functions = list(_functions(plain)) if "__global__" in plain else []
    names = Counter(one.name for one in functions if one.defined)
    if max(names.values(), default=0) < 2:
        return source
    branches = conditions.branches(source)
    edits = dict[int, tuple[str, str]]()
    for name in (name for name, count in names.items() if count > 1):
        base = name.rpartition("::")[2]
        own = [one for one in functions if one.name == name]
        made = [one for one in own if one.defined and "<" not in one.entry.name]
        lines = [plain.count("\n", 0, one.place) for one in made]
        made = [one for one, line in zip(made, lines, strict=True) if branches[line] is not None]
        signatures = list(dict.fromkeys(one.signature for one in made))
        elsewhere = any(n != name and n.rpartition("::")[2] == base for n in names)
        if len(signatures) < 2 or elsewhere or conditions.exclusive([branches[line] for line in lines]):
            continue
        called = {s: f"{base}_overload_{n}" for n, s in enumerate(signatures, 1)}
        for one in own:
            if (meant := _meant(one, made)) is not None:
                edits[one.place] = base, called[meant.signature]
        for place, taken in _launches(plain, base, made):
            edits[place] = base, called[taken.signature]
    for place, (base, new) in sorted(edits.items(), reverse=True):
        source = source[:place] + new + source[place + len(base) :]
    return source


def label(known: Sequence[text.Entry], entry: str) -> str:
    """Return how people read the name of a kernel, an overload among those of a text: ``add(float*,...)``.

    It has as many types as tell it from the others. Of any other kernel it is the name without spaces.
    """
    found, alike = text.find(known, entry), of_name(known, entry)
    name, begun, given = "".join(entry.split()).partition("<")
    if found is None or len(alike) < 2 or not (base := _NAMED.fullmatch(name)):
        return name + begun + given
    own = _types(found)
    others = [_types(one) for one in alike if one.name != found.name]
    shown = next((n for n in range(1, len(own)) if all(o[:n] != own[:n] for o in others)), len(own))
    more = ["..."] if shown < len(own) else []
    return f"{base[1]}{begun}{given}({','.join([*own[:shown], *more])})"


def of_name(known: Sequence[text.Entry], entry: str) -> list[text.Entry]:
    """Return the overloads of a kernel among those of a text, by the name that they share or that of one."""
    name = entry.partition("<")[0].partition("(")[0].strip()
    base = found[1] if (found := _NAMED.fullmatch(name)) else name
    return [one for one in known if (of := _NAMED.fullmatch(one.name.partition("<")[0])) and of[1] == base]


def selected(known: Sequence[text.Entry], entry: str) -> list[str]:
    """Return the names of the overloads that `entry` means: ``add``, ``add<int>`` or ``add(float*, ...)``."""
    name, _, listed = entry.partition("(")
    asked = [_bare(part) for part in text.split(listed.rpartition(")")[0]) if part != "..."]
    given = name.strip().partition("<")[1:]
    if _NAMED.fullmatch(name.partition("<")[0].strip()):
        return []  # one of them, by its own name
    return [
        one.name + "".join(given)
        for one in of_name(known, name)
        if [*map(_bare, _types(one))][: len(asked)] == asked
        if not given[0] or one.template
    ]


def _types(entry: text.Entry) -> tuple[str, ...]:
    """Return the types of a kernel's parameters, ``const float*``."""
    kinds = (" ".join(p.type.split()).replace(", ", ",") for p in entry.parameters)
    shown = zip(kinds, entry.parameters, strict=True)
    return tuple(f"{'const ' * (p.const and p.pointer)}{kind}{'*' * p.pointer}" for kind, p in shown)


def _bare(kind: str) -> str:
    """Return a type as it is compared with one that a person wrote."""
    return "".join(re.sub(r"\bconst\b", "", kind).split())


def _functions(plain: str) -> Iterator[_Function]:
    """Yield the kernels of a blank text, with declarations and instances."""
    for at in _GLOBAL.finditer(plain):
        entry = text.declared_at(plain, at.start(), at.end())
        base = entry.name.partition("<")[0].rpartition("::")[2] if entry else ""
        named = entry and re.compile(rf"\b{base}\s*(?:<[^(){{}};]*>\s*)?\(").search(plain, at.end())
        if entry and named:
            yield _Function(entry=entry, place=named.start(), defined=bool(entry.body))


def _meant(one: _Function, made: Sequence[_Function]) -> _Function | None:
    """Return the overload that a declaration, an instance or a specialisation is of."""
    same = [other for other in made if other.signature == one.signature]
    long = [m for m in made if len(m.entry.parameters) == len(one.entry.parameters)]
    templates = [m for m in long if m.entry.template]
    return next(iter(same or (templates if "<" in one.entry.name else long)), None)


def _launches(plain: str, base: str, made: Sequence[_Function]) -> Iterator[tuple[int, _Function]]:
    """Yield (place of the name, overload) for the launches of a kernel; of several alike the first one."""
    for call in calling.calls(plain):
        if call.kernel.rpartition("::")[2] != base:
            continue
        given = text.split(call.arguments)
        able = [m for m in made if len(m.entry.parameters) == len(given)] or made
        able = [m for m in able if m.entry.template or not call.template] or able
        best = max(able, key=lambda m: _fit(plain, call.place, given, m.entry))
        if named := re.compile(rf"\b{base}\b").search(plain, call.place, max(call.end, call.place) + 400):
            yield named.start(), best


def _fit(plain: str, place: int, given: Sequence[str], entry: text.Entry) -> int:
    """Return how many arguments of a launch are declared with the type of their parameter."""
    return sum(
        "".join(kind.split()) == "".join(p.type.split())
        for p, written in zip(entry.parameters, given, strict=False)
        for kind in deduced.kinds_of(plain, written, place, pointer=p.pointer)[:1]
    )
