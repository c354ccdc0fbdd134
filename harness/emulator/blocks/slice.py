"""The control slice of a kernel: the registers and the memory that decide which way its threads go.

It is a backward slice (Weiser, "Program Slicing", ICSE 1981) from branches, barriers and the masks of warp
instructions. As long as the slice of all threads has the same values at the same instructions, the same
happens again, whatever the other registers and memory hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.emulator.blocks.control import POLL, asynchronous

if TYPE_CHECKING:
    from harness.emulator.machine import Launch
    from harness.emulator.ptx.program import Instruction
    from harness.emulator.watch.findings import Source

_CONTROL = {"bra", "brx", "exit", "ret", "trap", "bar", "barrier"}
_LOADS = {"ld", "ldu", "atom", "cp", "ldmatrix", "wmma", "suld"}
_STORES = {"st", "red", "atom", "cp", "stmatrix", "wmma", "sust", "sured"}
_UNKNOWN = {"wgmma", "call", "sust", "sured"}  # what they change is not among registers and memory
_SPACES = ("global", "shared", "local")


@dataclass(frozen=True)
class Slice:
    """The instructions that decide which way the threads of a kernel go.

    registers: by number, in order
    spaces: of ``global``, ``shared`` and ``local``
    complete: there is nothing else, such as a copy on its way
    """

    registers: tuple[int, ...]
    spaces: frozenset[str]
    complete: bool


def control_slice(launch: Launch) -> Slice:
    """Return the control slice of the kernel of a launch."""
    instructions = launch.entry.instructions
    registers: set[int] = set()
    for ins in instructions:
        reads, _ = launch.registers_of(ins.index)
        if ins.opcode[0] in _CONTROL:
            registers |= reads
        elif "sync" in ins.opcode and ins.operands:
            registers |= _named(launch, ins.operands[-1])
        if ins.guard and launch.paces[ins.index]:  # polls and stores decide who runs next
            registers |= _named(launch, ins.guard)
    spaces: set[str] = set()
    before = -1
    while before != len(registers) + len(spaces):
        before = len(registers) + len(spaces)
        for ins in instructions:
            reads, writes = launch.registers_of(ins.index)
            stores = ins.opcode[0] in _STORES and not spaces.isdisjoint(_spaces(ins))
            if stores or not registers.isdisjoint(writes):
                registers |= reads
                if ins.opcode[0] in _LOADS:
                    spaces.update(_spaces(ins))
    strange = any(ins.opcode[0] in _UNKNOWN or asynchronous(ins) for ins in instructions)
    return Slice(tuple(sorted(registers)), frozenset(spaces), not strange)


def contended(launch: Launch) -> tuple[Source, ...]:
    """Return the lines that read what other threads may change at any time, where that decides the way.

    These are atomics and strong loads of global memory, in the control slice: tickets, locks, flags. What
    they give depends on who comes first, and so does what the kernel does.
    """
    found = [
        ins
        for ins in launch.entry.instructions
        if launch.paces[ins.index] == POLL and ins.opcode[0] in _LOADS and "global" in _spaces(ins)
    ]
    if not found:
        return ()
    decides = set(launch.slice.registers)
    deciding = [ins for ins in found if not decides.isdisjoint(launch.registers_of(ins.index)[1])]
    return tuple(dict.fromkeys(ins.source for ins in deciding))


def _named(launch: Launch, text: str) -> set[int]:
    """Return the number of the register that an operand names, if it names one."""
    number = launch.numbers.get(text.lstrip("!"))
    return set() if number is None else {number}


def _spaces(ins: Instruction) -> tuple[str, ...]:
    """Return the state spaces that a memory instruction may access: all for a generic address."""
    parts = {part.split("::")[0] for part in ins.opcode}
    if parts & {"param", "const"}:
        return ()
    return tuple(space for space in _SPACES if space in parts) or _SPACES
