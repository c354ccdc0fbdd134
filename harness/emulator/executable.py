"""A kernel as it is executed: its functions, and what is known of it before any launch."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterator

from harness.emulator.blocks.control import asynchronous, pace
from harness.emulator.blocks.delays.reads import relying
from harness.emulator.blocks.delays.stores import signal, waiting
from harness.emulator.blocks.slice import Slice, contended, control_slice, guesses
from harness.emulator.blocks.straight import Straight, straight
from harness.emulator.decode import Decoder
from harness.emulator.hopper.order.flags import flagged
from harness.emulator.hopper.order.races import narrowest
from harness.emulator.hopper.wgmma.warpgroup import used
from harness.emulator.ptx.declarations import Variable
from harness.emulator.ptx.module import parse
from harness.emulator.ptx.pointers import pointed
from harness.emulator.ptx.program import Entry
from harness.emulator.watch.findings import Source
from harness.emulator.watch.knowledge import orders
from harness.errors import EmulatorError

_KEPT = 8  # kernels that are kept for further launches


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Put off Python's search for cycles that nothing refers to, within a function that this decorates.

    The emulator makes very many objects that stay, and hardly a cycle. The search goes through all of them
    again whenever there are a quarter more: it took two thirds of the time of decoding.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class Executable:
    """The decoded instructions of an entry; launches of the same kernel share it.

    steps: what executes each instruction
    numbers: of the registers, by name
    paces: of each instruction what it means for threads that wait, see `control.pace`
    asynchronous: it needs the emulation of Hopper's asynchronous units
    fine: it may order threads by other means than barriers of the block
    depends: it waits for the launch before (``griddepcontrol.wait``)
    grain: bytes of its narrowest access to shared memory, at most 4
    waits: the strong stores, by index, that other blocks may see late, see `delays`
    guesses: the loads whose value a compare-and-swap then verifies, by index

    Raises NeedsGpu for an instruction that the emulator does not know, EmulatorError for one that it cannot
    read.
    """

    def __init__(self, entry: Entry) -> None:
        decoder = Decoder(entry)
        self.entry, self.steps = entry, decoder.steps()
        self.numbers = decoder.numbers
        self.paces = [pace(instruction) for instruction in entry.instructions]
        self.asynchronous = any(asynchronous(instruction) for instruction in entry.instructions)
        loads = tuple(ins for ins in entry.instructions if ins.opcode[0] == "ld")
        self.fine = flagged(loads) or any(orders(instruction) for instruction in entry.instructions)
        self.depends = any(i.opcode[:2] == ("griddepcontrol", "wait") for i in entry.instructions)
        self.waits = waiting(entry.instructions)
        self.grain = narrowest(entry.instructions)
        self._registers = [used(instruction, self.numbers) for instruction in entry.instructions]
        self.guesses = guesses(self)
        self.straight: dict[int, Straight] = straight(self, decoder)

    def registers_of(self, pc: int) -> tuple[frozenset[int], frozenset[int]]:
        """Return the registers that an instruction reads and writes, by number."""
        return self._registers[pc]

    @functools.cached_property
    def looking(self) -> frozenset[int]:
        """Return the atomics, by index, of which some instruction reads what was there before."""
        entries = self.entry.instructions
        read = frozenset().union(*(self.registers_of(ins.index)[0] for ins in entries))
        return frozenset(
            ins.index for ins in entries if ins.opcode[0] == "atom" and self.registers_of(ins.index)[1] & read
        )

    @functools.cached_property
    def pointed(self) -> dict[int, Variable]:
        """Return the variable that an access to static shared memory means, by index."""
        return pointed(self.entry)

    @functools.cached_property
    def slice(self) -> Slice:
        """Return what decides which way the kernel's threads go."""
        return control_slice(self)

    @functools.cached_property
    def signals(self) -> frozenset[int]:
        """Return the strong writes that may be to global memory, by index."""
        return frozenset(ins.index for ins in self.entry.instructions if signal(ins))

    @functools.cached_property
    def relying(self) -> frozenset[int]:
        """Return the strong reads of data in global memory, by index."""
        return relying(self)

    @functools.cached_property
    def volatile(self) -> frozenset[int]:
        """Return the volatile reads of data in shared memory, by index."""
        entries = self.entry.instructions
        return frozenset(i for i in relying(self, "shared") if "volatile" in entries[i].opcode)

    @functools.cached_property
    def contended(self) -> tuple[Source, ...]:
        """Return the lines to which it matters which block comes first."""
        return contended(self)

    @functools.cached_property
    def polled(self) -> tuple[Source, ...]:
        """Return the lines to which it matters which warp of a block comes first."""
        return contended(self, "shared")


@functools.lru_cache(maxsize=_KEPT)
@without_collection()
def executable(ptx: str, entry: str) -> Executable:
    """Return the entry `entry` of PTX text as it is executed. Raises what `emulate` raises."""
    entries = _parsed(ptx)
    if entry not in entries:
        raise EmulatorError(f"no entry {entry!r} in the PTX", hint=f"It has {', '.join(entries) or 'none'}.")
    return Executable(entries[entry])


_parsed = functools.lru_cache(maxsize=_KEPT)(parse)
