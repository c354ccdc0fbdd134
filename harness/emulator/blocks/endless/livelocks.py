"""Livelocks: threads that go on for ever and only count, told by what three periods have in common.

The branches back of all threads of a launch, and its rounds, make one sequence. Where it repeats itself, what
decides the way (the control slice) is recorded for three periods. If all of it changes by the same amount
from one to the next, and no comparison nears its end, it goes on so: an induction over counters (Gerlek,
Stoltz and Wolfe, "Beyond induction variables", TOPLAS 1995), from what was seen instead of the text.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from harness.emulator.blocks.endless.linear import Entry, Recorder, endless, fills, nears
from harness.emulator.blocks.slice import shared_state, standing_state

if TYPE_CHECKING:
    from harness.emulator.blocks.batch import Batch
    from harness.emulator.blocks.runner import Runner
    from harness.emulator.machine import Launch

SAID = "all threads do the same again and again, and nothing that they count ends a loop"
_LATE = 0.5  # seconds of this thread before anything is noted
_FIRST, _GROWTH, _MOST = 128, 1.4, 1 << 16  # events between two looks for a period; that are kept
_ROUND = 0  # the event
_MULTIPLE = 256  # of a period that may be one, as where a phase has two parities, and a ring stages
_MORE = 4  # times as many may be one, where something else is not the same after a period
_PERIODS = 3  # that are recorded, and that have to be seen before
_LATEST = 6  # parts of what was seen, the last of which repeats itself
_HOPE = 60  # seconds of this thread for which a comparison that nears its end is waited for, at most
_SHARE = 0.25  # of the time that recording takes, at most


@dataclass
class _Look:
    """Three periods that are being recorded.

    events: of a period; `seen` of them so far, in all
    ends: how much was recorded at the ends of periods, and `states` what has to be the same there
    """

    recorder: Recorder
    events: list[int]
    began: float
    seen: int = 0
    ends: list[int] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)


class Livelocks:
    """Find livelocks of a launch.

    batches: those that run, by their first block
    said: why it hangs, "" as long as it is not known to
    lets: loops let others run now and then, since one that nothing ends has kept them waiting
    """

    def __init__(self, launch: Launch) -> None:
        self._of = weakref.ref(launch)  # it has these, and is gone when it ends
        self._off = launch.schedule.dice is not None  # what is drawn does not repeat itself
        self._start, self._calls = time.thread_time(), 0
        self._on = False
        self.batches: dict[int, Batch] = {}
        self.said, self.lets = "", False
        self._look: _Look | None = None
        self._recorded, self._hope = 0.0, 0.0  # seconds; until when
        self._told = False
        self.restart()

    @property
    def _launch(self) -> Launch:
        launch = self._of()
        assert launch is not None
        return launch

    def leaves(self, batch: Batch) -> None:
        """Let go of a batch that has ended."""
        del self.batches[batch.first]
        self._end()

    def restart(self) -> None:
        """Forget what was seen: others come to run, or something lands."""
        self._end()
        self.said = ""
        self._trace: list[int] = []
        self._left: dict[int, int] = {}
        self._due = _FIRST
        self._base, self._times = 0, 1  # the period, and how many of it are recorded as one

    def once(self) -> bool:
        """Forget what was seen, and return True, for the first time."""
        first, self._told = not self._told, True
        if first:
            self.restart()
        return first

    def took(self, runner: Runner, pc: int) -> bool:
        """Note that a branch back is taken; return whether the launch is known to hang."""
        if not self._on:
            self._calls += 1
            if self._off or self._calls % 64 or time.thread_time() - self._start < _LATE:
                return False
            self._on = True
        batch = runner.batch
        left = batch.steps_left
        spent = self._left.get(batch.first, left) - left
        self._left[batch.first] = left
        self._note(hash((batch.first, runner.group.row, pc, spent)) | 1)
        return bool(self.said)

    def round(self) -> bool:
        """Note that all that can run has had its turn; return whether the launch is known to hang."""
        if self._on:
            for batch in self.batches.values():
                batch.loops.begin()
            self._note(_ROUND)
        return bool(self.said)

    @property
    def hopes(self) -> bool:
        """Return whether something that is compared is about to come out otherwise, and may end a loop."""
        return time.thread_time() < self._hope

    def _note(self, event: int) -> None:
        self._trace.append(event)
        look = self._look
        if look is not None:
            self._follow(look, event)
        elif len(self._trace) >= self._due:
            self._due = int(len(self._trace) * _GROWTH)
            period = _period(self._trace)
            if period != self._base:
                self._base, self._times = period, 1
            if len(self._trace) > _MOST:
                self._trace, self._due = self._trace[_MOST // 2 :], _MOST
            now = time.thread_time()
            if period and self._recorded < _SHARE * (now - self._start):
                recorder = Recorder(self._launch, list(self.batches.values()))
                self._look = _Look(recorder, self._trace[-period:] * self._times, now)
                self._mark(self._look)

    def _follow(self, look: _Look, event: int) -> None:
        """Note the next event while a period is recorded."""
        if event != look.events[look.seen % len(look.events)] or look.recorder.full:
            self._end()
            return
        look.seen += 1
        if look.seen % len(look.events):
            return
        self._mark(look)
        if look.seen < _PERIODS * len(look.events):
            return
        parts = [look.recorder.entries[a:b] for a, b in pairwise(look.ends)]
        found = endless(self._launch, parts) if len(set(look.states)) == 1 else _MORE
        if found == 1:
            self._judge(look, parts[0])
        elif turns := nears(self._launch, parts):
            now = time.thread_time()
            self._hope = now + min(_HOPE, turns * (now - look.began))
        self._times = self._times * found if 1 < self._times * found <= _MULTIPLE else 1
        self._end()

    def _judge(self, look: _Look, entries: Sequence[Entry]) -> None:
        """Tell that the launch hangs, if all had a turn meanwhile; else let them have it."""
        if _ROUND in look.events or len({entry.who for entry in entries}) == 1 == self._fragments():
            self.said = SAID
        else:
            self.lets = True
            self._trace, self._due = [], _FIRST

    def _fragments(self) -> int:
        """Return how many groups of threads might run, but for the lanes that run now."""
        others = [r for b in self.batches.values() for r in b.runners if r.ready or r.later or r.parked]
        return len(others) + (not self._launch.alone) + 1

    def _mark(self, look: _Look) -> None:
        """Note the end of a period."""
        look.ends.append(len(look.recorder.entries))
        batches, code = list(self.batches.values()), self._launch.code
        state = standing_state(batches, self._launch)
        if "shared" in code.slice.spaces and any(fills(ins) for ins in code.entry.instructions):
            state += shared_state(batches)  # copies write there, and nobody follows what
        look.states.append(state)

    def _end(self) -> None:
        """End a look."""
        if self._look is not None:
            self._look.recorder.end()
            self._recorded += time.thread_time() - self._look.began
            self._look = None


def _period(events: Sequence[int]) -> int:
    """Return the shortest period of a sequence, 0 unless it is there so often (Knuth, Morris and Pratt, "Fast
    pattern matching in strings", SIAM J. Comput. 1977). The latest events count, and the first may be others.
    """
    latest = events[::-1]
    count, best = len(latest), 0
    border = [0] * count
    for i in range(1, count):
        k = border[i - 1]
        while k and latest[i] != latest[k]:
            k = border[k - 1]
        border[i] = k = k + (latest[i] == latest[k])
        if (i + 1) * _LATEST >= count and i + 1 >= _PERIODS * (i + 1 - k):
            best = i + 1 - k
    return best if best and any(events[-best:]) else 0
