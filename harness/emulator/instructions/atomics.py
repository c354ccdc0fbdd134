"""``atom`` and ``red``: each lane in turn, in the order of threads and, within a thread, of blocks.

That is one of the orders that the hardware may choose. A vector is updated element by element, each of them
atomically, as PTX says.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from harness.emulator.access import Place, check_written, observe, place
from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.group import Group, spread
from harness.emulator.instructions.floating.half import narrow, widen
from harness.emulator.instructions.load_store import SPACES, registers, shape_of, stored
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.memory import GLOBAL_BASE, ONES
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
}
_SCOPES = {"relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu", "sys"}
_HINTS = {"noftz", "ftz", "rn", "shared::cta", "shared::cluster", "v2", "v4", "v8"}


@handles("atom", "red")
def atomic(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``atom``, which returns the values before it, and ``red``, which does not."""
    decoder.parts(ins, _TYPES | _SCOPES | _HINTS | set(_OPERATIONS) | set(SPACES))
    typed, name = (next((p for p in ins.opcode if p in known), "") for known in (_TYPES, _OPERATIONS))
    _, count, space = shape_of(ins)
    operands = ins.operands[1:] if ins.opcode[0] == "atom" else ins.operands
    operation = _operation(name, typed)
    if (
        operation is None
        or len(operands) != (3 if name == "cas" else 2)
        or space in ("local", "param", "const")
    ):
        raise decoder.refusal(ins)
    size = BYTES[typed]
    kind = np.dtype(("u" if typed in _OTHER else typed[0].replace("b", "u").replace("s", "i")) + str(size))
    names = registers(ins.operands[0]) if ins.opcode[0] == "atom" else []
    into = [decoder.register(ins, register) for register in names]
    read = decoder.address(ins, operands[0])
    values = [[stored(decoder, ins, text, size) for text in registers(given)] for given in operands[1:]]
    if any(len(given) != count for given in values) or len(into) not in (0, count):
        raise decoder.refusal(ins)

    def run(group: Group, where: Lanes) -> None:
        base, offset = read(group)
        at = place(group, ins, space, shift(base, offset), where, size * count)
        observe(group, ins, at, ATOMIC, size * count)
        if at.where is False:
            return
        if group.launch.counter is not None:
            group.launch.counter.atomic(ins, group.count(at.where))
        if name != "exch":
            check_written(group, ins, at, size * count)
        chosen = broadcast_mask(at.where, group.shape)
        for i in range(count):
            new = [np.broadcast_to(np.asarray(v[i](group)), group.shape)[chosen].view(kind) for v in values]
            cells = _Cells(group, at, i * size, size, kind, chosen)
            asked = bool(into) and into[i] >= 0
            if not asked and isinstance(operation, np.ufunc) and cells.flat is not None:
                operation.at(cells.flat, cells.index, new[0])
                cells.touched(slice(None))
                group.launch.progress += 1
                continue
            old = _in_turn(cells, operation, new)
            if (cells.get(np.arange(len(old))) != old).any():
                group.launch.progress += 1  # whoever polls may see something new
            if asked:
                _return(group, into[i], old, chosen, at.where)

    return run


_OTHER = ("bf16", "f16x2", "bf16x2")  # types that NumPy does not have, held as their bits


def _operation(name: str, typed: str) -> Operation | None:
    """Return the function of an operation on a type, from the old and the given values; None without one."""
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
    whole = np.zeros(group.shape, old.dtype)
    whole[chosen] = old
    if old.dtype.kind == "f":
        group.write(register, whole, where)
    else:
        group.write(register, integer_of(whole.view(f"i{old.dtype.itemsize}").astype(np.int64)), where)


def _in_turn(cells: _Cells, operation: Operation, new: list[Array]) -> Array:
    """Apply an operation to the cells of each lane in turn, and return the values before it.

    Lanes at different addresses are computed together. `new` holds the operands, an element per active lane.
    """
    order = np.argsort(cells.index, kind="stable")
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

    `index` is the place of each lane's cell in `flat`, or the word of its low half where `flat` is None: the
    two words of 8 bytes of shared memory are not adjacent. `chosen` is bool (T, C), the active lanes.
    """

    def __init__(self, group: Group, at: Place, offset: int, size: int, kind: Any, chosen: Array) -> None:
        self.kind = kind
        addresses = spread(at.base, group.shape)[chosen] + offset
        self._scratch, self._arena, self._owner = at.scratch, group.launch.arena, at.owner
        self._size = size
        if at.scratch is None:
            self.index = (addresses - GLOBAL_BASE) // size
            self.flat: Array | None = self._arena.view(size).view(kind)
            return
        columns = np.broadcast_to(group.batch.columns(at.space, group), group.shape)[chosen]
        self.index = (addresses >> 2) * at.scratch.columns + columns
        self._words, self._written = at.scratch.flat(), at.scratch.written()
        self.flat = self._words.view(kind) if size <= 4 else None
        if size < 4:
            self.index = self.index * (4 // size) + (addresses & 3) // size

    def get(self, lanes: Array) -> Array:
        """Return the values of the cells of `lanes`, which are indices of active lanes."""
        if self.flat is not None:
            direct: Array = self.flat[self.index[lanes]]
            return direct
        below = self.index[lanes]
        pair = np.stack([self._words[below], self._words[below + self._step()]], axis=-1)
        found: Array = pair.view(self.kind)[..., 0]
        return found

    def put(self, lanes: Array, values: Array) -> None:
        """Store `values` in the cells of `lanes`."""
        if self.flat is not None:
            self.flat[self.index[lanes]] = values
        else:
            below = self.index[lanes]
            halves = np.ascontiguousarray(values.astype(self.kind)).view(np.float32).reshape(-1, 2)
            self._words[below], self._words[below + self._step()] = halves[:, 0], halves[:, 1]
        self.touched(lanes)

    def touched(self, lanes: Any) -> None:
        """Note that the kernel has stored to the cells of `lanes`."""
        index = self.index[lanes]
        if self._scratch is None:
            self._arena.wrote(index, 0, self._size, self._owner)
        elif self._size <= 4:
            self._written.view(f"u{self._size}")[index] = ONES[self._size]
        else:
            self._written[index] = self._written[index + self._step()] = ONES[4]

    def _step(self) -> int:
        """Return the distance in words between the two halves of an 8-byte cell."""
        return self._scratch.columns if self._scratch is not None else 0
