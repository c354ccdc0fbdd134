"""``atom`` and ``red``: each lane in turn, in the order of threads and, within a thread, of blocks.

That is one of the orders that the hardware may choose; with ``backward`` the last lane comes first. A vector
is updated element by element, each of them atomically, as PTX says. In global memory additions of f32 take
subnormal operands and results for zeros of the same sign; those in shared memory, and of other types, do not
(PTX ISA, "atom").
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from harness.emulator.access import Place, check_written, observe, place
from harness.emulator.decode import Attempt, Decoder, Run, handles
from harness.emulator.group import Group, spread
from harness.emulator.instructions.floating.half import narrow, widen
from harness.emulator.instructions.load_store import (
    SPACES,
    ld,
    nothing_loaded,
    registers,
    shape_of,
    st,
    stored,
)
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.memory import GLOBAL_BASE, ONES
from harness.emulator.numbers.floats import flush
from harness.emulator.numbers.values import Array, Lanes, integer_of, shift
from harness.emulator.ptx.declarations import BYTES
from harness.emulator.ptx.program import Instruction
from harness.emulator.watch.touches import ATOMIC

Operation = Callable[..., Any]
_OPERATIONS: dict[str, Operation] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda old, new: new,
    "inc": lambda old, limit: np.where(old >= limit, 0, old + 1).astype(old.dtype),
    "dec": lambda old, limit: np.where((old == 0) | (old > limit), limit, old - 1).astype(old.dtype),
    "cas": lambda old, expected, new: np.where(old == expected, new, old),
}
_HALF: dict[str, Operation] = {"add": np.add, "min": np.fmin, "max": np.fmax}
_TYPES = {f"{k}{b}" for k in "usb" for b in (32, 64)} | {
    "b16",
    "f16",
    "f16x2",
    "bf16",
    "bf16x2",
    "f32",
    "f64",
    "b128",
}
_WIDE = np.dtype([("lo", np.uint64), ("hi", np.uint64)])  # of ``.b128``
_SCOPES = {"relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu", "sys"}
_POLICY = "L2::cache_hint"  # with an operand of its own, the last one
_HINTS = {"noftz", "ftz", "rn", "shared::cta", "shared::cluster", "v2", "v4", "v8", _POLICY}


@handles("atom", "red")
def atomic(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``atom``, which returns the values before it, and ``red``, which does not."""
    decoder.parts(ins, _TYPES | _SCOPES | _HINTS | set(_OPERATIONS) | set(SPACES))
    typed, name = (next((p for p in ins.opcode if p in known), "") for known in (_TYPES, _OPERATIONS))
    _, count, space = shape_of(ins)
    operands = ins.operands[1:] if ins.opcode[0] == "atom" else ins.operands
    operands = operands[:-1] if _POLICY in ins.opcode else operands
    operation = _operation(name, typed)
    if (
        operation is None
        or len(operands) != (3 if name == "cas" else 2)
        or space in ("local", "param", "const")
    ):
        raise decoder.refusal(ins)
    size = BYTES[typed]
    kind = _kind(typed)
    count = 1 if kind is _WIDE else count
    names = registers(ins.operands[0]) if ins.opcode[0] == "atom" else []
    into = [decoder.register(ins, register) for register in names]
    read = decoder.address(ins, operands[0])
    values = [_elements(decoder, ins, given, kind) for given in operands[1:]]
    width = 2 if kind is _WIDE else 1  # registers of an element
    if any(len(given) != count for given in values) or len(into) not in (0, width * count):
        raise decoder.refusal(ins)

    def run(group: Group, where: Lanes) -> None:
        at = place(group, ins, space, shift(*read(group)), where, size * count)
        observe(group, ins, at, ATOMIC, size * count)
        if at.where is False:
            nothing_loaded(group, into, where)
            return
        if group.launch.counter is not None:
            group.launch.counter.atomic(ins, group.count(at.where))
        if name != "exch":
            check_written(group, ins, at, size * count)
        chosen = broadcast_mask(at.where, group.shape)
        flushes = at.space == "global" and (name, typed) == ("add", "f32")
        compute = _flushing(operation) if flushes else operation
        delays = group.launch.delays if count == 1 else None
        for i in range(count):
            new = [np.broadcast_to(np.asarray(v[i](group)), group.shape)[chosen].view(kind) for v in values]
            cells = _Cells(group, at, i * size, size, kind, chosen)
            targets = into[i * width : (i + 1) * width]
            asked = any(register >= 0 for register in targets)
            if delays is not None and delays.hold(group, ins, at, size, partial(cells.later, compute, new)):
                continue
            small = flushes and _small(new[0], cells.get(slice(None)))
            if not (asked or small) and isinstance(operation, np.ufunc) and cells.flat is not None:
                operation.at(cells.flat, cells.index, new[0])
                cells.touched(slice(None))
                group.launch.progress += 1
                continue
            old = _in_turn(cells, compute, new, backward=group.launch.schedule.backward)
            if (cells.get(np.arange(len(old))) != old).any():
                group.launch.progress += 1  # whoever polls may see something new
            if asked:
                parts = [old] if width == 1 else [old["lo"], old["hi"]]
                for register, part in zip(targets, parts, strict=True):
                    _return(group, register, part, chosen, at.where)

    return run


