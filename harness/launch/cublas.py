"""The baseline: cuBLAS, called through nvmath's bindings and bound as a `Launch`.

How cuBLAS computes depends on the element type. float32 uses the pedantic math mode, which allows neither
TF32 nor BF16x9 emulation, so that true float32 is compared with true float32. The other types are summed in
float32 as in our kernels; so are the partial sums of a split k, which cuBLAS could otherwise add in bf16 or
fp16.
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
    "bf16x6": "bf16x6 (beside pedantic fp32)",
    "bf16": "bf16 (COMPUTE_32F, reductions in fp32)",
    "fp16": "fp16 (COMPUTE_32F, reductions in fp32)",
}
WORKSPACE = 32 << 20  # bytes; what cuBLAS's documentation recommends for Hopper


@dataclass(frozen=True)
class _Routine:
    """The way cuBLAS multiplies an element type.

    `modes` are the names of cublasMath_t flags to combine, `matrix` is the matrices' cudaDataType, and
    `compute` the cublasComputeType_t for GemmEx; if `compute` is empty, SGEMM is called.
    """

    modes: tuple[str, ...]
    matrix: str = "CUDA_R_32F"
    compute: str = ""


DATA_TYPES = {"CUDA_R_32F": 0, "CUDA_R_16F": 2, "CUDA_R_16BF": 14}  # cudaDataType, library_types.h
_FP32_SUMS = ("DEFAULT_MATH", "DISALLOW_REDUCED_PRECISION_REDUCTION")
_ROUTINES = {
    "fp32": _Routine(("PEDANTIC_MATH",)),
    "tf32": _Routine(_FP32_SUMS, "CUDA_R_32F", "COMPUTE_32F_FAST_TF32"),
    "3xtf32": _Routine(("PEDANTIC_MATH",)),
    "bf16x6": _Routine(("PEDANTIC_MATH",)),
    "bf16": _Routine(_FP32_SUMS, "CUDA_R_16BF", "COMPUTE_32F"),
    "fp16": _Routine(_FP32_SUMS, "CUDA_R_16F", "COMPUTE_32F"),
}


class Library(Closing):
    """A handle of cuBLAS or cuBLASLt in the current context, with a workspace of `WORKSPACE` bytes.

    `bindings` is nvmath's module for the library, and `version` the library's version, such as ``"13.1.0"``.
    Raises MissingDependency if the library cannot be loaded, and HarnessError if a call fails.
    """

    label: ClassVar[str]
    built: ClassVar[None] = None  # the machine code of a library is not available to harness

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
        """Return the operands' problem, or raise UsageError if it is not a GEMM."""
        if not isinstance(operands.problem, Gemm):
            raise UsageError(f"{self.label} does not compute {operands.problem.label}")
        return operands.problem

    def _number(self) -> int:
        """Return the library's version as one number: 10000 * major + 100 * minor + patch."""
        raise NotImplementedError

    def _call(self, name: str, *args: Any) -> Any:
        """Call a function of the bindings by name.

        Raises HarnessError if it fails, ContextLost if that was because of a fault on the GPU, and
        MissingDependency if the library or the driver cannot be loaded.
        """
        try:
            return getattr(self._api, name)(*args)
        except self._error as e:
            self.context.open_gates()
            self.context.synchronize()  # if a fault is the cause, the driver raises ContextLost here
            raise HarnessError(f"{self.label.replace('BLAS', 'blas')}.{name} failed: {e}") from None
        except RuntimeError as e:  # raised by nvmath if the library or the driver is missing
            raise MissingDependency(f"{self.label} cannot be loaded: {e}", hint=INSTALL) from None

    def close(self) -> None:
        handle, self._handle = self._handle, 0
        try:
            if handle and not self.context.lost:
                self._call("destroy", handle)
        finally:
            self._workspace.close()


class CuBlas(Library):
    """cuBLAS in the current context, a `Runnable` for every GEMM."""

    label = LABEL

    def __init__(self, context: Context) -> None:
        super().__init__(context, api())
        self._modes: tuple[str, ...] = ()
        self._stream: Stream | None = None

    def _number(self) -> int:
        return int(self._call("get_version", self._handle))

    def prepare(self, operands: Operands) -> Launch:
        """Bind one product for each set of operands. Raises UsageError if the problem is not a GEMM.

        cuBLAS expects column-major matrices. A row-major matrix read as column-major is its transpose, so C^T
        = B^T A^T is computed.
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
        n = int(self._api.Operation.N)
        alpha, beta = ctypes.c_float(problem.alpha), ctypes.c_float(problem.beta)
        typed: tuple[int, ...] = ()  # the cudaDataType, which gemm_ex takes behind each address
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
        """Queue one call in `stream`, in the routine's math mode.

        `_keep` holds the scalars that `args` has the addresses of.
        """
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


INSTALL = "pip install '.[cublas]' from a checkout"


def api() -> Any:
    """Return nvmath's cuBLAS bindings; importing them does not load cuBLAS itself.

    Raises MissingDependency if nvmath-python is not installed.
    """
    try:
        from nvmath.bindings import cublas
    except ImportError:
        raise MissingDependency("nvmath-python is not installed: no cuBLAS baseline", hint=INSTALL) from None
    return cublas
