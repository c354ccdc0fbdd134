"""Integer arithmetic and predicate logic on `values`; each result is computed once and kept."""

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


# The comparisons of PTX by name.
COMPARE: dict[str, Callable[..., Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


class Memo:
    """Results by key, all forgotten at once when they would take more than `MEMO_BYTES`.

    Keys hold the ids of components and masks, which are never reused, so a key always means the same values.
    """

    def __init__(self) -> None:
        self._found: dict[Hashable, Any] = {}
        self._bytes = 0

    def get(self, key: Hashable, make: Callable[[], T], size: int = 256) -> T:
        """Return the result of `key`, made by `make` the first time; `size` estimates its bytes."""
        found = self._found.get(key, self)
        if found is self:
            self._bytes += size
            if self._bytes > MEMO_BYTES:
                self.clear()
                self._bytes = size
            found = self._found[key] = make()
        return found  # type: ignore[no-any-return]

    def clear(self) -> None:
        """Forget all results."""
        self._found.clear()
        self._bytes = 0


class Algebra:
    """Arithmetic on `Integer`s, wrapped to a register's width, and logic on `Lanes`, kept in `memo`.

    `lanes` is the number of lanes of the group, from which the size of a result is estimated.
    """

    def __init__(self, memo: Memo, lanes: int) -> None:
        self.memo = memo
        self.lanes = lanes

    # -- integers

    def linear(self, a: Integer, ka: int, b: Integer = 0, kb: int = 0, *, bits: int) -> Integer:
        """Return ``ka * a + kb * b``, wrapped to a signed number of `bits` bits."""
        if isinstance(a, int) and isinstance(b, int):
            return signed(ka * a + kb * b, bits)
        result = self.exact(a, ka, b, kb)
        return self.wrap(result, bits)

    def exact(self, a: Integer, ka: int, b: Integer, kb: int) -> Integer:
        """Return ``ka * a + kb * b`` without wrapping; exact as long as no part leaves 64 bits."""
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
        """Return ``kx * x + ky * y`` of two components of the same kind; None is a zero.

        The result is an int if it is the same in all lanes.
        """
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
        """Return `value` wrapped to a signed number of `bits` bits."""
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
        """Return the low `bits` bits of `value` as an unsigned number.

        An `Affine` of 64 bits is returned as it is: its int64 arrays cannot hold unsigned 64-bit numbers.
        """
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
        """Return `function` of the int64 arrays of `values`; its int64 result is not wrapped.

        `name` identifies the function in the memo.
        """
        return self.of_array(
            lambda: function(*(array_of(v) for v in values)), ("apply", name, *map(identity, values))
        )

    def of_array(self, make: Callable[[], Array], key: Hashable) -> Integer:
        """Return the int64 array that `make` returns as an `Integer`, kept under `key`."""
        return self.memo.get(key, lambda: integer_of(make()), 8 * self.lanes)

    def compare(self, operator: str, a: Integer, b: Integer, *, unsigned: bool, bits: int) -> Lanes:
        """Return the lanes in which a and b compare true, as signed or `unsigned` numbers of `bits` bits.

        `operator` is eq, ne, lt, le, gt or ge.
        """
        if unsigned:
            a, b = self.unsigned(a, bits), self.unsigned(b, bits)
        if isinstance(a, int) and isinstance(b, int):
            return bool(COMPARE[operator](a, b))
        if bits == 64 and not (_half_range(a) and _half_range(b) and (not unsigned or _positive(a, b))):
            return self._compare_arrays(operator, a, b, flip=unsigned)
        difference = self.exact(a, 1, b, -1)
        low, high = bounds(difference)
        if isinstance(difference, int):
            return bool(COMPARE[operator](difference, 0))
        decided = _decided(operator, low, high)
        if decided is not None:
            return decided
        key = ("compare", operator, difference.key, difference.offset)
        bound = -difference.offset
        return self.memo.get(key, lambda: mask_of(COMPARE[operator](difference.parts(), bound)), self.lanes)

    def _compare_arrays(self, operator: str, a: Integer, b: Integer, *, flip: bool) -> Lanes:
        """Compare lane by lane as int64; `flip` inverts the top bits, for an unsigned comparison."""

        def make() -> Lanes:
            top = np.int64(INT64[0] if flip else 0)
            return mask_of(np.asarray(COMPARE[operator](array_of(a) ^ top, array_of(b) ^ top)))

        return self.memo.get(("arrays", operator, identity(a), identity(b), flip), make, self.lanes)

    # -- predicates and masks

    def both(self, a: Lanes, b: Lanes) -> Lanes:
        """Return the lanes in both a and b."""
        if a is True or b is False:
            return b
        if b is True or a is False:
            return a
        return self._logic("and", np.logical_and, a, b)

    def either(self, a: Lanes, b: Lanes) -> Lanes:
        """Return the lanes in a, in b or in both."""
        if a is True or b is False:
            return a
        if b is True or a is False:
            return b
        return self._logic("or", np.logical_or, a, b)

    def differ(self, a: Lanes, b: Lanes) -> Lanes:
        """Return the lanes in exactly one of a and b."""
        if isinstance(a, bool):
            return self.negate(b) if a else b
        if isinstance(b, bool):
            return self.negate(a) if b else a
        return self._logic("xor", np.logical_xor, a, b)

    def negate(self, a: Lanes) -> Lanes:
        """Return the lanes that are not in a."""
        if isinstance(a, bool):
            return not a
        return self.memo.get(("not", a.id), lambda: Mask(~a.array), self.lanes)

    def choose(self, mask: Lanes, a: Lanes, b: Lanes) -> Lanes:
        """Return the lanes of a within `mask` and those of b outside it."""
        return self.either(self.both(mask, a), self.both(self.negate(mask), b))

    def select(self, mask: Lanes, a: Integer, b: Integer) -> Integer:
        """Return the integer that has the value of a in the lanes of `mask` and that of b in the others."""
        if isinstance(mask, bool):
            return a if mask else b
        if identity(a) == identity(b):
            return a
        key = ("select", mask.id, identity(a), identity(b))
        return self.of_array(lambda: np.where(mask.array, array_of(a), array_of(b)), key)

    def _logic(self, name: str, function: Callable[..., Array], a: Lanes, b: Lanes) -> Lanes:
        """Return a NumPy function of two masks, kept in the memo. Raises TypeError if one is no mask."""
        if not isinstance(a, Mask) or not isinstance(b, Mask):
            raise TypeError(name)
        if a is b:
            return name != "xor" and a
        first, second = (a, b) if a.id < b.id else (b, a)
        return self.memo.get(
            (name, first.id, second.id), lambda: mask_of(function(first.array, second.array)), self.lanes
        )


def _wrapped(array: Array, bits: int) -> Array:
    """Return an int64 array wrapped to signed numbers of `bits` bits."""
    if bits == 64:
        return array
    half, mask = np.int64(1 << (bits - 1)), np.int64((1 << bits) - 1)
    return ((array + half) & mask) - half


def _half_range(value: Integer) -> bool:
    """Return whether a value stays in half of the int64 range, so that differences do not overflow."""
    low, high = bounds(value)
    return low >= INT64[0] // 2 and high <= INT64[1] // 2


def _positive(a: Integer, b: Integer) -> bool:
    """Return whether neither value is ever negative."""
    return bounds(a)[0] >= 0 and bounds(b)[0] >= 0


def _decided(operator: str, low: int, high: int) -> bool | None:
    """Return the result of comparing a and b if it is the same in all lanes, otherwise None.

    `low` and `high` are bounds of a - b over all lanes; `operator` is one of `Algebra.compare`.
    """
    if operator in ("ge", "lt"):
        sure = True if low >= 0 else False if high < 0 else None
        return sure if operator == "ge" or sure is None else not sure
    if operator in ("gt", "le"):
        sure = True if low > 0 else False if high <= 0 else None
        return sure if operator == "gt" or sure is None else not sure
    if low > 0 or high < 0:
        return operator == "ne"
    return None
