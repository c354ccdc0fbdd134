"""Guess what ``__constant__`` variables hold: what host code copies there, or what their use suggests.

Numbers, pointers and tensor maps in them are parameters of the kernel, as the text is read
(`kernels.cpp.source.variables`). Arrays are operands of a length that the text says. They hold what host code
fills them with, where that can be read, in terms of the sizes of the launch.
"""

from __future__ import annotations

import contextlib
import copy
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.kernels import text
from harness.kernels.cpp import calls, elements, extents, guesses, includes
from harness.kernels.cpp.host.launches import Launch
from harness.kernels.cpp.source.ptx import conventions, decompiled
from harness.kernels.cpp.source.variables.declared import Part, Variable
from harness.kernels.cpp.source.variables.parameters import Seen
from harness.kernels.expr import Expr, ExprError
from harness.kernels.spec import Kernel
from harness.problems.guessed import allocated, pointed
from harness.problems.guessed.buffers import Parameters
from harness.problems.guessed.contents import Held
from harness.problems.protocol import Argument, Member, Struct

_REAL = re.compile(r"([-+]?\s*(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[fF]?")
_HUGE = 2**31 - 1


@dataclass(frozen=True)
class Use:
    """Tell what is done with elements of an array.

    added: they are summands, such as steps to neighbours: small, for only the host knows how far is right
    divides: something is divided by them
    """

    added: bool
    divides: bool

    @classmethod
    def of(cls, body: str, array: str) -> Use:
        """Return what a body does with the elements of an array."""
        element = rf"\b{re.escape(array)}\s*\[(?:[^][]|\[[^][]*\])*\]"
        return cls(
            bool(re.search(rf"[+-]\s*{element}|{element}\s*[+-](?![+-])", body)),
            bool(re.search(rf"[/%]\s*{element}", body)),
        )


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The variables that a kernel reads, each with the parts that it reads; `seen` is its text.

    `called` is the kernel's body with what it calls, and `structs` those whose members are parameters.
    `passed` has the parameters of PTX whose compiler passes more than numbers and pointers.
    """

    variables: Sequence[tuple[Variable, tuple[Part, ...]]]
    seen: Seen
    called: str
    structs: Sequence[tuple[Variable, tuple[Part, ...]]] = ()
    passed: Sequence[decompiled.Passed] = ()
    threads: int = 1  # of a block

    @property
    def names(self) -> set[str]:
        """Return the names of the variables."""
        return {variable.name for variable, _ in self.variables}

    @property
    def given(self) -> dict[str, float]:
        """Return the numbers that floats in structs begin with, by axis."""
        known = ((guesses.axis(p.name), p, v.given.get(p.path[1:])) for v, ps in self.structs for p in ps)
        return {axis: n for axis, p, n in known if n is not None and not p.whole}

    @property
    def parts(self) -> list[Part]:
        """Return the parts of all variables."""
        return [part for _, parts in self.variables for part in parts]

    @property
    def arrays(self) -> dict[str, Part]:
        """Return the arrays by name."""
        return {part.name: part for part in self.parts if not part.declared}

    def added(self, entry: text.Entry) -> text.Entry:
        """Return a kernel with the arrays behind its parameters."""
        more = (text.Parameter(type="", name=n, pointer=True, const=True, constant=True) for n in self.arrays)
        return replace(entry, parameters=(*entry.parameters, *more))

    def numbers(
        self,
        launched: Launch | None,
        entry: text.Entry,
        types: Mapping[str, elements.Type],
        whole: Sequence[str],
        *,
        exact: bool,
    ) -> dict[str, int]:
        """Return the numbers that host code gives to integers, where these are to be taken.

        They all are where the launch is `exact`, as host code has it. Else small ones are that multiply no
        index, or end at what arrays have, and others where host code also tells the lengths of all buffers.
        """
        given = zip(entry.parameters, launched.numbers if launched else (), strict=False)
        known = {p.name: n for p, n in given if p.constant and not p.pointer and n is not None and n >= 0}
        if exact or not known:
            return known
        lengths = allocated.lengths(launched, entry, types, whole)
        told = all(p.name in lengths for p in entry.parameters if p.pointer and p.type)
        bounds = self.rooms(dict.fromkeys(known, allocated.FEW))
        loose = {n for n in known if extents.dimension(entry.body, n)} - bounds.keys()
        return {n: m for n, m in known.items() if m <= allocated.FEW and (told or n not in loose)}

    @property
    def lengths(self) -> dict[str, int]:
        """Return the elements of the arrays."""
        return {name: part.count for name, part in self.arrays.items()}

    def rooms(self, usual: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes up to which the indices of arrays go, no larger than the arrays have room for."""
        found = dict[str, int]()
        for name, count in self.lengths.items():
            for size, room in _rooms(self.called, name, count, [*usual]):
                found[size] = min(room, found.get(size, usual[size]))
        return found

    def held(
        self, passed: Mapping[str, Argument], known: Parameters, sizes: Mapping[str, Any]
    ) -> dict[str, Argument]:
        """Return what each variable holds, where its parts are what is `passed`, and with these sizes."""
        axes = {p.name: guesses.axis(p.name) for p in self.parts if p.declared}
        found: dict[str, Any] = {name: passed.get(axis, axis) for name, axis in axes.items()}
        written = self.written(known.launched, [p.name for p in known.entry.parameters])
        lengths = {p.name: sizes[p.name] for p in known.pointers}
        for name, part in self.arrays.items():
            into = alone(known.entry.body, name, lengths)
            into += [lengths[other] for other in known.holds[name].into if other in self.arrays]
            into += (
                self.lengths.values() if isinstance(part.kind, np.dtype) else ()
            )  # what of them, who knows
            numbers = known.integers(sizes)
            least = known.least(sizes) if known.whole else _HUGE
            use, held = Use.of(self.called, name), known.holds[name]
            found[name] = contents(part, written[name], numbers, least, held, into, use)
            if sizes.get("_still") and not written[name]:
                found[name] = np.zeros_like(found[name])
        return {variable.name: packed(variable, found) for variable, parts in self.variables if parts}

    def zeroed(self, problem: Any) -> Any:
        """Return a problem with zeros in arrays of which host code tells nothing; None without arrays."""
        still = copy.copy(problem) if self.arrays else None
        if still is not None:
            still._still = True
        return still

    def written(
        self, launched: Launch | None, parameters: Sequence[str]
    ) -> dict[str, list[Expr | float | None]]:
        """Return the elements that host code gives to arrays, in terms of a launch's `parameters`."""
        found = dict[str, list[Expr | float | None]]()
        kept = [a for a in (launched.arguments if launched else ()) if a.isidentifier()]
        for variable, parts in self.variables:
            for part in parts:
                given = self.seen.elements(variable, part) if not part.declared else []
                numbers = [_number(frame.expression(written, kept), written) for frame, written in given]
                if numbers and launched:
                    over = launched.over(parameters, [str(n) for n in numbers])
                    numbers = [
                        _parsed(o) if isinstance(n, Expr) else n for n, o in zip(numbers, over, strict=True)
                    ]
                found[part.name] = numbers
        return found


