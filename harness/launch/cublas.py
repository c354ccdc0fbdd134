"""The baseline: cuBLAS through nvmath's bindings, in the shape of a `Launch`; one for each element type.

float32 is pedantic: no TF32, no BF16x9 emulation, so that it is compared with float32. The others are summed
in float32 as in our kernels, the parts of a split k too (cuBLAS would also add those up in bf16 or fp16).
"""

from __future__ import annotations

import ctypes
import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from harness.driver import Buffer, Context, Stream
from harness.errors import HarnessError, MissingDependency, UsageError
from harness.launch.kernel import Launch
from harness.launch.operands import Operands
from harness.problems.gemm import Gemm
from harness.problems.protocol import Problem
from harness.support.resources import Closing

LABEL = "cuBLAS"
MATH_MODES = {
    "fp32": "pedantic fp32 (no TF32)",
    "tf32": "tf32 (COMPUTE_32F_FAST_TF32)",
    "3xtf32": "3xtf32 (beside pedantic fp32)",
    "bf16": "bf16 (COMPUTE_32F, reductions in fp32)",
    "fp16": "fp16 (COMPUTE_32F, reductions in fp32)",
}
WORKSPACE = 32 << 20  # bytes; what cuBLAS's documentation recommends for Hopper


@dataclass(frozen=True)
class _Routine:
    """How cuBLAS multiplies a type: `matrix` is the matrices' cudaDataType; no `compute` is SGEMM itself."""

    modes: tuple[str, ...]
    matrix: str = "CUDA_R_32F"
    compute: str = ""


DATA_TYPES = {"CUDA_R_32F": 0, "CUDA_R_16F": 2, "CUDA_R_16BF": 14}  # cudaDataType, library_types.h
_FP32_SUMS = ("DEFAULT_MATH", "DISALLOW_REDUCED_PRECISION_REDUCTION")
_ROUTINES = {
    "fp32": _Routine(("PEDANTIC_MATH",)),
    "tf32": _Routine(_FP32_SUMS, "CUDA_R_32F", "COMPUTE_32F_FAST_TF32"),
    "3xtf32": _Routine(("PEDANTIC_MATH",)),
    "bf16": _Routine(_FP32_SUMS, "CUDA_R_16BF", "COMPUTE_32F"),
    "fp16": _Routine(_FP32_SUMS, "CUDA_R_16F", "COMPUTE_32F"),
}


class Library(Closing):
    """A handle of one of nvmath's libraries in the current context, with a workspace of its own.

    Raises MissingDependency where the library cannot be had, HarnessError for a call that fails.
    """

    label: ClassVar[str]
    built: ClassVar[None] = None  # its code is not ours to read

    def __init__(self, context: Context, bindings: Any) -> None:
        self._api, self._error = bindings, getattr(bindings, f"{self.label}Error")
        self.context = context
        self._handle = 0
        self._workspace = Buffer(context, WORKSPACE)  # else the library allocates inside a measurement
        try:
            self._handle = self._call("create")
            number = self._number()
        except BaseException:
            self.close()
            raise
        self.version = f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def serves(self, problem: Problem) -> bool:
        """Return True for every GEMM."""
        return isinstance(problem, Gemm)

    def _product_of(self, operands: Operands) -> Gemm:
        """The GEMM that the operands are of. Raises UsageError for another problem."""
        if not isinstance(operands.problem, Gemm):
            raise UsageError(f"{self.label} does not compute {operands.problem.label}")
        return operands.problem

    def _number(self) -> int:
        """The version, as the library counts."""
        raise NotImplementedError

    def _call(self, name: str, *args: Any) -> Any:
        try:
            return getattr(self._api, name)(*args)
        except self._error as e:
            self.context.open_gates()
            self.context.synchronize()  # a fault, if that is what it is, is the driver's to name
            raise HarnessError(f"{self.label.replace('BLAS', 'blas')}.{name} failed: {e}") from None
        except RuntimeError as e:  # nvmath's way to say that the library or the driver is not there
            raise MissingDependency(f"{self.label} cannot be loaded: {e}", hint=INSTALL) from None

    def close(self) -> None:
        handle, self._handle = self._handle, 0
        try:
            if handle and not self.context.lost:
                self._call("destroy", handle)
        finally:
            self._workspace.close()


class CuBlas(Library):
    """cuBLAS in the current context."""

    label = LABEL

    def __init__(self, context: Context) -> None:
        super().__init__(context, api())
        self._modes: tuple[str, ...] = ()
        self._stream: Stream | None = None

    def _number(self) -> int:
        return int(self._call("get_version", self._handle))

    def prepare(self, operands: Operands) -> Launch:
        """Bind one product for each set of operands.

        cuBLAS is column-major, where a row-major matrix is its own transpose: C^T = B^T A^T.
        """
        problem = self._product_of(operands)
        products = (self._product(problem, *(copy[x].ptr for x in "ABC")) for copy in operands.buffers)
        return Launch(LABEL, operands, list(products))

    def load(self, problem: Gemm, stream: Stream) -> None:
        """Have its kernel for this problem loaded, which otherwise its first call does (60 ms on an H200).

        Raises OutOfMemory where there is no room for operands to call it on.
        """
        with Buffer(self.context, problem.buffer_bytes) as scratch:
            self._product(problem, scratch.ptr, scratch.ptr, scratch.ptr)(stream)
            stream.synchronize()

    def _product(self, problem: Gemm, a: int, b: int, c: int) -> Callable[[Stream], object]:
        routine = _ROUTINES[problem.dtype.name]
        n = int(self._api.Operation.N)
        alpha, beta = ctypes.c_float(problem.alpha), ctypes.c_float(problem.beta)
        typed: tuple[int, ...] = ()  # what gemm_ex is told besides, behind each address
        algorithm: tuple[int, ...] = ()
        if routine.compute:
            typed = (DATA_TYPES[routine.matrix],)
            compute = getattr(self._api.ComputeType, routine.compute)
            algorithm = int(compute), int(self._api.GemmAlgo.DEFAULT)
        args = (
            *(n, n, problem.N, problem.M, problem.K, ctypes.addressof(alpha)),
            *(b, *typed, problem.ldb, a, *typed, problem.lda),
            *(ctypes.addressof(beta), c, *typed, problem.ldc, *algorithm),
        )
        return functools.partial(self._gemm, routine, args, (alpha, beta))  # keeps the scalars

    def _gemm(self, routine: _Routine, args: tuple[int, ...], _keep: object, stream: Stream) -> None:
        if routine.modes != self._modes:
            modes = (int(getattr(self._api.Math, name)) for name in routine.modes)
            self._call("set_math_mode", self._handle, functools.reduce(operator.or_, modes))
            self._modes = routine.modes
        if stream is not self._stream:
            self._call("set_stream", self._handle, int(stream.handle))
            # set_stream resets the workspace.
            self._call("set_workspace", self._handle, self._workspace.ptr, WORKSPACE)
            self._stream = stream
        self._call("gemm_ex" if routine.compute else "sgemm", self._handle, *args)


INSTALL = "pip install 'cuda-harness[cublas]'"


def api() -> Any:
    """nvmath's cuBLAS bindings; importing them does not load cuBLAS itself."""
    try:
        from nvmath.bindings import cublas
    except ImportError:
        raise MissingDependency("nvmath-python is not installed: no cuBLAS baseline", hint=INSTALL) from None
    return cublas
