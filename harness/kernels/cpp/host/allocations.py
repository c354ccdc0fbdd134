"""Read what host code allocates: ``cudaMalloc(&x, n * 4)``, Thrust's vectors and PyTorch's tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
    r"\b(\w+)\s*=\s*(?:\([\w\s]+\)\s*|static_cast\s*<[\w\s]+>\s*\(\s*)?(\w+)\s*\.\s*numel\s*\(\s*\)\s*\)?"
    r"\s*(?:/\s*([^;,]{1,100}?))?\s*[;,]"
)
_DATA = r"\s*\.\s*(?:mutable_|const_)?data(?:_ptr)?\s*(?:<[^<>]*>)?\s*\(\s*\)(?:\s*\.\s*get\s*\(\s*\))?"
_POINTER = re.compile(rf"&?\s*([\w.]+(?:->\w+)*?)(?:\s*\[\s*0\s*\]|{_DATA})?")
_CAST_OFF = re.compile(
    r"\A\s*(?:\([\w\s:]+\*[\s*]*\)|(?:(?:reinterpret|static|const)_cast\s*<[^<>]*>"
    r"|[\w:]*\b(?:raw|device)_pointer_cast|[\w:]*\bdevice_ptr\s*<[^<>]*>)"
    r"\s*(?=\())\s*"
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_LONGEST = 100  # characters of a function's name, and of what is between it and its parameters
_HEAD = 300  # characters of what stands before a function's body, such as what its members begin with
_ACCESSOR = re.compile(r"(\w+)\s*\.\s*(?:generic_)?packed_accessor")
_DIMENSIONS = 6  # of a tensor, at most
_CALLERS = 2  # functions in each other that pass what the outermost has allocated
_CALLS = 8  # of a function that are looked at


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Hold what a text allocates at a place for a name: `bytes`, an expression in its own names."""

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
            rows = values.value_at(plain, plain.index(written, at.end()) + len(written) + 1)
            written = f"{at[2]} * ({rows})"
        yield Allocation(place=at.start(), name=at[1], bytes=written)
    for place, vector, number in values.vectors(plain):
        yield Allocation(place=place, name=vector, bytes=f"({number}) * sizeof(*{vector})")
    numbers = {}
    for at in _COUNTED.finditer(plain):
        numbers[at[2]] = f"{at[1]} * ({at[3]})" if at[3] else at[1]
        yield Allocation(place=at.start(), name=at[2], bytes=f"{numbers[at[2]]} * sizeof(*{at[2]})")
    for at in _TENSOR.finditer(plain):
        extents = text.split(at[3]) if at[3] else [numbers[at[2]]] if at[2] in numbers else []
        if extents:
            numbers[at[1]] = " * ".join(f"({extent})" for extent in extents)
            yield Allocation(place=at.start(), name=at[1], bytes=f"{numbers[at[1]]} * sizeof(*{at[1]})")


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """Hold what a text makes at a place for a name: a tensor of these `extents`, or one `like` another."""

    place: int
    name: str
    extents: tuple[str, ...]
    like: str


def tensors(plain: str) -> list[Tensor]:
    """Return the tensors that a blank text makes, in its order."""
    found = _TENSOR.finditer(plain)
    return [
        Tensor(place=at.start(), name=at[1], extents=tuple(text.split(at[3] or "")), like=at[2] or "")
        for at in found
    ]


def extents(tensor: str) -> tuple[str, ...]:
    """Return the names that `values.sized` gives the extents of a tensor."""
    return tuple(f"{tensor}_size_{d}_" for d in range(_DIMENSIONS))


def accessed(arguments: Sequence[str], texts: Mapping[str, str]) -> dict[str, str]:
    """Return the tensors whose accessors are among the arguments of a launch, by these.

    One may have a name, of which `texts` have what it is.
    """
    return {a: at[1] for a in arguments if (at := _ACCESSOR.match(texts.get(a, a)))}


def name(argument: str) -> str:
    """Return the name of what a launch is given: ``x`` of ``(float*)x`` and of ``x.data_ptr<float>()``."""
    pointer = _POINTER.fullmatch(uncast(argument))
    return pointer[1] if pointer else ""


def uncast(argument: str) -> str:
    """Return a pointer without its casts: ``x`` of ``(float*)x`` and ``device_pointer_cast(x)``."""
    plain = argument.strip()
    while cast := _CAST_OFF.match(plain):
        plain = plain[cast.end() :]
        if plain.startswith("(") and text.closing(plain, 0) == len(plain) - 1:
            plain = plain[1:-1].strip()
    return plain


