"""Arithmetic of f32 and f64. The payload of a NaN is the host's; PTX leaves it open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.emulator.decode import FLOAT, Decoder, Run, handles
from harness.emulator.group import Group, bits_of
from harness.emulator.numbers.floats import Workspace, flush, fma32, fma64
from harness.emulator.numbers.rounding import directed
from harness.emulator.numbers.values import Array, Lanes, mask_of
from harness.emulator.ptx.program import Instruction

Compute = Callable[..., Any]  # called with (out, workspace, *operands); fills `out`
_ROUND = ("rn", "rz", "rm", "rp")
_ONE = (1, 1)


def operation(decoder: Decoder, ins: Instruction, compute: Compute, sources: int) -> Run:
    """Return the function that applies `compute` to `sources` operands, with ``.ftz`` and ``.sat``.

    Raises IndexError if the instruction has fewer; `Decoder.steps` makes it an EmulatorError.
    """
    dtype = FLOAT[ins.opcode[-1]]
    read = [decoder.floating(ins, text, dtype) for text in ins.operands[1 : sources + 1]]
    if len(read) != sources:
        raise IndexError(sources)
    into = decoder.register(ins, ins.operands[0])
    flushes, saturates = "ftz" in ins.opcode, "sat" in ins.opcode
    plain = not (flushes or saturates)

    def run(group: Group, where: Any) -> None:
        values = [r(group) for r in read]
        if flushes:
            values = [flush(v)[()] for v in values]
        if np.ndarray not in map(type, values):
            out = np.empty(_ONE, dtype)
            compute(out, group.workspace(_ONE), *values)
        else:
            out = group.out(into, where, dtype)
            compute(out, group.work, *values)
            if plain and where is True:  # `out` is the register's own array
                group.registers[into] = out
                return
        if flushes:
            np.copyto(out, flush(out))
        if saturates:
            np.copyto(out, np.where(np.isnan(out), 0, np.clip(out, 0, 1)))
        group.write(into, out if out.size > 1 else out[0, 0], where)

    return run


def _rounding(decoder: Decoder, ins: Instruction, allowed: set[str]) -> str:
    """Return the rounding mode, rn by default. Raises NeedsGpu for a modifier that is not `allowed`."""
    parts = decoder.parts(ins, {"f32", "f64", "ftz", "sat", *allowed})
    return next((mode for mode in _ROUND if mode in parts), "rn")


def _ufunc(function: Any) -> Compute:
    """Return a NumPy function as a `Compute`."""
    return lambda out, work, *values: function(*values, out=out)


def _rounded(decoder: Decoder, ins: Instruction, name: str, nearest: Compute, sources: int) -> Run:
    """Return the function of an instruction that takes all four rounding modes."""
    mode = _rounding(decoder, ins, {*_ROUND, "approx", "full"} if name in _LOOSE else set(_ROUND))
    single = ins.opcode[-1] == "f32"
    return operation(decoder, ins, nearest if mode == "rn" else directed(name, mode, single), sources)


_LOOSE = (
    "div",
    "rcp",
    "sqrt",
)  # `.approx` and `.full` are rounded to nearest; the hardware's last bits differ


@handles("add", "sub", "mul", family="float", flops=1)
def arithmetic(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``add``, ``sub`` and ``mul``."""
    function = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[ins.opcode[0]]
    return _rounded(decoder, ins, ins.opcode[0], _ufunc(function), 2)


