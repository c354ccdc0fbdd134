"""Threads that execute together, their registers, and conversions of a register's value.

A register holds its bits in the form in which they were written: an `Integer`, a NumPy float scalar, an array
(T, C) of floats, or `Lanes` for a predicate. `integer` and `floating` reinterpret the bits, as PTX does when
a typed instruction reads an untyped ``.b32`` register.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from harness.emulator.blocks import special
from harness.emulator.numbers.algebra import Algebra
from harness.emulator.numbers.floats import Workspace
from harness.emulator.numbers.values import Affine, Array, Integer, Lanes, Mask, array_of, integer_of
from harness.emulator.watch.touches import Clock

if TYPE_CHECKING:
    from harness.emulator.blocks.batch import Batch

BITS_OF: dict[int, Any] = {2: np.float16, 4: np.float32, 8: np.float64}
Value = Any  # Integer, Lanes, a float scalar or an array of floats


class Group(Clock):
    """Some threads of each block of a batch, executed together: all of them, or one warp.

    `row` is the number of the first thread within its block; `shape` is (T threads, C blocks).
    """

    def __init__(self, batch: Batch, row: int, threads: int, registers: int) -> None:
        super().__init__(row, (threads, batch.blocks))
        self.batch = batch
        self.launch = batch.launch
        self.lanes = threads * batch.blocks
        self.algebra = Algebra(batch.launch.memo, self.lanes)
        self.registers: list[Value] = [None] * registers
        self.flights: list[Any] = []  # cp.async copies since the last commit
        self.groups: list[Any] = []  # committed groups of them, oldest first
        self.pushed: list[tuple[Lanes, dict[int, Value]]] = []  # registers of callers that call themselves
        self.warpgroup: Any = None  # the products of wgmma in flight, once there are any
        self.sums: dict[tuple[int, ...], Any] = {}  # their accumulators as one array, by registers
        self.places: dict[Any, Any] = {}  # `Place`s of shared and local accesses without a fault
        self._buffers: dict[int, Array] = {}
        self._spare: dict[Any, Array] = {}
        self._work: dict[tuple[int, ...], Workspace] = {}
        self._wide = np.empty(0, np.float64)
        self.results: dict[Any, Any] = {}  # of fma that are executed together, see `floating.fused`
        self.special = special.values(batch, row, threads)

    @property
    def work(self) -> Workspace:
        """Return the workspace for an fma of the group's shape."""
        return self.workspace(self.shape)

    def workspace(self, shape: tuple[int, ...]) -> Workspace:
        """Return the workspace for an fma of `shape`, made when it is first needed."""
        found = self._work.get(shape)
        if found is None:
            found = self._work[shape] = Workspace(shape, self.launch.underflow)
        return found

    def wide(self, count: int) -> Array:
        """Return scratch memory for `count` registers as float64: (count, T, C)."""
        if self._wide.size < count * self.lanes:
            self._wide = np.empty(count * self.lanes, np.float64)
        return self._wide[: count * self.lanes].reshape(count, *self.shape)

    def count(self, where: Lanes) -> int:
        """Return the number of lanes in `where`."""
        return where.lanes(self.lanes) if isinstance(where, Mask) else self.lanes if where else 0

    # -- reading

    def integer(self, value: Value, bits: int) -> Integer:
        """Reinterpret a register's value as a signed integer. Raises TypeError for a predicate.

        An array is read in its own width; `bits`, the width that the instruction reads, is not needed for it.
        """
        if isinstance(value, int | Affine):
            return value
        if isinstance(value, Mask):
            raise TypeError("a predicate where a number belongs")
        array = np.asarray(value)
        whole = array.view(f"i{array.dtype.itemsize}")
        return int(whole) if not whole.ndim else integer_of(whole.astype(np.int64))

    def floating(self, value: Value, dtype: Any) -> Any:
        """Reinterpret a register's value as `dtype`: a scalar, or an array that broadcasts to (T, C)."""
        size = np.dtype(dtype).itemsize
        if isinstance(value, int):
            return np.array(value & ((1 << 8 * size) - 1), f"u{size}").view(dtype)[()]
        if isinstance(value, Affine):
            return value.array().astype(f"i{size}").view(dtype)
        return value if value.dtype.type is dtype else value.view(dtype)

    # -- writing

    def buffer(self, register: int, dtype: Any) -> Array:
        """Return the register's own array (T, C), viewed as `dtype`, to compute into."""
        found = self._buffers.get(register)
        if found is None:
            found = self._buffers[register] = np.empty(self.shape, BITS_OF[np.dtype(dtype).itemsize])
        return found if found.dtype.type is dtype else found.view(dtype)

    def out(self, register: int, where: Lanes, dtype: Any) -> Array:
        """Return an array (T, C) of `dtype` to compute a result in before `write`.

        It is the register's own array if all lanes are active, otherwise a spare one: the inactive lanes of
        the register have to keep their values.
        """
        if where is True:
            return self.buffer(register, dtype)
        if dtype not in self._spare:
            self._spare[dtype] = np.empty(self.shape, dtype)
        return self._spare[dtype]

    def write(self, register: int, value: Value, where: Lanes) -> None:
        """Write `value` to a register in the lanes `where`; the other lanes keep their values."""
        old = self.registers[register]
        if old is None and where is not True and isinstance(value, np.ndarray | np.floating):
            old = value.dtype.type(np.nan)  # the other lanes were never written: NaN shows their use
        if where is not True and old is not None:
            self._blend(register, value, old, where)
        elif isinstance(value, np.ndarray):
            self._fill(register, value)
        else:
            self.registers[register] = value

    def _fill(self, register: int, value: Array) -> None:
        """Set all lanes of a register to an array."""
        own = self.buffer(register, value.dtype.type)
        if value is not own:
            np.copyto(own, value)
        self.registers[register] = own

    def _blend(self, register: int, value: Value, old: Value, where: Lanes) -> None:
        """Set the lanes `where` of a register to `value` and the others to `old`."""
        algebra = self.algebra
        if isinstance(value, bool | Mask):
            self.registers[register] = algebra.choose(where, value, old)
        elif isinstance(value, int | Affine) and isinstance(old, int | Affine):
            self.registers[register] = algebra.select(where, value, old)
        elif isinstance(where, Mask):
            dtype = (value if not isinstance(value, int | Affine) else old).dtype.type
            own = self.buffer(register, dtype)
            before = self.floating(old, dtype)
            if before is not own and not np.shares_memory(own, before):
                np.copyto(own, before)
            np.copyto(own, self.floating(value, dtype), where=where.array)
            self.registers[register] = own


def spread(value: Integer, shape: tuple[int, int]) -> Array:
    """Return an integer as an int64 array broadcast to `shape`, (T, C): not to be written to."""
    return broadcast(np.asarray(array_of(value)), shape)


def broadcast(array: Array, shape: tuple[int, int]) -> Array:
    """Return an array broadcast to `shape`, which most have already: NumPy takes long to find that out."""
    return array if array.shape == shape else np.broadcast_to(array, shape)


def bits_of(group: Group, value: Value, size: int) -> Array:
    """Return a register of `size` bytes as unsigned integers (T, C)."""
    whole = broadcast(np.asarray(group.floating(value, BITS_OF[size])), group.shape)
    return np.ascontiguousarray(whole).view(f"u{size}")
