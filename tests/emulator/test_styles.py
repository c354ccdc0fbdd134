"""Kernels in the styles of known libraries: right ones have no finding, planted faults are found."""

from __future__ import annotations

import time
from typing import Any

import pytest

import shared.style_kernels  # noqa: F401 - they add to STYLED
from shared.styles import STYLED, WRONG, run

LONGEST = 10  # seconds of a processor until anything is told, a hang too
# Of a flag that a compare-and-swap verifies, and of registers that ptxas gives: see docs/emulator.md.
NOTICES = {
    "gathered_rows": {"missing proxy fence"},
    "scaled_eight_bits": {"setmaxnreg misuse"},
    "hash_lists": {"WAR hazard", "global race"},
}
FEW = [name for name, one in STYLED.items() if not one.headers][::3]


def marked(name: str, *more: Any, slow: bool) -> Any:
    """A case. A newcomer runs every third kernel that needs no headers, once right and once wrong."""
    if STYLED[name].headers:
        return pytest.param(name, *more, marks=[pytest.mark.exhaustive if slow else pytest.mark.slow])
    return pytest.param(name, *more, marks=[] if name in FEW and not slow else [pytest.mark.slow])


@pytest.mark.parametrize(
    ("name", "shape", "schedule"),
    [
        marked(name, shape, schedule, slow=(shape, schedule) != (one.shapes[0], one.schedules[0]))
        for name, one in STYLED.items()
        for shape in one.shapes
        for schedule in one.schedules
    ],
)
def test_a_right_kernel_has_no_finding(name: str, shape: tuple[int, ...], schedule: str) -> None:
    findings, notices, right = run(STYLED[name], STYLED[name].source, schedule, shape)
    assert (findings, right) == (set(), True)
    assert notices <= NOTICES.get(name, set())


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        marked(name, fault, slow=fault != one.faults[0])
        for name, one in STYLED.items()
        for fault in one.faults
    ],
)
def test_a_planted_fault_is_found(name: str, fault: tuple[str, str, str]) -> None:
    old, new, kind = fault
    kernel = STYLED[name]
    assert kernel.source.count(old) == 1
    began = time.process_time()
    findings, _, right = run(kernel, kernel.source.replace(old, new), kernel.schedules[0], kernel.shapes[0])
    assert kind in findings or (kind == WRONG and not right)
    assert time.process_time() - began < LONGEST


def test_a_block_that_is_counted_too_early_is_found() -> None:
    """All accesses of `hash_lists` are strong, so that none race: its numbers are wrong if a warp is late."""
    kernel, barrier = STYLED["hash_lists"], "  __syncthreads();\n  if (threadIdx.x == 0) last ="
    assert kernel.source.count(barrier) == 1
    early = kernel.source.replace(barrier, barrier.replace("  __syncthreads();\n", ""))
    for source, schedule, wanted in (
        (kernel.source, "held", True),
        (early, "lockstep", True),
        (early, "held", False),
    ):
        findings, _, right = run(kernel, source, schedule, kernel.shapes[0])
        assert (findings, right) == (set(), wanted)
