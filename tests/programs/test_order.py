"""The order of the operations of a program, and the bytes that two of them have in common."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from harness.programs.runtime.order.clocks import LEGACY, NONBLOCKING, Clock, Clocks, joined
from harness.programs.runtime.order.operations import common, united

ONE, TWO, FREE, EVENT = 100, 101, 102, 7  # streams, the last of which is non-blocking


class Program:
    """Operations in streams, by their numbers, and what each comes after."""

    def __init__(self, *, of_threads: bool = False) -> None:
        self.clocks = Clocks(threading.get_ident, of_threads=of_threads)
        for stream in (ONE, TWO):
            self.clocks.create(stream, 0)
        self.clocks.create(FREE, NONBLOCKING)
        self.made: dict[int, tuple[object, Clock]] = {}

    def do(self, stream: int) -> int:
        """Put an operation into a stream; return its number."""
        line = self.clocks.stream(stream)
        before, number = self.clocks.before(line), self.clocks.number()
        self.made[number] = line, before
        self.clocks.advance(line, joined(before, {line: number}))
        return number

    def ordered(self, one: int, other: int) -> bool:
        """Return whether an operation comes after an earlier one."""
        line, _ = self.made[one]
        return self.made[other][1].get(line, 0) >= one or self.clocks.known(line, one)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("streams", "orders"),
    [
        ((ONE, ONE), True),
        ((ONE, TWO), False),
        ((ONE, FREE), False),
        ((0, ONE), True),
        ((ONE, 0), True),
        ((0, FREE), False),
        ((FREE, 0), False),
        ((LEGACY, ONE), True),
    ],
)
def test_streams_and_the_default_one(streams: tuple[int, int], orders: bool) -> None:
    program = Program()
    first, second = (program.do(stream) for stream in streams)
    assert program.ordered(first, second) == orders


def test_the_default_stream_is_a_barrier_of_blocking_streams() -> None:
    program = Program()
    one, free = program.do(ONE), program.do(FREE)
    program.do(0)
    two = program.do(TWO)
    assert program.ordered(one, two) and not program.ordered(free, two)


def test_an_event_in_the_default_stream_is_one_too() -> None:
    program = Program()
    one = program.do(ONE)
    program.clocks.record(EVENT, LEGACY)
    assert program.ordered(one, program.do(TWO))


def test_the_default_stream_of_a_thread_waits_for_the_legacy_one_only() -> None:
    program = Program(of_threads=True)
    mine, one, legacy = program.do(0), program.do(ONE), program.do(LEGACY)
    assert not program.ordered(mine, one) and program.ordered(mine, legacy)
    others: list[int] = []
    thread = threading.Thread(target=lambda: others.append(program.do(0)))
    again = program.do(0)
    thread.start()
    thread.join()
    assert program.ordered(mine, again) and not program.ordered(again, others[0])


def test_a_stream_waits_for_what_an_event_was_recorded_after() -> None:
    program = Program()
    before = program.do(ONE)
    program.clocks.record(EVENT, ONE)
    after = program.do(ONE)
    program.clocks.wait(TWO, EVENT)
    two = program.do(TWO)
    assert program.ordered(before, two) and not program.ordered(after, two)
    program.clocks.record(EVENT, FREE)  # anew: what waits now waits for this
    program.clocks.wait(FREE, EVENT)
    assert not program.ordered(before, program.do(FREE))


def test_an_event_that_was_not_recorded_orders_nothing() -> None:
    program = Program()
    one = program.do(ONE)
    program.clocks.wait(TWO, EVENT)
    program.clocks.wait_for_event(EVENT)
    assert not program.ordered(one, program.do(TWO))


def test_what_the_host_has_waited_for_comes_before_all_that_it_asks_for() -> None:
    program = Program()
    one, two = program.do(ONE), program.do(TWO)
    program.clocks.learn(program.clocks.before(ONE))
    free = program.do(FREE)
    assert program.ordered(one, free) and not program.ordered(two, free)
    assert program.clocks.known(ONE, one) and not program.clocks.known(TWO, two)
    program.clocks.wait_for_all()
    assert program.clocks.known(TWO, two) and program.ordered(free, program.do(ONE))


def test_ranges_are_united() -> None:
    found = united([(8, 12), (0, 4), (4, 6), (10, 11), (20, 30)])
    assert found.tolist() == [[0, 6], [8, 12], [20, 30]]


def test_the_first_byte_in_common() -> None:
    generator = np.random.default_rng(5)
    for _ in range(300):
        sets, series = [], []
        for _ in range(2):
            some = generator.choice(40, generator.integers(1, 12), replace=False)
            sets.append(set(some.tolist()))
            series.append(united((int(i), int(i) + 1) for i in some))
        both = sets[0] & sets[1]
        assert common(*series) == (min(both) if both else None)
