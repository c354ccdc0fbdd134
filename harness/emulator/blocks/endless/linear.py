"""Tell from three periods of a loop whether all that decides the way goes on to change by the same amount.

An instruction of the control slice that reads what changes has to be known to keep that up: sums do, a mask
``i & 7`` where the change is a multiple of 8, a comparison whose operands do not near each other. Nothing is
concluded of all others. What no change reaches is the same again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.emulator.blocks.slice import STORES, UNKNOWN, named, spaces_of
from harness.emulator.decode import Step
from harness.emulator.group import Group, spread
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.numbers.values import Affine, Array, Lanes, Mask
from harness.emulator.ptx.declarations import BYTES
from harness.emulator.ptx.literals import literal
from harness.emulator.ptx.program import Instruction

if TYPE_CHECKING:
    from harness.emulator.blocks.batch import Batch
    from harness.emulator.machine import Launch

_ROOM = 1 << 27  # bytes that are recorded at most
_SUMS = {"mov", "add", "sub", "neg", "not", "shl", "cvta", "selp", "shfl"}  # and mul, mad, cvt of integers
_MEMORY = {"ld", "ldu", "st", "atom", "red"}
_COMPARES = {"setp", "min", "max"}
_READ = _COMPARES | {"and", "shr", "div", "rem", "mul"}  # whose operands are recorded
_ADDS, _BITWISE = {"add", "exch"}, {"and", "or", "xor"}
_MAGIC = 32  # bits by which a product is shifted at least, where it divides


@dataclass(frozen=True, eq=False)
class Entry:
    """One execution of an instruction.

    who: the block and the first thread of the group
    lanes: of the group, None where all are meant
    wrote: the registers of the slice that it wrote, then the result of an atomic, by number
    read: the first operands, where they count
    """

    who: tuple[int, int]
    pc: int
    lanes: Array
    wrote: dict[int, Array]
    read: tuple[Array, ...]


class Recorder:
    """Records what the groups of `batches` execute, until its end."""

    def __init__(self, launch: Launch, batches: Sequence[Batch]) -> None:
        self.entries: list[Entry] = []
        self._room = _ROOM
        self._slice = frozenset(launch.code.slice.registers)
        self._code = launch.code
        self._runners = [runner for batch in batches for runner in batch.runners]
        steps = [self._recorded(step) for step in launch.steps]
        for runner in self._runners:
            runner.record(steps)

    @property
    def full(self) -> bool:
        """Return whether there is too much."""
        return self._room < 0

    def end(self) -> None:
        """End recording."""
        for runner in self._runners:
            if vars(runner):  # it may have ended
                runner.record(None)

    def _recorded(self, step: Step) -> Step:
        """Return a step that is recorded."""
        ins, pc = step.instruction, step.instruction.index
        _, writes = self._code.registers_of(pc)
        kept = sorted(writes if ins.opcode[0] == "atom" else writes & self._slice)
        reads = self._readers(ins) if kept else ()

        def note(group: Group, where: Lanes, before: tuple[Array, ...]) -> None:
            wrote = {number: _whole(group, group.registers[number]) for number in kept}
            self._room -= sum(array.nbytes for array in (*wrote.values(), *before)) + 200
            lanes = broadcast_mask(where, group.shape)
            self.entries.append(Entry((group.batch.first, group.row), pc, lanes, wrote, before))

        if step.run is not None:
            run = step.run

            def runs(group: Group, where: Lanes) -> None:
                before = tuple(read(group) for read in reads)
                run(group, where)
                note(group, where, before)

            return dataclasses.replace(step, run=runs)
        if step.attempt is not None:
            attempt = step.attempt

            def attempts(group: Group, where: Lanes) -> Lanes:
                done = attempt(group, where)
                note(group, done, ())
                return done

            return dataclasses.replace(step, attempt=attempts)
        return step

    def _readers(self, ins: Instruction) -> tuple[Callable[[Group], Array], ...]:
        """Return what reads the operands that count of an instruction."""
        operands: tuple[str, ...] = ()
        if ins.opcode[0] in _READ and len(ins.operands) > 2:
            operands = ins.operands[1:3]
        elif ins.opcode[0] == "atom" and not _ADDS & set(ins.opcode) and len(ins.operands) > 2:
            operands = ins.operands[2:3]
        known = all(text in self._code.numbers or literal(text) is not None for text in operands)
        return tuple(self._reader(ins, text) for text in operands) if known else ()

    def _reader(self, ins: Instruction, text: str) -> Callable[[Group], Array]:
        number, value = self._code.numbers.get(text), literal(text)
        kind = ins.opcode[-1]
        mask = (1 << int(kind[1:])) - 1 if kind in ("u8", "u16", "u32") else -1

        def read(group: Group) -> Array:
            found = _whole(group, group.registers[number] if number is not None else value or 0)
            return found & mask if mask >= 0 and found.dtype != np.bool_ else found

        return read


def _whole(group: Group, value: Any) -> Array:
    """Return a register as integers that broadcast to (T, C), or its bits."""
    if isinstance(value, Mask):
        return value.array
    if isinstance(value, bool) or value is None:
        return np.array(bool(value))
    if isinstance(value, int | Affine):
        return spread(value, group.shape).copy() if isinstance(value, Affine) else np.array(value, np.int64)
    array = np.asarray(value)
    return array.view(f"i{array.dtype.itemsize}").astype(np.int64)


def endless(launch: Launch, periods: Sequence[Sequence[Entry]]) -> int:
    """Return 1 if what was recorded of three periods goes on for ever, 0 if that is not known; otherwise how
    many of these periods may be one.
    """
    keys = [[(entry.who, entry.pc) for entry in period] for period in periods]
    if not keys[0] or not keys[0] == keys[1] == keys[2]:
        return 2
    moving: dict[tuple[int, int], set[int]] = {}
    lasts, times = True, 1
    length = len(keys[0]) // len({who for who, _ in keys[0]})  # of a group
    together = list(zip(*periods, strict=True))
    for a, b, c in together:
        if not (a.lanes == b.lanes).all() or not (b.lanes == c.lanes).all():
            return 2
        times = math.lcm(times, _multiple(launch, (a, b, c)))
        for number, value in c.wrote.items():
            change = _change(a.wrote[number], b.wrote[number], value)
            if change is None:
                lasts = False
            elif change.any():
                lasts &= _lasts(launch, a.pc, value, change, length)
                moving.setdefault(a.who, set()).add(number)
    if times > 1 or not lasts:
        return times if times > 1 else 0
    kept = (_keeps(launch, entries, moving.get(entries[0].who, set()), length) for entries in together)
    return int(all(kept))


def nears(launch: Launch, periods: Sequence[Sequence[Entry]]) -> int:
    """Return after how many periods the first comparison that nears its end gets there, 0 for none within the
    budget.
    """
    most = launch.budget * 3 // max(1, sum(len(period) for period in periods))
    found = []
    for entries in zip(*periods, strict=False):
        if len({(entry.who, entry.pc) for entry in entries}) > 1 or len(entries[0].read) != 2:
            continue
        if launch.entry.instructions[entries[0].pc].opcode[0] not in _COMPARES:
            continue
        change = _change(*(e.read[0] - e.read[1] for e in entries))
        if change is not None and change.any():
            gap, lanes = entries[2].read[0] - entries[2].read[1], entries[2].lanes
            gap, change, lanes = np.broadcast_arrays(gap, change, lanes)
            near = lanes & (change != 0) & (np.sign(gap) == -np.sign(change))
            found += (np.abs(gap[near]) // np.abs(change[near]) + 1).tolist()
    return min((turns for turns in found if turns < most), default=0)


def _multiple(launch: Launch, entries: tuple[Entry, Entry, Entry]) -> int:
    """Return how many periods it takes until a rest, or a mask, is the same again as far as it is known."""
    ins = launch.entry.instructions[entries[0].pc]
    if ins.opcode[0] not in _READ - _COMPARES or not entries[0].read:
        return 1
    by, change = _by(ins), _change(*(e.read[0] for e in entries))
    if by is None or change is None or not change.any():
        return 1
    whole, bits = abs(by), BYTES[ins.opcode[-1]] * 8
    if ins.opcode[0] == "and":
        whole = -by & (1 << bits) - 1 if by < 0 or by >> bits - 1 else 1 << by.bit_length()
    elif ins.opcode[0] == "shr":
        whole = 1 << by if by < _MAGIC else 1
    elif ins.opcode[0] == "mul":  # by which compilers divide
        powers = [1 << s for s in range(_MAGIC, _MAGIC + 8)] if whole >> _MAGIC - 8 else []
        near = [n for power in powers if abs((n := round(power / whole)) * whole - power) < n << 8]
        whole = next((n for n in near if n > 1), 1)
    return math.lcm(*(whole // math.gcd(whole, int(c)) for c in np.unique(change))) if whole else 1


def _by(ins: Instruction, entries: Sequence[Entry] = ()) -> int | None:
    """Return by what is divided, masked or shifted: a literal, or the one number that a register holds."""
    if len(ins.operands) < 3:
        return None
    found = literal(ins.operands[2])
    if found is None and entries and all(len(entry.read) == 2 for entry in entries):
        held = np.unique(np.concatenate([entry.read[1].ravel() for entry in entries]))
        found = int(held[0]) if len(held) == 1 else None
    if not isinstance(found, int) or (ins.opcode[0] == "shr" and not 0 <= found < 62):
        return None  # what is shifted out leaves nothing to count by
    return found


def _change(a: Array, b: Array, c: Array) -> Array | None:
    """Return by what a value changes each time, None where that is not the same."""
    if np.bool_ in (a.dtype, b.dtype, c.dtype):
        same = a.dtype == b.dtype == c.dtype and bool(((a == b) & (b == c)).all())
        return np.zeros(1, np.int64) if same else None
    change = c - b
    return change if bool((b - a == change).all()) else None


def _lasts(launch: Launch, pc: int, value: Array, change: Array, length: int) -> bool:
    """Return whether a value that changes so does not pass the end of its range within the budget."""
    opcode = launch.entry.instructions[pc].opcode
    bits = min((8 * BYTES[part] for part in opcode if part in BYTES), default=32) * (1 + ("wide" in opcode))
    half = 1 << min(bits, 62) - 1
    value, change = np.broadcast_arrays(value, change)
    value, change = value[change != 0], change[change != 0]
    room = np.where(change > 0, half - np.mod(value, half), np.mod(value, half))
    return int((room // np.abs(change)).min()) > launch.budget // length


def fills(ins: Instruction) -> bool:
    """Return whether an instruction is a bulk copy to shared memory."""
    spaces = [part for part in ins.opcode if part in ("global", "shared::cta", "shared::cluster")]
    return ins.opcode[:3] == ("cp", "async", "bulk") and spaces[:1] in (["shared::cta"], ["shared::cluster"])


def _keeps(launch: Launch, entries: tuple[Entry, Entry, Entry], moving: set[int], length: int) -> bool:
    """Return whether an instruction goes on to give what it gave, for registers that change so."""
    ins = launch.entry.instructions[entries[0].pc]
    code, opcode = launch.code, ins.opcode[0]
    stores = opcode in STORES and not code.slice.spaces.isdisjoint(spaces_of(ins))
    if not entries[0].wrote and not stores:
        return True
    reads, writes = code.registers_of(ins.index)
    if fills(ins):
        return not moving & reads  # what shared memory then holds is compared as a whole
    if opcode in UNKNOWN or "async" in ins.opcode:
        return False
    if opcode == "red" and "add" not in ins.opcode:
        return not moving
    if opcode == "atom" and not _ADDS & set(ins.opcode) and moving & (reads | writes):
        return not _BITWISE & set(ins.opcode) and _swaps(entries)
    return not moving & reads or _sums(launch, ins, entries, moving, length)


def _sums(
    launch: Launch, ins: Instruction, entries: tuple[Entry, Entry, Entry], moving: set[int], length: int
) -> bool:
    """Return whether what an instruction gives changes by the same amount as long as what it reads does."""
    opcode, whole = ins.opcode[0], ins.opcode[-1][0] in "usb"
    if opcode in _MEMORY:
        names = ins.operands[opcode not in ("st", "red")].strip("[] ").split("+")
        return not moving & {number for name in names for number in named(launch.code, name)}
    if opcode in _COMPARES:
        gaps = [e.read[0] - e.read[1] for e in entries if len(e.read) == 2]
        return whole and len(gaps) == len(entries) and _apart(gaps, entries[2].lanes)
    if opcode in ("mul", "mad"):
        return whole and "hi" not in ins.opcode
    if opcode == "cvt":
        return whole and ins.opcode[-2][0] in "usb"
    return whole and (opcode in _SUMS or (opcode in _READ and _divides(launch, entries, length)))


def _apart(gaps: Sequence[Array], lanes: Array) -> bool:
    """Return whether the difference of what is compared stays the same, or grows."""
    change, now = np.broadcast_arrays(gaps[2] - gaps[1], gaps[2], lanes)[:2]
    if not (gaps[1] - gaps[0] == gaps[2] - gaps[1]).all():
        return False
    return bool(((change == 0) | (np.sign(change) == np.sign(now)) | ~lanes).all())


def _swaps(entries: tuple[Entry, Entry, Entry]) -> bool:
    """Return whether an atomic that compares goes on to come out as it did."""
    if not entries[0].read or len(entries[0].wrote) != 1:
        return False
    return _apart([next(iter(e.wrote.values())) - e.read[0] for e in entries], entries[2].lanes)


def _divides(launch: Launch, entries: tuple[Entry, Entry, Entry], length: int) -> bool:
    """Return whether a division, or a mask, by a number gives the change divided, or its rest."""
    ins = launch.entry.instructions[entries[0].pc]
    by = _by(ins, entries)
    if by is None or not entries[0].read or (by == 0 and ins.opcode[0] != "and"):
        return False
    result = [next(iter(e.wrote.values())) for e in entries]
    now = entries[2].read[0]
    into, out = now - entries[1].read[0], result[2] - result[1]
    opcode, bits = ins.opcode[0], int(ins.opcode[-1][1:])
    if opcode == "shr" and ins.opcode[-1][0] == "s" and by == bits - 1:
        return _apart([2 * e.read[0] + 1 for e in entries], entries[2].lanes)  # the sign
    if opcode == "and":
        high = by < 0 or bool(by >> bits - 1)
        whole, left = (-by & (1 << bits) - 1, into - out) if high else (1 << by.bit_length(), out)
        return not left.any() and not (into % whole).any() and not (high and whole & whole - 1)
    if opcode == "rem":
        return by > 0 and not out.any() and not (into % by).any()
    whole = 1 << by if opcode == "shr" else by
    left = np.asarray(into - out * whole)
    # A product by which compilers divide is not quite a multiple of what it gives.
    room = np.where(left > 0, whole - np.mod(now, whole), np.mod(now, whole)) // np.maximum(abs(left), 1)
    return bool(((room > launch.budget // length) | (left == 0)).all())
