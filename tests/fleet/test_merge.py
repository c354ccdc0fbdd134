"""Merging of what several GPUs measured: each row once, with its GPU, and how far the GPUs are apart."""

from __future__ import annotations

import math
from typing import Any

import pytest

from harness.fleet import merge
from harness.fleet.cards import Card, Cards
from shared.fleets import gpu


def card(worker: str, **other: Any) -> Card:
    return Card(name=worker, host="here", gpu=gpu(worker, **other))


def row(kernel: str, shape: str = "512", *, baseline: float = 0.0, **other: Any) -> Any:
    pair = {"order": ["ABBA"], "candidate": [1.0, 1.0], "baseline": [baseline] * 2} if baseline else None
    about = {"kernel": kernel, "params": {}, "problem": "gemm", "shape": shape, "seconds": 1.0}
    return {**about, "pair": pair, "against": "cuBLAS", **other}


A, B, C = card("a"), card("b"), card("c")


def test_rows_name_their_gpu_and_the_baseline_comes_once() -> None:
    cublas = row("cublas", **{"baseline": 0.0}) | {"baseline": True}
    found = merge.together([(A, [row("k1"), cublas]), (B, [row("k2"), cublas]), (A, [row("k1", "1024")])])
    told = [(r["kernel"], r["shape"], r["gpu"]) for r in found]
    assert told == [
        ("k1", "512", "GPU-a"), ("cublas", "512", "GPU-a"), ("k2", "512", "GPU-b"), ("k1", "1024", "GPU-a"),
    ]  # fmt: skip


def test_how_far_gpus_are_apart() -> None:
    measured = [
        (A, [row("k", baseline=1.00), row("k", "1024", baseline=2.0)]),
        (B, [row("k", baseline=1.02), row("k", "1024", baseline=2.0)]),
        (C, [row("k", baseline=1.01)]),
    ]
    found = merge.apart(measured)
    assert found["GPU-c"] == pytest.approx(0.0)
    assert found["GPU-b"] == pytest.approx(math.sqrt(1.02 / 1.01) - 1)
    assert found["GPU-a"] == pytest.approx(math.sqrt(1.00 / 1.01) - 1)


def test_what_only_one_gpu_measured_says_nothing() -> None:
    assert merge.apart([(A, [row("k", baseline=1.0)]), (B, [row("k", "1024", baseline=3.0)])]) == {}
    other = row("k", baseline=3.0, against="another kernel")
    assert merge.apart([(A, [row("k", baseline=1.0)]), (B, [other])]) == {}


def test_the_entry_of_a_record() -> None:
    mine = card("a")
    mine.units, mine.seconds = 3, 4.5
    mine.failures.append("it faulted")
    (entry,) = merge.entry([mine], {"GPU-a": 0.01})["cards"]
    about = entry["uuid"], entry["units"], entry["busy"], entry["apart"], entry["failures"], entry["left_out"]
    assert about == ("GPU-a", 3, 4.5, 0.01, ["it faulted"], "") and entry["driver"] == "13.0"


def test_models_of_gpus() -> None:
    cards = Cards()
    for one in (card("x", name="Other"), A, B):
        cards.add(one)
    assert [[c.name for c in group] for group in cards.models().values()] == [["a", "b"], ["x"]]
    cards.keep({"a", "x"})
    assert [c.name for c in cards.able()] == ["x", "a"] and [c.name for c in cards.able({"x"})] == ["a"]
    cards.add(card("b"))
    assert cards.known["b"] is B, "what it did before is remembered"


def test_a_gpu_is_known_by_its_uuid_under_any_name() -> None:
    cards = Cards()
    first = card("a")
    cards.add(first)
    cards.failed("a", "it faulted"), cards.failed("a", "it faulted")
    cards.keep(())
    cards.add(Card(name="other", host="there", gpu=gpu("a")))
    assert cards.known["other"] is first and first.host == "there" and "a" not in cards.known
    assert cards.able() == [] and cards.there() == [first], "left out under a new name, too"
    cards.add(Card(name="other", host="there", gpu=gpu("z")))
    assert [c.uuid for c in cards.able()] == ["GPU-z"]
    assert {c.uuid for c in cards.of(first.model)} == {"GPU-a", "GPU-z"}, "what the first did is remembered"
