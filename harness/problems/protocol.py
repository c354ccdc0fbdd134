"""The `Problem` protocol: a computation, independent of the kernel that does it.

A problem makes inputs, computes the correct result and how close a kernel must come to it, and counts the
work. `harness.problems.registry` lists the built-in ones and loads those of users.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from harness.kernels.dtypes import DType

Axes = Mapping[str, int | float]
_MAP = 128  # bytes of a tensor map


@dataclass(frozen=True)
class Struct:
    """An argument that is a struct passed by value: its members by name, in the order of the declaration.

    A member is what an argument may be: the name of an operand for a pointer to it, a NumPy scalar, another
    Struct or, for the emulator alone, a tensor map. Members lie as in C: each at a multiple of its size, the
    whole padded to its alignment.
    """

    members: Mapping[str, Member]

    @property
    def align(self) -> int:
        """Return the alignment in bytes: the largest one of a member."""
        return max(map(_align, self.members.values()), default=1)

    def operands(self) -> list[str]:
        """Return the names of the operands that it points to, or has tensor maps of."""
        found: list[Member] = []
        for member in self.members.values():
            found += member.operands() if isinstance(member, Struct) else [member]
        named = (member.operand if isinstance(member, Tensor) else member for member in found)
        return [name for name in named if isinstance(name, str)]

    def pack(self, address: Callable[[str], int], encode: Callable[[Tensor], bytes] | None = None) -> bytes:
        """Return its bytes; `address` gives that of an operand, and `encode` the bytes of a tensor map."""
        data = bytearray()
        for member in self.members.values():
            data += bytes(-len(data) % _align(member))
            if isinstance(member, Struct):
                data += member.pack(address, encode)
            elif isinstance(member, Tensor):
                data += encode(member) if encode is not None else bytes(_MAP)
            else:
                data += address(member).to_bytes(8, "little") if isinstance(member, str) else member.tobytes()
        return bytes(data + bytes(-len(data) % self.align))


@dataclass(frozen=True)
class Place(Struct):
    """An argument that leads `offset` bytes into an operand, which is its only member."""

    offset: int = 0

    def pack(self, address: Callable[[str], int], encode: Callable[[Tensor], bytes] | None = None) -> bytes:
        """Return the pointer's bytes."""
        return super().pack(lambda name: address(name) + self.offset, encode)


def _align(member: Member) -> int:
    if isinstance(member, Struct):
        return member.align
    if isinstance(member, Tensor):
        return _MAP // 2
    return 8 if isinstance(member, str) else member.dtype.alignment


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """An argument that is a tensor map of an operand, innermost extent first; strides are in bytes.

    The emulator alone takes it. Where front matter has `tensormaps`, the kernel gets its maps by these.
    """

    operand: str
    element: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Table:
    """An argument that is a pointer to an operand in which pointers to others stand.

    `pointers` has their names by their places in bytes. The emulator alone takes it.
    """

    operand: str
    pointers: Mapping[int, str]


@dataclass(frozen=True, kw_only=True)
class Image:
    """An argument that is a texture or surface of an operand, of this shape, outermost extent first.

    With `layered` the first extent counts layers, with `channels` over 1 the last one counts these. What the
    others mean `harness.emulator.Texture` says. The emulator alone takes it.
    """

    operand: str
    shape: tuple[int, ...]
    channels: int = 1
    layered: bool = False
    filter: str = "point"
    address: tuple[str, ...] = ("clamp",)
    normalized: bool = False
    read_normalized: bool = False


# The name of an operand, for a pointer to it; a scalar, whose dtype gives its C type; or a struct of such.
Member = str | np.generic | Struct | Tensor
Argument = Member | Table | Image


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The correct result, and how far a kernel's output may lie from it.

    `expected` is the result in float64. `bound` is the largest absolute error allowed for each element, with
    the same shape. `rms_bound`, if the problem has one, limits the root mean square of all errors and is much
    tighter. `dtype` is the element type of the output, needed only where its NumPy type does not tell it
    (bf16 is stored as uint16). `others` has those of the further outputs by name, if there are any.
    """

    expected: NDArray[np.float64]
    bound: NDArray[np.float64]
    rms_bound: float | None = None
    dtype: DType | None = None
    others: Mapping[str, Reference] = field(default_factory=dict)

    def decode(self, output: NDArray[Any]) -> NDArray[np.float64]:
        """Return elements of the output as float64 numbers."""
        return output.astype(np.float64) if self.dtype is None else self.dtype.decode(output)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of a row-major matrix in its buffer.

    `rows`, `columns` and the leading dimension `ld` (from one row to the next) are in elements.
    """

    rows: int
    columns: int
    ld: int
    dtype: DType


@runtime_checkable
class Matrices(Protocol):
    """A problem that also tells the layout of its matrices, as kernels with ``tensormaps`` need."""

    def layouts(self) -> Mapping[str, Layout]:
        """Return the layout of each operand that is a matrix, by the operand's name."""
        ...


@runtime_checkable
class Compiled(Protocol):
    """A problem with axes for which a kernel is compiled.

    `compiled` names them. A kernel serves the problem if its parameter of the same name in capitals has the
    axis's value, or if it has no such parameter and the value is 0.
    """

    compiled: ClassVar[tuple[str, ...]]


