"""Integer arithmetic and predicate logic on `values`; a result is made once and remembered by its origin."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np

from harness.emulator.numbers.values import (
    INT64,
    Affine,
    Array,
    Component,
    Integer,
    Lanes,
    Mask,
    array_of,
    bounds,
    identity,
    integer_of,
    mask_of,
    part_of,
    signed,
)

MEMO_BYTES = 192 << 20


T = TypeVar("T")


class Memo:
    """Results by key, forgotten all at once when their arrays take `MEMO_BYTES`. Ids are never reused."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Any] = {}
        self._bytes = 0

    def get(self, key: Hashable, make: Callable[[], T], size: int = 256) -> T:
        """`size`: bytes that the result is expected to hold."""
        found = self._found.get(key, self)
        if found is self:
            self._bytes += size
            if self._bytes > MEMO_BYTES:
                self.clear()
                self._bytes = size
            found = self._found[key] = make()
        return found  # type: ignore[no-any-return]

    def clear(self) -> None:
        self._found.clear()
        self._bytes = 0


class Algebra:
    """Integer arithmetic on `Integer`s and logic on `Lanes`, wrapped to a register's bits and memoised."""

    def __init__(self, memo: Memo, lanes: int) -> None:
        self.memo = memo
        self.lanes = lanes

    # -- integers

    def linear(self, a: Integer, ka: int, b: Integer = 0, kb: int = 0, *, bits: int) -> Integer:
        """ka * a + kb * b."""
        if isinstance(a, int) and isinstance(b, int):
            return signed(ka * a + kb * b, bits)
        result = self.exact(a, ka, b, kb)
        return self.wrap(result, bits)

    def exact(self, a: Integer, ka: int, b: Integer, kb: int) -> Integer:
        """ka * a + kb * b without wrapping; exact as long as no part leaves 64 bits."""
        if isinstance(a, int):
            a = Affine(None, None, None, a)
        if isinstance(b, int):
            b = Affine(None, None, None, b)
        offset = ka * a.offset + kb * b.offset
        parts: list[Component | None] = []
        for x, y in ((a.thread, b.thread), (a.block, b.block), (a.full, b.full)):
            part = self._combine(x if ka else None, ka, y if kb else None, kb)
            if isinstance(part, int):
                offset += part
                part = None
            parts.append(part)
        if parts[0] is parts[1] is parts[2] is None:
            return offset
        return Affine(parts[0], parts[1], parts[2], offset)

    def _combine(self, x: Component | None, kx: int, y: Component | None, ky: int) -> Component | int | None:
        if y is None:
            if x is None or kx == 1:
                return x
            y_id = 0
        else:
            if x is None and ky == 1:
                return y
            y_id = y.id

        def make() -> Component | int:
            scaled = [p.array * np.int64(signed(k, 64)) for p, k in ((x, kx), (y, ky)) if p is not None]
            return part_of(scaled[0] if len(scaled) == 1 else scaled[0] + scaled[1])

        key = ("linear", x.id if x is not None else 0, kx, y_id, ky)
        return self.memo.get(key, make, 8 * self.lanes)

    def wrap(self, value: Integer, bits: int) -> Integer:
        if isinstance(value, int):
            return signed(value, bits)
        low, high = value.bounds()
        half = 1 << (bits - 1)
        if -half <= low and high < half:
            return value
        if low + half >> bits == high + half >> bits:  # all lanes wrap the same number of times
            return value.shifted(-((low + half >> bits) << bits))
        return self.of_array(lambda: _wrapped(value.array(), bits), ("wrap", identity(value), bits))

    def unsigned(self, value: Integer, bits: int) -> Integer:
        """As an unsigned number; of 64 bits, what has the top bit set stays negative."""
        low, high = bounds(value)
        if low >= 0 or (bits == 64 and not isinstance(value, int)):
            return value
        if isinstance(value, int):
            return value & ((1 << bits) - 1)
        if high < 0:
            return value.shifted(1 << bits)
        mask = np.int64((1 << bits) - 1)
        return self.of_array(lambda: value.array() & mask, ("unsigned", identity(value), bits))

    def apply(self, name: Hashable, function: Callable[..., Array], *values: Integer) -> Integer:
        """`function` of int64 arrays, its result taken as it is."""
        return self.of_array(
            lambda: function(*(array_of(v) for v in values)), ("apply", name, *map(identity, values))
        )

    def of_array(self, make: Callable[[], Array], key: Hashable) -> Integer:
        return self.memo.get(key, lambda: integer_of(make()), 8 * self.lanes)

    def compare(self, operator: str, a: Integer, b: Integer, *, unsigned: bool, bits: int) -> Lanes:
        """`operator`: eq, ne, lt, le, gt or ge."""
        if unsigned:
            a, b = self.unsigned(a, bits), self.unsigned(b, bits)
        if isinstance(a, int) and isinstance(b, int):
            return bool(_COMPARE[operator](a, b))
        if bits == 64 and not (_half_range(a) and _half_range(b) and (not unsigned or _positive(a, b))):
            return self._compare_arrays(operator, a, b, flip=unsigned)
        difference = self.exact(a, 1, b, -1)
        low, high = bounds(difference)
        if isinstance(difference, int):
            return bool(_COMPARE[operator](difference, 0))
        decided = _decided(operator, low, high)
        if decided is not None:
            return decided
        key = ("compare", operator, difference.key, difference.offset)
        bound = -difference.offset
        return self.memo.get(key, lambda: mask_of(_COMPARE[operator](difference.parts(), bound)), self.lanes)

    def _compare_arrays(self, operator: str, a: Integer, b: Integer, *, flip: bool) -> Lanes:
        def make() -> Lanes:
            top = np.int64(INT64[0] if flip else 0)
            return mask_of(np.asarray(_COMPARE[operator](array_of(a) ^ top, array_of(b) ^ top)))

        return self.memo.get(("arrays", operator, identity(a), identity(b), flip), make, self.lanes)

    # -- predicates and masks

    def both(self, a: Lanes, b: Lanes) -> Lanes:
        if a is True or b is False:
            return b
        if b is True or a is False:
            return a
        return self._logic("and", np.logical_and, a, b)

    def either(self, a: Lanes, b: Lanes) -> Lanes:
        if a is True or b is False:
            return a
        if b is True or a is False:
            return b
        return self._logic("or", np.logical_or, a, b)

    def differ(self, a: Lanes, b: Lanes) -> Lanes:
        if isinstance(a, bool):
            return self.negate(b) if a else b
        if isinstance(b, bool):
            return self.negate(a) if b else a
        return self._logic("xor", np.logical_xor, a, b)

    def negate(self, a: Lanes) -> Lanes:
        if isinstance(a, bool):
            return not a
        return self.memo.get(("not", a.id), lambda: Mask(~a.array), self.lanes)

    def choose(self, mask: Lanes, a: Lanes, b: Lanes) -> Lanes:
        """a in the lanes of `mask`, b in the others."""
        return self.either(self.both(mask, a), self.both(self.negate(mask), b))

    def select(self, mask: Lanes, a: Integer, b: Integer) -> Integer:
        if isinstance(mask, bool):
            return a if mask else b
        if identity(a) == identity(b):
            return a
        key = ("select", mask.id, identity(a), identity(b))
        return self.of_array(lambda: np.where(mask.array, array_of(a), array_of(b)), key)

    def _logic(self, name: str, function: Callable[..., Array], a: Lanes, b: Lanes) -> Lanes:
        if not isinstance(a, Mask) or not isinstance(b, Mask):
            raise TypeError(name)
        if a is b:
            return name != "xor" and a
        first, second = (a, b) if a.id < b.id else (b, a)
        return self.memo.get(
            (name, first.id, second.id), lambda: mask_of(function(first.array, second.array)), self.lanes
        )


def _wrapped(array: Array, bits: int) -> Array:
    if bits == 64:
        return array
    half, mask = np.int64(1 << (bits - 1)), np.int64((1 << bits) - 1)
    return ((array + half) & mask) - half


def _half_range(value: Integer) -> bool:
    low, high = bounds(value)
    return low >= INT64[0] // 2 and high <= INT64[1] // 2


def _positive(a: Integer, b: Integer) -> bool:
    return bounds(a)[0] >= 0 and bounds(b)[0] >= 0


def _decided(operator: str, low: int, high: int) -> bool | None:
    """What a - b within [low, high] says of the comparison, None if it depends on the lane."""
    if operator in ("ge", "lt"):
        sure = True if low >= 0 else False if high < 0 else None
        return sure if operator == "ge" or sure is None else not sure
    if operator in ("gt", "le"):
        sure = True if low > 0 else False if high <= 0 else None
        return sure if operator == "gt" or sure is None else not sure
    if low > 0 or high < 0:
        return operator == "ne"
    return None


_COMPARE: dict[str, Callable[..., Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
