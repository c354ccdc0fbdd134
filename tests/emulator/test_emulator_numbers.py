"""The emulator's arithmetic against libm and Python's own, bit for bit; control flow against plain loops."""

from __future__ import annotations

import ctypes
import ctypes.util
from fractions import Fraction

import numpy as np
import pytest

from harness.emulator.numbers.floats import Underflow, Workspace, fma32, fma64, fma_exact, round_to
from shared.emulator_kernels import MATMULS, NAIVE, SIGNATURE, TILED16, matmul

LIBM = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")
LIBM.fmaf.restype, LIBM.fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
LIBM.fma.restype, LIBM.fma.argtypes = ctypes.c_double, [ctypes.c_double] * 3
N = 20_000


def libm_fma(function: ctypes._CFuncPtr, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    triples = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    return np.array([function(*triple) for triple in triples], a.dtype)


def bits(values: np.ndarray) -> np.ndarray:
    """With one pattern for all NaN."""
    return np.where(np.isnan(values), values.dtype.type(np.nan), values).view(f"i{values.itemsize}")


def near_ties(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """a * b is half a place of c but for a little that float64 loses beside c."""
    c = rng.integers(1 << 23, 1 << 24, N).astype(np.float32)
    k = rng.integers(1, 256, N) * 2.0**-23
    return (1 + k).astype(np.float32), (0.5 * (1 - k)).astype(np.float32), c


def just_below(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    a, b = np.full(N, 1 + 2.0**-23, np.float32), np.full(N, 0.5 * (1 - 2.0**-23), np.float32)
    return a, b, rng.integers(1 << 23, 1 << 24, N).astype(np.float32)


def subnormal(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """A fused multiply-add with a subnormal c."""
    k = rng.integers(1, 256, N) * 2.0**-23
    c = (rng.integers(-(1 << 22), 1 << 22, N) * 2.0**-149).astype(np.float32)
    return ((1 + k) * 2.0**-75).astype(np.float32), ((1 - k) * 2.0**-75).astype(np.float32), c


def any_bits(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    return tuple(rng.integers(0, 1 << 32, N, dtype=np.uint32).view(np.float32) for _ in range(3))


def normal(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    return tuple(rng.standard_normal(N).astype(np.float32) for _ in range(3))


SUITES = [near_ties, just_below, subnormal, any_bits, normal]


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    shape, out, watch = (1, len(a)), np.empty((1, len(a)), a.dtype), Underflow()
    with watch.watching():
        (fma32 if a.dtype == np.float32 else fma64)(a[None], b[None], c[None], out, Workspace(shape, watch))
    return out[0]


@pytest.mark.parametrize("suite", SUITES)
def test_fma_of_float32_is_libms(suite: object) -> None:
    a, b, c = suite(np.random.default_rng(0))  # type: ignore[operator]
    assert (bits(fused(a, b, c)) == bits(libm_fma(LIBM.fmaf, a, b, c))).all()


@pytest.mark.parametrize("place", range(3))
def test_the_result_may_take_the_place_of_an_operand(place: int) -> None:
    """Sums do: a subnormal one is rounded again, from operands that must still be there."""
    numbers = subnormal(np.random.default_rng(1))
    right = libm_fma(LIBM.fmaf, *numbers)
    operands, watch = [x[None].copy() for x in numbers], Underflow()
    with watch.watching():
        fma32(*operands, operands[place], Workspace((1, N), watch))
    assert (bits(operands[place][0]) == bits(right)).all()


@pytest.mark.parametrize("suite", [near_ties, just_below, subnormal])
def test_without_its_repair_the_fma_would_be_wrong(suite: object) -> None:
    a, b, c = suite(np.random.default_rng(0))  # type: ignore[operator]
    with np.errstate(all="ignore"):
        rounded_twice = (a.astype(np.float64) * b + c).astype(np.float32)
    assert (bits(rounded_twice) != bits(libm_fma(LIBM.fmaf, a, b, c))).any()


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 1e-160, 1e150, 1e-310])
def test_fma_of_float64_is_libms(scale: float) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, N)) * scale
    c = -a * b * (1 + rng.integers(-4, 5, N) * 2.0**-52)
    for addend in (c, rng.standard_normal(N) * scale, rng.integers(0, 1 << 63, N).view(np.float64)):
        assert (bits(fused(a, b, addend)) == bits(libm_fma(LIBM.fma, a, b, addend))).all()


def test_the_exact_fma_is_libms_at_the_edges() -> None:
    edges = [0.0, -0.0, 1.0, -1.0, 5e-324, 2.0**-1022, 1.7e308, -1.7e308, float("inf"), float("nan"), 1e-300]
    for a in edges:
        for b in edges:
            for c in edges:
                found, wanted = np.float64(fma_exact(a, b, c)), np.float64(LIBM.fma(a, b, c))
                assert bits(np.array([found]))[0] == bits(np.array([wanted]))[0], (a, b, c)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_rounding_modes_by_exact_rationals(mode: str) -> None:
    values = np.random.default_rng(0).standard_normal(2000) * 10.0 ** np.arange(-43, 37).repeat(25)
    for value, found in zip(values.tolist(), round_to(values, np.float32, mode).tolist(), strict=True):
        low = np.nextafter(np.float32(found), np.float32(-np.inf))
        high = np.nextafter(np.float32(found), np.float32(np.inf))
        exact, here = Fraction(value), Fraction(found)
        if mode == "rn":
            assert abs(exact - here) <= min(
                abs(exact - Fraction(float(low))), abs(exact - Fraction(float(high)))
            )
        elif mode == "rz":
            assert abs(here) <= abs(exact) < max(abs(Fraction(float(low))), abs(Fraction(float(high))))
        elif mode == "rm":
            assert here <= exact < Fraction(float(high))
        else:
            assert Fraction(float(low)) < exact <= here


@pytest.mark.parametrize("source", [NAIVE, TILED16])
def test_a_product_of_matrices_is_a_chain_of_libms_fmas(source: str) -> None:
    n = 21
    _, c, _ = matmul(source, (16, 16), 16, n)
    rng = np.random.default_rng(1)
    a, b, old = (rng.standard_normal((n, n)).astype(np.float32) for _ in range(3))
    for row in range(n):
        for column in range(n):
            total = 0.0
            for k in range(n):
                total = LIBM.fmaf(float(a[row, k]), float(b[k, column]), total)
            scaled = np.float32(0.5) * old[row, column]  # alpha * s + beta * c: one of the two is the fma
            either = {
                LIBM.fmaf(1.5, total, float(scaled)),
                LIBM.fmaf(0.5, float(old[row, column]), float(np.float32(1.5) * np.float32(total))),
            }
            assert float(c[row, column]) in either


@pytest.mark.parametrize(
    "name", ["naive16", "tiled16"]
)  # of reg64, NVRTC fuses the epilogue another way on 100
def test_all_architectures_compute_the_same_bits(name: str) -> None:
    found = [matmul(*MATMULS[name], 64, f"compute_{a}")[1].tobytes() for a in (75, 80, 90, 100, 120)]
    assert len(set(found)) == 1


TRIANGLE = f"""{SIGNATURE} {{
  int r=blockIdx.y*blockDim.y+threadIdx.y, q=blockIdx.x*blockDim.x+threadIdx.x;
  if(r>=n||q>=n) return;
  float s=0;
  for(int k=0;k<=r;k++){{
    if(k==q) continue;
    for(int j=0;j<(q&3);j++) s+=a[r*n+k]*b[k*n+j];
    if(k>q+5) break;
  }}
  c[r*n+q]=s;
}}
"""


@pytest.mark.parametrize("schedule", ["lockstep", "warp-serial"])
def test_divergent_loops_with_break_and_continue(schedule: str) -> None:
    n = 37
    run, c, _ = matmul(TRIANGLE, (16, 16), 16, n, schedule=schedule)
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((n, n)).astype(np.float32).astype(np.float64) for _ in range(2))
    wanted = np.zeros((n, n))
    for r in range(n):
        for q in range(n):
            for k in range(r + 1):
                if k == q:
                    continue
                wanted[r, q] += a[r, k] * b[k, : q & 3].sum()
                if k > q + 5:
                    break
    assert run.findings == ()
    assert np.abs(c - wanted).max() < 1e-4