def arguments(
    parameters: Sequence[text.Parameter], passed: Mapping[str, Argument], constants: Constants, size: int
) -> tuple[Argument, ...]:
    """Return what is passed for parameters that are no variables: one for members of a struct.

    Arrays of numbers in it hold a `size`, or 1.
    """
    owners = {guesses.axis(p.name): (v, parts) for v, parts in constants.structs for p in parts if p.declared}
    found, done = list[Argument](), set[str]()
    inside = {part.name for _, each in constants.passed for part in each}
    for p in (p for p in parameters if not p.constant and p.name not in inside):
        variable, parts = owners.get(p.name, (None, ()))
        if variable is None:
            found.append(passed.get(p.name, p.name))
        elif variable.name not in done:
            done.add(variable.name)
            axes = {part.name: guesses.axis(part.name) for part in parts if part.declared}
            held: dict[str, Any] = {name: passed.get(axis, axis) for name, axis in axes.items()}
            arrays = ((part, part.kind) for part in parts if isinstance(part.kind, tuple))
            held |= {
                part.name: np.full(part.count * kind[1], size if "int" in kind[0] else 1, kind[0])
                for part, kind in arrays
                if not part.declared
            }
            found.append(packed(variable, held))
    others, told = iter(found), {**passed, conventions.THREADS: np.int64(constants.threads)}
    return tuple(
        pointed.assembled(each, told, whole=p.bytes) if each else next(others) for p, each in constants.passed
    ) or (*others,)


def of(kernel: Kernel, entry: text.Entry, called: str) -> Constants:
    """Return the variables that a kernel reads; `called` is its body with what it calls.

    Those whose parts are not among its parameters, as of a kernel that a macro makes, stay zero.
    """
    seen = calls.seen(calls.own(kernel), includes.of(kernel).read)
    own = {p.name for p in entry.parameters if p.constant}
    known = [
        (v, parts)
        for v, parts in seen.variables(kernel.entry)
        if all((guesses.axis(p.name) in own) if p.declared else p.name == guesses.axis(p.name) for p in parts)
    ]
    return Constants(
        variables=known,
        seen=seen,
        called=called,
        structs=seen.members(kernel.entry),
        passed=decompiled.passed(kernel.source, kernel.entry) if kernel.language == "ptx" else (),
        threads=math.prod(e({}) for e in kernel.block),
    )


