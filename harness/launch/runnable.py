"""What can be verified and timed: a compiled kernel, a library's product, what `harness.matmul` runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from harness.launch.builds import Built
    from harness.launch.kernel import Launch
    from harness.launch.operands import Operands
    from harness.problems.protocol import Problem


class Runnable(Protocol):
    """Code that computes a problem on operands in device memory.

    `built` is its machine code, or None for a library, whose code is not ours to read.
    """

    @property
    def label(self) -> str:
        """The name in tables and records."""
        ...

    @property
    def built(self) -> Built | None: ...

    def serves(self, problem: Problem) -> bool:
        """Return True if it computes `problem`."""
        ...

    def prepare(self, operands: Operands) -> Launch:
        """Bind it to `operands`, once for each set of them. The launch is closed by the caller.

        Raises UsageError where it does not serve the problem or the size has no grid, DriverError or
        HarnessError where the GPU or the library refuses.
        """
        ...
