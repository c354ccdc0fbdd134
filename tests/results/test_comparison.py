"""Two runs: their common rows, reasons why they are incomparable, and rows that became slower."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bench.stats import FAST, INCONCLUSIVE, SAME, SLOW
from harness.errors import UsageError
from harness.results import comparison
from harness.results.comparison import FAILED, compare, incomparable

META = {"gpu": {"uuid": "GPU-1", "math_mode": "pedantic", "cublas": "13.0"}, "seed": 7}


def row(seconds: float | None = 1.0, **changes: Any) -> dict[str, Any]:
    """A row whose samples differ by 1 in 1000; a key that is given as None is left out."""
    times = [seconds * (1 + 0.0005 * (-1) ** i) for i in range(64)] if seconds else []
    made = {
        "kernel": "k", "params": {"T": 1}, "shape": "64", "regime": "cold", "seconds": seconds,
        "times": times, "sm_hz": 2e9, "sass_sha256": "a", "block": [32], "tile": [8], "shared": 0, **changes,
    }  # fmt: skip
    return {k: v for k, v in made.items() if v is not None or k == "seconds"}


def run(*rows: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return {"meta": {**META, **meta}, "rows": list(rows)}


def one(before: dict[str, Any], after: dict[str, Any], threshold: float = 0.02) -> comparison.Difference:
    (found,) = compare(run(before), run(after), threshold=threshold, force=True)
    return found


# ---- which rows --------------------------------------------------------------------------------------


def test_rows_are_paired_by_kernel_parameters_and_shape_in_the_order_of_the_second() -> None:
    before = [row(1.0, kernel=k, params=p, shape=s) for k in "ab" for p in ({}, {"T": 2}) for s in ("8", "9")]
    after = [{**r, "seconds": 3.0, "times": [3.0, 3.0]} for r in reversed(before)]
    found = compare(run(*before), run(*after, row(kernel="new")), threshold=0.02)
    assert [(d.candidate, d.shape) for d in found] == [(r, r["shape"]) for r in after]
    assert [d.reference for d in found] == list(reversed(before))
    assert [d.label for d in found[:3]] == ["b T=2", "b T=2", "b"]


def test_the_order_of_parameters_is_none() -> None:
    assert one(row(params={"A": 1, "B": 2}), row(params={"B": 2, "A": 1})).status == SAME


def test_a_row_that_the_first_did_not_time_is_left_out() -> None:
    found = compare(run(row(None), row(kernel="b")), run(row(), row(kernel="b")), threshold=0.02)
    assert [d.label for d in found] == ["b T=1"]


@pytest.mark.parametrize(
    "other", [row(kernel="b"), row(params={"T": 2}), row(shape="65"), row(None)], ids=range(4)
)
def test_nothing_in_common_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="^the two files have no measured row in common: kernel, param"):
        compare(run(other), run(row()), threshold=0.02, force=True)


# ---- how they differ ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "threshold", "status"),
    [
        (1.05, 0.02, SLOW),
        (0.95, 0.02, FAST),
        (1.05, 0.1, SAME),
        (1.001, 0.02, SAME),
        (1.02, 0.02, INCONCLUSIVE),
    ],
)
def test_the_ratio_is_of_the_second_over_the_first(seconds: float, threshold: float, status: str) -> None:
    found = one(row(1.0, sass_sha256="a"), row(seconds, sass_sha256="b"), threshold)
    assert found.status == status and found.ratio is not None and not found.identical
    assert found.ratio.estimate == pytest.approx(seconds, rel=1e-6)
    assert found.ratio.low <= found.ratio.estimate <= found.ratio.high
    assert found.regressed == (status == SLOW) and found.unclear == (status == INCONCLUSIVE)


def test_the_same_code_is_neither_a_regression_nor_unclear() -> None:
    slower, across = one(row(1.0), row(1.5)), one(row(1.0), row(1.02))
    assert (slower.status, slower.identical, slower.regressed) == (SLOW, True, False)
    assert (across.status, across.unclear) == (INCONCLUSIVE, False)


def test_a_row_that_fails_now_has_regressed_even_with_the_same_code() -> None:
    found = one(row(1.0), row(None, status="FAILED"))
    assert (found.status, found.ratio, found.regressed) == (FAILED, None, True)
    assert FAILED == "FAILED"


def test_one_sample_decides_nothing() -> None:
    found = one(row(1.0), row(9.0, times=[9.0], sass_sha256="b"))
    assert (found.status, found.ratio, found.regressed, found.unclear) == (INCONCLUSIVE, None, False, True)


def test_the_interval_is_drawn_alike_each_time() -> None:
    noisy = [1.0, 1.3, 0.9, 1.1, 1.05, 0.95, 1.2]
    first, again = (one(row(), row(1.0, times=noisy)).ratio for _ in range(2))
    assert first == again
    from harness.bench.stats import unpaired_ratio

    assert first == unpaired_ratio(noisy, row()["times"], seed=0)


# ---- the same code -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"sass_sha256": "b"}, False),
        ({"sass_sha256": None}, False),
        ({"block": [64]}, False),
        ({"tile": [9]}, False),
        ({"shared": 128}, False),
        ({"registers": 99}, True),
        ({"chosen": {"label": "x", "others": ["y"]}}, False),
        ({"chosen": {"label": "x", "others": []}}, True),
        ({"chosen": {"label": "x"}}, True),
        ({"chosen": None}, True),
    ],
    ids=str,
)
def test_the_same_code_is_the_same_instructions_launched_alike(change: dict[str, Any], same: bool) -> None:
    assert one(row(), row(**change)).identical == one(row(**change), row()).identical == same


def test_a_librarys_code_is_told_by_its_algorithm() -> None:
    def library(algorithm: str | None) -> dict[str, Any]:
        return row(sass_sha256=None, algorithm=algorithm)

    assert one(library("x"), library("x")).identical and one(library(None), library(None)).identical
    assert not one(library("x"), library("y")).identical and not one(library("x"), library(None)).identical
    unknown = {**row(), "sass_sha256": None}  # a record may say that it is not known
    assert not one(unknown, dict(unknown)).identical


# ---- what cannot be compared -------------------------------------------------------------------------


def reasons(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    return list(incomparable(a["meta"], b["meta"], list(zip(a["rows"], b["rows"], strict=True))))


@pytest.mark.parametrize(("key", "name"), [("uuid", "GPU"), ("math_mode", "math mode"), ("cublas", "cuBLAS")])
def test_another_gpu_or_library_is_a_reason(key: str, name: str) -> None:
    other = run(row(), gpu={**META["gpu"], key: "x"})  # type: ignore[dict-item]
    mine = META["gpu"][key]  # type: ignore[index]
    assert reasons(run(row()), run(row())) == []
    assert reasons(run(row()), other) == [f"another {name}: {mine} and x"]
    lacking = run(row(), gpu={k: v for k, v in META["gpu"].items() if k != key})  # type: ignore[attr-defined]
    assert reasons(run(row()), lacking) == [f"another {name}: {mine} and None"]


def test_another_seed_is_a_reason_and_no_gpu_at_all_is_none() -> None:
    assert reasons(run(row()), run(row(), seed=8)) == ["another input data (seed): 7 and 8"]
    assert reasons(run(row(), gpu=None), run(row(), gpu=None)) == []
    assert len(reasons(run(row(), gpu="no object"), run(row()))) == 3


def test_every_other_regime_is_named_once_and_in_order() -> None:
    before = [row(regime=r) for r in ("hot", "cold", "cold", "graph")]
    after = [row(regime=r) for r in ("cold", "hot", "hot", "graph")]
    assert reasons(run(*before), run(*after)) == [
        "another regime: cold and hot", "another regime: hot and cold"
    ]  # fmt: skip
    assert reasons(run(row(regime="hot")), run(row(None, regime=None))) == []  # it failed: no regime


@settings(max_examples=60, deadline=None)
@given(st.floats(1e9, 2e9), st.floats(0.97, 1.03))
def test_clocks_more_than_a_percent_apart_are_a_reason(hertz: float, factor: float) -> None:
    other = hertz * factor
    found = reasons(run(row(sm_hz=hertz)), run(row(sm_hz=other)))
    assert bool(found) == (abs(hertz - other) > 0.01 * max(hertz, other))
    assert found == reasons(run(row(sm_hz=hertz)), run(row(sm_hz=other)))
    if found:
        assert found == [
            f"another SM clock, {hertz / 1e6:.0f} and {other / 1e6:.0f} MHz (k T=1, 64)"
        ]  # fmt: skip


def test_a_percent_apart_is_none() -> None:
    assert reasons(run(row(sm_hz=100.0)), run(row(sm_hz=99.0))) == []
    assert reasons(run(row(sm_hz=100.0)), run(row(sm_hz=98.9))) != []
    assert reasons(run(row(sm_hz=98.9)), run(row(sm_hz=100.0))) != []


def test_the_first_clock_that_differs_is_named() -> None:
    before = [row(sm_hz=None, shape=s) for s in "123"]
    after = [row(sm_hz=None, shape="1"), row(sm_hz=1e9, shape="2"), row(sm_hz=1e9, shape="3")]
    assert reasons(run(*before), run(*after)) == []  # one side does not tell
    assert reasons(run(*after), run(*before)) == []
    before = [{**r, "sm_hz": 2e9} for r in before]
    assert reasons(run(*before), run(*after)) == ["another SM clock, 2000 and 1000 MHz (k T=1, 2)"]


def test_the_clock_of_nvml_stands_in_where_none_was_measured() -> None:
    nvml = row(sm_hz=None, device={"sm_mhz": 1000})
    assert reasons(run(nvml), run(row(sm_hz=1e9))) == []
    assert reasons(run(nvml), run(row(sm_hz=2e9))) == ["another SM clock, 1000 and 2000 MHz (k T=1, 64)"]
    assert reasons(run(row(sm_hz=1e9, device={"sm_mhz": 9})), run(row(sm_hz=1e9))) == []


def test_all_reasons_are_given_and_force_overrides_them() -> None:
    other = run(row(2.0, sm_hz=1e9), seed=8)
    expected = (
        "these runs cannot be compared: another input data (seed): 7 and 8; "
        "another SM clock, 2000 and 1000 MHz (k T=1, 64)\n  -> --force compares them all the same"
    )
    with pytest.raises(UsageError, match=f"^{re.escape(expected)}$"):
        compare(run(row()), other, threshold=0.02)
    (found,) = compare(run(row()), other, threshold=0.02, force=True)
    assert found.status == SLOW


def test_a_clock_of_rows_that_are_not_compared_is_no_reason() -> None:
    before, after = run(row(), row(None, kernel="b")), run(row(), row(1.0, kernel="b", sm_hz=1.0))
    assert len(compare(before, after, threshold=0.02)) == 1
