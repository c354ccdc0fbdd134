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
from typing import Any

import torch

from harness.dispatch import measured
from harness.dispatch.call.options import IEEE, PRECISIONS
from harness.errors import BuildError, MissingDependency, OutOfMemory, UsageError
from harness.kernels.dtypes import TF32
from harness.torch import known, products, records, timed
from harness.torch.records import Call, calls
from harness.torch.rule import Worth, worth

KEY = "CUDA"  # the dispatch key whose kernels are replaced
_MOST_TRIES = 64  # a product is known after one for each stream and alignment, or never: of several launches
_REFUSALS = (UsageError, BuildError, MissingDependency, OutOfMemory)
_NOT_WORTH = "not worth it"
_active = threading.Lock()


@contextlib.contextmanager
def replace(
    *,
    fp32: str | None = None,
    worth: Worth = worth,
    invariant: bool = False,
    measure: bool | None = None,
) -> Iterator[None]:
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

    If `measure`, a product that harness can compute is timed at its first call, beside PyTorch's own, on the
    call's operands and on copies of them; the faster one computes it from then on, in this process. That
    takes some 10 to 100 ms for each shape, at least ten times what the product takes, beside compiling. While
    its stream is captured nothing can be timed, and what is not known is decided as without `measure`, for
    the rest of the block: run a model once before. If `measure` is None, ``HARNESS_MATMUL=measure`` in the
    environment asks for it, where neither `worth` nor `invariant` is given; then harness's kernels for the
    product are measured, too.

    The block holds for the whole process, for all of its threads: a backward pass is ours if it runs within
    the block, wherever its forward pass ran. Code that torch.compile has made calls ours within the block and
    PyTorch's outside it.

    The first block on a machine compiles a small library for products that were called before, by the
    system's C++ compiler, which takes some seconds. Where there is none, all products cost the host more, and
    the report says so.

    Raises UsageError for arguments it cannot use, another value of ``HARNESS_MATMUL``, and within another
    such block, MissingDependency if this
    PyTorch cannot give back the kernel that is replaced (2.11 can).
    """
    measure = _checked(fp32, worth, invariant, measure)
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
                    given.append(_Replaced(name, overload, fp32, None if invariant else worth, measure))
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


def _checked(fp32: str | None, worth: Worth, invariant: bool, measure: bool | None) -> bool:
    """Return whether products are timed. Raises as `replace` does."""
    if fp32 is not None and fp32 not in PRECISIONS:
        raise UsageError(f"no precision {fp32!r}", hint=f"there are {', '.join(PRECISIONS)}")
    if not callable(worth):
        raise UsageError(f"worth={worth!r} is no function", hint="see harness.torch.worth")
    if invariant and worth is not _DEFAULT:
        raise UsageError(
            "worth= and invariant=True", hint="all products are harness's then: leave out worth="
        )
    if measure and (invariant or worth is not _DEFAULT):
        raise UsageError("measure=True beside worth= or invariant=True", hint="leave out one of them")
    if not hasattr(torch.library, "get_kernel"):
        raise MissingDependency(
            f"PyTorch {torch.__version__} has no torch.library.get_kernel", hint="install 2.11 or later"
        )
    if measure is None:
        return not invariant and worth is _DEFAULT and measured.asked()
    return measure


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


def _capturing(device: Any) -> bool:
    """Return True if the current stream of a GPU becomes a graph: nothing can be timed."""
    with torch.cuda.device(device):
        return bool(torch.cuda.is_current_stream_capturing())


def _measured(
    key: Any, tensors: timed.Tensors, out: Any, ours: timed.Product, theirs: timed.Product, why: str
) -> str:
    """Return why a product is PyTorch's by measurement, empty if it is harness's; `why` without one."""
    # How PyTorch multiplies float32, which `fp32` does not say.
    key = key, torch._C._get_fp32_precision_getter("cuda", "matmul")
    try:
        found = timed.found(key)
        if found is None:
            if _capturing(tensors[1].device):
                return why
            to = None if out is None else timed.alike(out, fill=False)
            into = (functools.partial(product, out=to) for product in (ours, theirs))
            found = timed.faster(key, tensors, *into)
        return "" if found else "PyTorch's was faster"
    except torch.OutOfMemoryError:  # PyTorch's: of its result, or of ours
        return why
    except _REFUSALS as e:
        return e.what


class _Replaced:
    """The function in place of one of PyTorch's kernels: it calls ours, or that kernel.

    If `worth` is None, rows are invariant. If `measure`, what is timed decides where it can be.
    """

    def __init__(
        self, name: str, overload: str, fp32: str | None, worth: Worth | None, measure: bool
    ) -> None:
        self.name, self.overload, self.full_name = name, overload, f"{name}.{overload}".rstrip(".")
        self._dims = 3 if name.startswith("b") else 2
        self._fp32, self._worth, self._measure = fp32, worth, measure
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
        return self._either(keyset, None, a, b, 0, 1, out)

    def added(
        self, keyset: Any, input: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1, out: Any = None
    ) -> Any:
        """Replace ``addmm`` or ``baddbmm``."""
        return self._either(keyset, input, a, b, beta, alpha, out)

    def _either(self, keyset: Any, input: Any, a: Any, b: Any, beta: float, alpha: float, out: Any) -> Any:
        """Return the product, computed by harness or by PyTorch; either is counted."""
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
            decided = self._decide(input, a, b, out, precision)
            if self._measure and decided.why in ("", _NOT_WORTH):
                ours = functools.partial(self._ours, beta=beta, alpha=alpha, precision=precision)
                theirs = functools.partial(self._theirs, keyset, beta=beta, alpha=alpha)
                decided.why = _measured(key, (input, a, b), out, ours, theirs, decided.why)
            call = calls.add(key, decided)
        if call.why:
            calls.stay(call)
        result = None
        if not call.why:
            try:
                given = self._ours(input, a, b, out, beta=beta, alpha=alpha, precision=precision)
                self._offer(call, key, a, b, *given)
                result = given[0]
            except _REFUSALS as e:
                # An out that overlaps an operand is refused for where it lies: the next one may not.
                lies = out is not None and isinstance(e, UsageError)
                refused = (key, e.what) if lies else key
                result, call = None, calls.add(refused, dataclasses.replace(call, why=e.what))
                if not lies:
                    calls.stay(call)
        calls.count(call)
        if result is None:
            return self._theirs(keyset, input, a, b, out, beta=beta, alpha=alpha)
        return result

    def _ours(
        self, input: Any, a: Any, b: Any, out: Any = None, *, beta: float, alpha: float, precision: str
    ) -> tuple[Any, tuple[str, float, float, Any], bool]:
        """Queue a product by harness. Return it, its options, and whether nothing else was queued for it."""
        result = a.new_empty((*a.shape[:-1], b.shape[-1])) if out is None else out
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
        return result, given, alone

    def _theirs(
        self, keyset: Any, input: Any, a: Any, b: Any, out: Any = None, *, beta: float, alpha: float
    ) -> Any:
        """Queue a product by PyTorch."""
        given = {} if out is None else {"out": out}
        if input is None:
            return self._original.call_boxed(keyset, a, b, **given)
        return self._original.call_boxed(keyset, input, a, b, beta=beta, alpha=alpha, **given)

    def _offer(
        self,
        call: Call,
        key: Any,
        a: Any,
        b: Any,
        result: Any,
        given: tuple[str, float, float, Any],
        alone: bool,
    ) -> None:
        """Offer a product that was queued to the table, some times."""
        tries = self._tries.get(key, 0)
        if alone and self._dims == 2 and tries < _MOST_TRIES:
            if len(self._tries) >= records.MOST:
                self._tries.clear()
            self._tries[key] = tries + 1
            made = functools.partial(products.image, a, b, result, *given, self._worth is None)
            calls.launch(call, made)

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
                why = "" if worth else _NOT_WORTH
            except UsageError as e:  # no kernel for this GPU, for example
                why = e.what
        return dataclasses.replace(call, layout=letters, why=why)
