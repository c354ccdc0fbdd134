import threading
from collections.abc import Iterator
from typing import Any

import pytest

from harness.errors import OutOfMemory
from harness.launch.operands import Data
from harness.problems.gemm import Gemm
from harness.tune.prefetch import Ahead

SMALL = Gemm.from_axes({"N": 8})
LARGE = Gemm.from_axes({"N": 1 << 15})


@pytest.fixture(name="made")
def _made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, bool]]:
    """Record what was made, and if it was by the thread that asked."""
    made: list[tuple[str, int, bool]] = []
    real = Data.of

    def of(problem: Any, seed: int) -> Data:
        made.append((problem.label, seed, threading.current_thread() is threading.main_thread()))
        return real(problem, seed)

    monkeypatch.setattr(Data, "of", of)
    return made


@pytest.fixture(name="ahead")
def _ahead() -> Iterator[Ahead]:
    with Ahead() as ahead:
        yield ahead


def test_what_was_begun_is_made_once_and_taken_once(ahead: Ahead, made: list[Any]) -> None:
    ahead.begin(SMALL, [1, 2])
    ahead.begin(SMALL, [1, 2])
    second, first = ahead.taken(SMALL, 2), ahead.taken(SMALL, 1)
    assert made == [("8", 1, False), ("8", 2, False)]
    assert first is not None and second is not None
    assert (first.host["A"] == SMALL.inputs(1)["A"]).all() and (second.host["A"] != first.host["A"]).any()
    assert ahead.taken(SMALL, 1) is None, "the memory is the taker's"
    ahead.begin(SMALL, [1])
    assert ahead.taken(SMALL, 1) is None and len(made) == 2


def test_what_was_not_begun_is_for_the_asker_to_make(ahead: Ahead, made: list[Any]) -> None:
    ahead.begin(LARGE, [1])
    assert ahead.taken(LARGE, 1) is None and ahead.taken(SMALL, 1) is None and made == []


def test_what_is_dropped_is_not_kept(ahead: Ahead, made: list[Any]) -> None:
    ahead.begin(SMALL, [1])
    ahead.drop(SMALL)
    ahead.drop(LARGE)
    assert ahead.taken(SMALL, 1) is None
    ahead.begin(SMALL, [1])
    assert ahead.taken(SMALL, 1) is not None


def test_a_failure_is_the_takers(ahead: Ahead, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(problem: Any, seed: int) -> Data:
        raise OutOfMemory("no room")

    monkeypatch.setattr(Data, "of", of)
    ahead.begin(SMALL, [1])
    with pytest.raises(OutOfMemory, match="no room"):
        ahead.taken(SMALL, 1)


def test_leaving_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    over, waited = threading.Event(), list[bool]()
    monkeypatch.setattr(Data, "of", lambda problem, seed: waited.append(over.wait(10)))
    with Ahead() as ahead:
        ahead.begin(SMALL, [1, 2])
    assert waited == []
    over.set()
