"""What has to be given back at the end of a ``with`` block."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from harness.errors import HarnessError


class Closing:
    """``with`` calls `close`, which may be called again and again.

    Leaving the block through an exception never replaces that exception: a failing close is added to it as
    a note (after a fault every free fails too).
    """

    def close(self) -> None:
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
