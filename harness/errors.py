"""Everything harness raises on purpose.

    HarnessError
    ├── UsageError            the request makes no sense: unknown kernel, parameter, axis, architecture
    │   └── SpecError         a kernel's front matter is malformed (file, line, key)
    ├── MissingDependency     a package or tool that this step needs is not installed
    ├── BuildError            the compiler refused the kernel; carries its log
    ├── InspectError          a cubin could not be disassembled
    ├── EmulatorError         the emulator cannot run this PTX: malformed, endless, too large
    │   └── NeedsGpu          it has an instruction that the emulator does not know
    ├── CountersDenied        Nsight Compute is not permitted to read the GPU's counters
    ├── Interrupted           Ctrl-C; what was measured before is kept
    ├── NoGpu                 nothing to run on
    │   ├── NoDriver          libcuda is absent, too old or will not start
    │   └── NoDevice          the driver works and sees no such GPU
    └── DriverError           a driver call failed; carries the call, the code and its meaning
        ├── OutOfMemory       device or pinned memory is exhausted
        └── ContextLost       a kernel faulted: nothing in this context works any more

Each message says what happened, where, and what to do. ``exit_code`` is what the command line
returns for it: 2 for a request that cannot be meant, 130 for Ctrl-C, 1 for everything that failed. A
comparison that cannot tell returns 3 (INCONCLUSIVE_EXIT).
"""

from __future__ import annotations

INCONCLUSIVE_EXIT = 3


class HarnessError(Exception):
    """What happened (`what`), where (`where`, prefixed) and what to do about it (`hint`, last line)."""

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what, self.where, self.hint = what, where, hint
        super().__init__(what, where, hint)

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}\n  -> {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as it is: by default it would be made anew from `args`, which its keywords are not."""
        return _unpickled, (type(self), self.args, self.__dict__)


def _unpickled(cls: type[HarnessError], args: tuple[object, ...], state: dict[str, object]) -> HarnessError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error


class UsageError(HarnessError):
    exit_code = 2


class SpecError(UsageError):
    """`where` is ``file`` or ``file:line``."""


class MissingDependency(HarnessError):
    """`hint` holds the command that installs it."""


class BuildError(HarnessError):
    """`log` is the compiler's own text; its line numbers are those of the user's file."""

    def __init__(self, what: str, *, where: str = "", hint: str = "", log: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.log = log

    def __str__(self) -> str:
        log = self.log.strip()
        return f"{super().__str__()}\n{log}" if log else super().__str__()


class InspectError(HarnessError):
    pass


class EmulatorError(HarnessError):
    """`where` is a line of the kernel's source or of its PTX."""


class NeedsGpu(EmulatorError):
    pass


class CountersDenied(HarnessError):
    pass


class Interrupted(HarnessError):
    exit_code = 130  # 128 + SIGINT, as shells have it


class NoGpu(HarnessError):
    pass


class NoDriver(NoGpu):
    pass


class NoDevice(NoGpu):
    pass


class DriverError(HarnessError):
    """`call` is the function (``cuMemAlloc``), `code` its numeric result, `name` the code's name."""

    def __init__(self, what: str, *, call: str = "", code: int = 0, name: str = "", hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.call, self.code, self.name = call, code, name


class OutOfMemory(DriverError):
    pass


class ContextLost(DriverError):
    pass
