"""A stand-in for ``cuda.bindings.driver``: host memory for device memory, and a ledger of what lives.

``fake = install(monkeypatch)`` puts it behind `harness.driver.api.bindings`, the one seam.

* ``fake.log``: every call as ``(name, args)``; ``fake.names()`` without what `NOISE` lists.
* ``fake.live``: what was allocated and not freed, in order; ``fake.freed``: what was, in order. Freeing
  what does not live returns INVALID_VALUE.
* ``fake.fail("cuMemAlloc", 2)``: the next such call returns that code. ``fake.sticky = 700``: from now on
  every call that a lost context would refuse returns it.
* ``fake.functions``: kernel name -> sizes of its parameters, None: what its cubin says (or `image`, in its
  place). ``fake.launches``: what was launched, with the parameters' bytes read through the pointers that the
  driver was given. ``fake.execute``, where set, is called with each: device memory is host memory, so it can
  compute what the kernel would.
* ``fake.milliseconds``: what an event pair says. ``fake.sm_ghz``: the clock that our own stamp kernel
  counts, 10 ms from stamp to stamp; its launches are not in ``fake.launches``, nor are those of the other
  kernels of the harness, which are computed in NumPy (fresh.py).
* A captured stream queues nothing; launching the graph does what was captured. Meanwhile allocating and
  freeing is refused in a thread that has not exchanged its capture mode for RELAXED. What a graph allocates
  is uninitialised (0xFF) at each of its launches.
* ``fake.stream_ids``: address -> what `cuStreamGetId` says, the address itself where it is not listed.

Each call ``cuX`` of the driver is a method ``_cuX``: contexts.py has devices, contexts and the ledger,
streams.py also events, captures and graphs, memory.py what is allocated and copied, launches.py also modules
and functions. Here is what they share: the log, and calls that fail as planned.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from fakes.driver.contexts import CUresult
from fakes.driver.launches import OURS, Launches, image
from harness.driver import api
from harness.errors import MissingDependency
from harness.support import tools

__all__ = ["FakeDriver", "image", "install", "no_library"]

NOISE = {"cuGetErrorName", "cuGetErrorString", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuCtxGetCurrent"}
_STRUCTS = ("CUlaunchConfig", "CUlaunchAttribute")

# What a lost context still does in the driver: bookkeeping and error texts.
_WORKS_WHEN_LOST = NOISE | {"cuInit", "cuDriverGetVersion", "cuDeviceGet", "cuDeviceGetAttribute"}


class _Names:
    """Stands for an enum of the bindings: members are read as attributes, and each is its own name."""

    def __getattr__(self, name: str) -> str:
        return name


class FakeDriver(Launches):
    """Stands for the module; `devices` and `version` are what the driver says of itself."""

    CUresult = CUresult
    CUhostFn = CUstream = cuuint32_t = cuuint64_t = int
    CU_MEMHOSTALLOC_DEVICEMAP = 2

    def __init__(self, **options: int) -> None:
        super().__init__(**options)
        self.log: list[tuple[str, tuple[Any, ...]]] = []
        self.sticky = 0
        self._failures: dict[str, list[int]] = {}

    def fail(self, name: str, *codes: int) -> None:
        self._failures.setdefault(name, []).extend(codes)

    def names(self) -> list[str]:
        return [name for name, _ in self.log if name not in NOISE]

    def __getattr__(self, name: str) -> Any:
        if name == "CUDA_MEMCPY2D":
            return SimpleNamespace
        if name.startswith("CU"):
            return _plain_object if name in _STRUCTS else _Names()
        function = getattr(type(self), "_" + name, None) if name.startswith("cu") else None
        if function is None:
            raise AttributeError(name)

        def call(*args: Any) -> tuple[Any, ...]:
            self.log.append((name, args))
            code = self.sticky if name not in _WORKS_WHEN_LOST else 0
            ours = name == "cuLaunchKernelEx" and args[1] in OURS  # planned failures are for others
            if self._failures.get(name) and not ours:
                code = self._failures[name].pop(0)
            values = () if code else function(self, *args)
            if isinstance(values, CUresult):
                return (values,)
            return (CUresult(code), *values)

        return call


def _plain_object() -> SimpleNamespace:
    return SimpleNamespace(value=SimpleNamespace(clusterDim=SimpleNamespace()))


def install(monkeypatch: Any, **options: Any) -> FakeDriver:
    fake = FakeDriver(**options)
    monkeypatch.setattr(api, "bindings", lambda: fake)
    monkeypatch.setattr(tools, "library", no_library)
    return fake


def no_library(name: str, *, hint: str) -> Any:
    """Find no cuBLAS: the real one would take what this driver hands out for addresses on a real GPU."""
    raise MissingDependency(f"{name} cannot be loaded: none here", hint=hint)
