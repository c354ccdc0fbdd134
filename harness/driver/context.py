"""A GPU context: what everything else on the GPU lives in."""

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

_DEINITIALIZED = 4  # the driver shuts down together with the process


class _Entered(threading.local):
    """The contexts this thread has entered: tells, without asking the driver, which one is current."""

    def __init__(self) -> None:
        self.stack: list[Context] = []


_entered = _Entered()


class Context(Owner):
    """The device's primary context (shared with cuBLAS, PyTorch and the like), or one of its own.

    ::

        with Context(Device.open()) as context:      # current in this thread inside, closed at the end
            stream = Stream(context)

    Blocks nest; the outermost to end closes the context and, newest first, whatever still lives in it.
    Another thread enters by ``with context.current():``, which makes it current and closes nothing.
    Owners make their context current by themselves where the driver needs it; launches, for speed, do
    not: they must stand inside one of the two.

    After a kernel's fault `lost` is True, every call raises `ContextLost`, and closing is silent: the
    memory goes with the context. A new context does not help: the GPU needs a new process.
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
            api.call("cuCtxPopCurrent")  # creating also makes current, which is for `with` to do
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
        """Make it current in this thread for the block, and only that."""
        self._push()
        try:
            yield self
        finally:
            self._pop()

    @property
    def is_current(self) -> bool:
        """Whether the driver has it as this thread's current one, whoever made it so."""
        return int(api.call("cuCtxGetCurrent")) == self._address

    def refuse_sibling(self) -> None:
        """`UsageError` if another context of this GPU is current: its memory cannot be reached from here."""
        if int(api.call("cuCtxGetCurrent")) not in (0, self._address) and (
            int(api.call("cuCtxGetDevice")) == self.device.ordinal
        ):
            raise UsageError("the current context is not the GPU's primary one", hint="leave it first")

    def close(self) -> None:
        """Close what still lives in it, newest first, then release or destroy it. Idempotent."""
        if self.closed:
            return
        self.open_gates()  # work held behind one would hold up every free below
        with ExitStack() as stack:
            stack.callback(super().close)
            for child in list(self._children.values()):
                stack.callback(child.close)

    def _free(self, handle: Any) -> None:
        try:
            if self.primary:
                api.call("cuDevicePrimaryCtxRelease", self._device_handle)
            else:
                api.call("cuCtxDestroy", handle)
        except DriverError as error:
            if not (self.lost or error.code == _DEINITIALIZED):
                raise

    def call(self, name: str, *args: Any) -> Any:
        """`api.call` with this context current; notes when the context is lost."""
        try:
            if _entered.stack and _entered.stack[-1] is self:
                return api.call(name, *args)
            with self.current():
                return api.call(name, *args)
        except ContextLost:
            self.lost = True
            raise

    def check(self, name: str, result: Any) -> None:
        """`api.check` for a call made past `call`; notes when the context is lost."""
        try:
            api.check(name, result)
        except ContextLost:
            self.lost = True
            raise

    def synchronize(self) -> None:
        """Wait for all work in the context. `UsageError` while a `Gate` holds some of it back."""
        self.refuse_if_held()
        self.call("cuCtxSynchronize")

    def memory_info(self) -> tuple[int, int]:
        """Device memory in bytes: (free, total). Free counts every process on the GPU."""
        free, total = self.call("cuMemGetInfo")
        return int(free), int(total)

    def adopt(self, child: Resource) -> None:
        self._children[next(self._serial)] = child

    def release(self, name: str, handle: Any, *, waits: bool) -> None:
        """Free a child's handle; do nothing once the context, and the handle with it, is gone.

        `waits`: the free waits for the device, so that a closed `Gate` would hold it for ever.
        """
        if self.closed or self.lost:
            return
        if waits:
            self.open_gates()  # better a spoilt sample than a deadlock
        try:
            self.call(name, handle)
        except DriverError as error:
            if error.code != _DEINITIALIZED:
                raise

    def open_gates(self) -> None:
        for gate in list(self.gates):
            gate.open()

    def refuse_if_held(self, stream: Stream | None = None) -> None:
        """`UsageError` if a closed gate holds `stream` (None: any), so that waiting would never end."""
        if any(gate.holds(stream) for gate in self.gates):
            raise UsageError(
                "waiting for work that a closed Gate holds back would never end",
                hint="call gate.open() first",
            )

    def _push(self) -> None:
        api.call("cuCtxPushCurrent", self.handle)
        _entered.stack.append(self)

    def _pop(self) -> None:
        _entered.stack.pop()
        # A destroyed context has left the driver's stack by itself; a blind pop would take another's.
        # Errors are dropped: they would mask the user's exception, and a lost context has told already.
        with suppress(DriverError):
            if int(api.call("cuCtxGetCurrent")) == self._address:
                api.call("cuCtxPopCurrent")


class Resource(Owner):
    """An owner inside a context: holds it, and is closed by it at the latest."""

    free_call: ClassVar[str]
    free_waits: ClassVar[bool] = True

    def __init__(self, context: Context, handle: Any) -> None:
        self.context = context
        self._handle = handle
        context.adopt(self)

    def _free(self, handle: Any) -> None:
        self.context.release(self.free_call, handle, waits=self.free_waits)
