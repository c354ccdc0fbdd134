"""`matmul`: device arrays of any library -> the kernel that is the fastest for their shape, on their stream.

What depends on the shape and type alone is done once for each GPU and kept: the choice, the compiled module,
the launch with its parameters packed. A call reads the arrays, writes three addresses and two scalars into
those parameters, and launches. Where the kernel copies by TMA an address that is new costs a tensor map, too.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

from harness.dispatch import arrays
from harness.dispatch.arrays import LEGACY, TORCH_CURRENT, Matrix
from harness.dispatch.prepared import GemmLaunch
from harness.dispatch.side_streams import Forks, order
from harness.dispatch.split import divided
from harness.dispatch.workspaces import Workspaces
from harness.driver import BorrowedStream, Context, Device, Function, Module, Stream, tensormap
from harness.errors import OutOfMemory, UsageError
from harness.kernels.arch import Arch
from harness.kernels.compiler import compile_kernel
from harness.kernels.dtypes import FP32, TF32, TF32X3
from harness.kernels.spec import Variant
from harness.problems.gemm import GEMMS

Operands = tuple[Matrix, Matrix, Matrix]  # a, b and out
IEEE = "ieee"
PRECISIONS = (IEEE, TF32.name, TF32X3.name)  # of float32
_FLOAT_MAX = float(np.finfo(np.float32).max)
_MOST_PLANS = 4096  # a GPU; beyond that the oldest go


def matmul(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    precision: str = IEEE,
    stream: Any = None,
) -> Any:
    """``alpha * a @ b + beta * out``; returns `out`.

    All are of one type. float32 is true float32, without tensor cores; ``precision="tf32"`` rounds the
    elements of `a` and `b` to tf32 and uses them, ``"3xtf32"`` makes three such products for nearly float32's
    (see cu/28_3xtf32.cu for what is lost). bfloat16 and float16 go to the tensor cores, are summed in
    float32 and rounded once.

    `a` (M x K), `b` (K x N) and `out` (M x N) are matrices on one GPU: PyTorch or CuPy, anything with
    ``__cuda_array_interface__`` or (inputs only) ``__dlpack__``, or ``Buffer.array("float32", shape)``. Rows
    may be any distance apart, a row's elements side by side. Without `out` one is made by the library of `a`
    (PyTorch, CuPy); with ``beta == 0`` what it holds is not read. It must not overlap `a` or `b`.

    It is queued on `stream`: a harness Stream, any object with ``__cuda_stream__`` (CUDA's Python protocol),
    ``cuda_stream`` (PyTorch) or ``ptr`` (CuPy), or an address (0 and 1: the legacy default stream). Without,
    on the stream of `a`: PyTorch's or CuPy's current one, the one that its array interface names, else the
    legacy default stream. Arrays that are ready on another stream are waited for on the GPU, and that stream
    then waits for the product: the result can be used as if the call had been on it.

    Runs in the primary context of the GPU, which is left as current as it was. The first call for a shape
    chooses and may compile a kernel (do it before capturing a graph); from then on the same shape gives
    bitwise the same result (of float32 with a beta: where the rows of `out` begin at multiples of 16 bytes in
    both calls, or in neither). Any number of threads may call. Raises UsageError before anything is queued.
    A few rows or columns beyond whole tiles may be a launch of their own, beside the other (see
    `harness.dispatch.split`).

    Some kernels need memory beside the operands, tens of MB; and a large product copies `a` and `b` first if
    the TMA cannot take them as they lie (address or rows at no multiple of 16 bytes). Such memory is kept for
    each stream. Where there is no room for a copy there is none; for what a kernel needs, OutOfMemory.

    In a captured stream it is nodes of the graph that allocate, zero and free that memory, so that replays in
    any stream may overlap ordinary calls. CUDA lets such a graph be instantiated once at a time, not cloned,
    made a child of another only by moving it there, and not be the body of a conditional node.
    """
    asked = None if stream is None else _address(stream)
    left = arrays.read("a", a, asked)
    if asked is None:
        if arrays.is_ours(a):
            raise UsageError("a lies in a Buffer, which belongs to no stream", hint="pass stream=")
        asked = LEGACY if left.ready is None else _resolved(left)
    right = arrays.read("b", b, asked)
    dtype = _type(left, right, precision)
    if left.columns != right.rows:
        shapes = f"a is {left.rows} x {left.columns} and b is {right.rows} x {right.columns}"
        raise UsageError(f"{shapes}: a's columns must be as many as b's rows")
    scalars = _scalar("alpha", alpha), _scalar("beta", beta)
    if out is None:
        if scalars[1]:
            raise UsageError(f"beta={beta:g} without out", hint="out is what beta multiplies: pass out=")
        out = arrays.empty_like(a, left.rows, right.columns)
    result = arrays.read("out", out, asked, written=True)
    if (result.rows, result.columns) != (left.rows, right.columns):
        raise UsageError(f"out is {result.rows} x {result.columns}, not {left.rows} x {right.columns}")
    if result.dtype is not left.dtype:
        raise UsageError(f"out is of {result.dtype.name}, a and b of {left.dtype.name}")
    if not left.device == right.device == result.device:
        raise UsageError(f"a, b and out are on GPUs {left.device}, {right.device} and {result.device}")
    for name, matrix in (("a", left), ("b", right)):
        if result.overlaps(matrix):
            raise UsageError(f"out overlaps {name}", hint="no product is made in place: pass another")
    if isinstance(stream, Stream) and (other := stream.context.device.ordinal) != left.device:
        raise UsageError(f"the stream is of GPU {other}, a of GPU {left.device}")
    # On the stream of `a`, arrays that are ready where `a` is need no waiting; nor do those ready anywhere.
    alike = left.ready == right.ready == result.ready
    ordered = alike and (stream is None or left.ready is None)
    _gpu(left.device).run((left, right, result), scalars, asked, ordered, dtype)
    return out


def _type(left: Matrix, right: Matrix, precision: str) -> str:
    """The element type of the product."""
    if left.dtype is not right.dtype:
        raise UsageError(f"a is of {left.dtype.name}, b of {right.dtype.name}", hint="convert one of them")
    if precision not in PRECISIONS:
        raise UsageError(f"no precision {precision!r}", hint=f"there are {', '.join(PRECISIONS)}")
    if precision == IEEE:
        return left.dtype.name
    if left.dtype is not FP32:
        raise UsageError(f"precision={precision!r} is about float32, and a is of {left.dtype.name}")
    return precision


class _Gpu:
    """One GPU: its primary context, held as long as the process lives, and what is prepared in it."""

    def __init__(self, ordinal: int) -> None:
        self.device = Device.open(ordinal)
        self.context = Context(self.device)
        self.arch = str(Arch.of_capability(*self.device.capability))
        self._functions: dict[str, Function] = {}
        self._plans: dict[tuple[int | str, ...], GemmLaunch] = {}
        self._streams: dict[int, Stream] = {}
        self._workspaces, self._forks = Workspaces(self.context), Forks(self.context)
        self._lock = threading.Lock()

    def run(
        self, operands: Operands, scalars: tuple[float, float], stream: int, ordered: bool, dtype: str
    ) -> None:
        if self.context.is_current:
            self._run(operands, scalars, stream, ordered, dtype)
        else:
            self.context.refuse_sibling()
            with self.context.current():
                self._run(operands, scalars, stream, ordered, dtype)

    def _run(
        self, operands: Operands, scalars: tuple[float, float], stream: int, ordered: bool, dtype: str
    ) -> None:
        a, b, c = operands
        unmapped = ("" if _has_map(a) else "A") + ("" if _has_map(b) else "B")
        shape = a.rows, b.columns, a.columns, a.ld, b.ld, c.ld
        plan = self.plan(shape, unmapped, dtype)
        queue = self._stream(stream)
        ready = set() if ordered else {_resolved(m) for m in operands if m.ready is not None}
        others = [self._stream(address) for address in ready - {stream}]
        for other in others:
            order(other, queue)
        addresses = [matrix.address for matrix in operands]
        try:
            plan(addresses, scalars, queue)
        except OutOfMemory:
            if not plan.copied:
                raise
            plan = self.plan(shape, unmapped, dtype, copying=False)  # slower, and the same bits
            plan(addresses, scalars, queue)
        for other in others:
            order(queue, other)

    def plan(self, shape: tuple[int, ...], unmapped: str, dtype: str, copying: bool = True) -> GemmLaunch:
        """The launch for M, N, K, lda, ldb, ldc, made at the first call. `unmapped` names the operands that
        cannot have a tensor map; with `copying` it copies those that are better copied.
        """
        key: tuple[int | str, ...] = (*shape, unmapped, dtype, copying)
        found = self._plans.get(key)
        if found is None:
            with self._lock:
                found = self._plans.get(key)
                if found is None:
                    found = self._prepare(shape, unmapped if copying else "", dtype)
                    for old in list(self._plans)[: max(0, len(self._plans) + 1 - _MOST_PLANS)]:
                        del self._plans[old]
                    self._plans[key] = found
        return found

    def _prepare(self, shape: tuple[int, ...], unmapped: str, dtype: str) -> GemmLaunch:
        problem = GEMMS[dtype](**dict(zip(("M", "N", "K", "lda", "ldb", "ldc"), shape, strict=True)))
        sms, gpu = self.device.sms, self.device.name
        parts = divided(*shape[:3], sms=sms, arch=self.arch, gpu=gpu, dtype=dtype)
        launches = [(self._function(part.variant), part) for part in parts]
        workspaces, forks = self._workspaces, self._forks
        return GemmLaunch(launches, problem, sms=sms, workspaces=workspaces, forks=forks, unmapped=unmapped)

    def _function(self, variant: Variant) -> Function:
        found = self._functions.get(variant.label)
        if found is None:
            module = Module(self.context, compile_kernel(variant, self.arch).code)
            found = self._functions[variant.label] = module.function(variant.kernel.entry)
        return found

    def _stream(self, address: int) -> Stream:
        found = self._streams.get(address)
        if found is None:
            found = self._streams[address] = BorrowedStream(self.context, address)
        return found


_gpus: dict[int, _Gpu] = {}
_opening = threading.Lock()


def _gpu(ordinal: int) -> _Gpu:
    found = _gpus.get(ordinal)
    if found is None:
        with _opening:
            found = _gpus.get(ordinal)
            if found is None:
                found = _gpus[ordinal] = _Gpu(ordinal)
    return found


def _has_map(matrix: Matrix) -> bool:
    return tensormap.possible(matrix.address, matrix.ld * matrix.dtype.itemsize)


def _resolved(matrix: Matrix) -> int:
    """The address of the stream that a matrix is ready on."""
    if matrix.ready == TORCH_CURRENT:
        return arrays.torch_stream(matrix.device)
    return LEGACY if matrix.ready is None else matrix.ready


def _address(stream: Any) -> int:
    if isinstance(stream, Stream):
        if not stream.context.primary:
            raise UsageError("the stream is in a context of its own", hint="make it in Context(device)")
        address = int(stream.handle)
    elif isinstance(stream, int) and not isinstance(stream, bool):
        address = stream
    elif (protocol := getattr(stream, "__cuda_stream__", None)) is not None:
        _, address = protocol() if callable(protocol) else protocol
    elif (found := getattr(stream, "cuda_stream", getattr(stream, "ptr", None))) is not None:
        address = found
    else:
        raise UsageError(
            f"{stream!r} is no stream",
            hint="pass a harness Stream, a PyTorch or CuPy stream, or its address",
        )
    if address < 0:
        raise UsageError(f"{address} is not the address of a stream")
    return int(address) or LEGACY


def _scalar(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{name}={value!r} is not a number") from None
    if not math.fabs(number) <= _FLOAT_MAX:
        raise UsageError(f"{name}={value} is not a finite float32")
    return number