@handles("multimem")
def multimem(decoder: Decoder, ins: Instruction) -> Run | Attempt:
    """Decode ``multimem``, on memory of which several GPUs hold copies, as if there was one GPU.

    A reduction over the copies is then a load, a store to or a reduction into each of them that of one.
    """
    _, what, *parts = ins.opcode
    if what == "red":
        return atomic(decoder, replace(ins, opcode=("red", *parts)))
    if what == "st":
        return st(decoder, replace(ins, opcode=("st", *parts)))
    if what != "ld_reduce" or not set(_OPERATIONS) & set(parts):
        raise decoder.refusal(ins)
    kept = [part for part in parts if part not in _OPERATIONS and not part.startswith("acc::")]
    return ld(decoder, replace(ins, opcode=("ld", *kept)))


def _kind(typed: str) -> np.dtype[Any]:
    """Return the type in which NumPy holds an element."""
    if typed == "b128":
        return _WIDE
    letter = "u" if typed in _OTHER else typed[0].replace("b", "u").replace("s", "i")
    return np.dtype(f"{letter}{BYTES[typed]}")


def _elements(decoder: Decoder, ins: Instruction, given: str, kind: np.dtype[Any]) -> list[Operation]:
    """Return a reader of each element of an operand, which is a register or registers in braces."""
    names = registers(given)
    if kind is not _WIDE:
        return [stored(decoder, ins, name, kind.itemsize) for name in names]
    halves = [stored(decoder, ins, name, 8) for name in names]

    def whole(group: Group) -> Array:
        found = np.zeros(group.shape, _WIDE)
        for half, read in zip(("lo", "hi"), halves, strict=True):
            found[half] = np.asarray(read(group)).view(np.uint64)
        return found

    return [whole] if len(halves) == 2 else []


_SAFE = np.float32(2.0**-102)


def _small(*values: Array) -> bool:
    """Return whether sums of f32 may be subnormal: those of multiples of 2^-125 are not."""
    return any(bool(np.any((np.abs(v) < _SAFE) & (v != 0))) for v in values)


def _flushing(operation: Operation) -> Operation:
    """Return an operation on f32 that takes subnormal operands and results for zeros."""
    return lambda old, new: flush(operation(flush(old), flush(new)))


_OTHER = ("bf16", "f16x2", "bf16x2")  # types that NumPy does not have, held as their bits


def _operation(name: str, typed: str) -> Operation | None:
    """Return the function of an operation on a type, from the old and the given values; None without one."""
    if typed == "b128" and name not in ("exch", "cas"):
        return None
    if typed.replace("x2", "") in ("f16", "bf16") and name in _HALF:
        return _on_halves(_HALF[name], typed)
    return _OPERATIONS.get(name) if typed and "16x2" not in typed and typed != "bf16" else None


def _on_halves(function: Operation, typed: str) -> Operation:
    """Return an operation on f16 or bf16, alone or in pairs: exact, and rounded once."""
    brain = typed.startswith("bf")

    def apply(old: Array, new: Array) -> Array:
        parts = [widen(np.ascontiguousarray(v).view(np.uint16), brain) for v in (old, new)]
        return np.ascontiguousarray(narrow(function(*parts), brain)).view(old.dtype)

    return apply


def _return(group: Group, register: int, old: Array, chosen: Array, where: Lanes) -> None:
    """Write the values before an atomic, an element for each of the lanes `chosen`, to a register."""
    if register < 0:
        return
    whole = np.zeros(group.shape, old.dtype)
    whole[chosen] = old
    if old.dtype.kind == "f":
        group.write(register, whole, where)
    else:
        group.write(register, integer_of(whole.view(f"i{old.dtype.itemsize}").astype(np.int64)), where)


