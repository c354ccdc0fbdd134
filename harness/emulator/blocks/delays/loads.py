"""Strong loads that are executed early: what they may return of a place that others have written since.

Between a strong read of a flag and one of the data a fence keeps the second from being executed first. Where
it is missing, a load may return what was there before the latest write to its place, as long as

- its block has passed no fence beyond the block, no barrier and no acquire since that write;
- its block has not seen that write, and has not written there itself;
- the writer has written something else since, that others see: who polls a flag sees it at once.

Of each write a block is shown the older value once at most, so that nobody waits for ever. Only writes that
can be held back (see `stores`) are remembered; after another one, a place shows what it holds. A fence counts
for its whole block, although it orders the loads of one thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from harness.emulator.numbers.values import Array
from harness.emulator.watch.findings import Source


@dataclass(frozen=True)
class Late:
    """A store that another block did not see, though it could see what came after it.

    store, after: the lines of the store and of the later write
    read: the line that read what was there before the store
    early: the load came too early, not the store too late
    seen: what the block of an `early` load had read before it, in another line
    """

    store: Source
    after: Source
    read: Source
    early: bool = False
    seen: Source | None = None

    def __str__(self) -> str:
        place = f"between {self.store} and {self.after}"
        if self.early:
            apart = self.seen not in (None, self.read)
            place = f"between {self.seen} and {self.read}" if apart else f"before the read in {self.read}"
        return (
            f"{self.read} reads what was there before {self.store} stored, though {self.after}, which comes "
            f"later, could be seen: a __threadfence() {place} would order them"
        )


class Early:
    """The writes of a launch of `blocks` blocks to `memory`, by words, that loads may not see yet.

    sources: of each instruction its line
    dice: draws which loads come early; without it all do that can
    """

    def __init__(self, memory: Array, blocks: int, sources: Sequence[Source], dice: Random | None) -> None:
        self._memory, self._sources, self._dice = memory, sources, dice
        numbers = {source: i for i, source in enumerate(dict.fromkeys(sources))}
        self._lines = np.array([numbers[source] for source in sources])
        self._clock = 0  # counts writes
        self._when = np.zeros(len(memory), np.int32)  # the latest write to a word, 0 for one that all see
        self._by = np.zeros(len(memory), np.int32)  # its block,
        self._site = np.zeros(len(memory), np.int32)  # its instruction
        self._old = np.zeros_like(memory)  # and what was there before
        self._fenced = np.zeros(blocks, np.int32)  # of each block, the clock at its last fence,
        self._shown = np.zeros(blocks, np.int32)  # at its last write,
        self._last = np.zeros(blocks, np.int32)  # the instruction of that,
        self._read = np.full(blocks, -1, np.int32)  # that of its last strong read,
        self._before = np.full(blocks, -1, np.int32)  # and that of the last one in another line
        self._seen: dict[tuple[int, int], int] = {}  # by block and word, the latest write that it has seen

    def fence(self, blocks: Array | int) -> None:
        """Note that blocks pass a fence, a barrier or an acquire."""
        self._fenced[blocks] = self._clock

    def wrote(self, words: Array, blocks: Array, site: int) -> None:
        """Note a write, before it is made, of an instruction: words (lanes, words), blocks (lanes,)."""
        flat, who = words.ravel(), np.repeat(blocks, words.shape[1])
        self._other(blocks, site)
        self._old[flat] = self._memory[flat]
        self._by[flat], self._site[flat], self._when[flat] = who, site, self._clock
        self._when[flat[self._by[flat] != who]] = 0  # of several blocks at once

    def plain(self, words: Array, blocks: Array, site: int, *, strong: bool) -> None:
        """Note a write that is not remembered; who sees a `strong` one may look for what came before it."""
        self._when[words.ravel()] = 0
        if strong:
            self._other(blocks, site)

    def _other(self, blocks: Array, site: int) -> None:
        self._clock += 1
        self._shown[blocks], self._last[blocks] = self._clock, site

    def returned(self, blocks: Array, site: int) -> None:
        """Note that a strong load or an atomic returns something to threads of blocks."""
        other = blocks[(self._read[blocks] >= 0) & (self._lines[self._read[blocks]] != self._lines[site])]
        self._before[other] = self._read[other]
        self._read[blocks] = site

    def read(self, words: Array, blocks: Array, site: int) -> tuple[Array, Array, set[Late]]:
        """Return which lanes of a strong load come early, bool (lanes,), what they get, and what they pass.

        words: (lanes, words), each lane's
        """
        self.returned(blocks, site)
        when, by = self._when[words], self._by[words]
        newer = (when == when[:, :1]) & (when > self._fenced[blocks][:, None]) & (by != blocks[:, None])
        early = newer.all(1)
        places, which = np.unique(blocks[early] * len(self._memory) + words[early, 0], return_inverse=True)
        shows = np.zeros(len(places), np.bool_)
        passed = set()
        for i, place in enumerate(places.tolist()):
            block, word = divmod(place, len(self._memory))
            writer, at = int(self._by[word]), int(self._when[word])
            unseen = self._seen.get((block, word)) != at and self._shown[writer] > at
            self._seen[block, word] = at
            if unseen and (self._dice is None or self._dice.random() < 0.5):
                shows[i] = True
                passed.add(self._late(word, block, site))
        early[early] = shows[which.reshape(-1)]
        return early, self._old[words[early]], passed

    def _late(self, word: int, block: int, site: int) -> Late:
        """Return what is to be said of a load by the instruction `site` in a block that comes early."""
        sources, seen = self._sources, int(self._before[block])
        return Late(
            store=sources[self._site[word]],
            after=sources[self._last[self._by[word]]],
            read=sources[site],
            early=True,
            seen=sources[seen] if seen >= 0 else None,
        )
