"""Base class for driver objects that are released by hand, by ``with`` or by garbage collection."""

from __future__ import annotations

import sys
from typing import Any

from harness.errors import UsageError
from harness.support.resources import Closing


class Owner(Closing):
    """Holds one driver handle until `close`, the end of its ``with`` block, or its last reference.

    Subclasses implement `_free`.
    """

    _handle: Any = None  # None before the handle is made and after it is closed

    @property
    def handle(self) -> Any:
        """The bindings' handle. Raises UsageError once the object is closed."""
        if self._handle is None:
            raise UsageError(f"this {type(self).__name__} is closed")
        return self._handle

    @property
    def closed(self) -> bool:
        """True once the handle has been released."""
        return self._handle is None

    def close(self) -> None:
        """Free the handle; further calls do nothing, even if the free fails."""
        # Forget the handle first: a free that fails is never tried again.
        handle, self._handle = self._handle, None
        if handle is not None:
            self._free(handle)

    def _free(self, handle: Any) -> None:
        """Release the handle with the driver."""
        raise NotImplementedError

    def __del__(self) -> None:
        # At interpreter exit the driver may be gone already; the process's end frees everything.
        if not sys.is_finalizing():
            self.close()
