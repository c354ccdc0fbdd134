"""The stack: registers kept across a recursive call, ``alloca``, and calls that lead nowhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.emulator.decode import Decoder, Run, handles
from harness.emulator.group import Group
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.memory import GLOBAL_BASE, LOCAL_BASE, SHARED_BASE
from harness.emulator.numbers.values import Integer, Lanes, bounds
from harness.emulator.ptx.calls import FRAME, STACK, STACK_NAME, TOP
from harness.emulator.ptx.program import Instruction
from harness.errors import EmulatorError


def push(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``call.push``: keep the registers of a function that may call itself. See `ptx.calls`."""
    registers = [decoder.numbers[name] for name in ins.operands]
    frame = decoder.value(ins, FRAME)

    def run(group: Group, where: Lanes) -> None:
        _check(group, ins, frame(group))
        kept: dict[int, Any] = {}
        for number in registers:
            value = group.registers[number]
            kept[number] = value.copy() if isinstance(value, np.ndarray) else value
        kept[decoder.numbers[FRAME]] = frame(group)
        group.pushed.append((where, kept))

    return run


def _check(group: Group, ins: Instruction, frame: Integer) -> None:
    """Raise EmulatorError where the frames have used up half of the stack."""
    if bounds(frame)[1] >= group.launch.symbols[STACK_NAME] + STACK // 2:
        raise EmulatorError(
            f"a function that calls itself has used up its stack of {STACK // 2:,} bytes",
            where=str(ins.source),
        )


def pop(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``call.pop``: restore what each lane has pushed last."""

    def run(group: Group, where: Lanes) -> None:
        algebra, left = group.algebra, where
        kept: list[tuple[Lanes, dict[int, Any]]] = []
        for lanes, values in reversed(group.pushed):
            taken = algebra.both(lanes, left)
            if taken is not False:
                for number, value in values.items():
                    if value is not None:
                        group.write(number, value, taken)
                left = algebra.both(left, algebra.negate(taken))
                lanes = algebra.both(lanes, algebra.negate(taken))  # noqa: PLW2901
            if lanes is not False:
                kept.append((lanes, values))
        group.pushed = kept[::-1]

    return run


@handles("alloca", "stacksave", "stackrestore", family="integer")
def alloca(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``alloca``, and ``stacksave`` and ``stackrestore``, by which its memory is given back.

    It grows downwards from the end of the thread's stack.
    """
    name = ins.opcode[0]
    top = decoder.numbers[TOP]
    if name == "stacksave":
        into = decoder.register(ins, ins.operands[0])
        return lambda group, where: group.write(into, _top(group, top), where)
    if name == "stackrestore":
        read = decoder.integer(ins, ins.operands[0], 64)
        return lambda group, where: group.write(top, read(group), where)
    into, size = decoder.register(ins, ins.operands[0]), decoder.integer(ins, ins.operands[1], 64)
    align = int(ins.operands[2], 0) if len(ins.operands) > 2 else 16

    def run(group: Group, where: Lanes) -> None:
        algebra = group.algebra
        lower = algebra.linear(_top(group, top), 1, size(group), -1, bits=64)
        lower = algebra.apply(("down", align), lambda v: v // align * align, lower)
        if bounds(lower)[0] < group.launch.symbols[STACK_NAME] + STACK // 2:
            raise EmulatorError(f"alloca needs more than {STACK // 2:,} bytes", where=str(ins.source))
        group.write(top, lower, where)
        group.write(into, lower, where)

    return run


def _top(group: Group, top: int) -> Integer:
    """Return the address of the lowest alloca; without any, the end of the stack."""
    found: Integer | None = group.registers[top]
    return group.launch.symbols[STACK_NAME] + STACK if found is None else found


def octets(group: Group, address: int, count: int, thread: int, column: int) -> bytes:
    """Return up to `count` bytes at a generic address, as one thread of a block sees them.

    Fewer are returned where the memory ends.
    """
    for base, scratch, owner in (
        (LOCAL_BASE, group.batch.local, (thread + group.row) * group.batch.blocks + column),
        (SHARED_BASE, group.batch.shared, column),
    ):
        if base <= address < 2 * base:
            first = address - base
            end = min(first + count, scratch.size)
            words = scratch.flat().view(np.uint32)[owner :: scratch.columns]
            whole = words[first // 4 : -(-end // 4)].tobytes()
            return whole[first % 4 : first % 4 + max(0, end - first)]
    arena = group.launch.arena
    owner_of = next((a for a in arena.allocations if a.start <= address < a.end), None)
    if owner_of is None:
        return b""
    start = address - GLOBAL_BASE
    return arena.view(1)[start : start + min(count, owner_of.end - address)].tobytes()


def lanes_of(group: Group, where: Lanes) -> list[tuple[int, int]]:
    """Return (thread, column) of each lane, block by block."""
    found = np.argwhere(broadcast_mask(where, group.shape).T)
    return [(int(thread), int(column)) for column, thread in found]
