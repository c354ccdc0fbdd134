"""A GEMM "kernel" for the fake driver: NumPy on the memory that the launch's parameters point at."""

from __future__ import annotations

import ctypes
import functools
import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fakes import driver as fake_driver
from harness.dispatch import choose
from harness.dispatch.model.cost import Candidate
from harness.errors import HarnessError
from harness.kernels.dtypes import DTYPES, FP32, DType
from harness.kernels.epilogue import ACTIVATIONS, PLAIN, ROWS, Epilogue
from harness.kernels.spec import Variant
from harness.problems.gemm import GEMMS
from shared.typed_gemm import correct

SIZES = (8, 8, 8, 4, 4, 4, 4, 4, 4, 4, 4)
MAP = 128
TRANSPOSE = (8, 8, 4, 4, 8, 8)  # the sizes of transpose.cu's parameters


def gpu(monkeypatch: pytest.MonkeyPatch) -> fake_driver.FakeDriver:
    """Install a fake driver whose kernels compute a GEMM, for a GPU whose ceilings are not measured."""
    fake = fake_driver.install(monkeypatch)
    fake.functions, fake.execute = {"matmul": SIZES}, gemm
    few_launches(monkeypatch)

    def measured(*_: Any) -> None:
        raise HarnessError("a fake GPU has none")

    monkeypatch.setattr("harness.bench.ceilings.measured", measured)
    return fake


def without_small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the dispatcher choose among the kernels with large tiles: those that are divided, have tensor maps
    and no workspace at the sizes of tests.
    """

    def left(c: Candidate) -> bool:
        if any(name in c.variant.kernel.name for name in ("small_tiles", "turned_tiles", "single_floats")):
            return False
        return c.dtype.itemsize == 4 or (bool(c.variant.boxes) and not c.variant.kernel.workspace)

    large = tuple(c for c in choose.candidates() if left(c))
    monkeypatch.setattr(choose, "candidates", lambda _="": large)
    for cached in (choose._choose, choose._laid_out, choose._best_order):
        monkeypatch.setattr(choose, cached.__name__, functools.cache(cached.__wrapped__))


def few_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a batch or graph have at most 8 launches: each of them has data of its own, made in NumPy."""
    monkeypatch.setattr("harness.bench.session.launches", lambda *_: 8)


def sizes(variant: Variant) -> tuple[int, ...]:
    """Return the sizes of a GEMM's parameters in bytes: tensor maps first, the addresses of what the epilogue
    reads and of the workspace last."""
    further = ("BIAS" in variant.params or "DERIVATIVE" in variant.params) + (
        variant.kernel.workspace is not None
    )
    return (MAP,) * len(variant.boxes) + SIZES + (8,) * further


def plain(launch: SimpleNamespace) -> tuple[Any, ...]:
    """Return the values of a GEMM's own parameters, without tensor maps and workspace."""
    return struct.unpack_from("=QQQiiiiiiff", b"".join(x for x in launch.args if len(x) != MAP))


def placed(address: int, shape: tuple[int, int], strides: tuple[int, int], kind: str) -> Any:
    """Return the matrix at an address, with strides in elements of a NumPy type."""
    size = np.dtype(kind).itemsize
    count = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1
    flat = np.frombuffer((ctypes.c_char * (size * count)).from_address(address), kind)
    return np.lib.stride_tricks.as_strided(flat, shape, [size * step for step in strides])


def transpose(launch: SimpleNamespace, kind: str = "float32") -> None:
    """Do what transpose.cu does, in NumPy; elements of 2 bytes or of 4 are only moved."""
    source, target, rows, columns, pitch, wide = struct.unpack("=QQiiqq", b"".join(launch.args))
    given = placed(source, (rows, columns), (pitch, 1), kind)
    placed(target, (columns, rows), (wide, 1), kind)[:] = given.T


