"""Threads that go on for ever and only count are told within seconds; their twins, which end, run on."""

from __future__ import annotations

import re

import numpy as np
import pytest

from harness.errors import EmulatorError
from shared.emulator_kernels import launch
from shared.livelocks import ENDS, LIVELOCKS, Livelock
from shared.speed import Stopwatch
from shared.sweeps import sweep

MOST = 10  # seconds, as on the reference
FEW = ("a poll with timeouts", "a producer that counts while its ring is full", "a ring of warps")
SHORT = ("a lock with growing backoff", "copies that go on while a stage never comes")


def said_of(kind: Livelock, turns: int = 0, **options: str) -> tuple[str, float]:
    """Return what is said of a livelock, or of its twin with so many turns, and the seconds until then."""
    clock = Stopwatch()
    with clock:
        try:
            array = np.zeros(8192, np.int32)
            found = launch(kind.source(turns), "k", (kind.blocks,), (kind.threads,), array, **options)
            said = "\n".join(str(finding) for finding in found.findings)
        except EmulatorError as error:
            said = str(error)
    return said, clock.seconds


def soon(what: str, **options: str) -> None:
    """Assert that a livelock is told in time, with where threads stand."""
    said, seconds = said_of(LIVELOCKS[what], **options)
    assert re.search("the kernel hangs|deadlock", said), said
    assert re.search(r"\d+ threads .*line \d+", said), said
    assert seconds < MOST


@pytest.mark.parametrize("what", sweep(LIVELOCKS, lambda what: what in FEW))
def test_a_livelock_is_told(what: str) -> None:
    soon(what)


@pytest.mark.exhaustive
@pytest.mark.parametrize("schedule", ["warp-serial", "backward", "delayed", "held", "early"])
@pytest.mark.parametrize("what", LIVELOCKS)
def test_a_livelock_is_told_in_any_order(what: str, schedule: str) -> None:
    soon(what, schedule=schedule)


@pytest.mark.parametrize("what", sweep(LIVELOCKS, lambda what: what in SHORT))
def test_its_twin_is_none(what: str) -> None:
    """The control: the missing link is there."""
    assert not said_of(LIVELOCKS[what], LIVELOCKS[what].turns)[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", LIVELOCKS)
def test_its_twin_is_none_where_it_takes_long(what: str) -> None:
    assert not said_of(LIVELOCKS[what], LIVELOCKS[what].long)[0]


@pytest.mark.parametrize("what", sweep(ENDS, lambda what: what == "a bit of a counter"))
def test_what_a_counter_ends_by_other_means_is_none(what: str) -> None:
    """A counter need not be compared itself: what it gives in the end is another thing than before."""
    said, _ = said_of(Livelock(ENDS[what], ENDS[what], ""), 1)
    assert not said
