"""Device memory that launches need beside their operands: kept for a stream, or part of a captured graph."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from harness.driver import Buffer, Context, Stream, fill_u32, outside_captures, stream_memory
from harness.errors import OutOfMemory
from harness.support.resources import Closing

_MOST_KEPT = 512  # buffers per GPU; beyond that the least recently used is freed, which waits for the GPU
_UNIT = 16  # bytes; sizes are rounded up to multiples of this, so that whole words can be filled


@dataclass(frozen=True, kw_only=True)
class Need:
    """A launch's need of `size` bytes of device memory.

    Launches with the same `user` in the same stream get the same memory, with the contents that the one
    before has left. If `zeroed`, the first of them finds zeros, otherwise anything.
    """

    user: str
    size: int
    zeroed: bool


class Workspaces(Closing):
    """The workspaces of one GPU. Closing waits for the launches that use them, and frees them.

    Launches in one stream run one after the other and can share memory; launches in different streams never
    share any. A captured graph may be replayed in any stream at any time, so its launches get memory that the
    graph itself allocates, zeroes and frees.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kept: dict[tuple[int, str], Buffer] = {}  # by stream and user, least recently used first
        self._reserved: dict[str, Buffer] = {}  # by user
        self._lock = threading.Lock()

    def reserve(self, needs: Sequence[Need]) -> None:
        """Allocate the memory for `needs` now, for launches that never run at the same time.

        From then on `lent` yields it for these, in every stream, and in captured streams too, whose graphs
        then have no nodes for it. Raises OutOfMemory if there is no room.
        """
        with Stream(self._context) as stream:
            for need in needs:
                self._reserved[need.user] = self._made(need, stream, None, set())
            stream.synchronize()

    @contextmanager
    def lent(self, needs: Sequence[Need], stream: Stream) -> Iterator[list[int]]:
        """Yield the addresses of device memory for `needs`, for work queued in `stream` inside the block.

        The context must be current. Raises OutOfMemory if there is no room, even after the workspaces of
        other launches have been freed.
        """
        if all(need.user in self._reserved for need in needs):
            yield [self._reserved[need.user].ptr for need in needs]
        elif stream.capturing:
            with ExitStack() as stack:
                addresses = [stack.enter_context(stream_memory(stream, _rounded(n.size))) for n in needs]
                for need, address in zip(needs, addresses, strict=True):
                    if need.zeroed:
                        fill_u32(address, 0, _rounded(need.size) // 4, stream)
                yield addresses
        else:
            with self._lock:  # held while launches are queued, so that no thread frees what they will use
                in_use = {(stream.id, need.user) for need in needs}
                yield [self._keep(need, stream, in_use) for need in needs]

    def _keep(self, need: Need, stream: Stream, in_use: set[tuple[int, str]]) -> int:
        """Return the address of the memory kept for `need` in `stream`, allocated anew if it is too small."""
        key = stream.id, need.user
        found = self._kept.pop(key, None)
        if found is None or found.nbytes < need.size:
            found = self._made(need, stream, found, in_use)
        self._kept[key] = found
        return found.ptr

    def _made(
        self, need: Need, stream: Stream, smaller: Buffer | None, in_use: set[tuple[int, str]]
    ) -> Buffer:
        """Allocate memory for `need` in place of `smaller`, which is closed.

        Only if memory runs out is other memory freed, except for what `in_use` names.
        """
        with outside_captures():  # other streams may be captured now
            if smaller is not None:
                smaller.close()  # waits for the launches that use it
            while len(self._kept) >= _MOST_KEPT:
                self._kept.pop(next(iter(self._kept))).close()
            try:
                made = Buffer(self._context, _rounded(need.size))
            except OutOfMemory:  # free what others have left, maybe in streams that no longer exist
                for key in self._kept.keys() - in_use:
                    self._kept.pop(key).close()
                made = Buffer(self._context, _rounded(need.size))
        if need.zeroed:
            made.fill_u32(0, stream)
        return made

    def close(self) -> None:
        for kept in (self._kept, self._reserved):
            while kept:
                kept.popitem()[1].close()


def _rounded(size: int) -> int:
    """Round `size` up to a multiple of `_UNIT`."""
    return -(-size // _UNIT) * _UNIT
