"""Device memory that launches need beside their operands: kept for each stream, or a captured graph's own."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from harness.driver import Buffer, Context, Stream, fill_u32, outside_captures, stream_memory
from harness.errors import OutOfMemory
from harness.support.resources import Closing

_MOST_KEPT = 512  # a GPU; beyond that the one that was used the longest ago goes, and that waits for the GPU
_UNIT = 16  # bytes that sizes are rounded up to: whole words for the filling


@dataclass(frozen=True, kw_only=True)
class Need:
    """`size` bytes. Launches with one `user` find what the last of them left in this stream; with `zeroed`
    the first finds zeros.
    """

    user: str
    size: int
    zeroed: bool


class Workspaces(Closing):
    """Those of one GPU. Closing frees what is kept, after waiting for it.

    Launches of one stream run one after the other and so share memory; launches of two streams never do. A
    captured graph can be replayed in any stream at any time: its launches get memory that the graph itself
    allocates, zeroes and frees.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kept: dict[tuple[int, str], Buffer] = {}  # by stream and user; the last used is the last
        self._lock = threading.Lock()

    @contextmanager
    def lent(self, needs: Sequence[Need], stream: Stream) -> Iterator[list[int]]:
        """The addresses of `needs`, for what is queued in `stream` inside the block.

        Call it where the context is current. Raises OutOfMemory where there is no room.
        """
        if stream.capturing:
            with ExitStack() as stack:
                addresses = [stack.enter_context(stream_memory(stream, _rounded(n.size))) for n in needs]
                for need, address in zip(needs, addresses, strict=True):
                    if need.zeroed:
                        fill_u32(address, 0, _rounded(need.size) // 4, stream)
                yield addresses
        else:
            with self._lock:  # held while launches are queued: nobody frees what they are about to use
                in_use = {(stream.id, need.user) for need in needs}
                yield [self._keep(need, stream, in_use) for need in needs]

    def _keep(self, need: Need, stream: Stream, in_use: set[tuple[int, str]]) -> int:
        key = stream.id, need.user
        found = self._kept.pop(key, None)
        if found is None or found.nbytes < need.size:
            found = self._made(need, stream, found, in_use)
        self._kept[key] = found
        return found.ptr

    def _made(
        self, need: Need, stream: Stream, smaller: Buffer | None, in_use: set[tuple[int, str]]
    ) -> Buffer:
        with outside_captures():  # of other streams
            if smaller is not None:
                smaller.close()  # which waits for the launches that use it
            while len(self._kept) >= _MOST_KEPT:
                self._kept.pop(next(iter(self._kept))).close()
            try:
                made = Buffer(self._context, _rounded(need.size))
            except OutOfMemory:  # what other streams, maybe long gone, have left is worth less than this call
                for key in self._kept.keys() - in_use:
                    self._kept.pop(key).close()
                made = Buffer(self._context, _rounded(need.size))
        if need.zeroed:
            made.fill_u32(0, stream)
        return made

    def close(self) -> None:
        while self._kept:
            self._kept.popitem()[1].close()


def _rounded(size: int) -> int:
    return -(-size // _UNIT) * _UNIT
