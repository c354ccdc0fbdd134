"""The baseline: cuBLAS SGEMM through nvmath's bindings, in the shape of a `Launch`.

Pedantic math: no TF32, no BF16x9 emulation, so that float32 is compared with float32.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from harness.closing import Closing
from harness.driver import Buffer, Context, Stream
from harness.errors import HarnessError, MissingDependency
from harness.gemm import Gemm
from harness.launch import Launch, Operands

LABEL = "cuBLAS"
MATH_MODE = "pedantic fp32 (no TF32)"
_WORKSPACE = 32 << 20  # bytes; what cuBLAS's documentation recommends for Hopper


class CuBlas(Closing):
    """A cuBLAS handle in the current context. Raises MissingDependency where cuBLAS cannot be had."""

    def __init__(self, context: Context) -> None:
        self._api = api()
        self.context = context
        self._handle = 0
        self._workspace = Buffer(context, _WORKSPACE)
        try:
            self._handle = self._call("create")
            self._call("set_math_mode", self._handle, int(self._api.Math.PEDANTIC_MATH))
            self._stream: Stream | None = None
            number = self._call("get_version", self._handle)
        except BaseException:
            self.close()
            raise
        self.version = f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def prepare(self, problem: Gemm, operands: Operands) -> Launch:
        """One bound SGEMM a set of operands.

        cuBLAS is column-major, where a row-major matrix is its own transpose: C^T = B^T A^T.
        """
        n = int(self._api.Operation.N)
        alpha, beta = ctypes.c_float(problem.alpha), ctypes.c_float(problem.beta)
        calls: list[Callable[[Stream], object]] = []
        for copy in operands.buffers:
            args = (
                *(n, n, problem.N, problem.M, problem.K, ctypes.addressof(alpha)),
                *(copy["B"].ptr, problem.ldb, copy["A"].ptr, problem.lda, ctypes.addressof(beta)),
                *(copy["C"].ptr, problem.ldc),
            )
            calls.append(functools.partial(self._sgemm, args, (alpha, beta)))  # keeps the scalars alive
        return Launch(LABEL, operands, calls)

    def _sgemm(self, args: tuple[int, ...], _keep: object, stream: Stream) -> None:
        if stream is not self._stream:
            self._call("set_stream", self._handle, int(stream.handle))
            # set_stream resets the workspace. One of our own: cuBLAS must not allocate inside a measurement.
            self._call("set_workspace", self._handle, self._workspace.ptr, _WORKSPACE)
            self._stream = stream
        self._call("sgemm", self._handle, *args)

    def _call(self, name: str, *args: Any) -> Any:
        try:
            return getattr(self._api, name)(*args)
        except self._api.cuBLASError as e:
            self.context.open_gates()
            self.context.synchronize()  # a fault, if that is what it is, is the driver's to name
            raise HarnessError(f"cublas.{name} failed: {e}") from None
        except RuntimeError as e:  # nvmath's way to say that the library or the driver is not there
            raise MissingDependency(f"cuBLAS cannot be loaded: {e}", hint=_INSTALL) from None

    def close(self) -> None:
        handle, self._handle = self._handle, 0
        try:
            if handle and not self.context.lost:
                self._call("destroy", handle)
        finally:
            self._workspace.close()


_INSTALL = "pip install nvmath-python nvidia-cublas"


def api() -> Any:
    """nvmath's cuBLAS bindings; importing them does not load cuBLAS itself."""
    try:
        from nvmath.bindings import cublas
    except ImportError:
        raise MissingDependency("nvmath-python is not installed: no cuBLAS baseline", hint=_INSTALL) from None
    return cublas
