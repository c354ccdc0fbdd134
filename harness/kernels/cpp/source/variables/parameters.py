"""Show variables as what they are to a kernel: parameters, which host code passes by another way.

A text is read as if ``__constant__ int n;``, which host code fills from ``count``, were a parameter of each
kernel that reads it, and ``count`` the last argument of its launches. What is guessed of parameters is
guessed of it, then. Where kernels take ``Floats``, and ``using Floats = float*``, it is read as ``float*``,
which says that it is a buffer. The compiler never sees that text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from harness.kernels import text
from harness.kernels.cpp.host import calling
from harness.kernels.cpp.host.frames import Host, host
from harness.kernels.cpp.source.variables import members
from harness.kernels.cpp.source.variables.copied import Copies, Written

if TYPE_CHECKING:
    from harness.kernels.cpp.source.variables.declared import Part, Variable

_HEAD = re.compile(
    r"\b(?!__launch_bounds__|__attribute__|__cluster_dims__|alignas|C10_LAUNCH)(\w+)\s*(?:<[^;(){}]*>)?\s*(\()"
)
_BOUNDS = re.compile(r"\b(?:__launch_bounds__|__attribute__|__cluster_dims__|C10_LAUNCH_BOUNDS_\d)\s*(\()")

_TYPE = r"((?:const\s+)?[A-Za-z_][\w:]*(?:\s+[\w:]+)*?(?:\s+const)?)\s*"
_ALIAS = re.compile(rf"\busing\s+(\w+)\s*=\s*{_TYPE}\*\s*;|\btypedef\s+{_TYPE}\*\s*(\w+)\s*;")


@dataclass(frozen=True)
class Seen:
    """Hold texts as they are read: `texts` with the parts of variables as parameters of kernels.

    used: the variables that each kernel reads, by its name without namespaces, with those of their parts that
    are parameters, and those that are arrays
    copies: what host code fills variables with
    structs: the structs among the parameters of kernels whose members are parameters, by kernel
    """

    texts: tuple[str, ...]
    used: Mapping[str, tuple[tuple[Variable, tuple[Part, ...]], ...]] = field(default_factory=dict)
    copies: Copies | None = None
    structs: Mapping[str, tuple[tuple[Variable, tuple[Part, ...]], ...]] = field(default_factory=dict)

    def variables(self, entry: str) -> tuple[tuple[Variable, tuple[Part, ...]], ...]:
        """Return the variables that a kernel reads, each with the parts that it reads."""
        return self.used.get(entry.partition("<")[0].rpartition("::")[2].strip(), ())

    def members(self, entry: str) -> tuple[tuple[Variable, tuple[Part, ...]], ...]:
        """Return the structs that a kernel takes, each with the parts that are parameters."""
        return self.structs.get(entry.partition("<")[0].rpartition("::")[2].strip(), ())

    def elements(self, variable: Variable, part: Part) -> list[Written]:
        """Return what host code fills an array with; nothing where that is not known."""
        return self.copies.elements(variable, part) if self.copies else []


def of(texts: Sequence[str], reached: Callable[[str], str]) -> Seen:
    """Return texts as they are read: the first has kernels, and `reached` is a body with what it calls."""
    flat = members.of(texts[0], [text.COMMENT.sub(" ", one) for one in texts])
    return replace(_with_constants((flat.source, *texts[1:]), reached), structs=flat.structs)


def _with_constants(texts: Sequence[str], reached: Callable[[str], str]) -> Seen:
    """Return texts in which constant variables are parameters."""
    if not any("__constant__" in one for one in texts):
        return Seen(tuple(texts))
    from harness.kernels.cpp.source.variables import declared  # it takes NumPy's time to import

    plain = [text.blank(one) for one in texts]
    found = {v.name: v for v in declared.of(plain, [text.COMMENT.sub(" ", one) for one in texts])}
    words = {*re.findall(r"\w+", "\n".join(plain))}
    found = {n: v for n, v in found.items() if not any(p.path and p.name in words for p in v.parts)}
    if not found:
        return Seen(tuple(texts))
    code = host(texts[0])
    copies = Copies(code, [*found], plain[1:])
    used = {
        entry.name.partition("<")[0].rpartition("::")[2]: tuple(_used(entry, found, reached))
        for entry in text.entries(texts[0])
        if entry.body
    }
    edits = [*_kernels(plain[0], used), *_launches(code, used, copies)]
    whole = texts[0]
    for place, more in sorted(edits, reverse=True):
        whole = whole[:place] + more + whole[place:]
    return Seen(tuple(_renamed(one, found.values()) for one in (whole, *texts[1:])), used, copies)


def _used(
    entry: text.Entry, found: Mapping[str, Variable], reached: Callable[[str], str]
) -> Iterator[tuple[Variable, tuple[Part, ...]]]:
    """Yield the variables that a kernel reads, with the parts that it does, but for those that it hides."""
    body = reached(entry.body)
    own = {p.name for p in entry.parameters}
    shown = _renamed(body, found.values())
    words, renamed = {*re.findall(r"\w+", body)}, {*re.findall(r"\w+", shown)}
    for name, variable in found.items():
        hidden = re.search(rf"[;{{}}]\s*(?!return\b)(?:const\s+)?[\w:<>]+[\s*&]+{name}\s*[=;,\[]", entry.body)
        if name in words - own and not hidden:
            parts = variable.parts
            yield variable, parts if name in renamed else tuple(p for p in parts if p.name in renamed)


def _renamed(one: str, found: Iterable[Variable]) -> str:
    """Return a text with the names of parts as parameters, ``params_n`` for ``params.n``."""
    for variable in found:
        for part in sorted(variable.parts, key=lambda p: -len(p.path)):
            if part.path and "[" not in part.path:
                member = re.escape(part.path).replace(r"\.", r"\s*\.\s*")
                one = re.sub(rf"(?<![\w.>])\b{variable.name}{member}\b", part.name, one)
    return one


def _passed(variables: Sequence[tuple[Variable, tuple[Part, ...]]]) -> Iterator[tuple[Variable, Part]]:
    """Yield the parts that are parameters."""
    yield from ((variable, part) for variable, parts in variables for part in parts if part.declared)


def _kernels(
    plain: str, used: Mapping[str, Sequence[tuple[Variable, tuple[Part, ...]]]]
) -> Iterator[tuple[int, str]]:
    """Yield (place, text) of what becomes of the parameters of kernels."""
    for at in re.finditer(r"\b__global__\b", plain):
        place = at.end()
        while bounds := _BOUNDS.search(plain, place, place + 100):
            place = text.closing(plain, bounds.start(1)) + 1
        head = _HEAD.search(plain, place)
        closed = text.closing(plain, head.start(2)) if head else -1
        if head and closed > 0:
            more = [f"__constant__ {part.declared}" for _, part in _passed(used.get(head[1], ()))]
            first = plain[head.end() : closed].strip() in ("", "void")
            if more:
                yield (
                    closed,
                    ("" if first and "void" not in plain[head.end() : closed] else ", ") + ", ".join(more),
                )


def _launches(
    code: Host, used: Mapping[str, Sequence[tuple[Variable, tuple[Part, ...]]]], copies: Copies
) -> Iterator[tuple[int, str]]:
    """Yield (place, text) of what becomes of the arguments of launches."""
    for call in calling.calls(code.plain):
        function, given = code.function(call.place), list[str]()
        for variable, part in _passed(used.get(call.kernel.rpartition("::")[2], ())):
            given.append(call.mark + (copies.expression(variable, part, function) or f"unknown_{part.name}"))
        if given and call.end >= 0:
            yield call.end, (", " if call.follows else "") + ", ".join(given)


def spelled(texts: Sequence[str]) -> tuple[str, ...]:
    """Return texts with ``float*`` for the name by which a kernel of the first takes it.

    A name that means two types, or is a parameter of some template, stays.
    """
    taken = {p.type for entry in text.entries(texts[0]) for p in entry.parameters if not p.pointer}
    meant = _meant(texts, taken) if taken else {}
    return tuple(_spelled(one, meant) for one in texts) if meant else tuple(texts)


def _meant(texts: Sequence[str], names: set[str]) -> Mapping[str, str]:
    """Return the element types of those of the names that are pointers, in all texts alike."""
    found: dict[str, set[str]] = {}
    for one in map(text.blank, texts):
        for at in _ALIAS.finditer(one):
            name, kind = (at[1], at[2]) if at[1] else (at[4], at[3])
            if name in names:
                found.setdefault(name, set()).add(" ".join(kind.split()))
    parameters = re.compile(r"\b(?:typename|class)\s+(\w+)")
    own = {name for one in texts for name in parameters.findall(one)} if found else set()
    return {name: kinds.pop() for name, kinds in found.items() if len(kinds) == 1 and name not in own}


def _spelled(one: str, meant: Mapping[str, str]) -> str:
    """Return a text with the pointers spelled out; each of ``Floats a, b;`` has its own star then."""
    names = "|".join(meant)
    several = rf"(?<!using )\b({names})\s+(\w+(?:\s*=\s*\w+)?(?:\s*,\s*\w+(?:\s*=\s*\w+)?)+\s*;)"

    def each(at: re.Match[str]) -> str:
        return f"{meant[at[1]]} " + re.sub(r"(\A|,)(\s*)", r"\1\2*", at[2])

    one = re.sub(several, each, one)
    return re.sub(rf"(?<!using )\b({names})\b(?=\s+\w|\s*[>)])", lambda at: f"{meant[at[1]]}*", one)
