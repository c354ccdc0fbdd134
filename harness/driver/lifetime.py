"""The lifetime of a captured graph: whether it, and all that was instantiated from it, is gone."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from harness.driver import api
from harness.driver.stream import Stream

_BYTES = 64  # room for a semaphore of any C library


class GraphLifetime:
    """Knows when the graph into which `stream` is being captured is gone, with its executables and clones.

    The graph holds a user object, whose destructor the driver runs in a thread of its own, where no call of
    CUDA is allowed, and where Python might have ended already. So the destructor is C's ``sem_post``, and the
    semaphore is memory that is freed only after it was seen posted.
    """

    def __init__(self, stream: Stream) -> None:
        library, driver = _library(), api.bindings()
        self._semaphore: int | None = library.malloc(_BYTES)
        library.sem_init(self._semaphore, 0, 0)
        post = ctypes.cast(library.sem_post, ctypes.c_void_p).value
        flags = driver.CUuserObject_flags.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
        held = api.call("cuUserObjectCreate", self._semaphore, driver.CUhostFn(post), 1, flags)
        moved = driver.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE
        api.call("cuGraphRetainUserObject", stream.capture[1], held, 1, moved)

    @property
    def over(self) -> bool:
        """True once nothing is left that could launch the graph's work."""
        if self._semaphore is not None and _library().sem_trywait(self._semaphore) == 0:
            _library().sem_destroy(self._semaphore)
            _library().free(self._semaphore)
            self._semaphore = None
        return self._semaphore is None


@functools.cache
def _library() -> Any:
    """Return C's library, with the signatures of what is called here."""
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    library.sem_init.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint]
    for name in ("sem_post", "sem_trywait", "sem_destroy"):
        getattr(library, name).argtypes = [ctypes.c_void_p]
    return library