def _in_turn(cells: _Cells, operation: Operation, new: list[Array], *, backward: bool) -> Array:
    """Apply an operation to the cells of each lane in turn, and return the values before it.

    Lanes at different addresses are computed together. `new` holds the operands, an element per active lane.
    backward: the last lanes come first
    """
    by = cells.index[::-1] if backward else cells.index
    order = np.argsort(by, kind="stable")
    order = len(by) - 1 - order if backward else order
    ordered = cells.index[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    starts = np.nonzero(first)[0]
    turn = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.append(starts, len(ordered))))
    old = np.zeros(len(ordered), cells.kind)
    by_turn = np.argsort(turn, kind="stable")
    bounds = np.searchsorted(turn[by_turn], np.arange(turn.max(initial=0) + 2))
    for start, end in itertools.pairwise(bounds):
        lanes = order[by_turn[start:end]]
        before = cells.get(lanes)
        old[lanes] = before
        cells.put(lanes, operation(before, *(v[lanes] for v in new)))
    return old


class _Cells:
    """The memory cells of an atomic's active lanes: `size` bytes at `offset` from the access.

    `index` is the place of each lane's cell in `flat`, or its lowest word where `flat` is None: the words of
    8 and 16 bytes of shared memory are not adjacent. `chosen` is bool (T, C), the active lanes.
    """

    def __init__(self, group: Group, at: Place, offset: int, size: int, kind: Any, chosen: Array) -> None:
        self.kind = kind
        addresses = spread(at.base, group.shape)[chosen] + offset
        self._scratch, self._arena, self._owner = at.scratch, group.launch.arena, at.owner
        self._size = size
        if at.scratch is None:
            self.index = (addresses - GLOBAL_BASE) // size
            self.flat: Array | None = self._arena.view(min(size, 8)).view(kind)
            return
        columns = np.broadcast_to(group.batch.columns(at.space, group), group.shape)[chosen]
        self.index = (addresses >> 2) * at.scratch.columns + columns
        self._words, self._written = at.scratch.flat(), at.scratch.written()
        self.flat = self._words.view(kind) if size <= 4 else None
        if size < 4:
            self.index = self.index * (4 // size) + (addresses & 3) // size

    def get(self, lanes: Any) -> Array:
        """Return the values of the cells of `lanes`: indices of active lanes, or a slice of them."""
        if self.flat is not None:
            direct: Array = self.flat[self.index[lanes]]
            return direct
        words = np.stack([self._words[place] for place in self._places(lanes)], axis=-1)
        found: Array = words.view(self.kind)[..., 0]
        return found

    def put(self, lanes: Array, values: Array) -> None:
        """Store `values` in the cells of `lanes`."""
        if self.flat is not None:
            self.flat[self.index[lanes]] = values
        else:
            words = np.ascontiguousarray(values.astype(self.kind)).view(np.float32)
            for place, word in zip(self._places(lanes), words.reshape(-1, self._size // 4).T, strict=True):
                self._words[place] = word
        self.touched(lanes)

    def later(self, operation: Operation, new: list[Array]) -> Callable[[Array], None]:
        """Return a function that applies an operation to the cells of some lanes, by their numbers."""

        def apply(some: Array) -> None:
            cells = copy(self)
            cells.index = self.index[some]
            _in_turn(cells, operation, [values[some] for values in new], backward=False)

        return apply

    def touched(self, lanes: Any) -> None:
        """Note that the kernel has stored to the cells of `lanes`."""
        index = self.index[lanes]
        if self._scratch is None:
            for half in range(0, self._size, 8):
                unit = min(self._size, 8)
                self._arena.wrote(index * (self._size // unit) + half // 8, 0, unit, self._owner)
        elif self._size <= 4:
            self._written.view(f"u{self._size}")[index] = ONES[self._size]
        else:
            for place in self._places(lanes):
                self._written[place] = ONES[4]

    def _places(self, lanes: Any) -> list[Array]:
        """Return the words of the cells of `lanes` in shared memory, the lowest one first."""
        step = self._scratch.columns if self._scratch is not None else 0
        return [self.index[lanes] + step * word for word in range(self._size // 4)]