def parameters(launch: SimpleNamespace) -> Any:
    """Return A, B and C as views of their memory (C writable), alpha and beta."""
    a, b, c, m, n, k, lda, ldb, ldc, alpha, beta = plain(launch)

    def matrix(address: int, rows: int, columns: int, ld: int) -> Any:
        data = (ctypes.c_float * (rows * ld)).from_address(address)
        return np.frombuffer(data, np.float32).reshape(rows, ld)[:, :columns]

    return matrix(a, m, k, lda), matrix(b, k, n, ldb), matrix(c, m, n, ldc), alpha, beta


def gemm(launch: SimpleNamespace) -> None:
    a, b, c, alpha, beta = parameters(launch)
    product = np.float32(alpha) * (a @ b)
    c[:] = product + np.float32(beta) * c if beta else product


def no_write(launch: SimpleNamespace) -> None:
    """Return at once: a kernel that writes nothing."""


def zeros(launch: SimpleNamespace) -> None:
    parameters(launch)[2][:] = 0


class WrongLater:
    """A kernel that is right `good` times, then wrong in one element, which a check after the timing sees."""

    def __init__(self, good: int) -> None:
        self.left = good

    def __call__(self, launch: SimpleNamespace) -> None:
        gemm(launch)
        self.left -= 1
        if self.left < 0:
            parameters(launch)[2][-1, -1] += 1


class Faulting:
    """A GEMM after which the context is lost, where the width of the block and N are among `at`."""

    def __init__(self, fake: fake_driver.FakeDriver, at: set[tuple[int, int]], code: int = 700) -> None:
        self.fake, self.at, self.code = fake, at, code

    def __call__(self, launch: SimpleNamespace) -> None:
        gemm(launch)
        if (launch.block[0], plain(launch)[4]) in self.at:
            self.fake.sticky = self.code


class TypedGemm:
    """A GEMM of the element type and with the epilogue that the last call of `becomes` named."""

    def __init__(self) -> None:
        self.dtype, self.epilogue = FP32, PLAIN

    def becomes(self, variant: Variant) -> tuple[int, ...]:
        """Take the type and epilogue of `variant`, and return the sizes of its parameters in bytes."""
        self.dtype, given = DTYPES[variant.kernel.dtype], variant.params
        activation = ACTIVATIONS[given.get("ACTIVATION", 0)]
        wide, derivative = (bool(given.get(name, 0)) for name in ("FLOAT_C", "DERIVATIVE"))
        self.epilogue = Epilogue(given.get("BIAS", 0), activation, wide, derivative)
        return sizes(variant)

    def __call__(self, launch: SimpleNamespace) -> None:
        a, b, c, m, n, k, lda, ldb, ldc, alpha, beta = plain(launch)
        p = GEMMS[self.dtype.name](M=m, N=n, K=k, alpha=alpha, beta=beta, epilogue=self.epilogue)
        left, right = self._matrix(a, m, k, lda, p.dtype), self._matrix(b, k, n, ldb, p.dtype)
        out = self._matrix(c, m, n, ldc, p.stored)
        if not any(self.epilogue):
            out[:] = correct(p, {"A": left, "B": right, "C": out})
            return
        total = alpha * (p.dtype.decode(left) @ p.dtype.decode(right))
        total += beta * p.stored.decode(out) if beta else 0
        read = None
        if self.epilogue.operand:
            (address,) = struct.unpack("=Q", [x for x in launch.args if len(x) != MAP][len(SIZES)])
            if self.epilogue.bias:
                count = m if self.epilogue.bias == ROWS else n
                read = p.stored.decode(self._matrix(address, 1, count, count, p.stored)[0])
            else:
                read = p.stored.decode(self._matrix(address, m, n, ldc, p.stored))
        out[:] = p.stored.encode(self.epilogue.finish(total, read).astype(np.float32))

    def _matrix(self, address: int, rows: int, columns: int, ld: int, dtype: DType) -> Any:
        size = dtype.itemsize
        data = (ctypes.c_char * (size * ((rows - 1) * ld + columns))).from_address(address)
        flat = np.frombuffer(data, dtype.storage)
        return np.lib.stride_tricks.as_strided(flat, (rows, columns), (ld * size, size))
