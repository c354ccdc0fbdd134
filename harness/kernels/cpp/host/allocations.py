"""Read what host code allocates: ``cudaMalloc(&x, n * 4)``, Thrust's vectors and PyTorch's tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.kernels import text
from harness.kernels.cpp.host import values

_CAST = r"(?:\([\w\s*]+\)\s*|reinterpret_cast\s*<[\w\s*]+>\s*\(\s*)?"
_MALLOC = re.compile(
    rf"\bcuda(?:Malloc(?:Managed|Async|Host|Pitch)?|HostAlloc)\s*\(\s*{_CAST}&\s*([\w.]+(?:->\w+)*)\s*\)?\s*,"
    r"(?:\s*&\s*(\w+)\s*,)?"  # the pitch
)
_TENSOR = re.compile(
    r"\b(\w+)\s*=\s*(?:torch|at)\s*::\s*(?:zeros|empty|ones|full)(?:_like\s*\(\s*(\w+)|\s*\(\s*\{([^{}]*)\})"
)
_COUNTED = re.compile(
    r"\b(\w+)\s*=\s*(?:\([\w\s]+\)\s*|static_cast\s*<[\w\s]+>\s*\(\s*)?(\w+)\s*\.\s*numel\s*\(\)"
)
_DATA = r"\s*\.\s*(?:mutable_|const_)?data(?:_ptr)?\s*(?:<[^<>]*>)?\s*\(\s*\)(?:\s*\.\s*get\s*\(\s*\))?"
_POINTER = re.compile(rf"&?\s*([\w.]+(?:->\w+)*?)(?:\s*\[\s*0\s*\]|{_DATA})?")
_CAST_OFF = re.compile(
    r"\A\s*(?:\([\w\s:]+\*[\s*]*\)|(?:(?:reinterpret|static|const)_cast\s*<[^<>]*>|[\w:]*\braw_pointer_cast)"
    r"\s*(?=\())\s*"
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_LONGEST = 100  # characters of a function's name, and of what is between it and its parameters
_CALLERS = 2  # functions in each other that pass what the outermost has allocated


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What a text allocates at a place for a name: so many `bytes`, an expression in its own names."""

    place: int
    name: str
    bytes: str


def of(plain: str) -> list[Allocation]:
    """Return the allocations of a blank text, in its order."""
    return sorted(_found(plain), key=lambda one: one.place)


def _found(plain: str) -> Iterator[Allocation]:
    for at in _MALLOC.finditer(plain):
        written = values.value_at(plain, at.end())
        if at[2]:  # cudaMallocPitch(&x, &pitch, bytes of a row, rows)
            rows = values.value_at(plain, at.end() + plain[at.end() :].index(written) + len(written) + 1)
            written = f"{at[2]} * ({rows})"
        yield Allocation(place=at.start(), name=at[1], bytes=written)
    for place, vector, number in values.vectors(plain):
        yield Allocation(place=place, name=vector, bytes=f"({number}) * sizeof(*{vector})")
    numbers = {}
    for at in _COUNTED.finditer(plain):
        numbers[at[2]] = at[1]
        yield Allocation(place=at.start(), name=at[2], bytes=f"{at[1]} * sizeof(*{at[2]})")
    for at in _TENSOR.finditer(plain):
        extents = text.split(at[3]) if at[3] else [numbers[at[2]]] if at[2] in numbers else []
        if extents:
            numbers[at[1]] = " * ".join(f"({extent})" for extent in extents)
            yield Allocation(place=at.start(), name=at[1], bytes=f"{numbers[at[1]]} * sizeof(*{at[1]})")


def name(argument: str) -> str:
    """Return the name of what a launch is given: ``x`` of ``(float*)x`` and of ``x.data_ptr<float>()``."""
    plain = argument.strip()
    while cast := _CAST_OFF.match(plain):
        plain = plain[cast.end() :]
        if plain.startswith("(") and text.closing(plain, 0) == len(plain) - 1:
            plain = plain[1:-1].strip()
    pointer = _POINTER.fullmatch(plain)
    return pointer[1] if pointer else ""


class Allocated:
    """What the functions of a text have allocated where they launch kernels, or call each other."""

    def __init__(
        self,
        plain: str,
        functions: Sequence[tuple[int, int, int, tuple[str, ...]]],
        known_at: Callable[[int], values.Values],
    ) -> None:
        self._plain, self._functions, self._known_at = plain, functions, known_at
        self.made = [(one, known_at(one.place)) for one in of(plain)]

    def at(self, place: int, arguments: Sequence[str], callers: int = _CALLERS) -> dict[str, str]:
        """Return by name what is allocated at a place, in terms of the `arguments` that are given there.

        Those who call its function may have done that, too.
        """
        of = ((at, opened, own) for at, opened, end, own in self._functions if opened < place < end)
        at, opened, own = next(of, (0, 0, ()))
        known = self._known_at(place)
        names = known.called(arguments)
        found = self._own(place, opened, own, arguments, names)
        if (
            callers
            and self.made
            and not names.keys().isdisjoint(own)
            and (call := next(self._calls(at), None))
        ):
            passed = self._passed(*call, own, callers)
            found = {parameter: known.length(length, names) for parameter, length in passed.items()} | found
        return found

    def _passed(self, place: int, given: Sequence[str], own: Sequence[str], callers: int) -> dict[str, str]:
        """Return what a call at a place passes to the parameters `own`, in terms of these."""
        outer, names = self.at(place, given, callers - 1), dict(zip(given, own, strict=False))
        lengths = {parameter: outer.get(name(argument), "") for argument, parameter in names.items()}
        return {p: _WORD.sub(lambda word: names.get(word[0], word[0]), n) for p, n in lengths.items()}

    def _calls(self, parameters: int) -> Iterator[tuple[int, list[str]]]:
        """Yield (place, arguments) of the calls of the function whose parameters begin at a place."""
        named = re.search(r"\b(\w+)\s*\Z", self._plain[max(0, parameters - _LONGEST) : parameters])
        for at in re.finditer(rf"\b{named[1]}\s*(?:<[^;{{}}()]*>\s*)?\(", self._plain) if named else ():
            closed = text.closing(self._plain, at.end() - 1)
            if at.end() - 1 != parameters and re.match(r"\s*[;,)]", self._plain[closed + 1 :][:_LONGEST]):
                yield at.start(), text.split(self._plain[at.end() : closed])

    def _own(
        self, place: int, opened: int, own: Sequence[str], arguments: Sequence[str], names: Mapping[str, str]
    ) -> dict[str, str]:
        """Return what the function that is `opened` there has allocated for `arguments` before a place.

        What others allocate for a name counts, if it is all the same, and the name is not this one's own.
        Nothing is said of what depends on a part of an argument, ``n`` of ``n / 2``, which is guessed alone.
        """
        called = {argument: name(argument) for argument in arguments}
        parts = {word for a in arguments if not called[a] for word in _WORD.findall(a)} - names.keys()
        before = self._plain[opened:place]
        found, elsewhere = dict[str, str](), dict[str, set[str]]()
        for one, known in self.made:
            if one.name not in called.values():
                continue
            length = "" if known.mention(parts, one.bytes) else known.length(one.bytes, names)
            if opened < one.place < place:
                found[one.name] = length
            elif one.name not in own and not re.search(rf"\*\s*{re.escape(one.name)}\s*[=;,]", before):
                elsewhere.setdefault(one.name, set()).add(length)
        return {name: same.pop() for name, same in elsewhere.items() if len(same) == 1} | found
