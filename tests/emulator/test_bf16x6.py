"""Rungs 31 and 32 in the emulator: float32 products from six of bf16, for all kinds of float32 inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness import compile_kernel
from harness.bench import emulation
from harness.kernels import catalog
from harness.kernels.spec import Kernel
from harness.launch.builds import Built
from harness.problems.gemm import Gemm
from shared.mutants import flat

RUNGS = {name[:2]: catalog.kernel(name) for name in ("31_bf16x6", "32_bf16x6_panels")}
SMALL = {"BM": 64, "BN": 64, "STAGES": 4}
SHAPE = {"M": 130, "N": 68, "K": 76, "alpha": 1.5}
Matrix = NDArray[np.float32]


def scaled(rng: np.random.Generator, x: Matrix, octaves: int) -> Matrix:
    return np.ldexp(x, rng.integers(-octaves, octaves + 1, x.shape)).astype(np.float32)


def normal(_rng: np.random.Generator, a: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    return a, b


def positive(_rng: np.random.Generator, a: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    return np.abs(a), np.abs(b)


def graded(rng: np.random.Generator, a: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    return scaled(rng, a, 30), scaled(rng, b, 30)


def cancelling(_rng: np.random.Generator, a: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    """Return pairs of equal terms with opposite signs, but for the last bits of one."""
    a[:, 1::2], b[1::2] = a[:, ::2], -b[::2] * np.float32(1 + 2.0**-22)
    return a, b


def near_overflow(_rng: np.random.Generator, a: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    """Return elements of A that round to an infinite bf16, and small ones of B."""
    a[::3, ::5] = np.finfo(np.float32).max
    return a, (b * np.float32(2.0**-20)).astype(np.float32)


def infinite(_rng: np.random.Generator, a: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    a[5, 3], a[7, 1], a[7, 2], b[4, 60] = np.inf, np.inf, -np.inf, -np.inf
    return a, b


def not_numbers(_rng: np.random.Generator, a: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    a[129, 75] = b[0, 0] = np.nan
    return a, b


def outcome(kernel: Kernel, kind: Any, parameters: dict[str, int] | None = None, **more: Any) -> str:
    """Return what is wrong with the kernel's results, findings included; "" where all is right.

    NaN and infinities must be where a product in float64 has them.
    """
    variant = kernel.variant(**(parameters or {}))
    built = Built(variant=variant, cubin=compile_kernel(variant, "sm_90a"), sass=None)
    problem = Gemm.from_axes(SHAPE | more)
    inputs = problem.inputs(11)
    m, n, k = problem.M, problem.N, problem.K
    a, b = inputs["A"][:, :k].copy(), inputs["B"][:, :n].copy()
    inputs["A"][:, :k], inputs["B"][:, :n] = a, b = kind(np.random.default_rng(12), a, b)
    run, arrays = emulation.launch(built, problem, inputs, emulation.Options())
    if run.findings:
        return str(run.findings[0])
    with np.errstate(all="ignore"):
        reference = problem.reference(inputs)
        exact = problem.alpha * (a.astype(np.float64) @ b.astype(np.float64))
        exact += problem.beta * inputs["C"][:, :n] if problem.beta else 0.0
    found = arrays["C"][:m, :n].astype(np.float64)
    special = ~np.isfinite(exact)
    if not np.array_equal(found[special], exact[special], equal_nan=True):
        return "infinities and NaN are elsewhere"
    error = np.abs(found[~special] - np.broadcast_to(reference.expected, found.shape)[~special])
    bad = np.count_nonzero(~(error <= np.broadcast_to(reference.bound, found.shape)[~special]))
    return f"{bad} elements wrong" if bad else ""


IN_CI = (normal, infinite)
KINDS = [
    pytest.param(kind, marks=pytest.mark.slow if kind in IN_CI else pytest.mark.exhaustive, id=kind.__name__)
    for kind in (normal, positive, graded, cancelling, near_overflow, not_numbers, infinite)
]


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_those_of_float32(kind: Any, rung: str) -> None:
    assert outcome(RUNGS[rung], kind) == ""


@pytest.mark.slow
def test_a_tile_shared_along_k() -> None:
    assert outcome(RUNGS["32"], infinite, SMALL) == ""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("rung", "parameters"), [("31", {}), ("32", {}), ("32", SMALL)])
def test_any_alignment(rung: str, parameters: dict[str, int]) -> None:
    axes = {"M": 67, "N": 129, "K": 33, "lda": 35, "ldb": 131, "ldc": 130, "beta": -0.5}
    assert outcome(RUNGS[rung], infinite, parameters, **axes) == ""


FAULTS = {
    "three products": ("31", "int degree = 2; degree >= 0", "int degree = 1; degree >= 0"),
    "a part is not the remainder": ("31", "x - __uint_as_float(bits)", "x - __uint_as_float(bits) * 1.0001f"),
    "NaN of parts stays": ("31", "if (whole) {", "if (true) {"),
    "halves of A swapped": ("31", "BM / 2 * half + row_a(j)", "BM / 2 * (1 - half) + row_a(j)"),
    "halves of a panel swapped": ("32", "half = r / (BM * BK / 64)", "half = 1 - r / (BM * BK / 64)"),
    "another swizzle": ("32", "(n ^ r % 8 * 8), BN", "(n ^ r % 4 * 8), BN"),
}


@pytest.mark.parametrize(("rung", "old", "new"), FAULTS.values(), ids=FAULTS)
def test_the_text_of_a_fault_stands_in_its_kernel(rung: str, old: str, new: str) -> None:
    assert flat(RUNGS[rung]).count(old) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize(("rung", "old", "new"), FAULTS.values(), ids=FAULTS)
def test_faults_are_found(tmp_path: Path, rung: str, old: str, new: str) -> None:
    path = tmp_path / "fault.cu"
    path.write_text(flat(RUNGS[rung]).replace(old, new), encoding="utf-8")
    assert outcome(catalog.kernel(str(path)), infinite if "true" in new else normal) != ""
