"""The control slice of a kernel: the registers and the memory that decide which way its threads go.

It is a backward slice (Weiser, "Program Slicing", ICSE 1981) from branches, barriers and the masks of warp
instructions. As long as the slice of all threads has the same values at the same instructions, the same
happens again, whatever the other registers and memory hold. `Repeats` compares what it holds.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.emulator.blocks.control import POLL, asynchronous
from harness.emulator.memory import GLOBAL_BASE
from harness.emulator.numbers.values import Affine, Mask
from harness.emulator.ptx.declarations import BYTES

if TYPE_CHECKING:
    from harness.emulator.blocks.batch import Batch
    from harness.emulator.executable import Executable
    from harness.emulator.machine import Launch
    from harness.emulator.ptx.program import Instruction
    from harness.emulator.watch.findings import Source

CONTROL = {"bra", "brx", "exit", "ret", "trap", "bar", "barrier"}
LOADS = {"ld", "ldu", "atom", "cp", "ldmatrix", "wmma", "suld"}
STORES = {"st", "red", "atom", "cp", "stmatrix", "wmma", "sust", "sured"}
UNKNOWN = {"wgmma", "call", "sust", "sured"}  # what they change is not among registers and memory
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


def control_slice(code: Executable) -> Slice:
    """Return the control slice of a kernel."""
    instructions = code.entry.instructions
    registers: set[int] = set()
    for ins in instructions:
        reads, _ = code.registers_of(ins.index)
        if ins.opcode[0] in CONTROL:
            registers |= reads
        elif "sync" in ins.opcode and ins.operands:
            registers |= named(code, ins.operands[-1])
        if ins.guard and code.paces[ins.index]:  # polls and stores decide who runs next
            registers |= named(code, ins.guard)
    spaces: set[str] = set()
    before = -1
    while before != len(registers) + len(spaces):
        before = len(registers) + len(spaces)
        for ins in instructions:
            reads, writes = code.registers_of(ins.index)
            stores = ins.opcode[0] in STORES and not spaces.isdisjoint(spaces_of(ins))
            if stores or not registers.isdisjoint(writes):
                registers |= reads
                if ins.opcode[0] in LOADS:
                    spaces.update(spaces_of(ins))
    strange = any(ins.opcode[0] in UNKNOWN or asynchronous(ins) for ins in instructions)
    return Slice(tuple(sorted(registers)), frozenset(spaces), not strange)


def contended(code: Executable, space: str = "global") -> tuple[Source, ...]:
    """Return the lines that read what other threads may change at any time, where that decides the way.

    These are atomics and strong loads of global memory, in the control slice: tickets, locks, flags. What
    they give depends on who comes first, and so does what the kernel does. Of shared memory they are strong
    loads alone.
    """
    found = [
        ins
        for ins in code.entry.instructions
        if code.paces[ins.index] == POLL and ins.opcode[0] in LOADS and space in spaces_of(ins)
    ]
    if space == "shared":
        found = [ins for ins in found if ins.opcode[0] == "ld"]
    if not found:
        return ()
    decides = set(code.slice.registers)
    deciding = [ins for ins in found if not decides.isdisjoint(code.registers_of(ins.index)[1])]
    return tuple(dict.fromkeys(ins.source for ins in deciding))


def guesses(code: Executable) -> frozenset[int]:
    """Return the loads, by index, whose value an ``atom.cas`` at the same address expects there.

    They may read anything: where it is not there any more, the swap fails. So begins the loop by which the
    CUDA Programming Guide makes other atomics of ``atomicCAS``.
    """
    if not any("cas" in ins.opcode for ins in code.entry.instructions):
        return frozenset()
    writes = Counter(number for ins in code.entry.instructions for number in code.registers_of(ins.index)[1])
    copies: dict[str, set[str]] = {}
    same: dict[str, str] = {}  # what a register holds all the time
    for ins in code.entry.instructions:
        if ins.opcode[0] in ("mov", "cvta") and len(ins.operands) == 2:
            into, value = ins.operands
            copies.setdefault(value, set()).add(into)
            if writes[code.numbers.get(into, -1)] == 1 and writes[code.numbers.get(value, -1)] <= 1:
                same[into] = value

    def place(ins: Instruction) -> tuple[str, int]:
        """Return the address of a load or an atomic, and its size in bytes."""
        base, plus, offset = ins.operands[1].strip("[] ").partition("+")
        seen = {base}
        while (copied := same.get(base)) is not None and copied not in seen:  # which may be in a circle
            base = copied
            seen.add(base)
        return base + plus + offset, BYTES.get(ins.opcode[-1], 0)

    swaps: dict[tuple[str, int], set[str]] = {}
    for ins in code.entry.instructions:
        if ins.opcode[0] == "atom" and "cas" in ins.opcode and len(ins.operands) > 2:
            swaps.setdefault(place(ins), set()).add(ins.operands[2])
    found = set()
    for ins in code.entry.instructions:
        compared = swaps.get(place(ins)) if ins.opcode[0] == "ld" else None
        reached, open_ = {ins.operands[0]} if compared else set(), [*ins.operands[:1]]
        while compared and open_:
            new = copies.get(open_.pop(), set()) - reached
            reached |= new
            open_.extend(new)
        if compared and reached & compared:
            found.add(ins.index)
    return frozenset(found)


def named(code: Executable, text: str) -> set[int]:
    """Return the number of the register that an operand names, if it names one."""
    number = code.numbers.get(text.lstrip("!"))
    return set() if number is None else {number}


def spaces_of(ins: Instruction) -> tuple[str, ...]:
    """Return the state spaces that a memory instruction may access: all for a generic address."""
    parts = {part.split("::")[0] for part in ins.opcode}
    if parts & {"param", "const"}:
        return ()
    return tuple(space for space in _SPACES if space in parts) or _SPACES


class Repeats:
    """Tells when a sequence of states is periodic: some time after its second period, at the latest."""

    def __init__(self) -> None:
        self._kept: tuple[bytes, bytes] | None = None
        self._count, self._power = 0, 1

    def seen(self, batches: Sequence[Batch]) -> bool:
        """Return whether the batches are in the state that was kept."""
        threads = b"".join(threads_state(batch) for batch in batches)
        if self._kept is not None and threads == self._kept[0] and memory_state(batches) == self._kept[1]:
            return True
        self._count += 1
        if self._count == self._power:
            self._kept, self._count, self._power = (threads, memory_state(batches)), 0, 2 * self._power
        return False


def threads_state(batch: Batch) -> bytes:
    """Return a digest of where the threads of a batch stand and of the registers of their control slice."""
    digest = hashlib.blake2b(_standing(batch), digest_size=16)
    for runner in batch.runners:
        for number in batch.launch.code.slice.registers:
            digest.update(_bits(runner.group.registers[number], runner.group.shape))
    return digest.digest()


def standing_state(batches: Sequence[Batch], launch: Launch) -> bytes:
    """Return a digest of where the threads of batches stand, and of what units do and barriers count."""
    digest = hashlib.blake2b(repr(launch.heap_used).encode(), digest_size=16)
    clusters = {}
    for batch in batches:
        digest.update(_standing(batch))
        if (cluster := getattr(batch, "cluster", None)) is not None:
            clusters[id(cluster)] = cluster
    for cluster in clusters.values():
        digest.update(repr(len(cluster.pending)).encode())
        for address, barrier in sorted(cluster.barriers.items()):
            counts = address, barrier.count, barrier.pending, barrier.bytes, barrier.phase & 1
            digest.update(repr(counts).encode())
    return digest.digest()


def _standing(batch: Batch) -> bytes:
    """Return a digest of where the threads of a batch stand, and of arrivals at its barriers."""
    digest = hashlib.blake2b(digest_size=16)

    def note(*values: object) -> None:
        digest.update(repr(values).encode())

    note(batch.loops.turns())
    for key, arrived in sorted(batch.barriers.arrivals.items()):
        note(key, arrived.tolist())
    for runner in batch.runners:
        note(runner.polls, runner.members.forced)
        waiting = {w.pc: w.where for w in runner.waiting}
        for lanes in (runner.ready, runner.later, runner.parked, waiting, {0: runner.members.ended}):
            note(len(lanes))
            for pc in sorted(lanes):
                note(pc)
                digest.update(_bits(lanes[pc], runner.group.shape))
    return digest.digest()


def memory_state(batches: Sequence[Batch]) -> bytes:
    """Return a digest of the memory in the control slice of batches of one launch."""
    launch = batches[0].launch
    digest = hashlib.blake2b(repr(launch.heap_used).encode(), digest_size=16)
    for space in sorted(launch.code.slice.spaces - {"global"}):
        for batch in batches:
            digest.update((batch.shared if space == "shared" else batch.local).flat().tobytes())
    if "global" in launch.code.slice.spaces:
        octets = launch.arena.view(1)
        for index in sorted(launch.arena.stored):
            owner = launch.arena.allocations[index]
            digest.update(octets[owner.start - GLOBAL_BASE : owner.end - GLOBAL_BASE].tobytes())
    return digest.digest()


def shared_state(batches: Sequence[Batch]) -> bytes:
    """Return a digest of the shared memory of batches."""
    digest = hashlib.blake2b(digest_size=16)
    for memory in {id(batch.shared): batch.shared for batch in batches}.values():
        digest.update(memory.flat().tobytes())
    return digest.digest()


def _bits(value: Any, shape: tuple[int, int]) -> bytes:
    """Return the bits of a register's value in all lanes."""
    if isinstance(value, Affine):
        value = value.array()
    elif isinstance(value, Mask):
        value = value.array
    if not isinstance(value, np.ndarray):
        return repr(value).encode()
    return np.broadcast_to(value, shape).tobytes()
