"""Stand-ins for libcublasLt and libcublas on the fake driver's memory, called through ctypes as they are.

Methods have the names of the functions in C, and take what C passes; `provide` puts them in the libraries'
place.

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
from types import SimpleNamespace
from typing import Any

import numpy as np

from fakes import driver as fake_driver
from harness.driver import api
from harness.kernels.dtypes import BF16, FP16, FP32
from harness.launch import cublas_bindings as bindings
from harness.launch.cublas_bindings import Attribute, Configuration, HeuristicResult, Preference, Status
from harness.support import tools

TYPES = {0: FP32, 2: FP16, 14: BF16}  # by cudaDataType
VERSION = (13, 1, 2)
PREFERENCE_BYTES = {"MAX_WORKSPACE_BYTES": 8, "REDUCTION_SCHEME_MASK": 4}


class Refused(Exception):
    """Ends a function with a status."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.name)
        self.status = status


class Library:
    """A stand-in as ctypes would load it: its functions by name, each a pointer to code."""

    def __init__(self, label: str, fake: Any) -> None:
        self._label, self._fake, self._name = label, fake, f"lib{label.lower()}.so.13"
        self._kept: list[Any] = []

    def __getitem__(self, name: str) -> Any:
        def run(*args: Any) -> int:
            try:
                getattr(self._fake, name)(*(arg or 0 for arg in args))  # a null pointer comes as None
            except Refused as e:
                return int(e.status)
            return 0

        code = ctypes.CFUNCTYPE(ctypes.c_int, *bindings.PROTOTYPES[self._label][name])(run)
        self._kept.append(code)
        return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.cast(code, ctypes.c_void_p).value)


def provide(monkeypatch: Any, *, blas: Any = None, lt: Any = None) -> None:
    """Let these be the libraries that harness finds; None is one that is not there."""
    libraries = {"cublas": blas and Library("cuBLAS", blas), "cublasLt": lt and Library("cuBLASLt", lt)}

    def library(name: str, *, hint: str) -> Library:
        return libraries[name] or fake_driver.no_library(name, hint=hint)

    monkeypatch.setattr(tools, "library", library)


def put(address: int, handle: int) -> None:
    ctypes.c_void_p.from_address(address).value = handle


def tell_version(which: int, value: int) -> None:
    ctypes.c_int.from_address(value).value = VERSION[which]


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

    def _cuEventRecordWithFlags(self, event: int, stream: int, flags: str) -> Any:
        super()._cuEventRecordWithFlags(event, stream, flags)
        self._queue(stream, lambda: self._cuEventRecord(event, stream))
        return ()

    def _cuEventElapsedTime(self, start: int, end: int) -> Any:
        return (self.live["event", int(end)] - self.live["event", int(start)],)

    def _launched(self, launch: SimpleNamespace) -> None:
        super()._launched(launch)
        self.clock += self.milliseconds


def install(monkeypatch: Any) -> TimedDriver:
    fake = TimedDriver()
    monkeypatch.setattr(api, "bindings", lambda: fake)
    provide(monkeypatch)
    return fake


