"""Guess what the buffers of a kernel hold by what it does with them: rows, counters, places to write to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from harness.kernels import text
from harness.kernels.cpp import extents
from harness.kernels.cpp.host.values import Values
from harness.kernels.cpp.source import inlined

_NAP = r"__nanosleep\([^()]*\);"
_ASSIGNED = re.compile(r"\b(\w+)\s*=(?=([^;{}=]*))")
_WRITES = re.compile(r"(?<![<>!=])(?:[-+*/|&^]|<<|>>)?=(?!=)")

_READ = re.compile(r"\s*(?:\([\w\s]+\)\s*)?([A-Za-z_]\w*)((?:\s*\[[^][]*\])+)\s*(?:,|\Z)")
_COLUMN = re.compile(  # 2 * r + 1, or r * 2 + 1
    r"(?:(\d+)\s*\*\s*\w+|.*\*\s*(\w+))\s*(?:\+\s*(\d+)\s*)?|([^*]*)", re.DOTALL
)
_DEEPEST = 2  # variables in each other
_WIDEST = 16  # columns


@dataclass(frozen=True, kw_only=True)
class Held:
    """The findings of `begins`, `counts`, `targets`, `into`, `summed` and `room` for a parameter."""

    begins: bool = False
    counts: int | None = None
    targets: bool = False
    into: frozenset[str] = frozenset()
    summed: bool = False
    room: int | None = None


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a buffer: every `width`-th element from `place`."""

    pointer: str
    place: int
    width: int

    def of(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return its elements, a view."""
        return x[self.place :: self.width]


def of(body: str, name: str, values: Values, source: str = "", others: Sequence[str] = ()) -> Held:
    """Return what a body says that a pointer holds, beside `others`.

    `source` has functions to which it may be passed.
    """
    return Held(
        begins=begins(body, name),
        counts=_first([counts(b, n, values) for b, n in ((body, name), *passed(source, body, name))]),
        targets=targets(body, name),
        into=frozenset(into(body, name, others)),
        summed=summed(body, name),
        room=room(body, name, dict(extents.shared(body, values))),
    )


def parts(
    body: str, pointers: Sequence[str], widths: Mapping[str, int], values: Values
) -> Iterator[tuple[Column, Column, bool]]:
    """Yield where parts of a buffer begin, and how long each is, or where it ends, which is True.

    So it is with ``for (i = 0; i < length[r]; i++) sum += x[begin[r] + i]``, and with two columns of one
    buffer, ``rays[r * 3 + 1]`` and ``rays[r * 3 + 2]``. `widths` are the last dimensions of accessors.
    """
    body = _with_names(body, pointers)
    read = {n: at for n, value in _ASSIGNED.findall(body) if (at := _column(value, pointers, widths, values))}
    ties, order = _Ties.of(body), {name: place for place, name in enumerate(read)}
    for last, end in read.items():
        found = [n for n, begin in read.items() if begin != end and ties.begins(n, last, order)]
        until = [n for n in found if (n, last) in ties.until]
        yield from ((read[n], end, n in until) for n in (until or found)[:1])


def _with_names(body: str, pointers: Sequence[str]) -> str:
    """Return a body with variables for elements that end a loop, ``i < n[r];``, or begin a sum."""
    for pointer in pointers:
        element = rf"({re.escape(pointer)}\s*\[\s*\w+\s*\])"
        found = re.findall(rf"<\s*{element}\s*;|[=\[(]\s*{element}\s*\+", body)
        for n, one in enumerate(dict.fromkeys(a or b for a, b in found)):
            named = re.sub(rf"(?<![\w.]){re.escape(one)}", f"{pointer}__{n}", body)
            body = f"{pointer}__{n} = {one};{named}"
    return body


def slots(body: str, pointers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (counters, keys) where each key takes its next place, ``at = atomicAdd(&next[key[i]], 1)``.

    Where ``y[at]`` is written, counters begin with the offsets of what has smaller keys.
    """
    given = extents.assigned(body)
    for call in re.finditer(r"\b(\w+)\s*=\s*(?:\([\w\s]+\)\s*)?atomicAdd\s*(\()", body):
        passed = text.split(body[call.end() : text.closing(body, call.start(2))])[:1]
        words = re.findall(r"[A-Za-z_]\w*", " ".join(passed))
        for word in words:  # which grows by those that it is made of
            made = (w for value in given.get(word, ()) for w in re.findall(r"[A-Za-z_]\w*", value))
            words += [w for w in dict.fromkeys(made) if w not in words]
        known = [name for name in dict.fromkeys(words) if name in pointers]
        if len(known) == 2 and re.search(rf"\[\s*{call[1]}\s*(?:[-+]\s*\d+\s*)?\]\s*=(?!=)", body):
            yield known[0], known[1]


@dataclass(frozen=True)
class _Ties:
    """The names of a body that stand beside each other, which is read once for all of them.

    until: (first, last) of loops, ``for (i = first; ...; i < last``
    below: the names of ``i < last``, by last
    sums: (a, b) of ``a + b``
    moved: those that are added to something, ``x += first;``
    """

    until: frozenset[tuple[str, str]]
    below: Mapping[str, set[str]]
    sums: frozenset[tuple[str, str]]
    moved: frozenset[str]

    @classmethod
    def of(cls, body: str) -> _Ties:
        """Return those of a body."""
        below = dict[str, set[str]]()
        for name, last in re.findall(r"\b(\w+)\s*<\s*(?=(\w+))", body):
            below.setdefault(last, set()).add(name)
        loops = re.findall(r"\b(?=(\w+)\s*=\s*(\w+)\b[^;{}]*;\s*\1\s*<\s*(\w+))", body)
        return cls(
            until=frozenset((first, last) for _, first, last in loops),
            below=below,
            sums=frozenset(re.findall(r"\b(\w+)\s*\+\s*(?=(\w+))", body)),
            moved=frozenset(re.findall(r"\w\s*\+=?\s*(?=(\w+)\s*[*+;])", body)),
        )

    def begins(self, first: str, last: str, order: Mapping[str, int]) -> bool:
        """Return True where a loop goes from `first` to `last`, or goes so far and adds `first` to places.

        Of a sum of both the one that comes first in the `order` of reading is the beginning.
        """
        counted = self.below.get(last, set())
        names = counted | ({last} if order[first] < order[last] else set())
        added = any((first, n) in self.sums or (n, first) in self.sums for n in names)
        return added or (first, last) in self.until or (bool(counted) and first in self.moved)


def _column(value: str, pointers: Sequence[str], widths: Mapping[str, int], values: Values) -> Column | None:
    """Return what of a buffer a variable has that begins with a value; None where it has nothing of one."""
    at = _READ.match(value)
    if at is None or at[1] not in pointers:
        return None
    *rows, index = re.findall(r"\[([^][]*)\]", at[2])
    if rows:
        place, width = values.number(index), widths.get(at[1], 0)
    else:
        factor = _COLUMN.fullmatch(index.strip())
        place, each = (int(factor[3] or 0), factor[1] or factor[2]) if factor else (None, "0")
        width = values.number(each) or 0 if each else 1
    known = place is not None and place < width <= _WIDEST
    return Column(pointer=at[1], place=place or 0, width=width) if known else None


def summed(body: str, pointer: str) -> bool:
    """Return True where a body adds up what a pointer holds to know a place, as of the batches before one."""
    sums = set(re.findall(rf"\b(\w+)\s*\+=\s*{re.escape(pointer)}\s*\[", body))
    return any(re.search(rf"\[[^][;]*\b{n}\b|\+=?\s*{n}\s*[*;)]|<=?\s*{n}\b", body) for n in sums)


def into(body: str, pointer: str, others: Sequence[str]) -> Iterator[str]:
    """Yield those of `others` that are indexed by what a pointer holds, as y is by ``y[at[i]]``.

    So it is by ``int t = at[i]; y[t]``, and in ``y + at[i] * n``.
    """
    read = [rf"\b{re.escape(pointer)}\s*\["]
    for _ in range(_DEEPEST):
        found = "|".join(read)
        read += (rf"\b{name}\b" for name, value in _ASSIGNED.findall(body) if re.search(found, value))
    found = "|".join(dict.fromkeys(read))
    for other in others:
        for at in re.finditer(rf"\b{re.escape(other)}\s*([\[+])", body):
            closed = text.closing(body, at.end() - 1) if at[1] == "[" else body.find(";", at.end())
            if re.search(found, body[at.end() : max(at.end(), closed)]):
                yield other
                break


def room(body: str, pointer: str, arrays: Mapping[str, int]) -> int | None:
    """Return the least length of those of `arrays` of which a pointer holds indices; None without any.

    So it is with the bins of a block, ``atomicAdd(&bins[keys[i]], 1)`` or ``int k = keys[i]; bins[k]``.
    Numbers from which an index is computed, ``bins[keys[i] >> 24]``, are as large as ever, and so are those
    that the body compares with something.
    """
    read = rf"(?:\(\s*\w+\s*\)\s*)?{re.escape(pointer)}\s*\[[^][]*\]\s*"
    names = [name for name, value in _ASSIGNED.findall(body) if re.match(rf"\s*{read}(?:,|\Z)", value)]
    index = "|".join([read, *map(re.escape, dict.fromkeys(names))])
    if re.search(rf"\b(?:{index})\s*[<>](?!>)|(?<![<>-])[<>]=?\s*(?:{index})(?!\w)", body):
        return None
    found = (n for name, n in arrays.items() if re.search(rf"\b{name}\s*\[\s*(?:{index})\s*\]", body))
    return min(found, default=None)


def targets(body: str, pointer: str) -> bool:
    """Return True where a body writes to places that it reads from a pointer: ``y[at[i]] = x[i]``.

    So it does by ``int t = at[i]; y[t * n + j] = ...`` and by ``row = y + at[i] * n; row[j] = ...``, but not
    by atomics: no two places are the same then, or threads would race.
    """
    read = rf"\b{re.escape(pointer)}\s*\["
    given = "|".join({name for name, value in _ASSIGNED.findall(body) if re.search(read, value)})
    place = rf"\[[^;]*(?:{read}|\b(?:{given})\b)|\A\W*(?:{given})\s*\[" if given else rf"\[[^;]*{read}"
    return any(re.search(place, written) for written in _written(body))


def _written(body: str) -> Iterator[str]:
    """Yield what stands before each ``=`` or ``+=`` of a body: in one pass, for texts may be long."""
    for statement in re.split(r"[;{}]", body):
        done = 0
        for at in _WRITES.finditer(statement):
            yield statement[done : at.start()].rpartition("=")[2].rstrip()
            done = at.end()


def begins(body: str, pointer: str) -> bool:
    """Return True where a loop goes from ``pointer[row]`` to ``pointer[row + 1]``, as through rows in CSR."""
    after = rf"\b{re.escape(pointer)}\s*(?:\[[^];]*\+\s*1\s*\]|\+[^;,)]*\+\s*1\b)"
    ends = [name for name, value in _ASSIGNED.findall(body) if re.search(after, value)]
    until = "|".join([after, *(rf"\b{re.escape(name)}\b" for name in ends)])
    conditions = re.findall(r"\bfor\s*\([^;]*;([^;]*);|\bwhile\s*\(([^;{}]*)\)", body)
    written = re.search(rf"\b{re.escape(pointer)}\s*\[[^];]*\]\s*(?:[-+*/|&^]?=(?!=)|\+\+|--)", body)
    return not written and any(re.search(rf"<[^=]*?(?:{until})", "".join(pair)) for pair in conditions)


def _first(found: Sequence[int | None]) -> int | None:
    return next((n for n in found if n is not None), None)


def passed(source: str, body: str, pointer: str) -> Iterator[tuple[str, str]]:
    """Yield (body, parameter) of the functions of a text to which a body passes a pointer.

    Other parameters have the names that they are given there.
    """
    for name in dict.fromkeys(re.findall(rf"\b(\w+)\s*\((?=[^;{{}}]*\b{re.escape(pointer)}\b)", body)):
        call = re.search(rf"\b{name}\s*\(([^;{{}}()]*\b{re.escape(pointer)}\b[^;{{}}()]*)\)", body)
        made = re.search(rf"\b{name}\s*\(([^(){{}};]*)\)\s*\{{", source)
        if call is None or made is None or (closed := text.closing(source, made.end() - 1)) < 0:
            continue
        names = (text.parameter(parameter, "").name for parameter in text.split(made[1]))
        given = dict(zip(names, text.split(call[1]), strict=False))
        others = {n: g for n, g in given.items() if g.isidentifier() and g != pointer}
        inside = inlined.renamed(source[made.end() : closed], others)
        yield from ((inside, n) for n, g in given.items() if re.search(rf"\b{re.escape(pointer)}\b", g))


def counts(body: str, pointer: str, values: Values) -> int | None:
    """Return the number that counters, flags and free places hold before a launch; None for other contents.

    It is what a compare-and-swap expects that says so, and 0 where atomics add, or a loop waits for a change.
    """
    name = rf"(?:\([^()]*\)\s*)?&?\s*\(?\s*{re.escape(pointer)}\b(?!\s*\.)"
    expected = re.findall(rf"\batomicCAS\w*\s*\(\s*{name}[^,;]*,\s*([-\w]+)\s*,", body)
    numbers = [n for word in expected if (n := values.literal(word)) is not None]
    if numbers:
        return numbers[0]
    added = rf"\batomic(?:Add|Sub|Inc|Dec|Exch|Or)\w*\s*\(\s*{name}|\batomic_ref\b[^;]*[({{]\s*{name}"
    body = _without_ends(body)
    return 0 if re.search(added, body) or any(re.search(name, head) for head in _waits(body)) else None


def exchanged(body: str, pointer: str, kind: Any) -> str:
    """Return the member of structs that a compare-and-swap takes, ``&table[at].key``; "" for none."""
    at = re.search(rf"\batomicCAS\w*\s*\(\s*&?\s*{re.escape(pointer)}\s*\[[^][]*\]\s*\.\s*(\w+)\s*,", body)
    return at[1] if at and at[1] in (getattr(kind, "names", None) or ()) else ""


def _waits(body: str) -> Iterator[str]:
    """Yield the conditions of the loops that do nothing but wait, ``while (...) ;``."""
    for at in re.finditer(r"\bwhile\s*\(", body):
        closed = text.closing(body, at.end() - 1)
        if re.compile(rf"\)\s*(?:;|\{{\s*(?:{_NAP})?\s*\}})").match(body, closed):
            yield body[at.end() : closed]


def _without_ends(body: str) -> str:
    """Return a body without the ``while`` of ``do {...} while (...);``, where its braces do something."""
    ends = []
    for at in re.finditer(r"\bdo\s*\{", body):
        closed = text.closing(body, at.end() - 1)
        end = re.compile(r"\}\s*while\b").match(body, closed) if closed > 0 else None
        if end and not re.fullmatch(rf"\s*(?:{_NAP})?\s*", body[at.end() : closed]):
            ends.append(end.span())
    for begin, stop in sorted(ends, reverse=True):
        body = f"{body[: begin + 1]}{body[stop:]}"
    return body
