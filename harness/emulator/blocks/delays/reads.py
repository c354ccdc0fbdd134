"""Strong reads of data: those whose value decides nothing, so that what they read has to be there already.

A read that decides a branch or a mask may wait for what it reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.emulator.blocks.slice import CONTROL, LOADS, named, spaces_of
from harness.emulator.watch.knowledge import semantics

if TYPE_CHECKING:
    from harness.emulator.executable import Executable

_OTHERS = {*LOADS, "mbarrier"}  # what these read does not make up what they return


def relying(code: Executable, space: str = "global") -> frozenset[int]:
    """Return the strong reads of a space, by index, of data: no branch and no mask depends on what they read.

    That is by way of registers alone, and of no other read at the same address: who has polled a place may
    read it again. Of atomics those count that put a constant there, or add 0, and return what was there
    before.
    """
    entries = code.entry.instructions
    reading = [
        ins
        for ins in entries
        if ins.opcode[0] in ("ld", "atom") and semantics(ins).strong and space in spaces_of(ins)
    ]
    if not reading:
        return frozenset()
    decides = _deciding(code)
    wanted = frozenset().union(*(code.registers_of(ins.index)[0] for ins in entries))
    found, polled = set(), set()
    for ins in reading:
        last = ins.operands[-1]
        if ins.index in decides:
            polled.add(ins.operands[1])
        elif code.registers_of(ins.index)[1] & wanted and (
            ins.opcode[0] == "ld" or ("exch" in ins.opcode and last.isdecimal()) or last == "0"
        ):
            found.add(ins.index)
    return frozenset(index for index in found if entries[index].operands[1] not in polled)


def _deciding(code: Executable) -> set[int]:
    """Return the instructions, by index, whose results branches and masks depend on, by way of registers."""
    entries, definitions = code.entry.instructions, _Definitions(code)
    found: set[int] = set()
    open_: list[tuple[int, Iterable[int]]] = []
    for ins in entries:
        if ins.opcode[0] in CONTROL:
            open_.append((ins.index, code.registers_of(ins.index)[0]))
        elif "sync" in ins.opcode and ins.operands:
            open_.append((ins.index, named(code, ins.operands[-1])))
    while open_:
        at, registers = open_.pop()
        for register in registers:
            new = definitions.reaching(at, register) - found
            found |= new
            open_ += [(i, code.registers_of(i)[0]) for i in new if entries[i].opcode[0] not in _OTHERS]
    return found


class _Definitions:
    """Which instructions a register may have its value from, at each instruction of a kernel."""

    def __init__(self, code: Executable) -> None:
        self._code, entries = code, code.entry.instructions
        self._all: defaultdict[int, set[int]] = defaultdict(set)  # by register
        # By instruction, what may come before it.
        self._before: defaultdict[int, list[int]] = defaultdict(list)
        for ins in entries:
            for register in code.registers_of(ins.index)[1]:
                self._all[register].add(ins.index)
            for target in ins.targets:
                self._before[target].append(ins.index)
            if ins.guard or ins.opcode[0] not in ("bra", "brx", "ret", "exit"):
                self._before[ins.index + 1].append(ins.index)
        self._calls = any("call" in ins.opcode for ins in entries)  # whose ways are not among these

    def reaching(self, at: int, register: int) -> set[int]:
        """Return the instructions that may have written what `register` holds at the instruction `at`."""
        every = self._all[register]
        if len(every) < 2 or self._calls:
            return every
        found: set[int] = set()
        open_, seen = [*self._before[at]], set[int]()
        while open_:
            i = open_.pop()
            if i in seen:
                continue
            seen.add(i)
            if i in every:
                found.add(i)
            if i not in every or self._code.entry.instructions[i].guard:
                open_ += self._before[i]
        return found
