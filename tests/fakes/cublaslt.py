"""A stand-in for ``nvmath.bindings.cublasLt`` on the fake driver's memory, and one for cuBLAS beside it.

* ``lt.algorithms``: what the heuristic names, in its order; each takes its `milliseconds` on the clock of
  `TimedDriver`, and may be refused by the heuristic (`state`) or when it is run (`fails`).
* ``lt.live``: handle -> (kind, what it was made of) of all that was created and not destroyed. What does not
  live, or is of another kind, is an error wherever it is given.
* ``lt.preferences``: what the heuristic was told, by the attributes' names. ``lt.runs``: every product, as
  (algorithm's place, address of the output, whether a gate held it).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np

from fakes import driver as fake_driver
from harness.driver import api
from harness.kernels.dtypes import BF16, FP16, FP32

TYPES = {0: FP32, 2: FP16, 14: BF16}  # by cudaDataType
COMPUTE = SimpleNamespace(COMPUTE_32F=68, COMPUTE_32F_PEDANTIC=69, COMPUTE_32F_FAST_TF32=77)
VERSION = 130102


class MatmulPreferenceAttribute(IntEnum):
    MAX_WORKSPACE_BYTES = 1
    REDUCTION_SCHEME_MASK = 3


class MatmulAlgoConfigAttribute(IntEnum):
    ID = 0
    TILE_ID = 1
    SPLITK_NUM = 2
    REDUCTION_SCHEME = 3
    CUSTOM_OPTION = 5
    STAGES_ID = 6
    CLUSTER_SHAPE_ID = 8


class ReductionScheme(IntEnum):
    NONE = 0
    INPLACE = 1
    COMPUTE_TYPE = 2
    OUTPUT_TYPE = 4
    MASK = 7


class MatmulTile(IntEnum):
    TILE_UNDEFINED = 0
    TILE_128x256 = 23


class MatmulStages(IntEnum):
    STAGES_UNDEFINED = 0
    STAGES_64xAUTO = 35


class ClusterShape(IntEnum):
    SHAPE_AUTO = 0
    SHAPE_2x1x1 = 3


PREFERENCE_TYPES = {"MAX_WORKSPACE_BYTES": np.uint64, "REDUCTION_SCHEME_MASK": np.uint32}
CONFIGURATION_TYPES = {
    "ID": np.int32, "TILE_ID": np.uint32, "SPLITK_NUM": np.int32, "REDUCTION_SCHEME": np.uint32,
    "CUSTOM_OPTION": np.uint32, "STAGES_ID": np.uint32, "CLUSTER_SHAPE_ID": np.uint16,
}  # fmt: skip


@dataclass(frozen=True)
class Algorithm:
    """One algorithm of the library. `configuration` holds its attributes' values by name; others are 0."""

    milliseconds: float = 1.0
    state: int = 0
    fails: bool = False
    wrong: bool = False
    configuration: tuple[tuple[str, int], ...] = ()


class TimedDriver(fake_driver.FakeDriver):
    """A fake driver whose events read a clock that kernels and library calls advance."""

    clock = 0.0

    def _cuEventRecord(self, event: int, stream: int) -> Any:
        self.live["event", int(event)] = self.clock
        return ()

    def _cuEventElapsedTime(self, start: int, end: int) -> Any:
        return (self.live["event", int(end)] - self.live["event", int(start)],)

    def _launched(self, launch: SimpleNamespace) -> None:
        super()._launched(launch)
        self.clock += self.milliseconds


def install(monkeypatch: Any) -> TimedDriver:
    fake = TimedDriver()
    monkeypatch.setattr(api, "bindings", lambda: fake)
    return fake


