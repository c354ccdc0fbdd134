"""Units of work on a fleet: each is done once, elsewhere if need be, and GPUs that fail are left out."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from harness.errors import HarnessError
from harness.fleet.units import Outcome, Unit
from shared.fleets import Rig, gpu, rig, right, workers  # noqa: F401  (rig is a fixture)


def units(count: int, **other: Any) -> list[Unit]:
    return [Unit(words=("plain",), label=f"u{i}", timeout=5, **other) for i in range(count)]


def faulty(error: str = "it faulted", *, hung: bool = False) -> Outcome:
    return Outcome(content="", seconds=0.1, error=error, fault=True, hung=hung)


def test_each_unit_is_done_once_and_every_gpu_works(rig: Rig) -> None:
    rig.perform = lambda name, unit: (time.sleep(0.05), right(name, unit))[1]
    fleet = rig.fleet()
    found = list(fleet.run(units(9)))
    assert sorted(i for i, _, _ in found) == list(range(9))
    assert all(o.content == f"{card.name} did u{i}" for i, card, o in found)
    assert {name for name, _ in rig.done} == {"a", "b", "c"} and len(rig.done) == 9
    assert sum(card.units for card in fleet.cards.known.values()) == 9


@workers("slow", "quick")
def test_a_slow_gpu_gets_fewer(rig: Rig) -> None:
    def perform(name: str, unit: Unit) -> Outcome:
        time.sleep(0.6 if name == "slow" else 0.02)
        return right(name, unit)

    rig.perform = perform
    assert len(list(rig.fleet().run(units(12)))) == 12
    assert sum(name == "slow" for name, _ in rig.done) <= 3


@pytest.mark.slow
def test_a_gpu_that_fails_where_others_do_not_is_left_out(rig: Rig) -> None:
    def perform(name: str, unit: Unit) -> Outcome:
        time.sleep(0.03)
        return faulty("no answer") if name == "b" else right(name, unit)

    rig.perform = perform
    fleet = rig.fleet()
    found = {i: (card.name, o.error) for i, card, o in fleet.run(units(60))}
    assert len(found) == 60 and all(name != "b" and not error for name, error in found.values())
    assert sum(name == "b" for name, _ in rig.done) <= 8, "two failures, and units on their way meanwhile"
    bad = fleet.cards.known["b"]
    assert "2 units failed here and not elsewhere" in bad.out and "no answer" in bad.out
    assert any("is left out" in line for line in rig.said)
    assert {card.name for card in fleet.cards.able()} == {"a", "c"}


def test_a_unit_that_fails_everywhere_is_at_fault_itself(rig: Rig) -> None:
    rig.perform = lambda name, unit: faulty() if unit.label == "u1" else right(name, unit)
    fleet = rig.fleet()
    found = {i: o.error for i, _, o in fleet.run(units(4))}
    assert found == {0: "", 1: "it faulted", 2: "", 3: ""}
    assert len([1 for _, label in rig.done if label == "u1"]) == 2, "tried on one other GPU, and no more"
    assert all(not card.failures and not card.out for card in fleet.cards.known.values())


@workers("only")
def test_with_one_gpu_a_fault_is_final(rig: Rig) -> None:
    rig.perform = lambda name, unit: faulty()
    ((_, card, outcome),) = rig.fleet().run(units(1))
    assert (card.name, outcome.error, len(rig.done)) == ("only", "it faulted", 1)


def test_after_a_fault_a_unit_is_performed_with_care(rig: Rig) -> None:
    def perform(name: str, unit: Unit) -> Outcome:
        return right(name, unit) if unit.words == ("careful",) else faulty()

    rig.perform = perform
    fleet = rig.fleet()
    found = list(fleet.run(units(3, careful=("careful",))))
    assert [o.error for _, _, o in found] == ["", "", ""] and len(rig.done) == 6
    assert all(not card.failures for card in fleet.cards.known.values()), "what was at fault is known there"


def test_errors_of_a_command_itself_are_not_tried_again(rig: Rig) -> None:
    rig.perform = lambda name, unit: Outcome(content="", seconds=0.1, error="no such kernel")
    assert [o.error for _, _, o in rig.fleet().run(units(2))] == ["no such kernel"] * 2
    assert len(rig.done) == 2


@workers("h1", "h2", "l1")
def test_units_go_to_gpus_of_their_model(rig: Rig) -> None:
    rig.about["l1"] = gpu("l1", name="Lesser GPU", sms=58)
    fleet = rig.fleet()
    models = fleet.cards.models()
    assert [[card.name for card in cards] for cards in models.values()] == [["h1", "h2"], ["l1"]]
    work = [unit for model in models for unit in units(4, model=model)]
    assert len(list(fleet.run(work))) == 8
    assert [sum(name == n for name, _ in rig.done) for n in ("l1",)] == [4]


@workers("h", "l")
@pytest.mark.slow
def test_a_model_whose_gpus_have_gone_keeps_no_other_waiting(rig: Rig) -> None:
    """Nor does it end their work, where it comes first."""
    rig.about["l"] = gpu("l", name="Lesser GPU")
    fleet = rig.fleet(patience=1.0)
    lesser, higher = sorted(fleet.cards.models(), key=lambda model: "Lesser" not in str(model))
    rig.client.cluster.sync(rig.client.cluster.workers["l"].close, nanny=False, timeout=1)
    found = list(fleet.run([*units(3, model=lesser), *units(8, model=higher)]))
    assert sorted(i for i, _, _ in found) == list(range(11))
    for i, card, outcome in found:
        assert card.model == (lesser if i < 3 else higher)
        assert ("no GPU to work on" in outcome.error) == (i < 3)
    with pytest.raises(HarnessError, match="no GPU to work on"):
        list(fleet.run(units(1, model=lesser)))


@pytest.mark.slow
def test_a_worker_that_goes_in_the_middle(rig: Rig) -> None:
    """Its unit is done by another one, and nothing comes twice."""
    begun, go_on = threading.Event(), threading.Event()

    def perform(name: str, unit: Unit) -> Outcome:
        if name == "c":
            begun.set()
            go_on.wait(10)
        return right(name, unit)

    rig.perform = perform
    fleet = rig.fleet()

    def end() -> None:
        begun.wait(10)
        rig.client.cluster.workers["c"].status  # noqa: B018  (it is there)
        rig.client.cluster.sync(rig.client.cluster.workers["c"].close, nanny=False, timeout=1)
        go_on.set()

    thread = threading.Thread(target=end)
    thread.start()
    found = list(fleet.run(units(6)))
    thread.join()
    assert sorted(i for i, _, _ in found) == list(range(6))
    assert all(card.name != "c" for _, card, _ in found)


@workers("a", "b", "c", "d", "e")
def test_workers_that_are_no_use_are_not_used(rig: Rig) -> None:
    rig.about["b"] = gpu("b", said={"code": "older"})
    rig.about["c"] = gpu("c", said={"gpu": None, "error": "no GPU there"})
    rig.about["d"] = gpu("a")
    fleet = rig.fleet(2)
    assert sorted(card.name for card in fleet.cards.able()) in (["a", "e"], ["d", "e"])
    assert len(list(fleet.run(units(4)))) == 4 and {n for n, _ in rig.done} <= {"a", "d", "e"}
    said = "\n".join(rig.said)
    assert "other code of harness" in said and "no GPU there" in said and "another worker has GPU-a" in said


@workers("a")
def test_no_gpu_at_all(rig: Rig) -> None:
    rig.about["a"] = gpu("a", said={"gpu": None, "error": "libcuda was not found"})
    with pytest.raises(HarnessError, match="no GPU to work on: libcuda was not found"):
        rig.fleet(1, patience=1.0)


@workers("a", "b")
def test_all_gpus_are_left_out(rig: Rig) -> None:
    """What was done before is kept; the error names both reasons."""

    rig.perform = lambda name, unit: (time.sleep(0.01), right(name, unit))[1]
    fleet, found = rig.fleet(), []
    with pytest.raises(HarnessError, match="no GPU to work on: .*2 units failed here.*2 units failed here"):
        for one in fleet.run(units(40)):
            found.append(one)
            for name in "ab" * (len(found) == 3):  # as if each had failed at two units that the other did
                fleet.cards.failed(name, "u0: it cannot")
                fleet.cards.failed(name, "u1: it cannot")
    assert 3 <= len(found) < 40 and all(not o.error for _, _, o in found)


def test_progress_names_what_goes_out(rig: Rig) -> None:
    told: list[str] = []
    list(rig.fleet().run(units(3), told.append))
    assert sorted(told) == ["u0", "u1", "u2"]


@workers("a", "b")
def test_a_unit_that_is_lost_again_and_again_is_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that kills its worker each time."""
    fleet = rig.fleet()
    outcome = fleet._outcome
    lost: list[str] = []

    def at_fault(future: Any) -> Any:
        came = outcome(future)
        if came is not None and came[1].content.endswith("u1"):
            lost.append(came[0])
            return None
        return came

    monkeypatch.setattr(fleet, "_outcome", at_fault)
    found = {i: o.error for i, _, o in fleet.run(units(4))}
    assert found == {0: "", 1: "its worker was gone 3 times before it was done", 2: "", 3: ""}
    assert len(lost) == 3 and all(not card.failures for card in fleet.cards.known.values())


@workers("a")
def test_what_python_raises_on_the_other_machine_is_the_units_error(rig: Rig) -> None:
    def perform(name: str, unit: Unit) -> Outcome:
        raise UnicodeError("no text")

    rig.perform = perform
    assert [o.error for _, _, o in rig.fleet().run(units(2))] == ["UnicodeError: no text"] * 2


@workers("a")
def test_another_error_elsewhere_blames_nobody(rig: Rig) -> None:
    """Only a unit that succeeds elsewhere says something of the first GPU."""
    from harness.fleet.sweep import _Job

    fleet = rig.fleet()
    job = _Job(index=0, unit=units(1)[0], tried={"a": faulty()})
    fleet._settled(job, "a", Outcome(content="", seconds=0.1, error="workers died of it"))
    assert fleet.cards.known["a"].failures == []
    fleet._settled(job, "a", Outcome(content="x", seconds=0.1))
    assert len(fleet.cards.known["a"].failures) == 1
