"""Kernels written anew: the right ones are clean, and each fault is told or gives wrong numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import shared.anew_rows
import shared.anew_tiles
import shared.anew_turns  # noqa: F401 - they add to ANEW
from harness.emulator import Buffer, emulate
from harness.errors import EmulatorError
from shared.anew_kernels import ANEW, Anew
from shared.emulator_kernels import compile_ptx

FEW = ("radix pass", "histogram in distributed shared memory")  # what a newcomer runs


def told(kernel: Anew, source: str, schedule: str, seed: int = 1) -> list[str]:
    """Run a kernel; return its findings, and whether its numbers are wrong."""
    given, right = kernel.make(np.random.default_rng(5))
    arguments = [
        Buffer(array=each, name="abcdefgh"[i]) if isinstance(each, np.ndarray) else each
        for i, each in enumerate(given)
    ]
    try:
        found = emulate(
            compile_ptx(source, "compute_90a"),
            "k",
            grid=(kernel.grid,),
            block=(kernel.block,),
            arguments=arguments,
            shared=kernel.shared,
            schedule=schedule,
            seed=seed,
            fences=schedule in ("lockstep", "late"),
        )
    except EmulatorError as error:
        return [str(error)]
    return [*map(str, found.findings), *([] if right() else ["wrong numbers"])]


def orders(kernel: Anew) -> list[tuple[str, int]]:
    """Return the schedules that tell faults of such kernels, with their seeds."""
    if kernel.hopper:
        return [("late", 1), ("early", 1), *(("random", seed) for seed in (1, 6, 8))]
    return [(order, 1) for order in ("lockstep", "backward", "warp-serial", "delayed", "held")]


def edits(which: str) -> list[Any]:
    """Return the cases (name, edit), all slow but the first of a few kernels."""
    return [
        pytest.param(name, edit, marks=[] if name in FEW and not i else [pytest.mark.slow])
        for name, kernel in ANEW.items()
        for i, edit in enumerate(getattr(kernel, which))
    ]


def edited(kernel: Anew, edit: tuple[str, str]) -> str:
    assert kernel.source.count(edit[0]) == 1
    return kernel.source.replace(*edit)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FEW else [pytest.mark.slow]) for n in ANEW]
)
def test_a_kernel_is_clean_and_right(name: str) -> None:
    assert [told(ANEW[name], ANEW[name].source, *order) for order in orders(ANEW[name])[:3]] == [[]] * 3


@pytest.mark.parametrize(("name", "edit"), edits("faults"))
def test_a_fault_is_told(name: str, edit: tuple[str, str]) -> None:
    source = edited(ANEW[name], edit)
    assert any(told(ANEW[name], source, *order) for order in orders(ANEW[name]))


@pytest.mark.parametrize(("name", "edit"), edits("same"))
def test_an_edit_that_changes_nothing_is_clean(name: str, edit: tuple[str, str]) -> None:
    source = edited(ANEW[name], edit)
    assert [told(ANEW[name], source, *order) for order in orders(ANEW[name])] == [[]] * 5


def test_a_block_s_scope_is_none_for_atomics_of_a_cluster() -> None:
    kernel = ANEW["histogram in distributed shared memory"]
    narrow = told(kernel, kernel.source.replace("red.relaxed.cluster", "red.relaxed.cta"), "late")
    assert any("the scope .cta has no threads of another block" in line for line in narrow)
    own = kernel.source.replace("v / 32)));", "rank)));").replace("red.relaxed.cluster", "red.relaxed.cta")
    assert told(kernel, own, "late") == ["wrong numbers"]  # each block counts for itself: nothing races
