"""Device memory that launches need beside their operands: kept for a stream, or for a captured graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from harness.driver import (
    Buffer,
    Context,
    GraphLifetime,
    Stream,
    fill_u32,
    outside_captures,
    stream_memory,
)
from harness.errors import OutOfMemory
from harness.support.resources import Closing

_MOST_KEPT = 512  # buffers per GPU; beyond that the least recently used is freed, which waits for the GPU
_MOST_CAPTURED = 32 << 20  # bytes that a captured graph has for itself; for more it has nodes
_PER_THREAD = 2  # the address of the per-thread default streams
_UNIT = 16  # bytes; sizes are rounded up to multiples of this, so that whole words can be filled
_Key = tuple[int, str]  # the number of a stream, and a user


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
    share any. A captured graph may be replayed in any stream at any time, so its launches get memory of their
    own. It is made and zeroed now, so that a replay need not, and is freed some time after the graph is gone.
    What is larger than `_MOST_CAPTURED` the graph itself allocates, zeroes and frees at each replay: that
    takes microseconds of a launch that is long, and all graphs share the memory. A graph runs once at a time;
    of two executables that were instantiated from the same graph, which write the same results, the user must
    not let both run at once.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kept: dict[_Key, Buffer] = {}  # least recently used first
        self._reserved: dict[str, Buffer] = {}  # by user
        # By capture, stream and user: what was captured from different streams may run at once.
        self._captured: dict[tuple[int, int, int, str], tuple[list[Buffer], GraphLifetime]] = {}
        self._watchers: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def room(self, need: Need, stream: Stream) -> tuple[int, int] | None:
        """Return the number of `stream` and the address of the memory that is kept there for `need`, if any.

        Whoever uses it beside `lent` has to `watch`. The context must be current.
        """
        with self._lock:
            if stream.capturing:
                return None
            found = self._kept.get((stream.id, need.user))
            return None if found is None or found.nbytes < need.size else (stream.id, found.ptr)

    def watch(self, told: Callable[[], None]) -> bool:
        """Call `told` from now on before kept memory is freed, after which no more work may use it.

        Memory that is freed waits for the work that uses it. False if that was asked for before.
        """
        with self._lock:
            if told in self._watchers:
                return False
            self._watchers.append(told)
            return True

    def _free(self, kept: Buffer) -> None:
        """Free memory that was kept for a stream."""
        for told in self._watchers:
            told()
        kept.close()

    def reserve(self, needs: Sequence[Need]) -> None:
        """Allocate the memory for `needs` now, for launches that never run at the same time.

        From then on `lent` yields it for these, in every stream, and in captured streams too, whose graphs
        then have no nodes for it. Raises OutOfMemory if there is no room.
        """
        with Stream(self._context) as stream:
            for need in needs:
                self._reserved[need.user] = self._made(need, stream, None, ())
            stream.synchronize()

    @contextmanager
    def lent(self, needs: Sequence[Need], stream: Stream) -> Iterator[list[int]]:
        """Yield the addresses of device memory for `needs`, for work queued in `stream` inside the block.

        The context must be current. Raises OutOfMemory if there is no room, even after the workspaces of
        other launches have been freed.
        """
        if all(need.user in self._reserved for need in needs):
            yield [self._reserved[need.user].ptr for need in needs]
            return
        with self._lock:  # so that no thread frees what the launches will use
            if stream.capturing:
                with ExitStack() as nodes:
                    yield [self._captures(need, stream, nodes) for need in needs]
            else:
                keys = [(stream.id, need.user) for need in needs]
                yield [self._keep(key, need, stream, keys) for key, need in zip(keys, needs, strict=True)]

    def _captures(self, need: Need, stream: Stream, nodes: ExitStack) -> int:
        """Return the address of the memory for `need` in the graph that `stream` is captured into.

        `nodes` ends, in the graph, memory that has nodes of its own.
        """
        if need.size > _MOST_CAPTURED:
            address = nodes.enter_context(stream_memory(stream, _rounded(need.size)))
            if need.zeroed:
                fill_u32(address, 0, _rounded(need.size) // 4, stream)
            return address
        self._free_ended()
        capture, handle = stream.capture[0], int(stream.handle)
        thread = threading.get_ident() if handle == _PER_THREAD else 0
        key = capture, handle, thread, need.user
        if key not in self._captured:
            self._captured[key] = [], GraphLifetime(stream)
        buffers, _ = self._captured[key]
        if not buffers or buffers[-1].nbytes < need.size:  # earlier launches of the graph keep what they have
            # What is queued in `stream` itself would run at each replay, and not now.
            with outside_captures(), Stream(self._context) as beside:
                buffers.append(self._made(need, beside, None, ()))
                beside.synchronize()
        return buffers[-1].ptr

    def _free_ended(self) -> None:
        """Free the memory of graphs that are gone, which waits for what runs."""
        ended = [key for key, (_, lifetime) in self._captured.items() if lifetime.over]
        with outside_captures():
            for key in ended:
                for buffer in self._captured.pop(key)[0]:
                    buffer.close()

    def _keep(self, key: _Key, need: Need, stream: Stream, in_use: Collection[_Key]) -> int:
        """Return the address of the memory kept for `need` in `stream`, allocated anew if it is too small."""
        found = self._kept.pop(key, None)
        if found is None or found.nbytes < need.size:
            self._free_ended()
            found = self._made(need, stream, found, in_use)
        self._kept[key] = found
        return found.ptr

    def _made(self, need: Need, stream: Stream, smaller: Buffer | None, in_use: Collection[_Key]) -> Buffer:
        """Allocate memory for `need` in place of `smaller`, which is closed.

        Only if memory runs out is other memory freed, except for what `in_use` names.
        """
        with outside_captures():  # other streams may be captured now
            if smaller is not None:
                self._free(smaller)  # waits for the launches that use it
            while len(self._kept) >= _MOST_KEPT:
                self._free(self._kept.pop(next(iter(self._kept))))
            try:
                made = Buffer(self._context, _rounded(need.size))
            except OutOfMemory:  # free what others have left, maybe in streams that no longer exist
                self._free_ended()
                for key in self._kept.keys() - set(in_use):
                    self._free(self._kept.pop(key))
                made = Buffer(self._context, _rounded(need.size))
        if need.zeroed:
            made.fill_u32(0, stream)
        return made

    def close(self) -> None:
        for kept in (self._kept, self._reserved):
            while kept:
                self._free(kept.popitem()[1])
        while self._captured:
            for buffer in self._captured.popitem()[1][0]:
                buffer.close()


def _rounded(size: int) -> int:
    """Round `size` up to a multiple of `_UNIT`."""
    return -(-size // _UNIT) * _UNIT
