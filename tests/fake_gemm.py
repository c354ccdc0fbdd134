"""A GEMM "kernel" for the fake driver: NumPy on the memory that the launch's parameters point at."""

from __future__ import annotations

import ctypes
import struct
from types import SimpleNamespace
from typing import Any

import numpy as np

SIZES = (8, 8, 8, 4, 4, 4, 4, 4, 4, 4, 4)


def parameters(launch: SimpleNamespace) -> Any:
    """A, B, C as views of their memory (C writable), alpha and beta."""
    a, b, c, m, n, k, lda, ldb, ldc, alpha, beta = struct.unpack("=QQQiiiiiiff", b"".join(launch.args))

    def matrix(address: int, rows: int, columns: int, ld: int) -> Any:
        data = (ctypes.c_float * (rows * ld)).from_address(address)
        return np.frombuffer(data, np.float32).reshape(rows, ld)[:, :columns]

    return matrix(a, m, k, lda), matrix(b, k, n, ldb), matrix(c, m, n, ldc), alpha, beta


def gemm(launch: SimpleNamespace) -> None:
    a, b, c, alpha, beta = parameters(launch)
    product = np.float32(alpha) * (a @ b)
    c[:] = product + np.float32(beta) * c if beta else product


def no_write(launch: SimpleNamespace) -> None:
    """A kernel that returns without having written."""


def zeros(launch: SimpleNamespace) -> None:
    parameters(launch)[2][:] = 0


class WrongLater:
    """Right `good` times, then wrong in one element: only a check after the timing sees it."""

    def __init__(self, good: int) -> None:
        self.left = good

    def __call__(self, launch: SimpleNamespace) -> None:
        gemm(launch)
        self.left -= 1
        if self.left < 0:
            parameters(launch)[2][-1, -1] += 1
