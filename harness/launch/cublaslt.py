"""The second baseline: the fastest of cuBLASLt's algorithms for a problem, bound as a `Launch`.

cuBLAS takes the one algorithm that its heuristic names. Here cuBLASLt's heuristic is asked for several
(`ALGORITHMS`), they are timed on the problem's own operands, and the fastest is bound, as a user who tunes
the library would do. Element types are computed as in `harness.launch.cublas`, so that the two are
comparable.
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
_LEAST, _MOST = 5, 60  # least and most rounds; in each round every algorithm is timed once
_SECONDS = 0.2  # GPU time after which no more rounds begin, beyond the least

Call = Callable[[Stream], object]


@dataclass(frozen=True)
class _Routine:
    """The way cuBLASLt multiplies an element type.

    `matrix` is the matrices' cudaDataType, `compute` the cublasComputeType_t, and `reductions` the mask of
    cublasLtReductionScheme_t values allowed for adding the partial sums of a split k.
    """

    matrix: str
    compute: str
    reductions: str = "MASK"  # any scheme will do if the output and the sums are both float32


_ROUTINES = {
    "fp32": _Routine("CUDA_R_32F", "COMPUTE_32F_PEDANTIC"),
    "tf32": _Routine("CUDA_R_32F", "COMPUTE_32F_FAST_TF32"),
    "3xtf32": _Routine("CUDA_R_32F", "COMPUTE_32F_PEDANTIC"),
    "bf16x6": _Routine("CUDA_R_32F", "COMPUTE_32F_PEDANTIC"),
    "bf16": _Routine("CUDA_R_16BF", "COMPUTE_32F", "COMPUTE_TYPE"),
    "fp16": _Routine("CUDA_R_16F", "COMPUTE_32F", "COMPUTE_TYPE"),
}
# The attributes by which an algorithm is described: the attribute, its name in the description, the bindings'
# enumeration of its values (empty for a number), and the prefix of their names. A tile is one of C^T.
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
    """The descriptors of a product of column-major matrices, and its scalars.

    `operation` is the handle of the matmul descriptor; `first`, `second` and `output` are those of the matrix
    layouts. The product is ``alpha * first @ second + beta * output``.
    """

    operation: int
    first: int
    second: int
    output: int
    alpha: ctypes.c_float
    beta: ctypes.c_float


@dataclass(frozen=True)
class _Algorithm:
    """An algorithm that runs: its cublasLtMatmulAlgo_t's address, and a call for each set of operands."""

    address: int
    calls: Sequence[Call]


class CuBlasLt(Library):
    """cuBLASLt in the current context, a `Runnable` for every GEMM.

    `algorithms` is how many algorithms its heuristic is asked for at each problem.
    """

    label = LABEL

    def __init__(self, context: Context, *, algorithms: int = ALGORITHMS) -> None:
        super().__init__(context, api())
        self._algorithms = algorithms

    def _number(self) -> int:
        return int(self._call("get_version"))

    def prepare(self, operands: Operands) -> Launch:
        """Find the fastest algorithm, and bind one product for each set of operands.

        Timing the algorithms overwrites the outputs. Raises UsageError if the problem is not a GEMM, and
        HarnessError if the heuristic names no algorithm or none of them runs.
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
        """Make the descriptors of the product, which `undo` destroys.

        cuBLASLt expects column-major matrices by default. A row-major matrix read as column-major is its
        transpose, so C^T = B^T A^T is computed.
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
        """Create a descriptor of this `kind`, which `undo` destroys, and return its handle."""
        handle = int(self._call(f"{kind}_create", *args))
        undo.callback(self._call, f"{kind}_destroy", handle)
        return handle

    def _heuristics(self, problem: Gemm, product: _Product) -> NDArray[Any]:
        """Return an array of cublasLtMatmulHeuristicResult_t, one for each algorithm the heuristic names.

        The one it expects to be the fastest is first. Raises HarnessError if it names none.
        """
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
        """Set one attribute of a preference descriptor."""
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
        """Return the algorithms that run; raises HarnessError if none does.

        Each is run once, which also loads its code, because nothing may be loaded while a gate is closed.
        """
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
        """Return a call that queues the product of one set of operands by the algorithm at `address`.

        `copy` maps "A", "B" and "C" to the set's buffers. `keep` is the array that holds the algorithm; the
        call keeps it alive.
        """
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
        """Return the median time of each candidate in seconds, shape (candidates,).

        In each round every candidate is launched once, so that a drifting clock affects all alike. Each
        launch is on the next set of operands, so that none finds its inputs in the L2 cache.
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
        """Describe the bound algorithm in words.

        ``fastest of 16 that the heuristic names, 1.04x the first: algorithm 66, tile 128x256, ...``
        """
        of = f"{found}" if usable == found else f"{usable} that run of {found}"
        said = [f"{name} {value}" for name, value in self._configuration(address)]
        return f"fastest of {of} that the heuristic names, {gain:.2f}x the first: {', '.join(said)}"

    def _configuration(self, address: int) -> list[tuple[str, str]]:
        """Return the (name, value) pairs that describe an algorithm, without those that are undefined."""
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
                with suppress(ValueError):  # the library may have values that its bindings do not name
                    value = getattr(self._api, enumeration)(int(held[0])).name.removeprefix(prefix)
            if value not in ("UNDEFINED", "AUTO", "NONE"):
                found.append((name, value))
        return found


def api() -> Any:
    """Return nvmath's cuBLASLt bindings; importing them does not load cuBLASLt itself.

    Raises MissingDependency if nvmath-python is not installed.
    """
    try:
        from nvmath.bindings import cublasLt
    except ImportError:
        raise MissingDependency("nvmath-python is not installed: no cuBLASLt", hint=INSTALL) from None
    return cublasLt