class Allocated:
    """Find what the functions of a text have allocated where they launch kernels, or call each other."""

    def __init__(
        self,
        plain: str,
        functions: Sequence[tuple[int, int, int, tuple[str, ...]]],
        given: Sequence[tuple[int, str, str]],
        known_at: Callable[[int], values.Values],
    ) -> None:
        self._plain, self._functions, self._given, self._known_at = plain, functions, given, known_at
        self.made = [(one, known_at(one.place)) for one in of(plain)]
        self._tensors = tensors(plain)

    def at(self, place: int, arguments: Sequence[str], callers: int = _CALLERS) -> dict[str, str]:
        """Return by name what is allocated at a place, in terms of the `arguments` that are given there.

        Those who call its function may have done that, too, if all of them did the same.
        """
        function = self._around(place)
        known = self._known_at(place)
        names = known.called(arguments)
        found = self._own(place, function, arguments, names)
        if callers and self.made and not names.keys().isdisjoint(function[3]):
            calls = [self._passed(*call, function[3], callers) for call in self._calls(function)]
            for parameter in function[3] if len(calls) <= _CALLS else ():
                lengths = {known.length(passed.get(parameter, ""), names) for passed in calls}
                if len(lengths) == 1:
                    found.setdefault(parameter, lengths.pop())
        return found

    def shape(self, place: int, tensor: str, names: Collection[str]) -> tuple[str, ...]:
        """Return the extents of a tensor that its function has made before a place, in terms of `names`.

        Those of others are "". None are returned where another function made it, or only one of two branches.
        """
        opened = self._around(place)[1]
        made = [one for one in self._tensors if opened < one.place < place and one.name == tensor]
        if not made or re.search(r"\belse\b", self._plain[made[0].place : made[-1].place]):
            return ()
        last = made[-1]
        if last.like:
            return self.shape(last.place, last.like, names) or extents(last.like)
        known = self._known_at(last.place)
        return tuple(known.over(extent, names) for extent in last.extents)

    def _around(self, place: int) -> tuple[int, int, int, tuple[str, ...]]:
        """Return the function that a place is in, as `values.bodies` has it."""
        return next((f for f in self._functions if f[1] < place < f[2]), (0, 0, 0, ()))

    def _passed(self, place: int, given: Sequence[str], own: Sequence[str], callers: int) -> dict[str, str]:
        """Return what a call at a place passes to the parameters `own`, in terms of these."""
        outer, names = self.at(place, given, callers - 1), dict[str, list[str]]()
        for argument, parameter in zip(given, own, strict=False):
            names.setdefault(argument, []).append(parameter)
        meant = {argument: values.largest(called) for argument, called in names.items()}
        lengths = {p: outer.get(name(argument), "") for argument, called in names.items() for p in called}
        return {p: _WORD.sub(lambda word: meant.get(word[0], word[0]), n) for p, n in lengths.items()}

    def _calls(self, function: tuple[int, int, int, tuple[str, ...]]) -> Iterator[tuple[int, list[str]]]:
        """Yield (place, arguments) of the calls of a function, but of those in itself."""
        parameters, _, end, _ = function
        named = re.search(r"\b(\w+)\s*\Z", self._plain[max(0, parameters - _LONGEST) : parameters])
        for at in re.finditer(rf"\b{named[1]}\s*(?:<[^;{{}}()]*>\s*)?\(", self._plain) if named else ():
            closed = text.closing(self._plain, at.end() - 1)
            called = re.match(r"\s*[;,)]", self._plain[closed + 1 :][:_LONGEST])
            if called and not parameters <= at.end() - 1 <= end:
                yield at.start(), text.split(self._plain[at.end() : closed])

    def _own(
        self,
        place: int,
        function: tuple[int, int, int, tuple[str, ...]],
        arguments: Sequence[str],
        names: Mapping[str, str],
    ) -> dict[str, str]:
        """Return what a function has allocated for `arguments` before a place in it.

        What others allocate for a name counts, if it is all the same, and the name is not this one's own.
        Nothing is said of what depends on a part of an argument, ``n`` of ``n / 2``, which is guessed alone,
        nor of what depends on a name that meant something else there.
        """
        called = {argument: name(argument) for argument in arguments}
        parts = {word for a in arguments if not called[a] for word in _WORD.findall(a)} - names.keys()
        before = self._plain[function[1] : place]
        found, elsewhere, last = dict[str, str](), dict[str, set[str]](), dict[str, int]()
        for one, known in self.made:
            if one.name not in called.values():
                continue
            length = "" if known.mention(parts, one.bytes) else known.length(one.bytes, names)
            if function[1] < one.place < place:
                if known.words(one.bytes) & names.keys() & self._changed(one.place, place):
                    length = ""
                if re.search(r"\belse\b", self._plain[last.get(one.name, place) : one.place]):
                    both = [found[one.name], length]
                    length = values.largest(both) if all(both) else ""
                found[one.name], last[one.name] = length, one.place
            elif one.name not in function[3] and not declared(before, one.name):
                others = known.words(one.bytes) & names.keys() & self._of_its_own(one.place)
                elsewhere.setdefault(one.name, set()).add("" if others else length)
        return {name: same.pop() for name, same in elsewhere.items() if len(same) == 1} | found

    def _changed(self, begin: int, end: int) -> set[str]:
        """Return the names that are given values between two places."""
        return {name for at, name, _ in self._given if begin < at < end}

    def _of_its_own(self, place: int) -> set[str]:
        """Return the names that only the function around a place has, but those that members begin with."""
        _, opened, end, own = self._around(place)
        head = self._plain[max(0, opened - _HEAD) : opened]
        body = self._plain[opened:end]
        begins = r"\b{0}_?\s*[({{]\s*{0}\s*[)}}]|this\s*->\s*{0}\s*="
        kept = {n for n in own if re.search(begins.format(n), head + body)}
        return {*own} - kept | {n for n in self._changed(opened, end) if declared(body, n)}


def declared(body: str, name: str) -> bool:
    """Return True where a body declares a name: ``float* x;``, ``auto x = f();``, ``int m = 3, x = 4;``."""
    plain = re.sub(r"\b(?:return|else)\b", ";", body)
    end = rf"{re.escape(name)}\s*[=;,({{\[]"
    further = rf"\b(?:int|unsigned|size_t|long|auto|float|double)\b[^;(){{}}]*[,*\s]{end}"
    return bool(re.search(rf"(?:[\w>&]\s+[*&\s]*|[*&]\s*){end}|{further}", plain))
