"""The rungs that use Hopper's asynchronous units: right numbers and no findings, at ragged shapes."""

from __future__ import annotations

import random

import pytest

from harness.bench.emulation import Options
from harness.bench.row import OK
from shared.hopper_rungs import SMALL, VARIANTS, Axes, drawn, emulated, faults
from shared.sweeps import sweep

# Ragged in every extent; leading dimensions that TMA does not take; k of less than a stage; enough tiles for
# persistent blocks, of which there are four, to come around twice.
SHAPES: list[Axes] = [
    SMALL,
    {"M": 1, "N": 1, "K": 1},
    {"M": 300, "N": 264, "K": 200, "beta": 0.5},
    {"M": 130, "N": 131, "K": 77},
    {"M": 65, "N": 260, "K": 500, "ldc": 264, "alpha": 1.5},
    {"M": 257, "N": 72, "K": 64, "lda": 67, "beta": -1.0},
    {"M": 640, "N": 640, "K": 72},
    {"M": 520, "N": 777, "K": 136},
    {"M": 31, "N": 1000, "K": 33},
    {"M": 200, "N": 200, "K": 1100},
]
DRAWN = 10
FEW = 6
EARLY = 12  # of each half


def check(which: str, axes: Axes, schedule: str = "lockstep") -> None:
    found = emulated(which, axes, Options(schedule=schedule))
    assert (found.status, faults(found)) == (OK, []), (which, axes)


@pytest.mark.parametrize("which", sweep(["15", "22", "23 in pairs", "26"], lambda which: which == "22"))
def test_a_rung_is_right_and_has_no_findings(which: str) -> None:
    check(which, SMALL)


@pytest.mark.exhaustive
@pytest.mark.parametrize("axes", SHAPES, ids=lambda axes: "x".join(str(axes[a]) for a in "MNK"))
@pytest.mark.parametrize("which", VARIANTS)
def test_every_rung_at_ragged_shapes(which: str, axes: Axes) -> None:
    check(which, axes)


@pytest.mark.slow
@pytest.mark.parametrize(("which", "schedule"), [("25 shared", "lockstep"), ("25 TT shared", "late")])
def test_tiles_that_clusters_share(which: str, schedule: str) -> None:
    """Nine SMs have room for four clusters of two: two for each of two tiles. Their counters are reset."""
    axes = {"M": 64, "N": 100, "K": 1040, "beta": 0.5}
    found = emulated(which, axes, Options(schedule=schedule, sms=9, repeats=2))
    assert (found.status, faults(found)) == (OK, [])


@pytest.mark.exhaustive
@pytest.mark.parametrize("which", VARIANTS)
def test_every_rung_at_drawn_shapes(which: str) -> None:
    """Other shapes in each run; benchmarks/emulator_hopper.py times the same."""
    draw = random.SystemRandom()
    for _ in range(DRAWN):
        check(which, drawn(which, draw))


@pytest.mark.slow
def test_some_rungs_at_drawn_shapes() -> None:
    draw = random.SystemRandom()
    for which in draw.sample(sorted(VARIANTS), FEW):
        check(which, drawn(which, draw))


def at_once(which: str) -> None:
    """In the tiles of 40, of four rows and sixteen columns, the whole shape would be thousands of warps."""
    check(which, {"M": 9, "N": 40, "K": 104} if which == "40" else SMALL, "early")


@pytest.mark.exhaustive
@pytest.mark.parametrize("which", VARIANTS)
def test_every_rung_with_operations_that_land_at_once(which: str) -> None:
    at_once(which)


@pytest.mark.slow
@pytest.mark.parametrize("half", [0, 1])
def test_some_rungs_with_operations_that_land_at_once(half: int) -> None:
    """Other ones in each run, a half of them in each of two tests: so that both workers have some."""
    for which in random.SystemRandom().sample(sorted(VARIANTS)[half::2], EARLY):
        at_once(which)
