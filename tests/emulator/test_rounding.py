"""Directed rounding of f32 and f64, against rational numbers, and the narrow formats, against each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from harness.emulator.numbers.formats import FORMATS, decode, encode
from harness.emulator.numbers.rounding import directed

OPERANDS = {"add": 2, "sub": 2, "mul": 2, "fma": 3, "div": 2, "sqrt": 1, "rcp": 1}
EXACT: dict[str, Callable[..., Fraction]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "fma": lambda a, b, c: a * b + c,
    "div": lambda a, b: a / b,
    "rcp": lambda a: 1 / a,
}


def numbers(rng: np.random.Generator, kind: Any, count: int) -> np.ndarray:
    """Numbers of every magnitude, whole ones, and the edges of the format."""
    info = np.finfo(kind)
    bits = rng.integers(0, 1 << 64, count, dtype=np.uint64) >> np.uint64(64 - info.bits)
    edges = [0.0, -0.0, 1, -1, info.tiny, info.tiny / 2, info.smallest_subnormal, info.max, -info.max]
    choices = [
        bits.astype(f"u{info.bits // 8}").view(kind),
        rng.standard_normal(count).astype(kind),
        rng.integers(-4, 5, count).astype(kind),
        rng.choice(np.array(edges, kind), count),
    ]
    return np.choose(rng.integers(0, 4, count), choices).astype(kind)


def bounded(name: str, found: Any, mode: str, kind: Any, values: list[Fraction]) -> bool:
    """Return whether `found` is the nearest number on the side of the exact result that `mode` wants."""
    if name == "sqrt":
        square = values[0]

        def side(y: Fraction) -> int:
            return -1 if y < 0 else (y * y > square) - (y * y < square)
    else:
        exact = EXACT[name](*values)

        def side(y: Fraction) -> int:
            return (y > exact) - (y < exact)

    def at(y: Any) -> int:
        return side(Fraction(float(y))) if math.isfinite(y) else (1 if y > 0 else -1)

    down = mode == "rm" or (mode == "rz" and at(kind(0)) < 0)
    if at(found) == 0:
        return True
    beyond = np.nextafter(found, kind(np.inf if down else -np.inf))
    return (at(found) < 0 < at(beyond)) if down else (at(beyond) < 0 < at(found))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("name", OPERANDS)
def test_directed_results_are_the_neighbours_of_the_exact_ones(name: str, mode: str, kind: Any) -> None:
    rng = np.random.default_rng(5)
    count = 400
    values = [numbers(rng, kind, count).reshape(1, -1) for _ in range(OPERANDS[name])]
    with np.errstate(all="ignore"):
        if name == "fma":  # sums that nearly cancel
            values[2][0, ::3] = -(values[0] * values[1])[0, ::3]
        found = np.empty((1, count), kind)
        directed(name, mode, kind is np.float32)(found, None, *values)
        tried = 0
        for lane in range(count):
            operands = [v[0, lane] for v in values]
            undefined = (name in ("div", "rcp") and operands[-1] == 0) or (name == "sqrt" and operands[0] < 0)
            if undefined or not all(math.isfinite(v) for v in operands):
                continue
            tried += 1
            exact = [Fraction(float(v)) for v in operands]
            assert bounded(name, found[0, lane], mode, kind, exact), (operands, found[0, lane])
    assert tried > 150


def test_the_check_of_roundings_refuses_a_neighbour() -> None:
    third = [Fraction(1), Fraction(3)]
    below = (
        np.float32(1 / 3)
        if float(np.float32(1 / 3)) < 1 / 3
        else np.nextafter(np.float32(1 / 3), np.float32(0))
    )
    above = np.nextafter(below, np.float32(1))
    assert bounded("div", below, "rm", np.float32, third)
    assert not bounded("div", above, "rm", np.float32, third)
    assert not bounded("div", np.nextafter(below, np.float32(0)), "rm", np.float32, third)


def test_a_sum_that_cancels_is_negative_zero_only_downwards() -> None:
    one = np.ones((1, 1), np.float32)
    for mode, negative in (("rz", False), ("rp", False), ("rm", True)):
        out = np.empty((1, 1), np.float32)
        directed("add", mode, True)(out, None, one, -one)
        assert out[0, 0] == 0
        assert np.signbit(out[0, 0]) == negative


@pytest.mark.parametrize("name", FORMATS)
def test_formats_keep_their_own_numbers_and_round_between_them(name: str) -> None:
    form = FORMATS[name]
    patterns = np.arange(1 << min(form.bits, 19)) << form.shift
    if name in ("e2m3", "e3m2"):
        patterns = patterns[:64]
    values = decode(patterns, name)
    known = ~np.isnan(values)
    assert np.array_equal(encode(values[known], name), patterns[known])
    positive = np.unique(values[known & (values >= 0) & np.isfinite(values)])
    below, above = positive[:-1], positive[1:]
    closer = below + (above - below) * 0.25
    assert np.array_equal(decode(encode(closer, name), name), below)
    assert np.array_equal(decode(encode(closer, name, "rp"), name), above)
    assert np.array_equal(decode(encode(-closer, name, "rm"), name), -above)
    middle = (below + above) / 2
    even = encode(middle, name)
    assert ((even >> form.shift) % 2 == 0).all()
    assert np.array_equal(decode(encode(middle, name, "rna"), name), above)


def test_what_is_too_large_for_a_format() -> None:
    large = np.array([1e300, -1e300, np.inf, np.nan])
    assert encode(large, "e4m3", saturate=True).tolist() == [0x7E, 0xFE, 0x7E, 0x7F]
    assert encode(large, "e5m2").tolist() == [0x7C, 0xFC, 0x7C, 0x7F]
    assert encode(large, "f16", "rz").tolist() == [0x7BFF, 0xFBFF, 0x7C00, 0x7FFF]
    assert encode(large, "e2m1", saturate=True).tolist() == [0x7, 0xF, 0x7, 0x7]
    assert encode(np.array([3.0, 0.75]), "ue8m0", "rp").tolist() == [129, 127]
