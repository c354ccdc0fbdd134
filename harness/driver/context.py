"""A GPU context, which everything else on the GPU belongs to, and the base class of those resources."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from harness.driver import api
from harness.driver.device import Device
from harness.driver.owner import Owner
from harness.errors import ContextLost, DriverError, UsageError

if TYPE_CHECKING:
    from harness.driver.gate import Gate
    from harness.driver.stream import Stream

_DEINITIALIZED = 4  # CUDA_ERROR_DEINITIALIZED: the driver is shutting down with the process


class _Entered(threading.local):
    """A stack of the contexts that this thread has entered.

    Its top is the current context; so the driver need not be asked.
    """

    def __init__(self) -> None:
        self.stack: list[Context] = []


_entered = _Entered()


class Context(Owner):
    """The device's primary context (shared with cuBLAS, PyTorch and the like), or a separate one.

    ::

        with Context(Device.open()) as context:      # current in this thread inside, closed at the end
            stream = Stream(context)

    Blocks nest. The end of the outermost one closes the context and all resources in it, newest first.
    Another thread uses the context in a ``with context.current():`` block, which makes it current and closes
    nothing. Resources make their context current by themselves where the driver needs it. Launches, for
    speed, do not: they must be made in one of these two kinds of block.

    After a kernel's fault `lost` is True, every call raises ContextLost, and closing is silent: the memory is
    gone with the context. A new context does not help: only a new process can use the GPU again.
    """

    def __init__(self, device: Device, *, primary: bool = True) -> None:
        self.device = device
        self.primary = primary
        self.lost = False
        self.gates: weakref.WeakSet[Gate] = weakref.WeakSet()
        self._children: weakref.WeakValueDictionary[int, Resource] = weakref.WeakValueDictionary()
        self._serial = itertools.count()
        self._depth = 0
        self._lock = threading.Lock()
        api.init()
        self._device_handle = api.call("cuDeviceGet", device.ordinal)
        if primary:
            self._handle = api.call("cuDevicePrimaryCtxRetain", self._device_handle)
        else:
            self._handle = api.call("cuCtxCreate", None, 0, self._device_handle)
            api.call("cuCtxPopCurrent")  # creating a context also makes it current, as only `with` should
        self._address = int(self._handle)

    def __enter__(self) -> Self:
        self._push()
        with self._lock:
            self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pop()
        with self._lock:
            self._depth -= 1
            outermost = self._depth == 0
        if outermost:
            super().__exit__(kind, error, trace)

    @contextmanager
    def current(self) -> Iterator[Self]:
        """Make the context current in this thread for the block; nothing is closed at its end."""
        self._push()
        try:
            yield self
        finally:
            self._pop()

    @property
    def is_current(self) -> bool:
        """True if the driver has this context as the thread's current one, whoever made it so."""
        result, current = api.bindings().cuCtxGetCurrent()  # at each product: `api.call` costs four times it
        if result != 0:
            api.check("cuCtxGetCurrent", result)
        return int(current) == self._address

    def refuse_sibling(self) -> None:
        """Raise UsageError if another context of this GPU is current: its memory is not usable here."""
        if int(api.call("cuCtxGetCurrent")) not in (0, self._address) and (
            int(api.call("cuCtxGetDevice")) == self.device.ordinal
        ):
            raise UsageError("the current context is not the GPU's primary one", hint="leave it first")

    def close(self) -> None:
        """Close all resources in the context, newest first, then release or destroy it. Idempotent."""
        if self.closed:
            return
        self.open_gates()  # frees below would wait for ever for work that a gate holds back
        with ExitStack() as stack:
            stack.callback(super().close)
            for child in list(self._children.values()):
                stack.callback(child.close)

    def _free(self, handle: Any) -> None:
        """Release the primary context, or destroy a separate one."""
        try:
            if self.primary:
                api.call("cuDevicePrimaryCtxRelease", self._device_handle)
            else:
                api.call("cuCtxDestroy", handle)
        except DriverError as error:
            if not (self.lost or error.code == _DEINITIALIZED):
                raise

    def call(self, name: str, *args: Any) -> Any:
        """Make the context current for one `api.call`, and set `lost` if that raises ContextLost."""
        try:
            if _entered.stack and _entered.stack[-1] is self:
                return api.call(name, *args)
            with self.current():
                return api.call(name, *args)
        except ContextLost:
            self.lost = True
            raise

    def check(self, name: str, result: Any) -> None:
        """Check a code as `api.check` does, and set `lost` if that raises ContextLost.

        It is for driver calls that are not made through `call`.
        """
        try:
            api.check(name, result)
        except ContextLost:
            self.lost = True
            raise

    def synchronize(self) -> None:
        """Wait for all work in the context. Raises UsageError while a `Gate` holds some of it back."""
        self.refuse_if_held()
        self.call("cuCtxSynchronize")

    def memory_info(self) -> tuple[int, int]:
        """Return the free and the total device memory in bytes; "free" counts every process on the GPU."""
        free, total = self.call("cuMemGetInfo")
        return int(free), int(total)

    def reset_persisting_l2(self) -> None:
        """Turn persisting lines of the L2 cache into normal ones; does nothing on GPUs without such."""
        if self.device.capability >= (8, 0):
            self.call("cuCtxResetPersistingL2Cache")

    def adopt(self, child: Resource) -> None:
        """Register a resource, so that closing the context closes it.

        The context holds only a weak reference to it.
        """
        self._children[next(self._serial)] = child

    def release(self, name: str, handle: Any, *, waits: bool) -> None:
        """Free a resource's handle with the driver function `name`.

        Does nothing if the context is closed or lost: the handle is gone with it. `waits` says that the
        function waits for the device; all gates are then opened first, since a closed `Gate` would make it
        wait for ever.
        """
        if self.closed or self.lost:
            return
        if waits:
            self.open_gates()  # a spoilt timing sample is better than a deadlock
        try:
            self.call(name, handle)
        except DriverError as error:
            if error.code != _DEINITIALIZED:
                raise

    def open_gates(self) -> None:
        """Open every gate of the context, so that all held work goes on."""
        for gate in list(self.gates):
            gate.open()

    def refuse_if_held(self, stream: Stream | None = None) -> None:
        """Raise UsageError if a closed gate holds `stream` (None: any stream): waiting would never end."""
        if any(gate.holds(stream) for gate in self.gates):
            raise UsageError(
                "waiting for work that a closed Gate holds back would never end",
                hint="call gate.open() first",
            )

    def _push(self) -> None:
        """Make the context current in this thread."""
        api.call("cuCtxPushCurrent", self.handle)
        _entered.stack.append(self)

    def _pop(self) -> None:
        """Undo `_push`. Driver errors are ignored."""
        _entered.stack.pop()
        # A destroyed context has left the driver's stack by itself; popping again would remove another one.
        # Errors would mask the user's exception, and the loss of a context has been reported already.
        with suppress(DriverError):
            if int(api.call("cuCtxGetCurrent")) == self._address:
                api.call("cuCtxPopCurrent")


class Resource(Owner):
    """Base class of a driver object that lives in a context and is closed with the context at the latest.

    `free_call` is the driver function that frees its handle, `free_waits` whether that waits for the device.
    """

    free_call: ClassVar[str]
    free_waits: ClassVar[bool] = True

    def __init__(self, context: Context, handle: Any) -> None:
        self.context = context
        self._handle = handle
        context.adopt(self)

    def _free(self, handle: Any) -> None:
        """Free the handle with `free_call`, if the context still exists."""
        self.context.release(self.free_call, handle, waits=self.free_waits)
