"""Fingerprints of device memory: 128-bit hashes, computed on the GPU, that tell whether contents are equal.

Equal contents have equal fingerprints; two different contents have the same one with a probability of 2^-128.
Verifying compares each output with a float64 reference on the host, and the inputs with their original
contents. But the candidates of one kernel mostly write the same bits, and hardly any overwrites its inputs. A
fingerprint shows that in microseconds, where a copy to the host takes milliseconds.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from harness.driver import Buffer, Context, Module, Stream
from harness.kernels import spec
from harness.kernels.arch import Arch
from harness.kernels.compiler import compile_kernel
from harness.support.resources import Closing

SOURCE = Path(__file__).with_name("fingerprint.cu")
_BYTES = 16
_AT_ONCE = 256  # buffers whose fingerprints are downloaded together
_BLOCKS_AN_SM = 4

Fingerprint = bytes


class Fingerprints(Closing):
    """The fingerprint kernel, compiled and loaded in `context`, with memory for its results."""

    def __init__(self, context: Context, *, at_once: int = _AT_ONCE) -> None:
        """Load the kernel, with memory for `at_once` results."""
        kernel = spec.load(SOURCE)
        cubin = compile_kernel(kernel.variant(), str(Arch.of_capability(*context.device.capability)))
        self._at_once, self._queued = at_once, 0
        self._sums = Buffer(context, at_once * _BYTES)
        try:
            self._module = Module(context, cubin.code)
            function = self._module.function(kernel.entry)
            blocks = _BLOCKS_AN_SM * context.device.sms
            arguments = [np.uint64(0), np.uint64(0), np.uint64(0)]
            self._launch = function.prepare(blocks, cubin.variant.block, arguments)
        except BaseException:
            self._sums.close()
            raise
        self._data, self._nbytes, self._to = (self._launch.argument(i, ctypes.c_uint64) for i in range(3))

    def of(self, buffers: Iterable[Buffer], stream: Stream) -> Iterator[Fingerprint]:
        """Yield the fingerprint of each buffer, 16 bytes, in order.

        A fingerprint covers what was queued in `stream` before it. `buffers` may be a generator that queues
        work itself: it is asked for the next buffer once the fingerprints of all earlier ones are queued, so
        its work runs after them and before the fingerprint of the buffer it yields.
        """
        left = iter(buffers)
        while True:
            self.reset(stream)
            for buffer in itertools.islice(left, self._at_once):
                self.queue(buffer, stream)
            if not self._queued:
                return
            yield from self.taken(stream)

    def reset(self, stream: Stream) -> None:
        """Queue forgetting what was queued, so that `at_once` fingerprints can be taken."""
        self._queued = 0
        self._sums.fill_u32(0, stream)

    def queue(self, buffer: Buffer, stream: Stream) -> None:
        """Queue taking the fingerprint of one buffer, at most `at_once` times after `reset`."""
        self._data.value, self._nbytes.value = buffer.ptr, buffer.nbytes
        self._to.value = self._sums.ptr + _BYTES * self._queued
        self._launch(stream)
        self._queued += 1

    def taken(self, stream: Stream) -> list[Fingerprint]:
        """Wait, and return the fingerprints queued since `reset`, in order."""
        sums = bytearray(self._sums.nbytes)
        self._sums.download(sums, stream)
        return [bytes(sums[_BYTES * i : _BYTES * (i + 1)]) for i in range(self._queued)]

    def close(self) -> None:
        self._sums.close()
        self._module.close()
