"""The meaning of a row of `harness.bench` for a verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.bench.row import ERROR, FAILED, IMPOSSIBLE, OK, Measurement
from harness.judging import times
from harness.judging import verdict as outcomes
from harness.kernels import catalog
from harness.launch.builds import Built, build_all
from harness.problems.gemm import Gemm
from harness.support.cache import Cache


@pytest.fixture
def built(cache: Cache) -> Built:
    (found,), _ = build_all([catalog.kernel("naive").variant()], ["sm_90"], cache, lambda _: None)
    return found


def row(built: Built, status: str, error: str = "") -> Measurement:
    return replace(
        Measurement.failed_with(built, Gemm(M=8, N=8, K=8), error or "x"), status=status, error=error
    )


def checks(*rows: Measurement) -> dict[str, tuple[str, str]]:
    return {c.name: (c.outcome, c.reason) for _, c in times._checks(list(rows), "nothing was timed")}


def test_right_rows_pass(built: Built) -> None:
    found = checks(row(built, OK), row(built, OK))
    assert found == {
        "timed launches": (outcomes.PASSED, "2 sizes"),
        "ceiling": (outcomes.PASSED, "2 sizes"),
    }


@pytest.mark.parametrize(
    ("status", "check"), [(FAILED, "timed launches"), (IMPOSSIBLE, "ceiling"), (ERROR, "ends")]
)
def test_a_bad_row_fails_its_check(built: Built, status: str, check: str) -> None:
    outcome, reason = checks(row(built, OK), row(built, status, "FAILED: it overwrote its input A"))[check]
    assert outcome == outcomes.FAILED
    assert reason == "8: it overwrote its input A"


def test_without_rows_nothing_is_said_to_be_right(built: Built) -> None:
    assert {o for o, _ in checks().values()} == {outcomes.SKIPPED}


def test_a_bad_row_has_no_time(built: Built) -> None:
    found = times.timed(row(built, IMPOSSIBLE, "faster than light"))
    assert (found.seconds, found.ratio, found.detail) == (None, None, "faster than light")


def test_the_ratio_is_a_speed(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above 1 is faster: the inverse of the ratio of times."""
    from harness.bench.stats import Interval

    one: Any = replace(row(built, OK), ratio=Interval(low=0.4, estimate=0.5, high=0.8), against="cuBLAS")
    found = times.timed(one)
    assert found.ratio == pytest.approx((1.25, 2.0, 2.5)) and found.against == "cuBLAS"
