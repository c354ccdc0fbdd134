"""The turns that a loop has left, by the comparisons that end it and what they compared at the last turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.emulator.blocks import special
from harness.emulator.group import spread
from harness.emulator.numbers.values import Array
from harness.emulator.ptx.declarations import BYTES
from harness.emulator.ptx.literals import literal
from harness.emulator.ptx.program import Entry, Instruction

if TYPE_CHECKING:
    from harness.emulator.blocks.runner import Runner
    from harness.emulator.executable import Executable

_EXACT = {"eq", "ne", "equ", "neu"}


@dataclass(frozen=True)
class Comparison:
    """A comparison that ends a loop.

    kind: the type of what it compares
    bits: of a counter that the loop steps by always the same; it comes round to zero. 0 for anything else
    """

    instruction: Instruction
    kind: str
    bits: int


def exits(entry: Entry, first: int, last: int) -> list[Instruction]:
    """Return the instructions by which threads leave the loop from instruction `first` to `last`."""
    body = range(first, last + 1)
    found = []
    for ins in entry.instructions[first : last + 1]:
        leaves = any(target not in body for target in ins.targets)
        falls = ins.index == last and bool(ins.guard)
        if leaves or falls or ins.opcode[0] in ("exit", "ret", "trap"):
            found.append(ins)
    return found


def comparisons(code: Executable, first: int, last: int) -> list[Comparison]:
    """Return the comparisons of the guards by which threads leave a loop."""
    # ``@p bra`` before an exit without a guard leads past it.
    instructions = code.entry.instructions
    left = [(ins, instructions[ins.index - 1]) for ins in exits(code.entry, first, last)]
    guards = {ins.guard or (before.guard if before.targets else "") for ins, before in left} - {""}
    found = []
    for ins in reversed(instructions[first : last + 1]):
        if ins.operands and guards & set(ins.operands[0].split("|")):
            if ins.opcode[0] == "setp" and len(ins.operands) >= 3:
                kind = ins.opcode[-1]
                counts = kind[0] in "usb" and _counter(code, ins, first)
                found.append(Comparison(ins, kind, 8 * BYTES[kind] if counts else 0))
            guards |= set(ins.operands[1:])  # of ``and.pred`` and the like
    return found


def _counter(code: Executable, ins: Instruction, first: int) -> bool:
    """Return whether a comparison for equality has a counter, which is stepped by what does not change, and
    something else that does not change in the loop that begins at instruction `first`.
    """
    writers: dict[str, list[Instruction]] = {}
    for other in code.entry.instructions[first:]:
        for name in other.operands[:1]:
            if code.registers_of(other.index)[1]:
                writers.setdefault(name, []).append(other)
    moving = [text for text in ins.operands[1:3] if text in writers]
    if len(moving) != 1 or not _EXACT.intersection(ins.opcode[1:]):
        return False
    reached = set(moving)
    while moving:
        for other in writers[moving.pop()]:
            read = [text for text in other.operands[1:] if text in writers]
            if other.opcode[0] not in ("add", "sub", "mov") or other.guard or len(read) != 1:
                return False
            moving += [text for text in read if text not in reached]
            reached |= set(read)
    return True


def value_of(runner: Runner, text: str, kind: str) -> Array:
    """Return the value of an operand of a comparison, float64, that broadcasts to (T, C); NaN if unknown."""
    group = runner.group
    found: Any = literal(text)
    if text in group.launch.numbers:
        found = group.registers[group.launch.numbers[text]]
    elif found is None and (read := special.reader(text)) is not None:
        found = read(group)
    try:
        if found is None:
            return np.array(np.nan)
        if kind in ("f32", "f64"):
            return np.array(group.floating(found, np.float32 if kind == "f32" else np.float64), np.float64)
        whole = spread(group.integer(found, int(kind[1:])), group.shape)
        if kind[0] == "u" and kind != "u64":
            whole = whole & ((1 << int(kind[1:])) - 1)
        return whole.astype(np.float64)
    except (AttributeError, TypeError, ValueError):  # a register of another type than the comparison's
        return np.array(np.nan)


def last_turns(taken: Array) -> list[Array]:
    """Return the places of the last three turns of each lane, (1, T, C), the latest one last; -1 for none.

    taken: the lanes that took each turn, (turns, T, C); warps that wait for each other take theirs in turn
    """
    ranks = np.where(taken, np.arange(len(taken)).reshape(-1, 1, 1), -1)
    return [at[np.newaxis] for at in np.sort(ranks, axis=0)[-3:]]


def turns_left(compared: Comparison, gaps: list[Array]) -> Array:
    """Return, per lane, the turns until a comparison comes out otherwise: inf where it does not near that.

    gaps: the difference of what is compared at three turns, the latest one last, (T, C)

    The result is (2, T, C): where the difference changes by the same amount each turn, and where it nears
    zero in any way. What comes round to zero is as far from it as it has to go.
    """
    first, second, now = gaps
    steps = np.stack([second - first, now - second])
    exact = bool(_EXACT.intersection(compared.instruction.opcode[1:]))
    if compared.bits:
        away = (np.sign(steps) == np.sign(now)).all(0)
        now = np.where(away, now - np.sign(now) * 2.0**compared.bits, now)
    with np.errstate(invalid="ignore", divide="ignore"):
        slowest = np.abs(steps).min(0)
        turns = np.floor(np.abs(now) / slowest) + 1
        nears = (np.sign(steps) == -np.sign(now)).all(0) & np.isfinite(turns)
        even = nears & (steps[0] == steps[1])
        if exact:  # it may step over zero
            nears = even = even & (np.mod(now, slowest) == 0)
    return np.where(np.stack([even, nears]), turns, np.inf)
