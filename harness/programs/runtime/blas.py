"""The functions of cuBLAS that programs call most, computed by NumPy in the memory of the program.

Matrices lie column by column. What is not of one allocation is told, as cuBLAS itself cannot.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import EmulatorError
from harness.programs.runtime import host
from harness.programs.runtime.host import INVALID_VALUE, Misuse
from harness.programs.runtime.memory import DeviceMemory
from harness.programs.runtime.order.operations import Operations

_TYPES: dict[int, Any] = {
    0: np.float32,
    1: np.float64,
    2: np.float16,
    3: np.int8,
    10: np.int32,
    14: np.uint16,
}
_BF16 = 14  # CUDA_R_16BF, of which NumPy has no type
Array = NDArray[Any]


def _wide(values: Array, type_: int) -> Array:
    """Return numbers as they are computed with: float64 for float64, float32 otherwise."""
    if type_ == _BF16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values if type_ == 1 else values.astype(np.float32)


def _narrow(values: Array, type_: int) -> Array:
    """Return numbers as they are stored, those of bf16 rounded to the nearest."""
    if type_ != _BF16:
        return values.astype(_TYPES[type_])
    raw = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((raw + 0x7FFF + (raw >> 16 & 1)) >> 16).astype(np.uint16)


def _pieces(start: int, view: Array) -> Iterator[tuple[int, int]]:
    """Yield the pieces of memory that numbers from `start` on lie in, and their bytes."""
    axes = view.shape[:-1] if view.strides[-1] == view.itemsize else view.shape
    for row in np.ndindex(axes):
        place = start + sum(i * s for i, s in zip(row, view.strides, strict=False))
        yield place, view.itemsize * (view.shape[-1] if len(axes) < view.ndim else 1)


class Blas:
    """The functions of cuBLAS, without the letters of types in their names: 0 is float32, 1 float64."""

    def __init__(self, memory: DeviceMemory, operations: Operations) -> None:
        self._memory, self._operations = memory, operations
        self._streams: dict[int, int] = {}  # by the handle of the library

    def a_stream_of_cublas(self, caller: int, handle: int, stream: int) -> None:
        """Let what is called with a handle be of this stream."""
        self._streams[handle] = stream

    def do(self, name: str, caller: int, function: Callable[..., None], arguments: Sequence[int]) -> int:
        """Do a function of the library, whose first argument is a handle, in the stream of that."""
        handle, *given = arguments
        stream = self._operations.clocks.stream(self._streams.get(handle, 0))
        what = name.replace("cublas", "cuBLAS")
        return self._operations.do(stream, what, caller, lambda: function(caller, *given))

    def _view(
        self, what: str, start: int, type_: int, shape: tuple[int, ...], steps: tuple[int, ...]
    ) -> Array:
        """Return numbers in memory; `steps` count elements. Raises Misuse where they are not allocated."""
        if type_ not in _TYPES:
            raise EmulatorError(f"cuBLAS with the data type {type_}")
        one = np.dtype(_TYPES[type_])
        size = (sum(max(n - 1, 0) * s for n, s in zip(shape, steps, strict=True)) + 1) * one.itemsize
        found = self._memory.at(start) if self._memory.ours(start) else None
        if found is None or start + size > found.end:
            left = found.end - start if found else 0
            name = found.label if found else "memory that is not the device's"
            raise Misuse(INVALID_VALUE, f"{what} takes {size:,} bytes of {name}, which has {left:,}")
        raw = self._memory.view(start, size)
        view = np.ndarray(shape, one, raw.data, 0, tuple(s * one.itemsize for s in steps))
        for place, many in _pieces(start, view):
            self._memory.touch(place, many, writes=False)
        return view

    def _scalar(self, address: int, type_: int) -> Any:
        raw = ctypes.string_at(self._memory.pointer(address), np.dtype(_TYPES[type_]).itemsize)
        return _wide(np.frombuffer(raw, _TYPES[type_]), type_)[0]

    def _store(self, start: int, into: Array, values: Array, type_: int) -> None:
        into[...] = _narrow(values, type_)
        for place, many in _pieces(start, into):
            self._memory.mark(place, many)

    def cublas_gemm(self, caller: int, *given: int) -> None:
        """Compute C = alpha op(A) op(B) + beta C, `count` times."""
        ta, tb, m, n, k = (host.signed(v) for v in given[:5])
        alpha, a, type_a, lda, sa, b, type_b, ldb, sb, beta, c, type_c, ldc, sc, count, type_ = given[5:21]
        for i in range(count):
            left = self._matrix("A", a, type_a, i * sa, (m, k) if not ta else (k, m), lda)
            right = self._matrix("B", b, type_b, i * sb, (k, n) if not tb else (n, k), ldb)
            start = c + i * sc * np.dtype(_TYPES[type_c]).itemsize
            into = self._view("C", start, type_c, (n, m), (ldc, 1))
            product = (left.T if ta else left) @ (right.T if tb else right)
            factor = self._scalar(beta, type_)
            old = factor * _wide(into, type_c).T if factor else 0
            self._store(start, into, (self._scalar(alpha, type_) * product + old).T, type_c)

    def _matrix(self, what: str, start: int, type_: int, skip: int, shape: tuple[int, int], ld: int) -> Array:
        place = start + skip * np.dtype(_TYPES.get(type_, np.float32)).itemsize
        return _wide(self._view(what, place, type_, shape, (1, ld)), type_)

    # -- vectors

    def _vector(self, what: str, start: int, type_: int, n: int, step: int) -> Array:
        return self._view(what, start, type_, (n,), (step,))

    def cublas_gemv(self, caller: int, type_: int, t: int, m: int, n: int, alpha: int, *given: int) -> None:
        """Compute y = alpha op(A) x + beta y."""
        a, lda, x, dx, beta, y, dy = given
        matrix = self._matrix("A", a, type_, 0, (m, n), lda)
        wide, high = (m, n) if t else (n, m)
        vector, into = self._vector("x", x, type_, wide, dx), self._vector("y", y, type_, high, dy)
        factor = self._scalar(beta, type_)
        product = self._scalar(alpha, type_) * ((matrix.T if t else matrix) @ vector)
        self._store(y, into, product + (factor * into if factor else 0), type_)

    def cublas_axpy(self, caller: int, type_: int, n: int, alpha: int, *given: int) -> None:
        """Compute y += alpha x."""
        x, dx, y, dy = given
        into = self._vector("y", y, type_, n, dy)
        added = self._scalar(alpha, type_) * self._vector("x", x, type_, n, dx)
        self._store(y, into, into + added, type_)

    def cublas_scal(self, caller: int, type_: int, n: int, alpha: int, x: int, dx: int) -> None:
        """Compute x *= alpha."""
        into = self._vector("x", x, type_, n, dx)
        self._store(x, into, self._scalar(alpha, type_) * into, type_)

    def cublas_copy(self, caller: int, type_: int, n: int, x: int, dx: int, y: int, dy: int) -> None:
        """Copy x to y."""
        self._store(y, self._vector("y", y, type_, n, dy), self._vector("x", x, type_, n, dx), type_)

    def cublas_dot(self, caller: int, type_: int, n: int, *given: int) -> None:
        """Compute the product of two vectors."""
        x, dx, y, dy, to = given
        self._put(to, type_, self._vector("x", x, type_, n, dx) @ self._vector("y", y, type_, n, dy))

    def cublas_nrm2(self, caller: int, type_: int, n: int, x: int, dx: int, to: int) -> None:
        """Compute the length of a vector."""
        self._put(to, type_, np.linalg.norm(self._vector("x", x, type_, n, dx)))

    def cublas_asum(self, caller: int, type_: int, n: int, x: int, dx: int, to: int) -> None:
        """Compute the sum of absolute values."""
        self._put(to, type_, np.abs(self._vector("x", x, type_, n, dx)).sum())

    def _put(self, to: int, type_: int, value: Any) -> None:
        raw = np.asarray(value, _TYPES[type_]).tobytes()
        ctypes.memmove(self._memory.pointer(to), raw, len(raw))
        self._memory.mark(to, len(raw))
        if self._operations.running is not None:
            self._operations.running.waited = not self._memory.ours(to)
