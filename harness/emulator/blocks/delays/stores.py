"""Stores that other blocks see late: orders in which strong writes may reach memory.

A relaxed or volatile store, and an atomic of which nobody reads the result, is held back for a while, and
other blocks read what was there before. So a missing ``__threadfence()`` between data and a flag shows in
the numbers: it is no race, since both accesses are strong. Every run is one that PTX's memory model allows:

- a fence beyond the block, or a release, lets out all that its block holds, whoever stored it: what a thread
  has seen of its block, its own fence passes on (cumulativity);
- an access to a place lets out what its own block holds of it, so that a block sees its own stores at once,
  as it must after ``__syncthreads()``, and in their order;
- two stores of a block to one place never change their order, and the parts of a store stay together;
- the end of the kernel lets out all.

What is missing on the reader's side shows in strong loads that come too early, see `loads`. Kernels with
asynchronous units are run without.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from harness.emulator.blocks.delays.loads import Early, Late
from harness.emulator.group import Group, spread
from harness.emulator.instructions.predicates import broadcast_mask
from harness.emulator.memory import GLOBAL_BASE
from harness.emulator.numbers.values import Array, Lanes
from harness.emulator.watch.findings import Source
from harness.emulator.watch.knowledge import BLOCK, semantics

if TYPE_CHECKING:
    from harness.emulator.access import Place
    from harness.emulator.machine import Launch
    from harness.emulator.ptx.program import Instruction

Write = Callable[[Array], None]
_WORD = 4
_ELSEWHERE = {"shared", "local", "param"}
_NEVER = {"async", "mmio", "b128", "v2", "v4", "v8"}
_NAME = re.compile(r"[%$\w:]+")
_PATIENCE = 64  # turns, or reads of what was there before, after which something is let out in any case
_MOST = 256  # executions of stores that are held
_EAGER = (0.0, 0.05, 0.5)  # chances, one drawn for a launch, that a store is let out between two turns


def waiting(instructions: Sequence[Instruction]) -> frozenset[int]:
    """Return the instructions, by index, of which the writes to global memory may be held back.

    Of an atomic nobody may read the result, which is what makes a ``red`` of it in machine code.
    """
    found = {ins.index for ins in instructions if _may_wait(ins)}
    atoms = [ins for ins in instructions if ins.index in found and ins.opcode[0] == "atom"]
    if not atoms:
        return frozenset(found)
    times = Counter(name for ins in instructions for text in ins.operands for name in _NAME.findall(text))
    times.update(ins.guard for ins in instructions)
    unread = {ins.index for ins in atoms if ins.operands[0] == "_" or times[ins.operands[0]] == 1}
    return frozenset(found - {ins.index for ins in atoms} | unread)


def signal(ins: Instruction) -> bool:
    """Return whether an instruction is a strong write, and may be one to global memory."""
    return ins.opcode[0] in ("st", "red", "atom") and semantics(ins).strong and not _parts(ins) & _ELSEWHERE


def _may_wait(ins: Instruction) -> bool:
    """Return whether a signal orders nothing, and can be held back."""
    meaning = semantics(ins)
    return signal(ins) and not (meaning.release or meaning.acquire or _parts(ins) & _NEVER)


def _parts(ins: Instruction) -> set[str]:
    return {part.partition("::")[0] for part in ins.opcode}


@dataclass
class _Held:
    """The writes of one execution of an instruction that are held back.

    number: its place in the order of writes
    words: (lanes, words) the words of memory of each lane's write
    blocks: (lanes,) the block that it is of
    waits: (lanes,) bool, it is still held
    write: lets out the writes of the lanes of which it gets the indices
    """

    ins: Instruction
    number: int
    words: Array
    blocks: Array
    waits: Array
    write: Write


class Delays:
    """The writes of a launch that are held back.

    dice: draws what is let out and when; without it that is what has to be, the youngest first
    """

    def __init__(self, launch: Launch, dice: Random | None) -> None:
        self._launch, self._dice, self.waits = launch, dice, launch.code.waits
        self._eager = dice.choice(_EAGER) if dice is not None else 0.0
        self._held: list[_Held] = []
        self._number = self._turns = self._overtaken = 0
        blocks = launch.grid.x * launch.grid.y * launch.grid.z
        self._latest = np.full(blocks, -1, np.int64)  # of each block, its last write that others see,
        self._by = np.zeros(blocks, np.int64)  # and the instruction
        self._marks: Array = np.zeros(0, np.int32)  # by word, how many writes are held
        self._early: Early | None = None  # made with the first write that is held
        self._late: dict[tuple[Source, Source], Late] = {}

    def late(self) -> tuple[Late, ...]:
        """Return the stores that were seen too late, those first that do not decide which way threads go."""
        deciding = set(self._launch.code.contended)
        return tuple(sorted(self._late.values(), key=lambda one: one.read in deciding))

    # -- writes

    def hold(self, group: Group, ins: Instruction, at: Place, size: int, writes: Callable[[], Write]) -> bool:
        """Hold back the writes of `size` bytes of the lanes of an access; return whether they are held.

        writes: returns a function that makes those of some lanes, by their numbers among the active ones
        """
        if ins.index not in self.waits or at.scratch is not None or size < _WORD or at.where is False:
            return False
        addresses, blocks = self._lanes(group, at)
        words = (addresses - GLOBAL_BASE)[:, None] // _WORD + np.arange(size // _WORD)
        if not len(self._marks):
            memory = self._launch.arena.view(_WORD)
            self._marks = np.zeros(len(memory), np.int32)
            sources = [entry.source for entry in self._launch.entry.instructions]
            self._early = Early(memory.view(np.uint32), len(self._latest), sources, self._dice)
        np.add.at(self._marks, words.ravel(), 1)
        self._number += 1
        waits = np.ones(len(words), np.bool_)
        self._held.append(_Held(ins, self._number, words, blocks, waits, writes()))
        if len(self._held) > _MOST:
            self._write(self._held[0], self._held[0].waits)
            self._forget()
        return True

    def _lanes(self, group: Group, at: Place) -> tuple[Array, Array]:
        """Return the address and the block of each active lane of an access."""
        chosen = broadcast_mask(at.where, group.shape)
        columns = np.broadcast_to(np.arange(group.shape[1]), group.shape)[chosen]
        return spread(at.base, group.shape)[chosen], columns + group.batch.first

    # -- accesses

    def touch(
        self, group: Group, ins: Instruction, at: Place, *, reads: bool, size: int, writes: bool = False
    ) -> None:
        """Let out what has to be seen at an access of `size` bytes, and note what it does not see."""
        meaning = semantics(ins)
        wide = meaning.scope != BLOCK
        if meaning.release and wide:
            self.fence(group, at.where, acquires=False)
        atomic, ordered = ins.opcode[0] in ("atom", "red"), ins.index not in self.waits
        if not (self._held or atomic or (self._early is not None and (writes or meaning.strong))):
            return
        addresses, blocks = self._lanes(group, at)
        first = (addresses - GLOBAL_BASE) // _WORD
        last = (addresses - GLOBAL_BASE + size - 1) // _WORD
        words = np.minimum(first[:, None] + np.arange(int((last - first).max()) + 1), last[:, None])
        if self._held:
            meets = self._marks[words].any(1)
            if meets.any():
                self._let_out(words[meets], blocks[meets])
                if reads and ordered:
                    self._overlooked(ins, words[meets])
                    self._waited(words[meets])
        if atomic and ordered:
            self._number += 1
            self._latest[blocks], self._by[blocks] = self._number, ins.index
        if self._early is not None:
            if meaning.acquire and wide:
                self._early.fence(blocks)
            if writes and ordered:
                self._early.plain(words, blocks, ins.index, strong=meaning.strong)
            if atomic and ordered:
                self._early.returned(blocks, ins.index)

    def fence(self, group: Group, where: Lanes, *, acquires: bool = True) -> None:
        """Let out what the blocks hold of which a lane in `where` passes a fence, the last block first.

        acquires: what they load from then on does not come before it
        """
        if self._early is None:
            return
        columns = np.nonzero(broadcast_mask(where, group.shape).any(0))[0] + group.batch.first
        holding = {int(block) for one in self._held for block in np.unique(one.blocks[one.waits])}
        for block in columns[::-1].tolist():
            for one in self._held if block in holding else ():
                self._write(one, one.waits & (one.blocks == block))
            if acquires:
                self._early.fence(block)
        self._forget()

    def barrier(self, blocks: Array) -> None:
        """Note that blocks pass a barrier."""
        if self._early is not None:
            self._early.fence(blocks)

    def read(self, group: Group, ins: Instruction, at: Place, value: Array, skipped: int) -> None:
        """Put older values into what a strong load has returned, in the lanes that execute it early.

        skipped: bytes of the access before those that were loaded
        """
        size = value.dtype.itemsize
        if self._early is None or at.scratch is not None or size < _WORD:
            return
        addresses, blocks = self._lanes(group, at)
        words = (addresses + skipped - GLOBAL_BASE)[:, None] // _WORD + np.arange(size // _WORD)
        early, older, passed = self._early.read(words, blocks, ins.index)
        if early.any():
            chosen = broadcast_mask(at.where, group.shape)
            found = value[chosen]
            found[early] = older.view(value.dtype)[:, 0]
            value[chosen] = found
        for one in passed:
            self._late.setdefault((one.store, one.read), one)

    def turn(self, *, idle: bool) -> None:
        """Let out some of what is held, between two turns of the blocks; `idle`: none of them can go on."""
        if not self._held:
            return
        self._turns += 1
        if self._dice is None:
            if idle or self._turns % _PATIENCE == 0:
                youngest = self._held[-1]
                self._places(youngest, youngest.waits)
        else:
            draw = np.random.default_rng(self._dice.getrandbits(32))
            chance = max(self._eager, 0.5 if idle else 0.0)
            for one in reversed(list(self._held)):
                self._places(one, one.waits & (draw.random(len(one.waits)) < chance))
        self._forget()

    def end(self) -> None:
        """Let out all."""
        for one in self._held:
            self._write(one, one.waits)
        self._held.clear()

    # -- letting out

    def _places(self, one: _Held, lanes: Array) -> None:
        """Let out some lanes of a write, and what their blocks have written to the same places before."""
        if lanes.any():
            words = one.words[lanes]
            self._let_out(words, one.blocks[lanes], one.number)

    def _let_out(self, words: Array, blocks: Array, upto: int | None = None) -> None:
        """Let out, in their order, what blocks hold of places: words (lanes, words), blocks (lanes,).

        upto: only writes up to this number
        """
        size = len(self._marks)
        keys = np.unique(blocks[:, None] * size + words)
        held = [one for one in self._held if upto is None or one.number <= upto]
        marks = [np.zeros(len(one.waits), np.bool_) for one in held]
        grows = True
        while grows:  # a wide write takes what is held of its other words along
            grows = False
            for one, mark in zip(held, marks, strict=True):
                places = one.blocks[:, None] * size + one.words
                new = one.waits & ~mark & np.isin(places, keys).any(1)
                if new.any():
                    np.logical_or(mark, new, out=mark)
                    if one.words.shape[1] > 1:
                        keys, grows = np.union1d(keys, places[new]), True
        for one, mark in zip(held, marks, strict=True):
            self._write(one, mark)
        self._forget()

    def _write(self, one: _Held, lanes: Array) -> None:
        """Make the writes of some lanes."""
        some = np.nonzero(lanes)[0]
        if not len(some):
            return
        if self._early is not None:
            self._early.wrote(one.words[some], one.blocks[some], one.ins.index)
        one.write(some)
        one.waits[some] = False
        np.subtract.at(self._marks, one.words[some].ravel(), 1)
        blocks = one.blocks[some]
        newer = blocks[self._latest[blocks] < one.number]
        self._latest[newer], self._by[newer] = one.number, one.ins.index
        self._launch.progress += 1

    def _forget(self) -> None:
        self._held = [one for one in self._held if one.waits.any()]

    def _waited(self, words: Array) -> None:
        """Let out the youngest store to places that are read again and again: a thread may wait for it."""
        here = [(one, one.waits & np.isin(one.words, words).any(1)) for one in self._held]
        here = [(one, lanes) for one, lanes in here if lanes.any()]
        self._overtaken += bool(here)
        if here and self._overtaken % _PATIENCE == 0:
            self._places(*here[-1])

    def _overlooked(self, ins: Instruction, words: Array) -> None:
        """Note which stores an access does not see, of blocks of which others see later writes."""
        entries = self._launch.entry.instructions
        for one in self._held:
            key = (one.ins.source, ins.source)
            if key in self._late:
                continue
            behind = one.waits & (self._latest[one.blocks] > one.number)
            behind &= np.isin(one.words, words).any(1)
            if not behind.any():
                continue
            after = entries[int(self._by[one.blocks[behind][0]])]
            self._late[key] = Late(one.ins.source, after.source, ins.source)
