"""Kernels that a stranger might bring have no finding in any order; nearly all of their faults are found."""

from __future__ import annotations

from typing import Any

import pytest

import shared.brought_blocks
import shared.brought_clusters
import shared.brought_flags
import shared.brought_moves
import shared.brought_products
import shared.brought_solvers
import shared.brought_units
import shared.brought_warps  # noqa: F401 - they add to BROUGHT
from shared.brought import BROUGHT, Brought, outcomes

FEW = ("cubes", "states", "chained", "conv_im2col")  # what a newcomer runs


def marked(name: str, *more: Any, slow: bool) -> Any:
    """A case; CUDA's headers take seconds to compile, so that kernels with them are for those who ask."""
    if BROUGHT[name].headers:
        return pytest.param(name, *more, marks=[pytest.mark.exhaustive if slow else pytest.mark.slow])
    return pytest.param(name, *more, marks=[pytest.mark.slow] if slow or name not in FEW else [])


def found(kernel: Brought, fault: tuple[str, str]) -> bool:
    return any(wrong for _, wrong in outcomes(kernel, kernel.faulty(fault)))


@pytest.mark.parametrize("name", [marked(name, slow=False) for name in BROUGHT])
def test_a_right_kernel_has_no_finding(name: str) -> None:
    kernel = BROUGHT[name]
    assert not [(schedule, wrong) for schedule, wrong in outcomes(kernel, kernel.source) if wrong]


@pytest.mark.parametrize(
    ("name", "fault"),
    [marked(name, fault, slow=i > 1) for name, one in BROUGHT.items() for i, fault in enumerate(one.faults)],
)
def test_a_planted_fault_is_found(name: str, fault: tuple[str, str]) -> None:
    assert found(BROUGHT[name], fault)


@pytest.mark.parametrize(
    ("name", "fault"),
    [marked(name, fault, slow=True) for name, one in BROUGHT.items() for fault in one.missed],
)
def test_what_is_still_missed(name: str, fault: tuple[str, str]) -> None:
    """Negative: who finds one of them moves it to the others."""
    assert not found(BROUGHT[name], fault)