class FakeCublasLt:
    cuBLASLtError = type("cuBLASLtError", (Exception,), {})
    MatmulPreferenceAttribute = MatmulPreferenceAttribute
    MatmulAlgoConfigAttribute = MatmulAlgoConfigAttribute
    ReductionScheme = ReductionScheme
    MatmulTile = MatmulTile
    MatmulStages = MatmulStages
    ClusterShape = ClusterShape
    matmul_heuristic_result_dtype = np.dtype(
        [
            ("algo", [("data_", "<u8", (8,))]),
            ("workspace_size", "<u8"),
            ("state", "<i4"),
            ("waves_count", "<f4"),
            ("reserved", "<i4", (4,)),
        ],
        align=True,
    )

    def __init__(self, driver: TimedDriver, algorithms: Sequence[Algorithm]) -> None:
        self.driver, self.algorithms = driver, list(algorithms)
        self.live: dict[int, tuple[str, Any]] = {}
        self.created: list[tuple[str, Any]] = []
        self.preferences: dict[str, int] = {}
        self.asked: list[int] = []
        self.runs: list[tuple[int, int, bool]] = []
        self._next = 0x9000

    # --- what lives

    def _make(self, kind: str, *about: Any) -> int:
        self._next += 0x10
        self.live[self._next] = kind, about
        self.created.append((kind, about))
        return self._next

    def _of(self, kind: str, handle: int) -> Any:
        found, about = self.live.get(handle, ("nothing", ()))
        if found != kind:
            raise self.cuBLASLtError(f"INVALID_VALUE: {handle:#x} is {found}, not a {kind}")
        return about

    def _end(self, kind: str, handle: int) -> None:
        self._of(kind, handle)
        del self.live[handle]

    def create(self) -> int:
        return self._make("handle")

    def destroy(self, handle: int) -> None:
        self._end("handle", handle)

    def get_version(self) -> int:
        return VERSION

    def matmul_desc_create(self, compute_type: int, scale_type: int) -> int:
        return self._make("matmul", compute_type, scale_type)

    def matmul_desc_destroy(self, handle: int) -> None:
        self._end("matmul", handle)

    def matrix_layout_create(self, type_: int, rows: int, columns: int, ld: int) -> int:
        return self._make("layout", type_, rows, columns, ld)

    def matrix_layout_destroy(self, handle: int) -> None:
        self._end("layout", handle)

    def matmul_preference_create(self) -> int:
        return self._make("preference")

    def matmul_preference_destroy(self, handle: int) -> None:
        self._end("preference", handle)

    # --- attributes, of the sizes that the bindings say

    def get_matmul_preference_attribute_dtype(self, attribute: int) -> Any:
        return PREFERENCE_TYPES[MatmulPreferenceAttribute(attribute).name]

    def get_matmul_algo_config_attribute_dtype(self, attribute: int) -> Any:
        return CONFIGURATION_TYPES[MatmulAlgoConfigAttribute(attribute).name]

    def matmul_preference_set_attribute(self, handle: int, attribute: int, buffer: int, nbytes: int) -> None:
        self._of("preference", handle)
        name = MatmulPreferenceAttribute(attribute).name
        self._sized(PREFERENCE_TYPES[name], nbytes)
        self.preferences[name] = int.from_bytes(ctypes.string_at(buffer, nbytes), "little")

    def matmul_algo_config_get_attribute(
        self, algorithm: int, attribute: int, buffer: int, nbytes: int, written: int
    ) -> None:
        name = MatmulAlgoConfigAttribute(attribute).name
        self._sized(CONFIGURATION_TYPES[name], nbytes)
        value = dict(self.algorithms[self._place(algorithm)].configuration).get(name, 0)
        ctypes.memmove(buffer, value.to_bytes(nbytes, "little"), nbytes)
        ctypes.c_uint64.from_address(written).value = nbytes

    def _sized(self, type_: Any, nbytes: int) -> None:
        if nbytes != np.dtype(type_).itemsize:
            raise self.cuBLASLtError(f"INVALID_VALUE: {nbytes} bytes")

    # --- algorithms: the opaque words hold a magic number and the place in the list

    def matmul_algo_get_heuristic(
        self, handle: int, operation: int, a: int, b: int, c: int, d: int, preference: int, asked: int,
        results: int, count: int,
    ) -> None:  # fmt: skip
        self._of("handle", handle)
        self._of("matmul", operation)
        self._of("preference", preference)
        self._shape(a, b, c, d)
        self.asked.append(asked)
        found = self.algorithms[:asked]
        size = self.matmul_heuristic_result_dtype.itemsize
        memory = (ctypes.c_char * (size * asked)).from_address(results)
        table = np.frombuffer(memory, self.matmul_heuristic_result_dtype)
        for place, algorithm in enumerate(found):
            table[place]["algo"]["data_"][:2] = 0xA160, place
            table[place]["state"] = algorithm.state
        ctypes.c_int.from_address(count).value = len(found)

    def _place(self, address: int) -> int:
        magic, place = (ctypes.c_uint64 * 2).from_address(address)
        if magic != 0xA160:
            raise self.cuBLASLtError("INVALID_VALUE: not an algorithm")
        return int(place)

    def _shape(self, a: int, b: int, c: int, d: int) -> None:
        layouts = [self._of("layout", handle) for handle in (a, b, c, d)]
        (_, rows, inner, _), (_, same, columns, _), *outputs = layouts
        right = inner == same and all(one[1:3] == (rows, columns) for one in outputs)
        if not right or any(ld < n for _, n, _, ld in layouts):
            raise self.cuBLASLtError(f"INVALID_VALUE: {layouts}")

    def matmul(
        self, handle: int, operation: int, alpha: int, a: int, a_layout: int, b: int, b_layout: int,
        beta: int, c: int, c_layout: int, d: int, d_layout: int, algorithm: int, workspace: int, nbytes: int,
        stream: int,
    ) -> None:  # fmt: skip
        self._of("handle", handle)
        self._of("matmul", operation)
        self._shape(a_layout, b_layout, c_layout, d_layout)
        place = self._place(algorithm)
        memory = self.driver.live.get(("memory", workspace))
        if (
            memory is None
            or ctypes.sizeof(memory) < nbytes
            or ("stream", int(stream)) not in self.driver.live
        ):
            raise self.cuBLASLtError("INVALID_VALUE: no such workspace or stream")
        chosen = self.algorithms[place]
        if chosen.fails:
            raise self.cuBLASLtError("CUBLAS_STATUS_EXECUTION_FAILED (13): by plan")
        self.runs.append((place, d, bool(self.driver.waits) and self.driver.held()))
        scalars = [ctypes.c_float.from_address(at).value for at in (alpha, beta)]
        layouts = [self._of("layout", one) for one in (a_layout, b_layout, d_layout)]
        if c != d:
            raise self.cuBLASLtError("NOT_SUPPORTED: not in place")
        multiply(scalars, *zip((a, b, d), layouts, strict=True))
        if chosen.wrong:
            dtype, (_, rows, columns, ld) = TYPES[layouts[2][0]], layouts[2]
            column_major(d, dtype, rows, columns, ld)[0, 0] = 1
        self.driver.clock += chosen.milliseconds


