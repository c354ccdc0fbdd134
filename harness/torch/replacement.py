"""`replace`: within a block, the products of PyTorch itself are computed by `harness.matmul`.

PyTorch lets a library take the place of a backend's kernel. Within the block ``aten::mm``, ``addmm``, ``bmm``
and ``baddbmm`` for CUDA, also with ``out=``, are ours; so is whatever PyTorch builds on them: ``@``,
``matmul``, ``F.linear``, ``einsum``, their gradients, and what Inductor calls from compiled code. Above that
level nothing changes: autograd, autocast and torch.compile see PyTorch's own operators. A product that
harness does not take, or for which `worth` is false, goes to the kernel that was there before. At the first
call of a product in a block a Python function decides, then the kernel of known.cpp knows, which lies before
that function: it calls PyTorch's, or launches ours.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import warnings
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from harness.dispatch import choose, cost, traffic
from harness.dispatch.call import batch as batches
from harness.dispatch.call.options import IEEE, PRECISIONS
from harness.dispatch.cost import SKINNY
from harness.driver import Device
from harness.errors import BuildError, MissingDependency, OutOfMemory, UsageError
from harness.kernels.dtypes import BF16, BF16X6, FP16, FP16X3, FP32, TF32, TF32X3
from harness.torch import known, products, records
from harness.torch.records import Call, calls

KEY = "CUDA"  # the dispatch key whose kernels are replaced
_MOST_TRIES = 64  # a product is known after one for each stream and alignment, or never: of several launches
LEAST = 16  # rows, columns and k of a product of which batches are worth it
BRIEF = 120_000  # cycles, 60 us on the H200: Python takes longer to queue one than is gained in less
_AS_FP32 = (TF32X3.name, FP16X3.name, BF16X6.name)  # precisions for which PyTorch has true float32 only
_HALVES = (BF16.name, FP16.name)
_REFUSALS = (UsageError, BuildError, MissingDependency, OutOfMemory)
_active = threading.Lock()


class Worth(Protocol):
    """A rule that says which products are computed by harness; see `worth`."""

    def __call__(
        self, M: int, N: int, K: int, dtype: str, layout: str, *, batch: int, bias: bool
    ) -> bool: ...


def worth(M: int, N: int, K: int, dtype: str, layout: str, *, batch: int, bias: bool) -> bool:
    """Return True for the products that `replace` gives to harness, if it is not told otherwise.

    These are all that the chosen kernel reads where they are. Of those that take less than `BRIEF` by the
    cost model PyTorch's are ``x @ w.T`` in tf32 with more than 16 rows and columns (drawn layers of models
    are as fast there in the mean, and all of ViT-B's inference was slower with them: 0.965), and all where
    the library for known products could not be compiled, for PyTorch then takes less time on the host. In
    the precisions 3xtf32, fp16x3 and bf16x6, for which PyTorch has true float32 only, copies are no hindrance
    if the cost model finds the product faster than in float32. Batches are harness's in 16 bits only,
    if they take no less than `BRIEF` and no size of their products is below `LEAST`: of drawn batches of
    which ours took more than 60 us, PyTorch's took 1.3 times as long in the mean, in float32 and tf32 0.9
    times (records/h200/benchmarks/batches.json). Raises UsageError if no kernel computes the product there.

    The product is M x K times K x N, `batch` times. `dtype` is its element type as `harness.matmul` names it:
    "fp32", "bf16", "fp16", or the precision of float32. `layout` is "N" (row-major) or "T" (column-major) of
    each operand, such as "NT" for ``x @ w.T``. `bias` is True if what is added is broadcast.
    """
    if batch == 1:
        return preferred(M, N, K, dtype, layout)
    _, where = _here(layout)
    return (
        dtype in _HALVES
        and min(M, N, K) >= LEAST
        and batches.fastest(batch, M, N, K, **where, dtype=dtype).cycles >= BRIEF
    )


def preferred(M: int, N: int, K: int, dtype: str, layout: str) -> bool:
    """Return True if harness computes a single product on the current GPU, by the rule of `worth`."""
    gpu, where = _here(layout)
    variant = choose.choose(M, N, K, **where, gpu=gpu.name, dtype=dtype)
    own = choose.ranked(M, N, K, **where, dtype=dtype)
    theirs = dtype == TF32.name and layout == "NT" and min(M, N) > SKINNY
    if own and own[0][1] < BRIEF and (theirs or not calls.launches):
        return False
    if dtype not in _AS_FP32 or variant.kernel.dtype == FP32.name:
        return not traffic.unread(variant, layout)
    fp32 = choose.ranked(M, N, K, **where, dtype=FP32.name)
    return not own or not fp32 or own[0][1] < fp32[0][1]


def _here(layout: str) -> tuple[Device, dict[str, Any]]:
    """Return the current GPU, and arguments of `choose.ranked` for it."""
    gpu = Device.open(torch.cuda.current_device())
    return gpu, {**cost.card(gpu), "layout": layout}


@contextlib.contextmanager
def replace(*, fp32: str | None = None, worth: Worth = worth, invariant: bool = False) -> Iterator[None]:
    """Compute PyTorch's matrix products on GPUs by `harness.matmul` within the block.

    float32 is multiplied with the precision `fp32`: ``"ieee"``, ``"tf32"``, ``"3xtf32"``, ``"fp16x3"``
    or ``"bf16x6"``. If it is None, PyTorch's own setting decides at each call: ``"tf32"`` where it allows
    TF32, else ``"ieee"``.
    `worth` decides for each shape, once in a block. `harness.torch.report` says what ran where; it starts
    anew with each block.

    If `invariant`, a row of a product has the same bits whatever the number of rows, as with
    ``harness.matmul(invariant=True)``: the answer to a request does not depend on the others in its batch.
    Then every product that harness can compute is its own, copies before it included, and `worth` is not
    asked, for it decides by shape.

    The block holds for the whole process, for all of its threads: a backward pass is ours if it runs within
    the block, wherever its forward pass ran. Code that torch.compile has made calls ours within the block and
    PyTorch's outside it.

    The first block on a machine compiles a small library for products that were called before, by the
    system's C++ compiler, which takes some seconds. Where there is none, all products cost the host more, and
    the report says so.

    Raises UsageError for arguments it cannot use and within another such block, MissingDependency if this
    PyTorch cannot give back the kernel that is replaced (2.11 can).
    """
    if fp32 is not None and fp32 not in PRECISIONS:
        raise UsageError(f"no precision {fp32!r}", hint=f"there are {', '.join(PRECISIONS)}")
    if not callable(worth):
        raise UsageError(f"worth={worth!r} is no function", hint="see harness.torch.worth")
    if invariant and worth is not _DEFAULT:
        raise UsageError(
            "worth= and invariant=True", hint="all products are harness's then: leave out worth="
        )
    if not hasattr(torch.library, "get_kernel"):
        raise MissingDependency(
            f"PyTorch {torch.__version__} has no torch.library.get_kernel", hint="install 2.11 or later"
        )
    if not _active.acquire(blocking=False):
        raise UsageError("PyTorch's products are already replaced", hint="leave the other block first")
    try:
        table, note = known.loaded()
        calls.begin(table, note)
        library = torch.library.Library("aten", "IMPL")
        given: list[_Replaced] = []
        try:
            if table is not None:
                table.open(records.MOST, fp32 is None, known.functions())
            for name in ("mm", "addmm", "bmm", "baddbmm"):
                for overload in ("", "out"):
                    given.append(_Replaced(name, overload, fp32, None if invariant else worth))
                    _register(library, given[-1], table)
            yield
        finally:
            if table is not None:
                table.close()
            library._destroy()
            for replaced in given:
                replaced.end()
            calls.end()
    finally:
        _active.release()


def _register(library: Any, replaced: _Replaced, table: known.Known | None) -> None:
    """Put a function in place of PyTorch's kernel, and that of the table before it."""
    name, overload = f"aten::{replaced.name}", replaced.overload
    function = replaced.added if "add" in name else replaced.plain
    if table is not None:
        table.hold(name, overload, KEY)
    with warnings.catch_warnings():  # PyTorch warns of what is meant here
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        library.impl(replaced.full_name, function, KEY, with_keyset=True, allow_override=True)
    if table is not None:
        table.put(name, overload)