class Problem(Protocol):
    """One instance of a computation: its sizes are fixed, its data is not made yet.

    `axes` maps each name that ``-a`` accepts, which is also an attribute of the instance, to its default
    value; the type of the default is the type of the axis. None stands for an integer that defaults to a
    value derived from the other axes. `bench_axes` and `verify_axes` are the sizes that ``harness bench`` and
    ``harness verify`` run when none is given. `output` is the name of the operand that the kernel writes.
    """

    axes: ClassVar[Mapping[str, int | float | None]]
    bench_axes: ClassVar[tuple[Axes, ...]]
    verify_axes: ClassVar[tuple[Axes, ...]]
    output: ClassVar[str]

    @classmethod
    def from_axes(cls, axes: Axes) -> Self:
        """Return the instance of these sizes, with defaults for those left out.

        Raises UsageError for sizes that make no sense.
        """
        ...

    @property
    def label(self) -> str:
        """A short text that tells the sizes, for tables and messages."""
        ...

    @property
    def extents(self) -> tuple[int, ...]:
        """The extents of the output in elements, outermost first.

        Divided by a kernel's tile and rounded up, they give its grid.
        """
        ...

    @property
    def flops(self) -> int:
        """The number of floating-point operations; a multiply-add counts as two."""
        ...

    @property
    def bytes(self) -> int:
        """The compulsory memory traffic in bytes: every input read once, every output written once."""
        ...

    @property
    def buffer_bytes(self) -> int:
        """The bytes of device memory that one set of operands takes, padding included."""
        ...

    @property
    def accumulates(self) -> bool:
        """Tell whether the output is also an input, so that launching again on it gives another result."""
        ...

    def inputs(self, seed: int) -> dict[str, NDArray[Any]]:
        """Make every operand, by name, from a random seed.

        The output is filled with NaN unless it is also an input.
        """
        ...

    def reference(self, inputs: Mapping[str, NDArray[Any]]) -> Reference:
        """Compute the correct result of these inputs, and the bounds on a kernel's error."""
        ...

    def arguments(self) -> tuple[Argument, ...]:
        """Return the kernel's arguments in order: the name of an operand, or a NumPy scalar."""
        ...

    @classmethod
    def intensity(cls, tile: tuple[int, ...], loads: int) -> float | None:
        """Return the FLOP per byte loaded from global memory, for a kernel whose blocks each cover `tile`.

        `tile` gives the extents of a block's part of the output, and `loads` how many elements the block
        loads in each step. None if the problem has no such notion.
        """
        ...


# What a problem may have beside the protocol's members. A problem without them has one output.


def outputs(problem: Problem) -> tuple[str, ...]:
    """Return the names of the operands that the kernel writes: ``outputs``, or ``output`` alone."""
    return tuple(getattr(problem, "outputs", ())) or (problem.output,)


def updated(problem: Problem) -> frozenset[str]:
    """Return the outputs that the kernel reads first, and that are set back before each launch.

    These are ``updated``, or with ``accumulates`` the only output.
    """
    return frozenset(getattr(problem, "updated", outputs(problem) if problem.accumulates else ()))


def constants(problem: Problem) -> tuple[str, ...]:
    """Return the names in ``inputs`` that are ``__constant__`` variables of the kernel: ``constants``."""
    return tuple(getattr(problem, "constants", ()))


def variables(problem: Problem) -> Mapping[str, Argument]:
    """Return what further variables of the kernel hold, where it has such: ``variables()`` of a guess."""
    found = getattr(problem, "variables", None)
    return found() if found and unverified(problem) else {}


def zeroed(problem: Problem) -> Problem | None:
    """Return a guess with zeros in place of random contents of constant memory; None where it has none."""
    found = getattr(problem, "_zeroed", None)
    still: Problem | None = found(problem) if found else None
    return still


def unverified(problem: Problem) -> bool:
    """Return True where the arguments are guesses, and there is no reference."""
    return bool(getattr(problem, "unverified", False))


def references(problem: Problem, reference: Reference) -> dict[str, Reference]:
    """Return the reference of each output, by its name."""
    return {problem.output: reference, **reference.others}


def longer(
    problem: Problem, reached: Mapping[str, int], grid: Sequence[int], doubts: bool = False
) -> Problem | None:
    """Return a guessed problem with the buffers that the kernel went past the end of, as long as it means.

    reached: how far it went, by operand, in bytes. None is returned where no buffer was guessed, or nothing
    explains how far the kernel went; with `doubts` such buffers are `doubted`.
    """
    guessed = getattr(problem, "_longer", None)
    found: Problem | None = guessed(problem, reached, grid, doubts) if reached and guessed else None
    return found


def mistaken(problem: Problem) -> Sequence[str]:
    """Return what the host code of a guessed problem does wrong, a sentence each."""
    found: Sequence[str] = getattr(problem, "_mistakes", ())
    return found


def lengthened(problem: Problem) -> Mapping[str, int]:
    """Return the elements that were guessed first of the buffers that are `longer`, by operand."""
    found: Mapping[str, int] = getattr(problem, "_lengthened", {})
    return found


def doubted(problem: Problem) -> Mapping[str, int]:
    """Return the elements that were guessed first of buffers whose kernel goes farther without a reason."""
    found: Mapping[str, int] = getattr(problem, "_doubted", {})
    return found


def after(problem: Problem) -> tuple[str, ...]:
    """Return the kernels and functions that made what the buffers of a guessed problem hold, in order."""
    found: tuple[str, ...] = getattr(problem, "_after", ())
    return found


def aliases(problem: Problem) -> Mapping[str, str]:
    """Return the pointers of a guessed problem that get the buffer of another one, and which."""
    found: Mapping[str, str] = getattr(problem, "_aliases", {})
    return found
