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
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.driver import Context, Event, Gate, Stream
from harness.errors import ContextLost, HarnessError
from harness.launch import cublas_bindings as bindings
from harness.launch.cublas import WORKSPACE, Library
from harness.launch.cublas_bindings import Attribute, Compute, Configuration, DataType, Preference, Reduction
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

    `reductions` are the schemes allowed for adding the partial sums of a split k.
    """

    matrix: DataType
    compute: Compute
    reductions: Reduction = Reduction.MASK  # any scheme will do if the output and the sums are both float32


_PEDANTIC = _Routine(DataType.R_32F, Compute.COMPUTE_32F_PEDANTIC)
_ROUTINES = {
    "fp32": _PEDANTIC,
    "tf32": _Routine(DataType.R_32F, Compute.COMPUTE_32F_FAST_TF32),
    "3xtf32": _PEDANTIC,
    "fp16x3": _PEDANTIC,
    "bf16x6": _PEDANTIC,
    "bf16": _Routine(DataType.R_16BF, Compute.COMPUTE_32F, Reduction.COMPUTE_TYPE),
    "fp16": _Routine(DataType.R_16F, Compute.COMPUTE_32F, Reduction.COMPUTE_TYPE),
}
_RESULT = ctypes.sizeof(bindings.HeuristicResult)


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
    prefix = "cublasLt"

    def __init__(self, context: Context, *, algorithms: int = ALGORITHMS) -> None:
        super().__init__(context)
        self._algorithms = algorithms
        self._stream: Stream | None = None
        self._in_stream: Any = None  # its handle, as it is passed

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
        transpose, so C^T = op(B)^T op(A)^T is computed.
        """
        routine = _ROUTINES[problem.dtype.name]
        operation = self._made(undo, "MatmulDesc", routine.compute, DataType.R_32F)
        for attribute, transposed in ((Attribute.TRANSA, problem.transb), (Attribute.TRANSB, problem.transa)):
            if transposed:
                self._set("MatmulDesc", operation, attribute, ctypes.c_int32(bindings.Operation.T))

        def layout(name: str) -> int:
            x = problem.layouts()[name]
            return self._made(undo, "MatrixLayout", routine.matrix, x.columns, x.rows, x.ld)

        return _Product(
            operation,
            layout("B"),
            layout("A"),
            layout("C"),
            ctypes.c_float(problem.alpha),
            ctypes.c_float(problem.beta),
        )

    def _made(self, undo: ExitStack, kind: str, *args: int) -> int:
        """Create a descriptor of this `kind`, which `undo` destroys, and return its handle."""
        handle = self._created(f"cublasLt{kind}Create", *args)
        undo.callback(self._call, f"cublasLt{kind}Destroy", handle)
        return handle

    def _set(self, kind: str, descriptor: int, attribute: int, value: Any) -> None:
        """Set one attribute of a descriptor to a value of a ctypes type, whose size is the attribute's."""
        name = f"cublasLt{kind}SetAttribute"
        self._call(name, descriptor, attribute, ctypes.byref(value), ctypes.sizeof(value))

    def _heuristics(self, problem: Gemm, product: _Product) -> ctypes.Array[bindings.HeuristicResult]:
        """Return one result for each algorithm that the heuristic names.

        The one it expects to be the fastest is first. Raises HarnessError if it names none.
        """
        results = (bindings.HeuristicResult * self._algorithms)()
        count = ctypes.c_int()
        reductions = _ROUTINES[problem.dtype.name].reductions
        with ExitStack() as undo:
            preference = self._made(undo, "MatmulPreference")
            limits = (
                (Preference.MAX_WORKSPACE_BYTES, ctypes.c_uint64(WORKSPACE)),
                (Preference.REDUCTION_SCHEME_MASK, ctypes.c_uint32(reductions)),
            )
            for attribute, value in limits:
                self._set("MatmulPreference", preference, attribute, value)
            self._call(
                "cublasLtMatmulAlgoGetHeuristic",
                *(self._handle, product.operation, product.first, product.second),
                *(product.output, product.output, preference),
                *(len(results), ctypes.addressof(results), ctypes.byref(count)),
            )
        if not count.value:
            raise HarnessError(f"cuBLASLt's heuristic names no algorithm for {problem.label}")
        return (bindings.HeuristicResult * count.value).from_buffer(results)

    def _usable(
        self,
        problem: Gemm,
        product: _Product,
        found: ctypes.Array[bindings.HeuristicResult],
        operands: Operands,
        stream: Stream,
    ) -> list[_Algorithm]:
        """Return the algorithms that run; raises HarnessError if none does.

        Each is run once, which also loads its code, because nothing may be loaded while a gate is closed.
        """
        usable, refused = [], ""
        for i, result in enumerate(found):
            address = ctypes.addressof(found) + i * _RESULT  # the algorithm is the result's first member
            if result.state:
                refused = f"{bindings.Status.text(result.state)}, says the heuristic"
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
        call = self._functions.bind(
            "cublasLtMatmul",
            *(self._handle, product.operation, ctypes.addressof(product.alpha)),
            *(copy["B"].ptr, product.first, copy["A"].ptr, product.second),
            *(ctypes.addressof(product.beta), copy["C"].ptr, product.output, copy["C"].ptr, product.output),
            *(address, self._workspace.ptr, WORKSPACE),
        )
        return functools.partial(self._matmul, call, (product, keep))

    def _matmul(self, call: Callable[..., int], _keep: object, stream: Stream) -> None:
        """Queue one `call` in `stream`; `_keep` holds what it has the addresses of."""
        if stream is not self._stream:
            self._stream = stream
            self._in_stream = self._functions.argument("cublasLtMatmul", -1, int(stream.handle))
        if status := call(self._in_stream):
            self._check("cublasLtMatmul", status)

    def _times(self, candidates: Sequence[Sequence[Call]], stream: Stream) -> NDArray[np.float64]:
        """Return the median time of each candidate in seconds, shape (candidates,).

        In each round every candidate is launched once, so that a drifting clock affects all alike. Each
        launch is on the next set of operands, so that none finds its inputs in the L2 cache. A single
        candidate is not timed.
        """
        if len(candidates) == 1:
            return np.ones(1)
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
        for attribute, (name, kind, values) in _CONFIGURATION.items():
            held, written = kind(), ctypes.c_size_t()
            self._call(
                "cublasLtMatmulAlgoConfigGetAttribute",
                *(address, attribute, ctypes.byref(held), ctypes.sizeof(held), ctypes.byref(written)),
            )
            # The library may have values that are not named here.
            if value := values.get(held.value, str(held.value)):
                found.append((name, value))
        return found


# The attributes by which an algorithm is described: name in the description, type, and names of the values,
# empty for those that are not told. A tile is one of C^T.
_CONFIGURATION: dict[Configuration, tuple[str, Any, dict[int, str]]] = {
    Configuration.ID: ("algorithm", ctypes.c_int32, {}),
    Configuration.TILE_ID: ("tile", ctypes.c_uint32, bindings.tiles()),
    Configuration.STAGES_ID: ("stages", ctypes.c_uint32, bindings.stages()),
    Configuration.CLUSTER_SHAPE_ID: ("cluster", ctypes.c_uint16, bindings.clusters()),
    Configuration.SPLITK_NUM: ("split k", ctypes.c_int32, {}),
    Configuration.REDUCTION_SCHEME: (
        "reduction",
        ctypes.c_uint32,
        {x: x.name if x else "" for x in Reduction},
    ),
    Configuration.CUSTOM_OPTION: ("option", ctypes.c_uint32, {}),
}
