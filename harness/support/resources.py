"""Base class for objects that are released at the end of a ``with`` block."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from harness.errors import HarnessError


class Closing:
    """An object whose `close` runs at the end of its ``with`` block.

    `close` must allow being called several times. If an exception leaves the block and `close` then fails
    with a HarnessError, that failure is attached to the exception as a note and does not replace it (after a
    kernel's fault every free fails too).
    """

    def close(self) -> None:
        """Release what the object holds; further calls do nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except HarnessError as failure:
            if error is None:
                raise
            error.add_note(f"closing the {type(self).__name__} failed too: {failure}")
