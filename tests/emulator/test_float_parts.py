"""Float32 products from those of bf16, fp16 and tf32 parts, in the emulator, for all kinds of inputs."""

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
from harness.problems.gemm import GEMMS
from shared.mutants import flat

NAMES = ("31_bf16x6", "32_bf16x6_panels", "36_fp16x3", "38_3xtf32_panels", "39_bf16x6_tiles")
RUNGS = {name[:2]: catalog.kernel(name) for name in NAMES}
SMALL = {"BM": 64, "BN": 64, "STAGES": 4}
SMALL36 = SMALL | {"STAGES": 6}
LONG38 = {"PART_K": 32, "STAGES": 2}
CLUSTER39 = {"SPLIT": 8, "BLOCKS": 0}
LARGE39 = {"BM": 128, "BN": 128, "BLOCKS": 1}
SHARED = {"M": 60, "N": 60, "K": 1100}  # one tile, which blocks share
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


def wide_row(_rng: np.random.Generator, a: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    """Return rows of A with an element that is 2^36 times as large as the others, and meets a zero."""
    a[:, 5], b[5] = 2.0**36, 0.0
    return a, b


def infinite(_rng: np.random.Generator, a: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    a[5, 3], a[7, 1], a[7, 2], b[4, 60] = np.inf, np.inf, -np.inf, -np.inf
    return a, b


def not_numbers(_rng: np.random.Generator, a: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    a[129, 75] = b[0, 0] = np.nan
    return a, b


def outcome(
    kernel: Kernel, kind: Any, parameters: dict[str, int] | None = None, bound: str = "", **more: Any
) -> str:
    """Return what is wrong with the kernel's results, findings included; "" where all is right.

    NaN and infinities must be where a product in float64 has them.
    """
    variant = kernel.variant(**(parameters or {}))
    built = Built(variant=variant, cubin=compile_kernel(variant, "sm_90a"), sass=None)
    problem = GEMMS[kernel.dtype].from_axes(SHAPE | more)
    inputs = problem.inputs(11)
    m, n = problem.M, problem.N
    stored = problem.left(inputs["A"]), problem.right(inputs["B"])  # views, of K x M where it is transposed
    a, b = kind(np.random.default_rng(12), *(x.copy() for x in stored))
    stored[0][:], stored[1][:] = a, b
    run, arrays = emulation.launch(built, problem, inputs, emulation.Options(count=False))
    if run.findings:
        return str(run.findings[0])
    with np.errstate(all="ignore"):
        reference = (GEMMS[bound].from_axes(SHAPE | more) if bound else problem).reference(inputs)
        exact = problem.alpha * (a.astype(np.float64) @ b.astype(np.float64))
        exact += problem.beta * inputs["C"][:, :n] if problem.beta else 0.0
    found = arrays["C"][:m, :n].astype(np.float64)
    special = ~np.isfinite(exact)
    if not np.array_equal(found[special], exact[special], equal_nan=True):
        return "infinities and NaN are elsewhere"
    error = np.abs(found[~special] - np.broadcast_to(reference.expected, found.shape)[~special])
    bad = np.count_nonzero(~(error <= np.broadcast_to(reference.bound, found.shape)[~special]))
    return f"{bad} elements wrong" if bad else ""


# Rows without an infinity are multiplied as those of `normal` are; test_hopper_rungs.py has those, too.
IN_CI = (infinite,)


def far_apart(_rng: np.random.Generator, a: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    """Return rows and columns that 200 octaves lie between, whose products are of a middling size."""
    return np.ldexp(a, -100), np.ldexp(b, 100)


KINDS = [
    pytest.param(kind, marks=pytest.mark.slow if kind in IN_CI else pytest.mark.exhaustive, id=kind.__name__)
    for kind in (normal, positive, graded, cancelling, near_overflow, not_numbers, infinite, far_apart)
]


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_those_of_float32(kind: Any, rung: str) -> None:
    assert outcome(RUNGS[rung], kind) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rung", "parameters"), [("32", SMALL), ("36", SMALL36), ("38", SMALL36), ("39", CLUSTER39)]
)
def test_a_tile_shared_along_k(rung: str, parameters: dict[str, int]) -> None:
    assert outcome(RUNGS[rung], infinite, parameters) == ""


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", ["NT", "TN", "TT"])
@pytest.mark.parametrize(
    ("rung", "parameters"),
    [
        *[("32", {}), ("36", SMALL36), ("38", {}), ("38", SMALL36), ("38", LONG38), ("39", {})],
        *[("39", {"BN": 96}), ("39", {"BN": 32}), ("39", LARGE39), ("39", CLUSTER39)],
    ],
)
def test_operands_stored_transposed(rung: str, parameters: dict[str, int], layout: str) -> None:
    """Rows with an infinity are computed again, from where they lie."""
    flags = {"A": int(layout[0] == "T"), "B": int(layout[1] == "T")}
    axes = {f"trans{name.lower()}": flag for name, flag in flags.items()}
    laid_out = parameters | {f"TRANS{name}": flag for name, flag in flags.items()}
    assert outcome(RUNGS[rung], infinite, laid_out, **axes) == ""
    padded = axes | {"lda": 135, "ldb": 79}  # rows that are not aligned
    assert outcome(RUNGS[rung], infinite, laid_out, **padded) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rung", "parameters"),
    [
        *[("32", SMALL), ("36", {"BM": 128, "BN": 64, "STAGES": 8}), ("38", SMALL36)],
        *[("39", {}), ("39", {"SPLIT": 2}), ("39", CLUSTER39)],
    ],
)
def test_blocks_that_share_a_tile(rung: str, parameters: dict[str, int]) -> None:
    """Two tiles, or one, for four blocks; rows with an infinity are computed again by whoever has them.

    Blocks of 39, and clusters of two, share less of k than those of panels.
    """
    axes = SHARED | {"N": 68} | ({"K": 550} if rung == "39" else {})
    assert outcome(RUNGS[rung], infinite, parameters, **axes) == ""


def tiny(_rng: np.random.Generator, a: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    """Return rows of subnormal elements, and one of zeros."""
    a[:64] = np.ldexp(a[:64], -136)
    a[7] = 0
    return a, b


@pytest.mark.exhaustive
@pytest.mark.parametrize("rung", RUNGS)
def test_subnormal_elements_keep_their_bits_with_scales_only(rung: str) -> None:
    """A bf16 is a multiple of 2^-133, and a tf32 number of 2^-136."""
    assert ("wrong" in outcome(RUNGS[rung], tiny)) == (rung != "36")


@pytest.mark.exhaustive
def test_small_elements_of_a_row_lose_bits_and_the_bound_says_so() -> None:
    """The bound of 3xtf32, which knows no largest elements, is exceeded."""
    assert outcome(RUNGS["36"], wide_row) == ""
    assert "wrong" in outcome(RUNGS["36"], wide_row, bound="3xtf32")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("rung", "parameters"),
    [
        *[("31", {}), ("32", {}), ("32", SMALL), ("36", SMALL36), ("38", SMALL36), ("38", LONG38)],
        *[("39", {}), ("39", LARGE39)],
    ],
)
def test_any_alignment(rung: str, parameters: dict[str, int]) -> None:
    axes = {"M": 67, "N": 129, "K": 33, "lda": 35, "ldb": 131, "ldc": 130, "beta": -0.5}
    assert outcome(RUNGS[rung], infinite, parameters, **axes) == ""


FAULTS = {
    "three products": ("31", "int degree = PARTS - 1;", "int degree = PARTS - 2;"),
    "a part is not the remainder": ("31", "v.x - low(two.x)", "v.x - low(two.x) * 1.0001f"),
    "NaN of parts stays": ("31", "if (whole) {", "if (true) {"),
    "halves of A swapped": ("31", "BM / 2 * half + row_a(j)", "BM / 2 * (1 - half) + row_a(j)"),
    "halves of a panel swapped": ("32", "return r / (TILE_M * K / 64)", "return 1 - r / (TILE_M * K / 64)"),
    "the other product is left out": ("36", "int degree = PARTS - 1;", "int degree = PARTS - 2;"),
    "scales that leave no room for lo": ("36", "min(14 - exponent", "min(-12 - exponent"),
    "columns have the scales of their neighbours": ("36", "(of_b + n + 4))", "(of_b + n))"),
    "a scale is undone twice": ("36", "power(n - (n >> 1))", "power(n)"),
    "a sharer's sums are left out": ("36", "sharers - 1, all", "sharers - 2, all"),
    "all sharers take the first k": ("36", "const unsigned begin = tiles_k", "const unsigned begin = 0"),
    "another swizzle": ("32", "n % 64 ^ k % 8 * 8", "n % 64 ^ k % 4 * 8"),
    "tf32 has another swizzle": ("38", "k ^ r / (32 / K) % (K / 4) * 4", "k ^ r % (K / 4) * 4"),
    "rows are eight times as far apart": (
        "38",
        "parts.b[product == 1], 16, 32 * K",
        "parts.b[product == 1], 16, 64 * K",
    ),
    "lo * lo for lo * hi": ("38", "parts.b[product == 1]", "parts.b[product <= 1]"),
    "hi * lo is left out": ("38", "int product = 0; product < 3", "int product = 0; product < 3 - 1"),
    "lo is not the remainder": ("38", "x.x - __uint_as_float(hi.x)", "x.x - 1.001f * __uint_as_float(hi.x)"),
    "lines that are transposed lose an element": ("38", "PITCH = 36", "PITCH = 28"),
    "the least part is left out": ("39", "int degree = PARTS - 1;", "int degree = PARTS - 2;"),
    "parts of the other operand": ("39", "b.bytes(y, k)", "b.bytes(x, k)"),
    "the swizzle of 128 bytes": ("39", "r / 2 % 4 * 8", "r % 4 * 8"),
    "k across the lines are half as far apart": ("39", "(K_MAJOR ? 2 : 64) * k", "(K_MAJOR ? 2 : 32) * k"),
    "columns behind the edge": ("39", "min(columns - begin, 8) : 0", "min(columns - begin + 1, 8) : 0"),
    "a row behind the edge": ("39", "r < rows ? min(columns", "r <= rows ? min(columns"),
    "NaN of a block's sum stays": ("39", "if (to == to) continue;", "continue;"),
    "a block computes again what overflows, to the end of k": ("39", "min(K, share.end * BK) - k)", "K - k)"),
    "an odd number of stages": ("38", "(K + LEAST_K - 1u) / LEAST_K * (LEAST_K / BK)", "(K + BK - 1u) / BK"),
}


@pytest.mark.parametrize(("rung", "old", "new"), FAULTS.values(), ids=FAULTS)
def test_the_text_of_a_fault_stands_in_its_kernel(rung: str, old: str, new: str) -> None:
    assert flat(RUNGS[rung]).count(old) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(tmp_path: Path, fault: str) -> None:
    rung, old, new = FAULTS[fault]
    path = tmp_path / "fault.cu"
    path.write_text(flat(RUNGS[rung]).replace(old, new), encoding="utf-8")
    axes = SHARED | {"N": 68} if "sharer" in fault or "block" in fault else {}
    kind = infinite if "NaN" in fault else near_overflow if "overflows" in fault else normal
    assert outcome(catalog.kernel(str(path)), kind, **axes) != ""
