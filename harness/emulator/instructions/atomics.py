"""``atom`` and ``red``: each lane in turn, in the order of threads and, within a thread, of blocks.

That is one of the orders that the hardware may choose.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from harness.emulator.access import Place, observe, place
from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.group import Group, spread
from harness.emulator.instructions.load_store import SPACES, shape_of, stored
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.memory import GLOBAL_BASE
from harness.emulator.numbers.values import Array, Lanes, integer_of, shift
from harness.emulator.ptx.module import Instruction
from harness.emulator.watch.touches import ATOMIC

_OPERATIONS: dict[str, Callable[..., Any]] = {
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
_TYPES = {f"{k}{b}" for k in "usb" for b in (32, 64)} | {"f32", "f64"}
_SCOPES = {"relaxed", "acquire", "release", "acq_rel", "cta", "gpu", "sys", "ftz", "rn", "shared::cta"}


@handles("atom", "red")
def atomic(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``atom``, which returns the values before it, and ``red``, which does not."""
    parts = decoder.parts(ins, _TYPES | _SCOPES | set(_OPERATIONS) | set(SPACES))
    size, _, space = shape_of(ins)
    name = next(part for part in ins.opcode if part in _OPERATIONS)
    kind = np.dtype(ins.opcode[-1].replace("b", "u")[0] + str(size))
    returns = ins.opcode[0] == "atom" and ins.operands[0] != "_"
    into = decoder.register(ins, ins.operands[0]) if returns else -1
    operands = ins.operands[1:] if ins.opcode[0] == "atom" else ins.operands
    read = decoder.address(ins, operands[0])
    values = [stored(decoder, ins, text, size) for text in operands[1:]]
    if len(values) != (2 if name == "cas" else 1) or space in ("local", "param", "const"):
        raise decoder.refusal(ins)
    orders = bool(parts & {"acquire", "release", "acq_rel"})

    def run(group: Group, where: Lanes) -> None:
        base, offset = read(group)
        at = place(group, ins, space, shift(base, offset), where, size)
        observe(group, ins, at, ATOMIC, size)
        if orders and group.launch.races is not None:
            group.launch.races.fenced = True
        if at.where is False:
            return
        if group.launch.counter is not None:
            group.launch.counter.atomic(ins, group.count(at.where))
        chosen = broadcast_mask(at.where, group.shape)
        new = [np.broadcast_to(np.asarray(v(group)), group.shape)[chosen].view(kind) for v in values]
        cells = _Cells(group, at, size, kind, chosen)
        if into < 0 and isinstance(_OPERATIONS[name], np.ufunc) and cells.flat is not None:
            _OPERATIONS[name].at(cells.flat, cells.index, new[0])  # type: ignore[attr-defined]
            cells.touched()
            return
        old = _in_turn(cells, _OPERATIONS[name], new)
        if into >= 0:
            whole = np.zeros(group.shape, kind)
            whole[chosen] = old
            if kind.kind == "f":
                group.write(into, whole, at.where)
            else:
                group.write(into, integer_of(whole.view(f"i{size}").astype(np.int64)), at.where)

    return run


def _in_turn(cells: _Cells, operation: Callable[..., Any], new: list[Array]) -> Array:
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
    """The memory cells of an atomic's active lanes.

    `index` is the place of each lane's cell in `flat`, or the word of its low half where `flat` is None: the
    two words of 8 bytes of shared memory are not adjacent. `chosen` is bool (T, C), the active lanes.
    """

    def __init__(self, group: Group, at: Place, size: int, kind: Any, chosen: Array) -> None:
        self.kind = kind
        addresses = spread(at.base, group.shape)[chosen]
        self._scratch = at.scratch
        self._arena = group.launch.arena
        self._owner = at.owner
        self._size = size
        if at.scratch is None:
            self.index = (addresses - GLOBAL_BASE) // size
            self.flat: Array | None = self._arena.view(size).view(kind)
        else:
            columns = np.broadcast_to(group.batch.columns(at.space, group), group.shape)[chosen]
            self.index = (addresses >> 2) * at.scratch.columns + columns
            words = at.scratch.flat()
            self.flat = words.view(kind) if size == 4 else None
            self._words = words

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
        self.touched()

    def touched(self) -> None:
        """Note that the kernel has stored to the allocation."""
        if self._scratch is None and self._owner is not None:
            self._arena.stored.add(self._owner.index)

    def _step(self) -> int:
        """Return the distance in words between the two halves of an 8-byte cell."""
        return self._scratch.columns if self._scratch is not None else 0