def _number(expression: Expr | None, written: str) -> Expr | float | None:
    """Return an element as an expression, or as a number with a fraction."""
    real = _REAL.fullmatch(written.strip())
    return expression or (float(real[1].replace(" ", "")) if real else None)


def _parsed(written: str) -> Expr | None:
    with contextlib.suppress(ExprError):
        return Expr.parse(written)
    return None


def contents(
    part: Part,
    written: Sequence[Expr | float | None],
    numbers: Mapping[str, int],
    least: int,
    held: Held,
    into: Sequence[int],
    use: Use,
) -> NDArray[Any]:
    """Return what an array holds: what is `written`, with these `numbers` for names, or random contents.

    least: the least size, beyond which no number of the host is taken that was meant for its own sizes
    into: the lengths of what its elements alone index
    """
    assert part.kind is not None
    if (given := list(_given(part, written, numbers, least))) and len(given) == min(len(written), part.count):
        found = np.zeros(part.count, part.kind[0] if isinstance(part.kind, tuple) else np.uint8)
        found[: len(given)] = np.array(given).astype(found.dtype)
        return found
    rng = np.random.default_rng(zlib.crc32(part.name.encode()))  # the same for all kernels of a file
    most = 2 if use.added else min([least, *into]) if into else min(least, part.count)
    found = elements.contents(rng, part.kind, part.count, most)
    if isinstance(part.kind, tuple) and found.dtype.kind in "iu" and found.ndim == 1:
        if held.targets:
            found = rng.permutation(part.count).astype(found.dtype)
        if held.begins:
            found.sort()
        if use.divides:
            found = np.maximum(found, 1)
    return found


def _given(
    part: Part, written: Sequence[Expr | float | None], numbers: Mapping[str, int], least: int
) -> Iterator[float]:
    """Yield the numbers that are written for an array, up to one that is not known, or is beyond sizes."""
    if not isinstance(part.kind, tuple) or part.kind[1] > 1 or part.kind[0] == "bfloat16":
        return
    whole = "int" in part.kind[0]
    for one in written[: part.count]:
        value: float | None = None if isinstance(one, Expr) else one
        if isinstance(one, Expr):
            with contextlib.suppress(ExprError):
                value = one(numbers)
        if (
            value is None
            or abs(value) > _HUGE
            or (whole and value >= least and not getattr(one, "names", ()))
        ):
            return
        yield value


def packed(variable: Variable, held: Mapping[str, Any]) -> Argument:
    """Return a variable with what its parts hold, by their names: its bytes, or a struct with operands."""
    data, inside = bytearray(variable.size), list[tuple[int, str, Member, int]]()
    for part in variable.parts:
        value = held.get(part.name)
        if isinstance(value, np.generic | np.ndarray):
            raw = value.tobytes()
            data[part.offset : part.offset + len(raw)] = raw
        elif value is not None:
            size = elements.size(elements.MAPPED) if not isinstance(value, str) else 8
            inside.append((part.offset, part.name, value, size))
    if not inside:
        return np.void(bytes(data))
    found, done = dict[str, Member](), 0
    for offset, name, member, size in sorted(inside, key=lambda one: one[0]):
        if offset > done:
            found[f"from {done}"] = np.void(bytes(data[done:offset]))
        found[name], done = member, offset + size
    if done < len(data):
        found[f"from {done}"] = np.void(bytes(data[done:]))
    return Struct(found)


def alone(body: str, array: str, others: Mapping[str, int]) -> list[int]:
    """Return the lengths of those of `others` that an element of an array alone indexes, ``y[at[k]]``."""
    return [
        length
        for name, length in others.items()
        if re.search(rf"(?<![\w.>]){re.escape(name)}\s*\[\s*{re.escape(array)}\s*\[[^][]*\]\s*\]", body)
    ]


def _rooms(body: str, array: str, count: int, sizes: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield (size, most) for the sizes below which a variable in an array's indices stays, ``4 * r + 1``.

    Not so where it is a rest, ``i % 64``, or a part.
    """
    for place in extents.places(body, array):
        for size in sizes:
            below = re.findall(rf"\b(\w+)\s*<\s*{re.escape(size)}\b", body)
            if below and (at := re.search(rf"\b(?:{'|'.join(below)})\b(?!\s*(?:[%/&]|>>))", place)):
                times = re.search(rf"\b(\d+)\s*\*\s*{at[0]}\b|\b{at[0]}\s*\*\s*(\d+)\b", place)
                parts = int(times[1] or times[2]) if times else 1 if place.strip() == at[0] else 2
                yield size, max(1, count // max(1, parts))
