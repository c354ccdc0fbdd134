"""The baseline: cuBLAS, bound as a `Launch`.

How cuBLAS computes depends on the element type. float32 uses the pedantic math mode, which allows neither
TF32 nor BF16x9 emulation, so that true float32 is compared with true float32. The other types are summed in
float32 as in our kernels; so are the partial sums of a split k, which cuBLAS could otherwise add in bf16 or
fp16.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from harness.driver import Buffer, Context, Stream
from harness.errors import HarnessError, UsageError
from harness.launch import cublas_bindings as bindings
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
    "fp16x3": "fp16x3 (beside pedantic fp32)",
    "bf16x6": "bf16x6 (beside pedantic fp32)",
    "bf16": "bf16 (COMPUTE_32F, reductions in fp32)",
    "fp16": "fp16 (COMPUTE_32F, reductions in fp32)",
}
WORKSPACE = 32 << 20  # bytes; what cuBLAS's documentation recommends for Hopper


@dataclass(frozen=True)
class _Routine:
    """The way cuBLAS multiplies an element type, in a math mode.

    `matrix` and `compute` are for GemmEx; if `compute` is None, SGEMM is called.
    """

    mode: bindings.Math
    matrix: bindings.DataType = bindings.DataType.R_32F
    compute: bindings.Compute | None = None


_PEDANTIC = _Routine(bindings.Math.PEDANTIC_MATH)
_FP32_SUMS = bindings.Math.DEFAULT_MATH | bindings.Math.MATH_DISALLOW_REDUCED_PRECISION_REDUCTION
_ROUTINES = {
    "fp32": _PEDANTIC,
    "tf32": _Routine(_FP32_SUMS, bindings.DataType.R_32F, bindings.Compute.COMPUTE_32F_FAST_TF32),
    "3xtf32": _PEDANTIC,
    "fp16x3": _PEDANTIC,
    "bf16x6": _PEDANTIC,
    "bf16": _Routine(_FP32_SUMS, bindings.DataType.R_16BF, bindings.Compute.COMPUTE_32F),
    "fp16": _Routine(_FP32_SUMS, bindings.DataType.R_16F, bindings.Compute.COMPUTE_32F),
}


class Library(Closing):
    """A handle of cuBLAS or cuBLASLt in the current context, with a workspace of `WORKSPACE` bytes.

    `version` is the library's, such as ``"13.1.0"``. Raises MissingDependency if the library cannot be
    loaded, and HarnessError if a call fails.
    """

    label: ClassVar[str]
    prefix: ClassVar[str]  # of its functions' names
    suffix: ClassVar[str] = ""
    built: ClassVar[None] = None  # the machine code of a library is not available to harness

    def __init__(self, context: Context) -> None:
        self._functions = bindings.Functions(self.label)
        self.version = self._functions.version
        self.context = context
        self._handle = 0
        self._workspace = Buffer(context, WORKSPACE)  # else the library allocates inside a measurement
        try:
            self._handle = self._created(f"{self.prefix}Create{self.suffix}")
        except BaseException:
            self.close()
            raise

    def serves(self, problem: Problem) -> bool:
        """Return True for every GEMM."""
        return isinstance(problem, Gemm)

    def _product_of(self, operands: Operands) -> Gemm:
        """Return the operands' problem, or raise UsageError if it is not a GEMM."""
        if not isinstance(operands.problem, Gemm):
            raise UsageError(f"{self.label} does not compute {operands.problem.label}")
        return operands.problem

    def _call(self, name: str, *args: Any) -> None:
        """Call a function of the library. Raises as `_check` does."""
        self._check(name, self._functions.bind(name, *args)())

    def _created(self, name: str, *args: Any) -> int:
        """Call a function that creates something, and return its handle."""
        handle = ctypes.c_void_p()
        self._call(name, ctypes.byref(handle), *args)
        return handle.value or 0

    def _check(self, name: str, status: int) -> None:
        """Raise HarnessError if the function `name` has failed.

        Raises ContextLost if that was because of a fault on the GPU.
        """
        if status:
            self.context.open_gates()
            self.context.synchronize()  # if a fault is the cause, the driver raises ContextLost here
            raise HarnessError(f"{name} failed: {bindings.Status.text(status)}")

    def close(self) -> None:
        handle, self._handle = self._handle, 0
        try:
            if handle and not self.context.lost:
                self._call(f"{self.prefix}Destroy{self.suffix}", handle)
        finally:
            self._workspace.close()


class CuBlas(Library):
    """cuBLAS in the current context, a `Runnable` for every GEMM."""

    label = LABEL
    prefix, suffix = "cublas", "_v2"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._mode: bindings.Math | None = None
        self._stream: Stream | None = None

    def prepare(self, operands: Operands) -> Launch:
        """Bind one product for each set of operands. Raises UsageError if the problem is not a GEMM.

        cuBLAS expects column-major matrices. A row-major matrix read as column-major is its transpose, so C^T
        = op(B)^T op(A)^T is computed.
        """
        problem = self._product_of(operands)
        products = (self._product(problem, *(copy[x].ptr for x in "ABC")) for copy in operands.buffers)
        return Launch(LABEL, operands, list(products))

    def load(self, problem: Gemm, stream: Stream) -> None:
        """Run the product once on scratch memory, so that cuBLAS loads its kernel now.

        Otherwise the first call does (60 ms on an H200). Raises OutOfMemory if there is no room for the
        scratch memory, `problem.buffer_bytes` bytes.
        """
        with Buffer(self.context, problem.buffer_bytes) as scratch:
            self._product(problem, scratch.ptr, scratch.ptr, scratch.ptr)(stream)
            stream.synchronize()

    def _product(self, problem: Gemm, a: int, b: int, c: int) -> Callable[[Stream], object]:
        """Return a call that queues the product of the matrices at device addresses `a`, `b` and `c`."""
        routine = _ROUTINES[problem.dtype.name]
        plain, transposed = bindings.Operation.N, bindings.Operation.T
        of_b, of_a = (transposed if x else plain for x in (problem.transb, problem.transa))
        alpha, beta = ctypes.c_float(problem.alpha), ctypes.c_float(problem.beta)
        typed: tuple[int, ...] = ()  # the element type, which GemmEx takes behind each address
        algorithm: tuple[int, ...] = ()
        if routine.compute is not None:
            typed, algorithm = (routine.matrix,), (routine.compute, bindings.GEMM_DEFAULT)
        name = "cublasSgemm_v2" if routine.compute is None else "cublasGemmEx"
        call = self._functions.bind(
            *(name, self._handle, of_b, of_a, problem.N, problem.M, problem.K, ctypes.addressof(alpha)),
            *(b, *typed, problem.ldb, a, *typed, problem.lda),
            *(ctypes.addressof(beta), c, *typed, problem.ldc, *algorithm),
        )
        return functools.partial(self._gemm, routine.mode, name, call, (alpha, beta))

    def _gemm(
        self, mode: bindings.Math, name: str, call: Callable[[], int], _keep: object, stream: Stream
    ) -> None:
        """Queue one `call` of the function `name` in `stream`, in a math mode.

        `_keep` holds the scalars that the call has the addresses of.
        """
        if mode is not self._mode:  # members of an enumeration, combined ones too, are there once
            self._call("cublasSetMathMode", self._handle, mode)
            self._mode = mode
        if stream is not self._stream:
            self._call("cublasSetStream_v2", self._handle, int(stream.handle))
            # Setting the stream resets the workspace.
            self._call("cublasSetWorkspace_v2", self._handle, self._workspace.ptr, WORKSPACE)
            self._stream = stream
        if status := call():
            self._check(name, status)
