"""Comparisons, and the logic of predicates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.emulator.decode import FLOAT, Decoder, Run, handles
from harness.emulator.group import Group, broadcast
from harness.emulator.instructions.floating.half import operand as half_operand
from harness.emulator.numbers.algebra import COMPARE, Algebra
from harness.emulator.numbers.floats import flush
from harness.emulator.numbers.values import Array, Lanes, Mask, mask_of
from harness.emulator.ptx.program import Instruction

HALF = ("f16", "f16x2", "bf16", "bf16x2")
_TYPES = {f"{k}{b}" for k in "usb" for b in (8, 16, 32, 64)}
_UNORDERED = {"equ": "eq", "neu": "ne", "ltu": "lt", "leu": "le", "gtu": "gt", "geu": "ge"}
_UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_COMPARISONS = set(COMPARE) | set(_UNORDERED) | set(_UNSIGNED_NAMES) | {"num", "nan"}


def comparison(decoder: Decoder, ins: Instruction, order: str, kind: str) -> Callable[[Group], Any]:
    """Return a reader of the comparison `order` of the first two source operands, of type `kind`.

    It gives `Lanes`, or of a type with two elements a pair of them, the low one first.
    """
    if kind in ("f32", "f64"):
        dtype = FLOAT[kind]
        left, right = (decoder.floating(ins, text, dtype) for text in ins.operands[1:3])
        if "ftz" in ins.opcode:
            return lambda group: _compare_floats(order, flush(left(group))[()], flush(right(group))[()])
        return lambda group: _compare_floats(order, left(group), right(group))
    if kind in HALF:
        low, high = (half_operand(decoder, ins, text, kind) for text in ins.operands[1:3])

        def compare(group: Group) -> Any:
            a, b = low(group), high(group)
            found = [_compare_floats(order, a[..., i], b[..., i]) for i in range(a.shape[-1])]
            return found[0] if len(found) == 1 else tuple(found)

        return compare
    bits = int(kind[1:])
    a, b = (decoder.integer(ins, text, bits) for text in ins.operands[1:3])
    unsigned = kind[0] == "u" or order in _UNSIGNED_NAMES
    operator = _UNSIGNED_NAMES.get(order, order)
    if operator not in COMPARE:
        raise decoder.refusal(ins)
    return lambda group: group.algebra.compare(operator, a(group), b(group), unsigned=unsigned, bits=bits)


def _compare_floats(order: str, a: Any, b: Any) -> Lanes:
    """Return the lanes in which floats compare true; NaN only does in unordered forms such as equ."""
    nan = np.isnan(a) | np.isnan(b)
    if order in ("num", "nan"):
        found = ~nan if order == "num" else nan
    elif order in _UNORDERED:
        found = COMPARE[_UNORDERED[order]](a, b) | nan
    else:
        found = COMPARE[order](a, b) & ~nan
    return mask_of(found) if isinstance(found, np.ndarray) else bool(found)


def _order(decoder: Decoder, ins: Instruction) -> tuple[str, str]:
    """Return (comparison, combination) of a ``setp`` or ``set``; the latter is and, or, xor or ""."""
    order = ins.opcode[1]
    combine = ins.opcode[2] if ins.opcode[2] in ("and", "or", "xor") else ""
    if order not in _COMPARISONS:
        raise decoder.refusal(ins)
    return order, combine


def combined(algebra: Algebra, how: str, a: Lanes, b: Lanes) -> Lanes:
    """Return a and b, a or b, or a xor b, as `how` says."""
    return {"and": algebra.both, "or": algebra.either, "xor": algebra.differ}[how](a, b)


_SOURCES = _TYPES | _COMPARISONS | {"and", "or", "xor", "ftz", "f32", "f64", *HALF}


@handles("setp", family="any")
def setp(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``setp``: the comparison, and for a second destination its negation.

    Of a type with two elements the destinations get the low and the high one. With ``.and``, ``.or`` or
    ``.xor`` each result is combined with a predicate operand.
    """
    decoder.parts(ins, _SOURCES)
    order, combine = _order(decoder, ins)
    test = comparison(decoder, ins, order, ins.opcode[-1])
    first, _, second = ins.operands[0].partition("|")
    into = [decoder.predicate_number(ins, name) if name != "_" else -1 for name in (first, second) if name]
    other = decoder.predicate(ins, ins.operands[3]) if combine else None

    def run(group: Group, where: Lanes) -> None:
        found = test(group)
        results = found if isinstance(found, tuple) else (found, group.algebra.negate(found))
        for number, result in zip(into, results, strict=False):
            if other is not None:
                result = combined(group.algebra, combine, result, other(group))  # noqa: PLW2901
            if number >= 0:
                group.write(number, result, where)

    return run


_ONE = {"f32": 0x3F800000, "f16": 0x3C00, "f16x2": 0x3C00, "bf16": 0x3F80, "bf16x2": 0x3F80}


@handles("set", family="any")
def set_number(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``set``: where the comparison is true 1.0, or all ones for an integer, and 0 elsewhere."""
    decoder.parts(ins, _SOURCES)
    order, combine = _order(decoder, ins)
    test = comparison(decoder, ins, order, ins.opcode[-1])
    into = decoder.register(ins, ins.operands[0])
    other = decoder.predicate(ins, ins.operands[3]) if combine else None
    one = _ONE.get(ins.opcode[-2], -1)

    def run(group: Group, where: Lanes) -> None:
        found = test(group)
        elements = found if isinstance(found, tuple) else (found,)
        if other is not None:
            elements = tuple(combined(group.algebra, combine, e, other(group)) for e in elements)
        parts = [group.algebra.select(e, one, 0) for e in elements]
        if len(parts) == 2:
            low = group.algebra.unsigned(group.algebra.wrap(parts[0], 16), 16)
            group.write(into, group.algebra.linear(low, 1, parts[1], 1 << 16, bits=32), where)
        else:
            group.write(into, parts[0], where)

    return run


@handles("and", "or", "xor", family="pred")
def logic(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``and``, ``or`` and ``xor`` of predicates."""
    decoder.parts(ins, {"pred"})
    a, b = (decoder.predicate(ins, text) for text in ins.operands[1:3])
    into, how = decoder.predicate_number(ins, ins.operands[0]), ins.opcode[0]

    def run(group: Group, where: Lanes) -> None:
        group.write(into, combined(group.algebra, how, a(group), b(group)), where)

    return run


@handles("mov", "not", family="pred")
def move_predicate(decoder: Decoder, ins: Instruction) -> Run:
    """Decode ``mov`` and ``not`` of predicates."""
    decoder.parts(ins, {"pred"})
    read = decoder.predicate(ins, ins.operands[1])
    into, invert = decoder.predicate_number(ins, ins.operands[0]), ins.opcode[0] == "not"

    def run(group: Group, where: Lanes) -> None:
        value = read(group)
        group.write(into, group.algebra.negate(value) if invert else value, where)

    return run


def broadcast_mask(where: Lanes, shape: tuple[int, int]) -> Array:
    """Return lanes as a bool array (T, C): not to be written to."""
    return broadcast(where.array if isinstance(where, Mask) else np.asarray(where), shape)
