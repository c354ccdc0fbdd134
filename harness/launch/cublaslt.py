"""The second baseline: cuBLASLt's best, in the shape of a `Launch`.

cuBLAS goes by a heuristic. Here cuBLASLt's is asked for several algorithms (`ALGORITHMS`), they are timed on
the problem's own operands, and the fastest is bound: what a patient user of the library gets. Element types
are computed as `harness.launch.cublas` has them computed, so that the two compare.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.driver import Context, Event, Gate, Stream
from harness.errors import ContextLost, HarnessError, MissingDependency
from harness.launch import cublas
from harness.launch.cublas import DATA_TYPES, INSTALL, WORKSPACE, Library
from harness.launch.kernel import Launch
from harness.launch.operands import Operands
from harness.problems.gemm import Gemm

LABEL = "cuBLASLt"
ALGORITHMS = 16
_LEAST, _MOST = 5, 60  # rounds in which each algorithm is timed once
_SECONDS = 0.2  # of GPU time, after which there are rounds enough

Call = Callable[[Stream], object]


@dataclass(frozen=True)
class _Routine:
    """How a type is multiplied: `matrix` is the matrices' cudaDataType, `reductions` a mask of the ways to
    add up the parts of a split k.
    """

    matrix: str
    compute: str
    reductions: str = "MASK"  # any: output and sums are float32


_ROUTINES = {
    "fp32": _Routine("CUDA_R_32F", "COMPUTE_32F_PEDANTIC"),
    "tf32": _Routine("CUDA_R_32F", "COMPUTE_32F_FAST_TF32"),
    "3xtf32": _Routine("CUDA_R_32F", "COMPUTE_32F_PEDANTIC"),
    "bf16": _Routine("CUDA_R_16BF", "COMPUTE_32F", "COMPUTE_TYPE"),
    "fp16": _Routine("CUDA_R_16F", "COMPUTE_32F", "COMPUTE_TYPE"),
}
# What tells one algorithm from another: attribute, what it is called, the enumeration that names its values,
# and what the names begin with. A tile is one of C^T.
_CONFIGURATION = (
    ("ID", "algorithm", "", ""),
    ("TILE_ID", "tile", "MatmulTile", "TILE_"),
    ("STAGES_ID", "stages", "MatmulStages", "STAGES_"),
    ("CLUSTER_SHAPE_ID", "cluster", "ClusterShape", "SHAPE_"),
    ("SPLITK_NUM", "split k", "", ""),
    ("REDUCTION_SCHEME", "reduction", "ReductionScheme", ""),
    ("CUSTOM_OPTION", "option", "", ""),
)


@dataclass(frozen=True)
class _Product:
    """Descriptors of a product of column-major matrices, `first` times `second`, and the scalars."""

    operation: int
    first: int
    second: int
    output: int
    alpha: ctypes.c_float
    beta: ctypes.c_float


@dataclass(frozen=True)
class _Algorithm:
    """One that runs: a call for each set of operands."""

    address: int
    calls: Sequence[Call]


class CuBlasLt(Library):
    """cuBLASLt in the current context, asked for so many `algorithms` a problem."""

    label = LABEL

    def __init__(self, context: Context, *, algorithms: int = ALGORITHMS) -> None:
        super().__init__(context, api())
        self._algorithms = algorithms

    def _number(self) -> int:
        return int(self._call("get_version"))

    def prepare(self, operands: Operands) -> Launch:
        """Find the fastest algorithm and bind one product for each set of operands. Finding it writes all
        outputs.

        Raises HarnessError where the heuristic names none, and where none of them runs.
        """
        problem = self._product_of(operands)
        with ExitStack() as undo:
            product = self._product(problem, undo)
            found = self._heuristics(problem, product)
            with Stream(self.context) as stream:
                usable = self._usable(problem, product, found, operands, stream)
                times = self._times([one.calls for one in usable], stream)
            best = int(np.argmin(times))
            text = self._text(usable[best].address, len(usable), len(found), times[0] / times[best])
            owned = undo.pop_all()
        return Launch(LABEL, operands, usable[best].calls, owned=owned, algorithm=text)

    def _product(self, problem: Gemm, undo: ExitStack) -> _Product:
        """cuBLASLt is column-major by default, where a row-major matrix is its own transpose:
        C^T = B^T A^T.
        """
        routine = _ROUTINES[problem.dtype.name]
        compute = int(getattr(cublas.api().ComputeType, routine.compute))
        scalar, matrix = DATA_TYPES["CUDA_R_32F"], DATA_TYPES[routine.matrix]
        m, n, k = problem.M, problem.N, problem.K
        return _Product(
            self._made(undo, "matmul_desc", compute, scalar),
            self._made(undo, "matrix_layout", matrix, n, k, problem.ldb),
            self._made(undo, "matrix_layout", matrix, k, m, problem.lda),
            self._made(undo, "matrix_layout", matrix, n, m, problem.ldc),
            ctypes.c_float(problem.alpha),
            ctypes.c_float(problem.beta),
        )

    def _made(self, undo: ExitStack, kind: str, *args: int) -> int:
        """A descriptor, destroyed by `undo`."""
        handle = int(self._call(f"{kind}_create", *args))
        undo.callback(self._call, f"{kind}_destroy", handle)
        return handle

    def _heuristics(self, problem: Gemm, product: _Product) -> NDArray[Any]:
        """cublasLtMatmulHeuristicResult_t of each algorithm, the one that should be fastest first."""
        results = np.zeros(self._algorithms, self._api.matmul_heuristic_result_dtype)
        count = np.zeros(1, np.int32)
        reductions = int(self._api.ReductionScheme[_ROUTINES[problem.dtype.name].reductions])
        with ExitStack() as undo:
            preference = self._made(undo, "matmul_preference")
            self._prefer(preference, "MAX_WORKSPACE_BYTES", WORKSPACE)
            self._prefer(preference, "REDUCTION_SCHEME_MASK", reductions)
            self._call(
                "matmul_algo_get_heuristic",
                *(self._handle, product.operation, product.first, product.second),
                *(product.output, product.output, preference),
                *(len(results), results.ctypes.data, count.ctypes.data),
            )
        found = results[: int(count[0])]
        if not len(found):
            raise HarnessError(f"cuBLASLt's heuristic names no algorithm for {problem.label}")
        return found

    def _prefer(self, preference: int, name: str, value: int) -> None:
        attribute = self._api.MatmulPreferenceAttribute[name]
        held = np.full(1, value, self._api.get_matmul_preference_attribute_dtype(attribute))
        self._call(
            "matmul_preference_set_attribute", preference, int(attribute), held.ctypes.data, held.nbytes
        )

    def _usable(
        self,
        problem: Gemm,
        product: _Product,
        found: NDArray[Any],
        operands: Operands,
        stream: Stream,
    ) -> list[_Algorithm]:
        """Those that run. Each is run once, which also loads its code: nothing may load behind a gate."""
        usable, refused = [], ""
        for i, state in enumerate(found["state"]):
            address = found.ctypes.data + i * found.itemsize  # the algorithm is the result's first member
            if state:
                refused = f"status {state}, says the heuristic"
                continue
            calls = [self._call_of(product, found, address, copy) for copy in operands.buffers]
            try:
                calls[0](stream)
                stream.synchronize()
            except ContextLost:
                raise
            except HarnessError as e:
                refused = e.what
                continue
            usable.append(_Algorithm(address, calls))
        if not usable:
            raise HarnessError(
                f"none of the {len(found)} algorithms that cuBLASLt's heuristic names for {problem.label} "
                f"runs; the last: {refused}"
            )
        return usable

    def _call_of(self, product: _Product, keep: object, address: int, copy: Any) -> Call:
        """`keep` is what the algorithm's address points into."""
        args = (
            *(product.operation, ctypes.addressof(product.alpha)),
            *(copy["B"].ptr, product.first, copy["A"].ptr, product.second),
            *(ctypes.addressof(product.beta), copy["C"].ptr, product.output, copy["C"].ptr, product.output),
            *(address, self._workspace.ptr, WORKSPACE),
        )
        return functools.partial(self._matmul, args, (product, keep))

    def _matmul(self, args: tuple[int, ...], _keep: object, stream: Stream) -> None:
        self._call("matmul", self._handle, *args, int(stream.handle))

    def _times(self, candidates: Sequence[Sequence[Call]], stream: Stream) -> NDArray[np.float64]:
        """Seconds of each: the median over rounds in which all take their turn, each launch on the next set
        of operands, so that drifting clocks hit all alike and no inputs are found in the L2 cache.
        """
        rounds: list[list[float]] = []
        spent, turn = 0.0, 0
        with ExitStack() as owned:
            gate = owned.enter_context(Gate(self.context))
            events = [
                (owned.enter_context(Event(self.context)), owned.enter_context(Event(self.context)))
                for _ in candidates
            ]
            while len(rounds) < _LEAST or (spent < _SECONDS and len(rounds) < _MOST):
                with gate.holding(stream):
                    for calls, (start, end) in zip(candidates, events, strict=True):
                        start.record(stream)
                        calls[turn % len(calls)](stream)
                        end.record(stream)
                        turn += 1
                stream.synchronize()
                rounds.append([end.seconds_since(start) for start, end in events])
                spent += math.fsum(rounds[-1])
        return np.asarray(np.median(rounds, axis=0), np.float64)

    def _text(self, address: int, usable: int, found: int, gain: float) -> str:
        """``fastest of 16 that the heuristic names, 1.04x the first: algorithm 66, tile 128x256, ...``."""
        of = f"{found}" if usable == found else f"{usable} that run of {found}"
        said = [f"{name} {value}" for name, value in self._configuration(address)]
        return f"fastest of {of} that the heuristic names, {gain:.2f}x the first: {', '.join(said)}"

    def _configuration(self, address: int) -> list[tuple[str, str]]:
        """What the library says of an algorithm; what it leaves undefined is left out."""
        found = []
        for attribute, name, enumeration, prefix in _CONFIGURATION:
            key = self._api.MatmulAlgoConfigAttribute[attribute]
            held = np.zeros(1, self._api.get_matmul_algo_config_attribute_dtype(key))
            written = np.zeros(1, np.uint64)
            self._call(
                "matmul_algo_config_get_attribute",
                *(address, int(key), held.ctypes.data, held.nbytes, written.ctypes.data),
            )
            value = str(held[0])
            if enumeration:
                with suppress(ValueError):  # the library may know more than its bindings
                    value = getattr(self._api, enumeration)(int(held[0])).name.removeprefix(prefix)
            if value not in ("UNDEFINED", "AUTO", "NONE"):
                found.append((name, value))
        return found


def api() -> Any:
    """nvmath's cuBLASLt bindings; importing them does not load cuBLASLt itself."""
    try:
        from nvmath.bindings import cublasLt
    except ImportError:
        raise MissingDependency("nvmath-python is not installed: no cuBLASLt", hint=INSTALL) from None
    return cublasLt
