"""The functions of cuBLAS and cuBLASLt that harness calls, bound by ctypes.

Whichever cuBLAS 13 the machine has is taken: that of the wheel nvidia-cublas, which PyTorch's wheels for CUDA
13 install, too, or that of conda or a toolkit. Prototypes, enumerations and structures are those of
cublas_api.h, cublasLt.h and library_types.h; tests/launch/test_cublas_bindings.py compares them.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from enum import IntEnum, IntFlag
from typing import Any

from harness.errors import HarnessError, MissingDependency
from harness.support import tools

INSTALL = "pip install '.[cublas]' from a checkout"
MAJOR = 13  # an older one is not what kernels of this CUDA compete with, and would flatter them

_INT, _SIZE, _POINTER = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
_UINT64, _INT64 = ctypes.c_uint64, ctypes.c_int64
_OPERATIONS = (_INT, _INT)
_EXTENTS = (_INT, _INT, _INT)
PROTOTYPES: dict[str, dict[str, tuple[Any, ...]]] = {
    "cuBLAS": {
        "cublasGetProperty": (_INT, _POINTER),
        "cublasCreate_v2": (_POINTER,),
        "cublasDestroy_v2": (_POINTER,),
        "cublasSetMathMode": (_POINTER, _INT),
        "cublasSetStream_v2": (_POINTER, _POINTER),
        "cublasSetWorkspace_v2": (_POINTER, _POINTER, _SIZE),
        "cublasSgemm_v2": (
            *(_POINTER, *_OPERATIONS, *_EXTENTS, _POINTER),
            *(_POINTER, _INT, _POINTER, _INT, _POINTER, _POINTER, _INT),
        ),
        "cublasGemmEx": (
            *(_POINTER, *_OPERATIONS, *_EXTENTS, _POINTER),
            *(_POINTER, _INT, _INT, _POINTER, _INT, _INT, _POINTER, _POINTER, _INT, _INT, _INT, _INT),
        ),
    },
    "cuBLASLt": {
        "cublasLtGetProperty": (_INT, _POINTER),
        "cublasLtCreate": (_POINTER,),
        "cublasLtDestroy": (_POINTER,),
        "cublasLtMatmulDescCreate": (_POINTER, _INT, _INT),
        "cublasLtMatmulDescDestroy": (_POINTER,),
        "cublasLtMatmulDescSetAttribute": (_POINTER, _INT, _POINTER, _SIZE),
        "cublasLtMatrixLayoutCreate": (_POINTER, _INT, _UINT64, _UINT64, _INT64),
        "cublasLtMatrixLayoutDestroy": (_POINTER,),
        "cublasLtMatmulPreferenceCreate": (_POINTER,),
        "cublasLtMatmulPreferenceDestroy": (_POINTER,),
        "cublasLtMatmulPreferenceSetAttribute": (_POINTER, _INT, _POINTER, _SIZE),
        "cublasLtMatmulAlgoGetHeuristic": (*(_POINTER,) * 7, _INT, _POINTER, _POINTER),
        "cublasLtMatmulAlgoConfigGetAttribute": (_POINTER, _INT, _POINTER, _SIZE, _POINTER),
        "cublasLtMatmul": (*(_POINTER,) * 14, _SIZE, _POINTER),
    },
}


class Status(IntEnum):
    """The status that a function returns, cublasStatus_t."""

    NOT_INITIALIZED = 1
    ALLOC_FAILED = 3
    INVALID_VALUE = 7
    ARCH_MISMATCH = 8
    MAPPING_ERROR = 11
    EXECUTION_FAILED = 13
    INTERNAL_ERROR = 14
    NOT_SUPPORTED = 15
    LICENSE_ERROR = 16

    @classmethod
    def text(cls, status: int) -> str:
        """Return ``CUBLAS_STATUS_NOT_SUPPORTED (15)``."""
        known = {one.value: f"CUBLAS_STATUS_{one.name}" for one in cls}
        return f"{known.get(status, 'status')} ({status})"


class Operation(IntEnum):
    """The form in which a matrix is read, cublasOperation_t."""

    N = 0
    T = 1


class Math(IntFlag):
    """Math modes of a handle of cuBLAS, cublasMath_t."""

    DEFAULT_MATH = 0
    PEDANTIC_MATH = 2
    MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16


class Compute(IntEnum):
    """The type and mode that sums are computed in, cublasComputeType_t."""

    COMPUTE_32F = 68
    COMPUTE_32F_PEDANTIC = 69
    COMPUTE_32F_FAST_TF32 = 77


class DataType(IntEnum):
    """Element types, cudaDataType."""

    R_32F = 0
    R_16F = 2
    R_16BF = 14


GEMM_DEFAULT = -1  # cublasGemmAlgo_t: the heuristic's choice


class Reduction(IntEnum):
    """Ways to add the partial sums of a split k, cublasLtReductionScheme_t."""

    NONE = 0
    INPLACE = 1
    COMPUTE_TYPE = 2
    OUTPUT_TYPE = 4
    MASK = 7


class Attribute(IntEnum):
    """Attributes of a matmul descriptor, cublasLtMatmulDescAttributes_t; values are of 32 bits."""

    TRANSA = 3
    TRANSB = 4


class Preference(IntEnum):
    """Attributes of a preference descriptor, cublasLtMatmulPreferenceAttributes_t."""

    MAX_WORKSPACE_BYTES = 1  # of 64 bits
    REDUCTION_SCHEME_MASK = 3  # of 32


class Configuration(IntEnum):
    """Attributes of an algorithm, cublasLtMatmulAlgoConfigAttributes_t.

    Values are of 32 bits, `CLUSTER_SHAPE_ID`'s of 16.
    """

    ID = 0
    TILE_ID = 1
    SPLITK_NUM = 2
    REDUCTION_SCHEME = 3
    CUSTOM_OPTION = 5
    STAGES_ID = 6
    CLUSTER_SHAPE_ID = 8


class HeuristicResult(ctypes.Structure):
    """An algorithm that the heuristic names, cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algo", ctypes.c_uint64 * 8),
        ("workspaceSize", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("wavesCount", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def tiles() -> dict[int, str]:
    """Return the names of cublasLtMatmulTile_t by value, ``128x256`` of 23; that of 0 is empty.

    After 35 values of old come the multiples of 8 by those of 64 up to 768 elements and 48 Ki in all, then
    those of 64 by those of 8 up to 64 Ki, without what had a value before.
    """
    old = (
        "8x8 8x16 16x8 8x32 16x16 32x8 8x64 16x32 32x16 64x8 32x32 32x64 64x32 32x128 64x64 128x32 64x128 "
        "128x64 64x256 128x128 256x64 64x512 128x256 256x128 512x64 64x96 96x64 96x128 128x160 160x128 "
        "192x128 128x192 128x96 32x256 256x32"
    )
    fine, coarse = range(8, 769, 8), range(64, 769, 64)
    tall = [f"{m}x{n}" for m in fine for n in coarse if m * n <= 48 << 10]
    wide = [f"{m}x{n}" for m in coarse for n in fine if m * n <= 64 << 10]
    large = "256x512 256x1024 512x512 512x1024 4x1 8x1 16x1 24x1 32x1 40x1 48x1 64x1 128x1 192x1 256x1"
    return dict(enumerate(["", *dict.fromkeys([*old.split(), *tall, *wide, *large.split()])]))


def stages() -> dict[int, str]:
    """Return the names of cublasLtMatmulStages_t by value: elements of k in a stage, and stages."""
    squares = [f"{k}x{n}" for k in (16, 32, 64, 128) for n in range(1, 7)]
    automatic = "8x3 8xAUTO 16xAUTO 32xAUTO 64xAUTO 128xAUTO 256xAUTO 768xAUTO"
    return {
        **dict(enumerate(["", *squares, "32x10", "8x4", "16x10", "8x5"])),
        **dict(enumerate(automatic.split(), 31)),
    }


def clusters() -> dict[int, str]:
    """Return the names of cublasLtClusterShape_t by value; that of 0, the library's choice, is empty."""
    shapes = (
        "1x1 2x1 4x1 1x2 2x2 4x2 1x4 2x4 4x4 8x1 1x8 8x2 2x8 16x1 1x16 3x1 5x1 6x1 7x1 9x1 10x1 11x1 12x1 "
        "13x1 14x1 15x1 3x2 5x2 6x2 7x2 1x3 2x3 3x3 4x3 5x3 3x4 1x5 2x5 3x5 1x6 2x6 1x7 2x7 1x9 1x10 1x11 "
        "1x12 1x13 1x14 1x15"
    )
    return {0: "", **{value: f"{shape}x1" for value, shape in enumerate(shapes.split(), 2)}}


class Functions:
    """The functions of cuBLAS or cuBLASLt, by their names in C.

    `label` is a key of `PROTOTYPES`, and `version` the library's, such as ``"13.1.0"``. Raises
    MissingDependency if the library is not there, cannot be loaded, or is not of version `MAJOR`.
    """

    def __init__(self, label: str) -> None:
        library = tools.library(label.replace("BLAS", "blas"), hint=INSTALL)
        self._prototypes = PROTOTYPES[label]
        try:
            self._functions = {name: library[name] for name in self._prototypes}
        except AttributeError as e:
            raise MissingDependency(f"{label} lacks a function: {e}", hint=INSTALL) from None
        asked = next(name for name in self._prototypes if name.endswith("GetProperty"))
        held = ctypes.c_int()
        numbers = []
        for which in range(3):  # libraryPropertyType: major, minor and patch level
            if status := self.bind(asked, which, ctypes.byref(held))():
                raise MissingDependency(f"{label} does not tell its version: {Status.text(status)}")
            numbers.append(held.value)
        self.version = ".".join(map(str, numbers))
        if numbers[0] != MAJOR:
            raise MissingDependency(
                f"the {label} found is {self.version}, and harness compares with {label} {MAJOR}",
                where=str(library._name or ""),
                hint=INSTALL,
            )

    def bind(self, name: str, *args: Any) -> Callable[..., int]:
        """Return a call of a function with these first arguments, which returns its status.

        They are converted here, by the prototype, so that a call in a timed loop converts nothing. Further
        arguments of the call have to be converted by `argument`. Addresses are passed as integers or
        ``ctypes.byref``: the call keeps nothing alive. Raises HarnessError where a number exceeds 32 bits.
        """
        kinds = self._prototypes[name][: len(args)]
        return functools.partial(self._functions[name], *map(_converted, kinds, args))

    def argument(self, name: str, place: int, value: Any) -> Any:
        """Return one argument of a function, converted by its prototype."""
        return _converted(self._prototypes[name][place], value)


def _converted(kind: Any, value: Any) -> Any:
    """Return `value` as ctypes passes it. ctypes itself would cut off an int's upper bits."""
    if kind is _INT and not -(1 << 31) <= value < 1 << 31:
        raise HarnessError(f"{value} does not fit the 32 bits that cuBLAS takes here")
    return kind.from_param(value)
