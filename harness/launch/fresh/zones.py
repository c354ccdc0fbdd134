"""Red zones: random bytes before and behind every buffer that a kernel gets, which it must not change.

A kernel that writes past the end of a buffer changes memory of another one, or of nobody; neither shows in
its own results. The pattern is a function of a random key and the address, so no kernel can restore it.

compute-sanitizer takes the zones for the kernel's own memory. Under it there are none (`NONE`), so that it
sees every access outside of a buffer, reads too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from harness.driver import Buffer, Context, Stream
from harness.launch.fresh.code import Code

NONE = {"HARNESS_RED_ZONES": "0"}  # environment of a process whose buffers have no zones
_OFF = all(os.environ.get(name) == value for name, value in NONE.items())
# Bytes before, and behind; what is farther away falls into the zone or the data of a neighbour.
ZONE = 0 if _OFF else 4096


class Fenced(Buffer):
    """A buffer with a red zone before and behind it, to which `ptr` and `nbytes` do not refer."""

    def __init__(self, context: Context, nbytes: int) -> None:
        super().__init__(context, nbytes + 2 * ZONE if nbytes > 0 else nbytes)
        self.nbytes = nbytes

    @property
    def ptr(self) -> int:
        """The device address of the first byte between the zones.

        Raises UsageError once the buffer is closed.
        """
        return super().ptr + ZONE


class Zones:
    """The red zones of some buffers, written with one random pattern."""

    def __init__(self, code: Code, *, key: int) -> None:
        self._code, self._key = code, key

    def write(self, buffers: Mapping[str, Fenced], stream: Stream) -> None:
        """Write the pattern around the buffers, and wait until that is done."""
        if not ZONE:
            return
        with self._code.table(_places(buffers), stream) as table:
            arguments = [table, np.uint64(ZONE), np.uint64(self._key), np.uint32(len(buffers))]
            self._code.prepare("fence", len(buffers) * ZONE, arguments)(stream)
            stream.synchronize()

    def stray(self, buffers: Mapping[str, Fenced], stream: Stream) -> list[str]:
        """Return in words where kernels wrote outside of the buffers, and restore the pattern there.

        For each side of a buffer that is the changed byte nearest to it. `buffers` has their names.
        """
        if not ZONE:
            return []
        nearest = np.zeros((len(buffers), 2), np.uint32)
        with (
            self._code.table(_places(buffers), stream) as table,
            Buffer(self._code.context, nearest.nbytes) as to,
        ):
            to.fill_u32(0, stream)
            arguments = [table, np.uint64(ZONE), np.uint64(self._key), np.uint32(len(buffers)), to]
            self._code.prepare("stray", len(buffers) * ZONE, arguments)(stream)
            to.download(nearest, stream)
        found = [
            f"byte {offset} of {name}, {side} its {buffers[name].nbytes} bytes"
            for name, (before, behind) in zip(buffers, nearest.tolist(), strict=True)
            for left, offset, side in (
                (before, before - ZONE - 1, "before"),
                (behind, buffers[name].nbytes + ZONE - behind, "behind"),
            )
            if left
        ]
        if found:
            self.write(buffers, stream)
        return found


def _places(buffers: Mapping[str, Fenced]) -> list[int]:
    """Return the address and the size in bytes of each buffer."""
    return [word for buffer in buffers.values() for word in (buffer.ptr, buffer.nbytes)]