@handles("fma", "mad", family="float", flops=2)
def fma(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``fma`` and ``mad``, rounded once."""
    single = ins.opcode[-1] == "f32"

    def compute(out: Array, work: Workspace, a: Any, b: Any, c: Any) -> None:
        (fma32 if single else fma64)(a, b, c, out, work)

    return _rounded(decoder, ins, "fma", compute, 3)


@handles("neg", "abs", family="float")
def sign(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``neg`` and ``abs``."""
    decoder.parts(ins, {"f32", "f64", "ftz"})
    return operation(decoder, ins, _ufunc(np.negative if ins.opcode[0] == "neg" else np.abs), 1)


@handles("min", "max", family="float", flops=1)
def extreme(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``min`` and ``max`` of two or three operands: a NaN loses, with ``.NaN`` it wins.

    -0 is less than +0. With ``.abs`` magnitudes are compared, and ``.xorsign`` gives the product's sign.
    """
    decoder.parts(ins, {"f32", "f64", "ftz", "NaN", "xorsign", "abs"})
    compute = extreme_of(ins)
    return operation(decoder, ins, lambda out, work, *v: np.copyto(out, compute(*v)), len(ins.operands) - 1)


def extreme_of(ins: Instruction) -> Callable[..., Any]:
    """Return the function of the operands that a ``min`` or ``max`` computes."""
    largest, by_size, signs = ins.opcode[0] == "max", "abs" in ins.opcode, "xorsign" in ins.opcode

    def compute(first: Any, *others: Any) -> Any:
        found, sign = np.abs(first) if by_size else first, np.signbit(first)
        for other in others:
            sign = sign ^ np.signbit(other)
            found = choose(found, np.abs(other) if by_size else other, largest, "NaN" in ins.opcode)
        return np.where(sign, -np.abs(found), np.abs(found)) if signs else found

    return compute


def choose(a: Any, b: Any, largest: bool, nan: bool) -> Any:
    """Return the larger or the smaller of two floats: a NaN wins if `nan`, otherwise it loses."""
    quiet = (np.maximum if largest else np.minimum) if nan else (np.fmax if largest else np.fmin)
    found = quiet(a, b)
    zeros = (np.asarray(a) == 0) & (np.asarray(b) == 0)
    negative = (np.signbit(a) & np.signbit(b)) if largest else (np.signbit(a) | np.signbit(b))
    kind = found.dtype.type
    return np.where(zeros, np.where(negative, kind(-0.0), kind(0.0)), found)


@handles("div", family="float", flops=1)
def div(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``div``; ``.approx`` and ``.full`` are rounded to nearest even."""
    return _rounded(decoder, ins, "div", _ufunc(np.divide), 2)


@handles("rcp", family="float", flops=1)
def rcp(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``rcp``; ``.approx`` is rounded to nearest even."""
    return _rounded(decoder, ins, "rcp", lambda out, work, a: np.divide(out.dtype.type(1), a, out=out), 1)


@handles("sqrt", family="float", flops=1)
def sqrt(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``sqrt``; ``.approx`` is rounded to nearest even."""
    return _rounded(decoder, ins, "sqrt", _ufunc(np.sqrt), 1)


def _approximate(name: str, function: Callable[[Array], Array]) -> None:
    """Register a function that PTX has as ``.approx`` only.

    It is computed in float64 and rounded, so it equals the hardware's within a tolerance.
    """

    def maker(decoder: Decoder, ins: Instruction) -> Run:
        decoder.parts(ins, {"f32", "f64", "ftz", "approx"})

        def compute(out: Array, work: Workspace, a: Any) -> None:
            np.copyto(out, function(np.asarray(a, np.float64)), casting="same_kind")

        return operation(decoder, ins, compute, 1)

    handles(name, family="float", flops=1)(maker)


_approximate("rsqrt", lambda x: 1 / np.sqrt(x))
_approximate("sin", np.sin)
_approximate("cos", np.cos)
_approximate("lg2", np.log2)
_approximate("ex2", np.exp2)
_approximate("tanh", np.tanh)


@handles("copysign", family="float")
def copysign(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``copysign d, a, b``: b with the sign of a."""
    decoder.parts(ins, {"f32", "f64"})
    return operation(decoder, ins, lambda out, work, a, b: np.copysign(b, a, out=out), 2)


@handles("testp", family="float")
def testp(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``testp``, which tests for kinds of numbers such as finite or subnormal."""
    tests: dict[str, Callable[[Any], Any]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda v: ~np.isnan(v),
        "notanumber": np.isnan,
        "normal": lambda v: np.isfinite(v) & (np.abs(v) >= np.finfo(v.dtype).tiny),
        "subnormal": lambda v: (v != 0) & (np.abs(v) < np.finfo(v.dtype).tiny),
    }
    test = tests[ins.opcode[1]]
    read = decoder.floating(ins, ins.operands[1], FLOAT[ins.opcode[-1]])
    into = decoder.predicate_number(ins, ins.operands[0])

    def run(group: Group, where: Any) -> None:
        found = test(read(group))
        group.write(into, mask_of(found) if isinstance(found, np.ndarray) else bool(found), where)

    return run


# Of ``.f32x2``: two f32 in a register of 64 bits, each computed by itself; with the number of operands.
_PAIRS: dict[str, tuple[Callable[..., Any], int]] = {
    "add": (lambda out, work, a, b: np.add(a, b, out=out), 2),
    "sub": (lambda out, work, a, b: np.subtract(a, b, out=out), 2),
    "mul": (lambda out, work, a, b: np.multiply(a, b, out=out), 2),
    "fma": (lambda out, work, a, b, c: fma32(a, b, c, out, work), 3),
}


def _of_both(ins: Instruction) -> int:
    """Return the operations of a thread: those of both elements."""
    return 4 if ins.opcode[0] == "fma" else 2


@handles(*_PAIRS, family="pair", flops=_of_both)
def pairs(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``add``, ``sub``, ``mul`` and ``fma`` of ``.f32x2``."""
    parts = decoder.parts(ins, {"f32x2", "ftz", *_ROUND})
    mode = next((m for m in _ROUND if m in parts), "rn")
    nearest, sources = _PAIRS[ins.opcode[0]]
    compute = nearest if mode == "rn" else directed(ins.opcode[0], mode, True)
    if len(ins.operands) != sources + 1:
        raise IndexError(sources)
    read = [decoder.value(ins, text) for text in ins.operands[1:]]
    into = decoder.register(ins, ins.operands[0])

    def run(group: Group, where: Lanes) -> None:
        halves = [_halves(group, reader(group)) for reader in read]
        found = np.empty((*group.shape, 2), np.float32)
        for place in (0, 1):
            values = [np.ascontiguousarray(half[..., place]) for half in halves]
            values = [flush(v) for v in values] if "ftz" in parts else values
            out = np.empty(group.shape, np.float32)
            compute(out, group.work, *values)
            found[..., place] = flush(out) if "ftz" in parts else out
        group.write(into, found.view(np.float64)[..., 0], where)

    return run


def _halves(group: Group, value: Any) -> Array:
    """Return the two numbers of a register of 64 bits: float32 (T, C, 2)."""
    return bits_of(group, value, 8).view(np.float32).reshape(*group.shape, 2)
