"""Arithmetic of float32 and float64 in PTX's directed rounding modes: rz, rm (down) and rp (up).

A result is first rounded to nearest; the sign of its exact error then tells whether the neighbour is meant.
The errors of a sum, a product, a quotient and a square root are exact in float64 (Boldo & Daumas,
"Representable correcting terms for possibly underflowing floating point operations", ARITH 2003) unless they
underflow; those lanes use rational numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from harness.emulator.numbers.floats import Array, Workspace, fma64, odd_sum, round_to, two_product, two_sum

_SAFE_LOW, _SAFE_HIGH = 2.0**-900, 2.0**900
Directed = Callable[..., None]  # called with (out, workspace, *operands); fills `out`


def toward(near: Array, error: Array, mode: str) -> Array:
    """Return a result in a rounding mode, from the one to nearest and the sign of what is missing.

    near: the result to nearest
    error: exact result minus `near`, or anything of the same sign; 0 where `near` is exact or NaN
    mode: rn, rz, rm or rp
    """
    kind = near.dtype.type
    if mode == "rz":
        moves, target = np.where(near > 0, error < 0, (near < 0) & (error > 0)), kind(0)
    elif mode == "rm":
        moves, target = error < 0, kind(-np.inf)
    elif mode == "rp":
        moves, target = error > 0, kind(np.inf)
    else:
        return near
    return np.where(moves, np.nextafter(near, target), near)


def directed(name: str, mode: str, single: bool) -> Directed:
    """Return a function that computes `name` in a rounding mode, for float32 if `single`, else float64.

    name: add, sub, mul, fma, div, sqrt or rcp
    """
    compute = _SINGLE[name] if single else _double(name)

    def fill(out: Array, work: Workspace, *operands: Any) -> None:
        kind = np.float32 if single else np.float64
        values = [np.array(np.broadcast_to(np.asarray(v, kind), out.shape)) for v in operands]
        np.copyto(out, compute(mode, *values))

    return fill


def _zero_sum(found: Array, x: Array, y: Array, mode: str) -> Array:
    """Return the sum of x and y with the sign that zero has: a sum that cancels is -0 when rounding down."""
    cancels = (found == 0) & (x == -y) & ((x != 0) | (np.signbit(x) != np.signbit(y)))
    return np.where(cancels, found.dtype.type(-0.0 if mode == "rm" else 0.0), found)


# -- float32: sums and products are rounded to odd in float64, which is rounding once


def _add32(mode: str, a: Array, b: Array) -> Array:
    x, y = a.astype(np.float64), b.astype(np.float64)
    return _zero_sum(round_to(odd_sum(x, y), np.float32, mode), x, y, mode)


def _fma32(mode: str, a: Array, b: Array, c: Array) -> Array:
    x, y = a.astype(np.float64) * b, c.astype(np.float64)
    return _zero_sum(round_to(odd_sum(x, y), np.float32, mode), x, y, mode)


def _div32(mode: str, a: Array, b: Array) -> Array:
    near = a / b
    rest = a.astype(np.float64) - near.astype(np.float64) * b
    return toward(near, _settled(near, np.sign(rest) * np.sign(b), a, b), mode)


def _sqrt32(mode: str, a: Array) -> Array:
    near = np.sqrt(a)
    rest = a.astype(np.float64) - near.astype(np.float64) ** 2
    return toward(near, _settled(near, rest, a, a), mode)


def _settled(near: Array, error: Array, a: Array, b: Array) -> Array:
    """Return the error of results from finite operands a and b; one that overflowed lies below infinity."""
    finite = np.isfinite(a) & np.isfinite(b)
    over = np.isinf(near) & finite & (b != 0)
    return np.where(over, -np.sign(near), np.where(finite & np.isfinite(near), error, 0))


_SINGLE: dict[str, Callable[..., Array]] = {
    "add": _add32,
    "sub": lambda mode, a, b: _add32(mode, a, -b),
    "mul": lambda mode, a, b: round_to(a.astype(np.float64) * b, np.float32, mode),
    "fma": _fma32,
    "div": _div32,
    "sqrt": _sqrt32,
    "rcp": lambda mode, a: _div32(mode, np.ones_like(a), a),
}


# -- float64


def _near64(name: str, *v: Array) -> Array:
    """Return the result of `name` to nearest."""
    if name == "fma":
        out = np.empty_like(v[0])
        fma64(v[0], v[1], v[2], out)
        return out
    if name == "sqrt":
        root: Array = np.sqrt(v[0])
        return root
    found: Array = {"add": np.add, "mul": np.multiply, "div": np.divide}[name](*v)
    return found


def _error64(name: str, near: Array, *v: Array) -> Array:
    """Return the exact result of `name` minus `near`, or its sign, where nothing under- or overflows."""
    out = np.empty_like(near)
    if name == "add":
        return two_sum(*v)[1]
    if name == "mul":
        return two_product(*v)[1]
    if name == "div":
        fma64(-near, v[1], v[0], out)
        return out * np.sign(v[1])
    if name == "sqrt":
        fma64(-near, near, v[0], out)
        return out
    high, low = two_product(v[0], v[1])
    upper, first = two_sum(high, v[2])
    total, second = two_sum(upper, low)
    small, rest = two_sum(first, second)
    error = (total - near) + small
    return np.where(error != 0, error, rest)


def _safe(name: str, near: Array, *v: Array) -> Array:
    """Return the lanes in which `_error64` is exact."""
    parts = [*v, near, v[0] * v[1]] if name in ("mul", "fma") else [*v, near]
    good: Array = np.all(
        [(x == 0) | ((np.abs(x) > _SAFE_LOW) & (np.abs(x) < _SAFE_HIGH)) for x in parts], axis=0
    )
    if name == "div":
        good &= (v[1] != 0) & ((near != 0) | (v[0] == 0))
    if name in ("mul", "fma"):
        good &= (parts[-1] != 0) | (v[0] == 0) | (v[1] == 0)
    return good


def _double(name: str) -> Callable[..., Array]:
    """Return a function that computes `name` for float64: ``f(mode, *operands)``."""
    if name == "sub":
        return lambda mode, a, b: _double("add")(mode, a, -b)
    if name == "rcp":
        return lambda mode, a: _double("div")(mode, np.ones_like(a), a)

    def compute(mode: str, *v: Array) -> Array:
        near = _near64(name, *v)
        safe = _safe(name, near, *v)
        error = np.where(safe, _error64(name, near, *v), 0)
        for lane in zip(*np.nonzero(~safe & np.all([np.isfinite(x) for x in v], axis=0)), strict=True):
            error[lane] = _exact_error(name, float(near[lane]), *(float(x[lane]) for x in v))
        found = toward(near, error, mode)
        if name in ("add", "fma"):
            return _zero_sum(found, v[0] if name == "add" else v[0] * v[1], v[-1], mode)
        return found

    return compute


def _exact_error(name: str, near: float, *v: float) -> float:
    """Return the sign of the exact result of finite operands minus `near`; 0 where there is no result."""
    if math.isnan(near) or (name == "div" and v[1] == 0):
        return 0.0
    if math.isinf(near):
        return -math.copysign(1.0, near)
    a, *rest = (Fraction(x) for x in v)
    here = Fraction(near)
    if name == "sqrt":
        difference = a - here * here
    elif name == "div":
        difference = a / rest[0] - here
    else:
        exact = {"add": lambda: a + rest[0], "mul": lambda: a * rest[0], "fma": lambda: a * rest[0] + rest[1]}
        difference = exact[name]() - here
    return float((difference > 0) - (difference < 0))