_DEFAULT = worth


def _never(*product: Any, **more: Any) -> bool:
    """Return False for any product."""
    return False


class _Replaced:
    """The function in place of one of PyTorch's kernels: it calls ours, or that kernel.

    If `worth` is None, rows are invariant.
    """

    def __init__(self, name: str, overload: str, fp32: str | None, worth: Worth | None) -> None:
        self.name, self.overload, self.full_name = name, overload, f"{name}.{overload}".rstrip(".")
        self._dims = 3 if name.startswith("b") else 2
        self._fp32, self._worth = fp32, worth
        self._tries: dict[Any, int] = {}  # how often a product was offered to the table
        try:
            self._original = torch.library.get_kernel(f"aten::{self.full_name}", KEY)
        except RuntimeError as e:
            raise MissingDependency(
                f"PyTorch {torch.__version__}: {e}", hint="install a build for CUDA"
            ) from None

    def end(self) -> None:
        """Let go of the rule, which may hold a model: PyTorch keeps this object until the next block."""
        self._worth = _never
        self._tries.clear()

    def plain(self, keyset: Any, a: Any, b: Any, *, out: Any = None) -> Any:
        """Replace ``mm`` or ``bmm``."""
        result = self._ours(None, a, b, 0, 1, out)
        if result is not None:
            return result
        given = {} if out is None else {"out": out}
        return self._original.call_boxed(keyset, a, b, **given)

    def added(
        self, keyset: Any, input: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1, out: Any = None
    ) -> Any:
        """Replace ``addmm`` or ``baddbmm``."""
        result = self._ours(input, a, b, beta, alpha, out)
        if result is not None:
            return result
        given = {} if out is None else {"out": out}
        return self._original.call_boxed(keyset, input, a, b, beta=beta, alpha=alpha, **given)

    def _ours(self, input: Any, a: Any, b: Any, beta: float, alpha: float, out: Any) -> Any:
        """Return the product computed by harness, or None if it is left to PyTorch; either is counted."""
        dtype, shape = a.dtype, b.shape
        precision = self._precision() if dtype is torch.float32 else IEEE
        # All that a decision depends on; known.cpp reads the same.
        kinds = self.name, precision, dtype, a.device, b.dtype, b.device
        key: Any = (*kinds, a.shape, a.stride(), shape, b.stride())
        if input is not None:  # scalars decide, too: what is rounded differently is refused
            key = (key, beta, alpha, input.dtype, input.device, input.shape, input.stride())
        if out is not None:
            key = (key, out.dtype, out.device, out.shape, out.stride())
        call = calls.find(key)
        if call is None:
            call = calls.add(key, self._decide(input, a, b, out, precision))
        if call.why:
            calls.stay(call)
        result = None
        if not call.why:
            try:
                result = a.new_empty((*a.shape[:-1], shape[-1])) if out is None else out
                bias = None
                if input is not None and input is not out:
                    bias = products.vector(input, result, beta)
                    beta = 0 if bias is not None else beta
                    if bias is None:
                        products.start(result, input, beta)
                x, y = a, b
                if self._worth is None:
                    x, y = products.readable(a), products.readable(b)
                given = (precision, alpha, beta, bias)
                products.queue(x, y, result, *given, invariant=self._worth is None)
                # What is written before the product, or read from elsewhere, no image knows of.
                alone = x is a and y is b and (input is None or bias is not None or not beta)
                tries = self._tries.get(key, 0)
                if alone and self._dims == 2 and tries < _MOST_TRIES:
                    if len(self._tries) >= records.MOST:
                        self._tries.clear()
                    self._tries[key] = tries + 1
                    made = functools.partial(products.image, a, b, result, *given, self._worth is None)
                    calls.launch(call, made)
            except _REFUSALS as e:
                # An out that overlaps an operand is refused for where it lies: the next one may not.
                lies = out is not None and isinstance(e, UsageError)
                refused = (key, e.what) if lies else key
                result, call = None, calls.add(refused, dataclasses.replace(call, why=e.what))
                if not lies:
                    calls.stay(call)
        calls.count(call)
        return result

    def _precision(self) -> str:
        """Return the precision of float32: as asked, or else by PyTorch's settings, old or new."""
        if self._fp32 is not None:
            return self._fp32
        return TF32.name if torch._C._get_fp32_precision_getter("cuda", "matmul") == "tf32" else IEEE

    def _decide(self, input: Any, a: Any, b: Any, out: Any, precision: str) -> Call:
        """Return a record of a product, with the reason if it is PyTorch's."""
        kind = products.DTYPES.get(a.dtype)
        dtype = str(a.dtype).removeprefix("torch.") if kind is None else kind.name
        dtype = dtype if precision == IEEE else precision
        batch, M, K = (1, 1, 1, *a.shape)[-3:]
        N = (1, *b.shape)[-1]
        call = Call(self.name, M, N, K, batch, dtype=dtype)
        if kind is None:
            return dataclasses.replace(call, why="harness has no such type")
        added = [] if input is None else [input]
        try:
            shape = products.check(self._dims, a, b, *added)
            for x in added:
                x.expand(shape)
        except (UsageError, RuntimeError) as e:  # PyTorch has its own words for what does not match
            return dataclasses.replace(call, why=str(e).splitlines()[0])
        letters = products.layout(a) + products.layout(b)
        if 0 in (*shape, K):
            why = "empty"
        elif products.COPIED in letters and self._worth is not None:
            why = "an operand would be copied"
        elif out is not None and (out.shape != shape or out.dtype is not a.dtype):
            why = "out is of another shape or type"
        elif out is not None and products.layout(out) == products.COPIED:
            why = "out is neither row- nor column-major"
        elif self._worth is None:
            why = ""
        else:
            bias = any(x.shape != shape for x in added)
            try:
                worth = self._worth(M, N, K, dtype, letters, batch=batch, bias=bias)
                why = "" if worth else "not worth it"
            except UsageError as e:  # no kernel for this GPU, for example
                why = e.what
        return dataclasses.replace(call, layout=letters, why=why)