class FakeCublas:
    """A stand-in for cuBLAS that knows SGEMM alone, which takes 2 ms."""

    Operation = SimpleNamespace(N=0)
    Math = SimpleNamespace(DEFAULT_MATH=0, PEDANTIC_MATH=2, DISALLOW_REDUCED_PRECISION_REDUCTION=16)
    ComputeType = COMPUTE
    cuBLASError = type("cuBLASError", (Exception,), {})

    def __init__(self, driver: TimedDriver) -> None:
        self.driver = driver

    def create(self) -> int:
        return 0x100

    def get_version(self, handle: int) -> int:
        return VERSION

    def destroy(self, *_: int) -> None:
        pass

    set_math_mode = set_stream = set_workspace = destroy

    def sgemm(self, *args: int) -> None:
        _, _, _, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc = args
        scalars = [ctypes.c_float.from_address(at).value for at in (alpha, beta)]
        multiply(scalars, (a, (0, m, k, lda)), (b, (0, k, n, ldb)), (c, (0, m, n, ldc)))
        self.driver.clock += 2


def column_major(address: int, dtype: Any, rows: int, columns: int, ld: int) -> Any:
    size = dtype.itemsize
    data = (ctypes.c_char * (size * ((columns - 1) * ld + rows))).from_address(address)
    flat = np.frombuffer(data, dtype.storage)
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (size, ld * size))


def multiply(scalars: Sequence[float], *matrices: tuple[int, tuple[int, int, int, int]]) -> None:
    """Compute ``D = alpha A B + beta D``, column-major, in float64; with beta 0 D is not read."""
    alpha, beta = scalars
    dtype = TYPES[matrices[0][1][0]]
    a, b, d = (column_major(at, TYPES[type_], *shape) for at, (type_, *shape) in matrices)
    product = alpha * (dtype.decode(a) @ dtype.decode(b))
    if beta:
        product = product + beta * dtype.decode(d)
    d[:] = dtype.encode(product.astype(np.float32))
