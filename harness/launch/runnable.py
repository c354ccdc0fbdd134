"""The `Runnable` protocol of code that can be verified and timed: a kernel, a library or `harness.matmul`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from harness.launch.builds import Built
    from harness.launch.kernel import Launch
    from harness.launch.operands import Operands
    from harness.problems.protocol import Problem


class Runnable(Protocol):
    """Code that computes a problem on operands in device memory."""

    @property
    def label(self) -> str:
        """Its name in tables and records."""
        ...

    @property
    def built(self) -> Built | None:
        """Its machine code; None for a library, whose code harness does not read."""
        ...

    def serves(self, problem: Problem) -> bool:
        """Return True if it computes `problem`."""
        ...

    def prepare(self, operands: Operands) -> Launch:
        """Bind it to `operands`, once for each set of them; the caller closes the launch.

        Raises UsageError if it does not compute the problem or the size needs too large a grid, and
        DriverError or HarnessError if the GPU or the library refuses.
        """
        ...
