"""The kernels of ``fresh.cu`` in NumPy, on host memory that stands for a device's: addresses are real ones.

`run` executes one by its name and the values of its parameters. `KERNELS` has the parameters of each, as
`struct` formats.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np

from harness.kernels.dtypes import BF16, FP16, FP32, DType
from harness.launch.fresh import freivalds, normal

KERNELS = {
    "fill": "QQQQQfIII",
    "signs": "QQQ",
    "project": "QQQQQQQQQIII",
    "residual": "QQQQQQQQQQQQddddddfiiIII",
    "fence": "QQQI",
    "stray": "QQQIQ",
    "drain": "QQQ",
}
DTYPES = (FP32, BF16, FP16)  # by `Kind` of fresh.cu


def sizes(name: str) -> tuple[int, ...]:
    return tuple(struct.calcsize(part) for part in KERNELS[name])


def run(name: str, pointers: Any) -> None:
    """Execute a kernel. `pointers` are the addresses of its parameters' values."""
    values = [
        struct.unpack(form, ctypes.string_at(at, struct.calcsize(form)))[0]
        for form, at in zip(KERNELS[name], pointers, strict=True)
    ]
    globals()["_" + name](*values)


def array(address: int, dtype: Any, *shape: int) -> Any:
    kind = np.dtype(dtype)
    memory = (ctypes.c_char * (kind.itemsize * int(np.prod(shape)))).from_address(address)
    return np.frombuffer(memory, kind).reshape(shape)


def _fill(
    table: int, rows: int, columns: int, ld: int, base: int, scale: float, operand: int, kind: int, count: int
) -> None:
    dtype = DTYPES[kind]
    for number, matrix in enumerate(array(table, "u8", count).tolist()):
        key = normal.key_of(base, number, operand)
        array(matrix, dtype.storage, rows, ld)[:] = normal.matrix(
            dtype, key, rows=rows, columns=columns, ld=ld, scale=scale
        )


def _signs(words: int, count: int, key: int) -> None:
    places = np.arange(count, dtype=np.uint64)
    array(words, "u4", count)[:] = (normal.sequence(key, places) >> np.uint64(32)).astype(np.uint32)


def vector(words: int, count: int) -> Any:
    bits = np.unpackbits(array(words, "u4", -(-count // 32)).view(np.uint8), bitorder="little")[:count]
    return 1.0 - 2.0 * bits


def _changed(dtype: DType, found: Any, expected: Any) -> Any:
    word = f"u{dtype.itemsize}"
    return np.flatnonzero(found.view(word).ravel() != expected.view(word).ravel())


def _note(record: Any, which: str, places: Any) -> None:
    if len(places):
        record["bad" if which == "bad" else f"wrong_{which}"] += len(places)
        first = f"first_{which}"
        record[first] = max(int(record[first]), ~int(places[0]) & (2**64 - 1))


def _project(
    table: int, words: int, y: int, q: int, found: int, K: int, N: int, ld: int, base: int, kind: int,
    transposed: int, count: int,
) -> None:  # fmt: skip
    dtype, x = DTYPES[kind], vector(words, N)
    records = array(found, freivalds._FOUND, count)
    for number, matrix in enumerate(array(table, "u8", count).tolist()):
        rows, columns = (N, K) if transposed else (K, N)
        stored = array(matrix, dtype.storage, rows, ld)
        expected = normal.matrix(dtype, normal.key_of(base, number, 1), rows=rows, columns=columns, ld=ld)
        _note(records[number], "b", _changed(dtype, stored, expected))
        b = dtype.decode(stored[:, :columns])
        b = b.T if transposed else b
        array(y, "f8", (number + 1) * K)[number * K :] = b @ x
        array(q, "f8", (number + 1) * K)[number * K :] = np.mean(b * b, axis=1)


def _residual(
    a_table: int, c_table: int, words: int, y: int, q: int, found: int, M: int, N: int, K: int, lda: int,
    ldc: int, base: int, alpha: float, beta: float, g: float, v: float, tiny: float, sigmas: float,
    scale: float, precision: int, emin: int, kind: int, transposed: int, count: int,
) -> None:  # fmt: skip
    dtype, x = DTYPES[kind], vector(words, N)
    records = array(found, freivalds._FOUND, count)
    places = zip(array(a_table, "u8", count).tolist(), array(c_table, "u8", count).tolist(), strict=True)
    for number, (a_at, c_at) in enumerate(places):
        record = records[number : number + 1]
        rows, columns = (K, M) if transposed else (M, K)
        stored, out = array(a_at, dtype.storage, rows, lda), array(c_at, dtype.storage, M, ldc)
        expected = normal.matrix(dtype, normal.key_of(base, number, 0), rows=rows, columns=columns, ld=lda)
        before = normal.matrix(
            dtype, normal.key_of(base, number, 2), rows=M, columns=ldc, ld=ldc, scale=scale
        )
        _note(records[number], "a", _changed(dtype, stored, expected))
        record["stray"] += len(
            _changed(dtype, np.ascontiguousarray(out[:, N:]), np.ascontiguousarray(before[:, N:]))
        )
        a, c = dtype.decode(stored[:, :columns]), dtype.decode(out[:, :N])
        a = a.T if transposed else a
        yk, qk = (array(at, "f8", (number + 1) * K)[number * K :] for at in (y, q))
        typical, projected = alpha**2 * (a * a @ qk), alpha**2 * (a * a @ (yk * yk))
        squares = np.sum(c * c, axis=1)
        halves = np.zeros(M)
        if precision:
            _, exponent = np.frexp(np.maximum(np.abs(c), 2.0**emin))
            halves = np.sum(np.ldexp(1.0, exponent - 1 - precision) ** 2, axis=1)
        left = c @ x - alpha * (a @ yk)
        if beta:
            left -= beta * (dtype.decode(before[:, :N]) @ x)
        summing = np.sqrt(N) * (g * np.sqrt(typical + squares / N) + tiny)
        reading = v * np.sqrt((projected + N * typical) / 3)
        with np.errstate(invalid="ignore", over="ignore"):
            share = np.abs(left) / (sigmas * (summing + reading + np.sqrt(halves)))
        for name, value in (
            ("residuals", left**2), ("products", N * typical), ("outputs", squares), ("halves", halves),
        ):  # fmt: skip
            record[name] += np.sum(value)
        _note(records[number], "bad", np.flatnonzero(~(share <= 1)))
        worst = np.max(np.where(np.isnan(share), np.inf, share))
        record["worst"] = max(record["worst"][0], worst.view("u8"))


def _zones(table: int, zone: int, key: int, count: int) -> Any:
    for number, (start, size) in enumerate(array(table, "u8", 2 * count).reshape(count, 2).tolist()):
        for side, at in enumerate((start - zone, start + size)):
            pattern = normal.mix(
                np.uint64(key) + np.arange(at, at + zone, dtype=np.uint64) * np.uint64(normal.GAMMA)
            )
            yield number, side, array(at, "u1", zone), pattern.astype(np.uint8)


def _fence(table: int, zone: int, key: int, count: int) -> None:
    for _, _, memory, pattern in _zones(table, zone, key, count):
        memory[:] = pattern


def _stray(table: int, zone: int, key: int, count: int, nearest: int) -> None:
    for number, side, memory, pattern in _zones(table, zone, key, count):
        changed = np.flatnonzero(memory != pattern)
        if len(changed):
            near = array(nearest, "u4", 2 * count)
            far = changed.max() + 1 if side == 0 else zone - changed.min()
            near[2 * number + side] = max(near[2 * number + side], far)


def _drain(memory: int, size: int, never: int) -> None:
    pass
