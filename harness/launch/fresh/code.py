"""The kernels of `harness.launch.fresh`: ``fresh.cu``, compiled and loaded once for a set of operands."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.driver import Buffer, Context, Module, PreparedLaunch, Stream
from harness.kernels import spec
from harness.kernels.arch import Arch
from harness.kernels.compiler import compile_kernel
from harness.support.resources import Closing

SOURCE = Path(__file__).with_name("fresh.cu")
KINDS = {"float32": 0, "uint16": 1, "float16": 2}  # `Kind` of decode.cuh, by how NumPy stores a type
BLOCK = 256  # threads a block, for all of the kernels
_BLOCKS_AN_SM = 4
_OVER_L2 = 2  # `drain` reads this many times the size of the L2 cache


class Code(Closing):
    """The kernels, loaded in `context`."""

    def __init__(self, context: Context) -> None:
        arch = str(Arch.of_capability(*context.device.capability))
        self.context = context
        self._module = Module(context, compile_kernel(spec.load(SOURCE).variant(), arch).code)
        self._memory: Buffer | None = None

    def prepare(self, name: str, threads: int, arguments: Sequence[Any], *, sets: int = 1) -> PreparedLaunch:
        """Return a launch of the kernel `name` with about `threads` threads for each of `sets` sets.

        The kernels loop over what is left, so the number of blocks is limited to a few for each SM.
        """
        blocks = max(1, min(-(-threads // BLOCK), _BLOCKS_AN_SM * self.context.device.sms))
        return self._module.function(name).prepare((blocks, sets), BLOCK, arguments)

    def table(self, words: Sequence[int] | np.ndarray[Any, Any], stream: Stream) -> Buffer:
        """Return device memory that holds these 64-bit words, such as addresses; the caller closes it."""
        host = np.ascontiguousarray(words, np.uint64)
        buffer = Buffer(self.context, host.nbytes)
        buffer.upload(host, stream)
        return buffer

    def drain(self, stream: Stream) -> None:
        """Queue reading twice the size of the L2 cache, so that nothing else stays there.

        Reading also writes back the lines that were written before, which a kernel that comes after would
        otherwise have to wait for.
        """
        if self._memory is None:
            size = max(16, _OVER_L2 * self.context.device.l2_bytes // 16 * 16)
            self._memory = Buffer(self.context, size + 16)
            arguments = [self._memory, np.uint64(size), np.uint64(self._memory.ptr + size)]
            self._drain = self.prepare("drain", size // 16, arguments)
        self._drain(stream)

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()
        self._module.close()


def derive(seed: int, *about: int | str) -> int:
    """Return a 64-bit key made from `seed` and what it is for, by BLAKE2b.

    From one key no other one can be told, so a kernel that has seen the data of one launch knows nothing of
    the next.
    """
    text = repr((seed, *about)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
