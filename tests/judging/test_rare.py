"""Inputs that random ones never are: an honest product passes, and one that treats them apart does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.judging import rare, values
from harness.judging.machines import flushes
from harness.problems.gemm import GEMMS, Gemm

SEEDS = range(4)
Float = NDArray[np.float32]
PROBLEM = GEMMS["fp32"].from_axes({"M": 24, "N": 20, "K": 96})


def passes(style: str, seed: int, product: Callable[[Float, Float], Float], problem: Gemm = PROBLEM) -> bool:
    trial = values.styled(problem, style, seed)
    a, b = (trial.inputs[name].astype(np.float32) for name in "AB")
    output = trial.inputs["C"].copy()
    output[:] = product(a, b)
    return not trial.compare(output, trial.inputs["C"]).bad


def summed(a: Float, b: Float) -> Float:
    """The product as a simple kernel has it: one sum in float32, term by term."""
    found = np.zeros((len(a), b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        found += a[:, k, None] * b[k]
    return found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("style", rare.STYLES)
def test_an_honest_sum_passes(style: str, seed: int) -> None:
    assert passes(style, seed, summed)


def without(a: Float, gone: NDArray[np.bool_]) -> Float:
    return np.where(gone, np.float32(0), a)


CHEATS: dict[str, Callable[[Float, Float], Float]] = {
    "special numbers at random places": lambda a, b: summed(without(a, a == np.float32(-2.75)), b),
    "equal neighbours": lambda a, b: summed(without(a, np.roll(a, 1, 1) == a), b),
    "rows that begin alike": lambda a, b: summed(
        np.where((a[:, :2] == np.roll(a, 1, 0)[:, :2]).all(1)[:, None], np.roll(a, 1, 0), a), b
    ),
    "symmetric corners": lambda a, b: summed(a, b) * (2 if a[0, 1] == a[1, 0] else 1),
    "sorted rows and columns": lambda a, b: summed(without(a, (np.diff(a, axis=1) >= 0).all(1)[:, None]), b),
    "sums that nearly cancel": lambda a, b: np.where(
        np.abs(summed(a, b)) < 0.01 * summed(abs(a), abs(b)), np.float32(0), summed(a, b)
    ),
    "results near the largest number": lambda a, b: np.clip(summed(a, b), -(2.0**122), 2.0**122),
    rare.TINY: lambda a, b: without(summed(a, b), np.abs(summed(a, b)) < 2.0**-126),
}


@pytest.mark.parametrize("style", rare.STYLES)
def test_what_treats_them_apart_fails(style: str) -> None:
    assert not any(passes(style, seed, CHEATS[style]) for seed in SEEDS)


def test_only_float32_has_the_extremes() -> None:
    assert {*rare.STYLES} <= {*values.styles(PROBLEM)}
    half = GEMMS["fp16"].from_axes({"M": 24, "N": 20, "K": 96})
    assert {*values.styles(half)} & {*rare.STYLES} == {*rare.STYLES} - {*rare.FLOAT32}


@pytest.mark.parametrize(
    ("opcode", "wanted"),
    [
        ("red.global.add.f32", True),
        ("atom.relaxed.gpu.global.add.f32", True),
        ("red.global.add.v4.f32", True),
        ("atom.add.f32", True),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32", True),
        ("atom.shared.add.f32", False),
        ("atom.global.add.u32", False),
        ("red.global.max.f32", False),
        ("add.f32", False),
    ],
)
def test_which_atomics_flush(opcode: str, wanted: bool) -> None:
    assert flushes(f"\t{opcode} \t[%rd1], %f1;\n\tadd.f32 %f1, %f2, %f3;") == wanted
