"""The exceptions that harness raises on purpose, and their exit codes.

    HarnessError
    ├── UsageError            the request makes no sense: unknown kernel, parameter, axis, architecture
    │   └── SpecError         a kernel's front matter is malformed (file, line, key)
    ├── MissingDependency     a package or tool that this step needs is not installed
    ├── BuildError            the compiler refused the kernel; carries its log
    ├── InspectError          a cubin could not be disassembled
    ├── EmulatorError         the emulator cannot run this PTX: malformed, endless, too large
    │   └── NeedsGpu          it has an instruction that the emulator does not know
    ├── CountersDenied        Nsight Compute is not permitted to read the GPU's counters
    ├── Interrupted           Ctrl-C, SIGTERM, SIGHUP; what was measured before is kept
    ├── NoGpu                 nothing to run on
    │   ├── NoDriver          libcuda is absent, too old or will not start
    │   └── NoDevice          the driver works and sees no such GPU
    └── DriverError           a driver call failed; carries the call, the code and its meaning
        ├── OutOfMemory       device or pinned memory is exhausted
        └── ContextLost       a kernel faulted: nothing in this context works any more

Each message says what happened, where, and what to do. The command line exits with the `exit_code` of the
exception's class: 2 for a request that makes no sense, 130 for Ctrl-C (143 for SIGTERM, 129 for SIGHUP), 1
for every other failure. A
comparison of measurements that reaches no decision, and a verification that the emulator refused in part,
exit with INCONCLUSIVE_EXIT (3) and raise nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

INCONCLUSIVE_EXIT = 3


class HarnessError(Exception):
    """Base class of every error that harness raises on purpose.

    `what` says what happened. `where`, if not empty, says where and is put before it in the message; `hint`,
    if not empty, says what to do and becomes the message's last line.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what, self.where, self.hint = what, where, hint
        super().__init__(what, where, hint)

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}\n  -> {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the type, `args` and attributes.

        The default would call the class with `args`, which does not fit its keyword-only parameters.
        """
        return _unpickled, (type(self), self.args, self.__dict__)


def _unpickled(cls: type[HarnessError], args: tuple[object, ...], state: dict[str, object]) -> HarnessError:
    """Rebuild an error from what `HarnessError.__reduce__` returned, without calling ``__init__``."""
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error


class UsageError(HarnessError):
    """The request makes no sense: an unknown kernel, parameter, axis or architecture, or a bad value."""

    exit_code = 2


class SpecError(UsageError):
    """A kernel's front matter, or the problem class that it names, is malformed.

    In front matter, `where` is ``file`` or ``file:line``.
    """


class MissingDependency(HarnessError):
    """A package or tool that this step needs is not installed; `hint` says how to get it."""


class BuildError(HarnessError):
    """The compiler refused a kernel.

    `log` is the compiler's own output; its line numbers are those of the user's file.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "", log: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.log = log

    def __str__(self) -> str:
        log = self.log.strip()
        return f"{super().__str__()}\n{log}" if log else super().__str__()


class InspectError(HarnessError):
    """A cubin could not be disassembled, or the disassembler's output could not be read."""


class EmulatorError(HarnessError):
    """The emulator cannot run this PTX; `where` is a line of the kernel's source or of its PTX.

    `findings` holds what it had found by then: the cause of an endless loop is often among it, and `reached`
    how far it had gone past the ends of buffers.
    """

    findings: tuple[Any, ...] = ()
    reached: Mapping[str, int] = MappingProxyType({})


class NotEnded(EmulatorError):
    """A kernel that has not ended after its budget, or after some seconds in a loop that nothing bounds."""


class NeedsGpu(EmulatorError):
    """The PTX has an instruction that the emulator does not know, so it needs a real GPU."""


class OutOfTime(NotEnded):
    """A launch has not ended when its time was over."""


class CountersDenied(HarnessError):
    """Nsight Compute is not permitted to read the GPU's counters."""


class UnknownMetrics(HarnessError):
    """Nsight Compute does not know some of the metrics that it was asked for: `names`."""

    def __init__(self, names: tuple[str, ...], *, where: str = "") -> None:
        super().__init__(
            f"ncu knows no metric {' and no '.join(names)}",
            where=where,
            hint="ncu --query-metrics lists them",
        )
        self.names = names


class Interrupted(HarnessError):
    """Ctrl-C, SIGTERM or SIGHUP ended the run; what was measured before is kept.

    `exit_code` is 128 + the signal's number, the convention of shells.
    """

    def __init__(self, what: str, exit_code: int = 130) -> None:
        super().__init__(what)
        self.exit_code = exit_code


class NoGpu(HarnessError):
    """There is nothing to run on: no usable driver or no such GPU."""


class NoDriver(NoGpu):
    """libcuda is absent, too old, or does not start."""


class NoDevice(NoGpu):
    """The driver works but sees no such GPU."""


class DriverError(HarnessError):
    """A call of the CUDA driver API failed.

    `call` is the function (``cuMemAlloc``), `code` the CUresult that it returned as a number, `name` the name
    of that code (``CUDA_ERROR_INVALID_VALUE``).
    """

    def __init__(self, what: str, *, call: str = "", code: int = 0, name: str = "", hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.call, self.code, self.name = call, code, name


class OutOfMemory(DriverError):
    """Device memory or page-locked host memory is exhausted."""


class ContextLost(DriverError):
    """A kernel faulted: nothing in this process's context works any more."""


def nearest(name: str, known: Iterable[str], otherwise: str = "parameters:") -> str:
    """Return a hint for a misspelt `name`: the closest of the known ones, or all of them."""
    if close := difflib.get_close_matches(name, known := list(known), n=1):
        return f"did you mean {close[0]}?"
    return f"{otherwise} {', '.join(known)}" if known else "it has no parameters"