class FakeCublasLt:
    cublasLtGetProperty = staticmethod(tell_version)

    def __init__(self, driver: TimedDriver, algorithms: Sequence[Algorithm]) -> None:
        self.driver, self.algorithms = driver, list(algorithms)
        self.live: dict[int, tuple[str, Any]] = {}
        self._flips: dict[int, dict[str, int]] = {}  # of a matmul descriptor
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
            raise Refused(Status.INVALID_VALUE)
        return about

    def _end(self, kind: str, handle: int) -> None:
        self._of(kind, handle)
        del self.live[handle]

    def cublasLtCreate(self, handle: int) -> None:
        put(handle, self._make("handle"))

    def cublasLtDestroy(self, handle: int) -> None:
        self._end("handle", handle)

    def cublasLtMatmulDescCreate(self, handle: int, compute_type: int, scale_type: int) -> None:
        put(handle, self._make("matmul", compute_type, scale_type))

    def cublasLtMatmulDescDestroy(self, handle: int) -> None:
        self._end("matmul", handle)
        self._flips.pop(handle, None)

    def cublasLtMatmulDescSetAttribute(self, handle: int, attribute: int, buffer: int, nbytes: int) -> None:
        self._of("matmul", handle)
        self._sized(4, nbytes)
        value = int.from_bytes(ctypes.string_at(buffer, nbytes), "little")
        self._flips.setdefault(handle, {})[Attribute(attribute).name] = value

    def _transposed(self, operation: int) -> tuple[int, int]:
        flips = self._flips.get(operation, {})
        return flips.get("TRANSA", 0), flips.get("TRANSB", 0)

    def cublasLtMatrixLayoutCreate(self, handle: int, type_: int, rows: int, columns: int, ld: int) -> None:
        put(handle, self._make("layout", type_, rows, columns, ld))

    def cublasLtMatrixLayoutDestroy(self, handle: int) -> None:
        self._end("layout", handle)

    def cublasLtMatmulPreferenceCreate(self, handle: int) -> None:
        put(handle, self._make("preference"))

    def cublasLtMatmulPreferenceDestroy(self, handle: int) -> None:
        self._end("preference", handle)

    # --- attributes, of the sizes that cublasLt.h says

    def cublasLtMatmulPreferenceSetAttribute(
        self, handle: int, attribute: int, buffer: int, nbytes: int
    ) -> None:
        self._of("preference", handle)
        name = Preference(attribute).name
        self._sized(PREFERENCE_BYTES[name], nbytes)
        self.preferences[name] = int.from_bytes(ctypes.string_at(buffer, nbytes), "little")

    def cublasLtMatmulAlgoConfigGetAttribute(
        self, algorithm: int, attribute: int, buffer: int, nbytes: int, written: int
    ) -> None:
        name = Configuration(attribute).name
        self._sized(2 if name == "CLUSTER_SHAPE_ID" else 4, nbytes)
        value = dict(self.algorithms[self._place(algorithm)].configuration).get(name, 0)
        ctypes.memmove(buffer, value.to_bytes(nbytes, "little"), nbytes)
        ctypes.c_uint64.from_address(written).value = nbytes

    def _sized(self, right: int, nbytes: int) -> None:
        if nbytes != right:
            raise Refused(Status.INVALID_VALUE)

    # --- algorithms: the opaque words hold a magic number and the place in the list

    def cublasLtMatmulAlgoGetHeuristic(
        self, handle: int, operation: int, a: int, b: int, c: int, d: int, preference: int, asked: int,
        results: int, count: int,
    ) -> None:  # fmt: skip
        self._of("handle", handle)
        self._of("matmul", operation)
        self._of("preference", preference)
        self._shape(a, b, c, d, transposed=self._transposed(operation))
        self.asked.append(asked)
        found = self.algorithms[:asked]
        table = (HeuristicResult * asked).from_address(results)
        for place, algorithm in enumerate(found):
            table[place].algo[:2] = 0xA160, place
            table[place].state = algorithm.state
        ctypes.c_int.from_address(count).value = len(found)

    def _place(self, address: int) -> int:
        magic, place = (ctypes.c_uint64 * 2).from_address(address)
        if magic != 0xA160:
            raise Refused(Status.INVALID_VALUE)
        return int(place)

    def _shape(self, *handles: int, transposed: tuple[int, int]) -> None:
        layouts = [self._of("layout", handle) for handle in handles]
        (rows, inner), (same, columns) = (
            shape[::-1] if flip else shape
            for flip, (_, *shape, _) in zip(transposed, layouts[:2], strict=True)
        )
        right = inner == same and all(one[1:3] == (rows, columns) for one in layouts[2:])
        if not right or any(ld < n for _, n, _, ld in layouts):
            raise Refused(Status.INVALID_VALUE)

    def cublasLtMatmul(
        self, handle: int, operation: int, alpha: int, a: int, a_layout: int, b: int, b_layout: int,
        beta: int, c: int, c_layout: int, d: int, d_layout: int, algorithm: int, workspace: int, nbytes: int,
        stream: int,
    ) -> None:  # fmt: skip
        self._of("handle", handle)
        self._of("matmul", operation)
        transposed = self._transposed(operation)
        self._shape(a_layout, b_layout, c_layout, d_layout, transposed=transposed)
        place = self._place(algorithm)
        memory = self.driver.live.get(("memory", workspace))
        if (
            memory is None
            or ctypes.sizeof(memory) < nbytes
            or ("stream", int(stream)) not in self.driver.live
        ):
            raise Refused(Status.INVALID_VALUE)
        chosen = self.algorithms[place]
        if chosen.fails:
            raise Refused(Status.EXECUTION_FAILED)
        self.runs.append((place, d, bool(self.driver.waits) and self.driver.held()))
        scalars = [ctypes.c_float.from_address(at).value for at in (alpha, beta)]
        layouts = [self._of("layout", one) for one in (a_layout, b_layout, d_layout)]
        if c != d:
            raise Refused(Status.NOT_SUPPORTED)
        multiply(scalars, *zip((a, b, d), layouts, strict=True), transposed=transposed)
        if chosen.wrong:
            dtype, (_, rows, columns, ld) = TYPES[layouts[2][0]], layouts[2]
            column_major(d, dtype, rows, columns, ld)[0, 0] = 1
        self.driver.clock += chosen.milliseconds


class FakeCublas:
    """A stand-in for cuBLAS that knows SGEMM alone, which takes 2 ms."""

    cublasGetProperty = staticmethod(tell_version)

    def __init__(self, driver: TimedDriver) -> None:
        self.driver = driver

    def cublasCreate_v2(self, handle: int) -> None:
        put(handle, 0x100)

    def cublasDestroy_v2(self, *_: int) -> None:
        pass

    cublasSetMathMode = cublasSetStream_v2 = cublasSetWorkspace_v2 = cublasDestroy_v2

    def cublasSgemm_v2(self, *args: int) -> None:
        _, of_a, of_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc = args
        scalars = [ctypes.c_float.from_address(at).value for at in (alpha, beta)]
        left, right = (k, m) if of_a else (m, k), (n, k) if of_b else (k, n)
        matrices = (a, (0, *left, lda)), (b, (0, *right, ldb)), (c, (0, m, n, ldc))
        multiply(scalars, *matrices, transposed=(of_a, of_b))
        self.driver.clock += 2


def column_major(address: int, dtype: Any, rows: int, columns: int, ld: int) -> Any:
    size = dtype.itemsize
    data = (ctypes.c_char * (size * ((columns - 1) * ld + rows))).from_address(address)
    flat = np.frombuffer(data, dtype.storage)
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (size, ld * size))


def multiply(
    scalars: Sequence[float],
    *matrices: tuple[int, tuple[int, int, int, int]],
    transposed: tuple[int, int] = (0, 0),
) -> None:
    """Compute ``D = alpha op(A) op(B) + beta D``, column-major, in float64; with beta 0 D is not read."""
    alpha, beta = scalars
    dtype = TYPES[matrices[0][1][0]]
    a, b, d = (column_major(at, TYPES[type_], *shape) for at, (type_, *shape) in matrices)
    a, b = (x.T if flip else x for x, flip in zip((a, b), transposed, strict=True))
    product = alpha * (dtype.decode(a) @ dtype.decode(b))
    if beta:
        product = product + beta * dtype.decode(d)
    d[:] = dtype.encode(product.astype(np.float32))
