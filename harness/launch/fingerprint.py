"""What stands for the contents of device memory: equal bits, equal fingerprint, and hardly ever otherwise.

Verifying compares an output with float64 on the host, and inputs with what they were. Candidates of one
kernel mostly write the same bits, and hardly any overwrites its inputs: 128 bits computed where the data are
say so in microseconds, where a copy to the host takes milliseconds. That two different contents share theirs
has a probability of 2^-128.
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
_AT_ONCE = 256  # buffers
_BLOCKS_AN_SM = 4

Fingerprint = bytes


class Fingerprints(Closing):
    """``fingerprints.of(buffers, stream)``: one each, in order."""

    def __init__(self, context: Context) -> None:
        kernel = spec.load(SOURCE)
        cubin = compile_kernel(kernel.variant(), str(Arch.of_capability(*context.device.capability)))
        self._sums = Buffer(context, _AT_ONCE * _BYTES)
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
        """Of each buffer, after what is queued in `stream` before. An iterator is asked for the next one when
        all that concerns those before it is queued: what it queues itself lies between the two.
        """
        left = iter(buffers)
        while True:
            self._sums.fill_u32(0, stream)
            queued = 0
            for buffer in itertools.islice(left, _AT_ONCE):
                self._data.value, self._nbytes.value = buffer.ptr, buffer.nbytes
                self._to.value = self._sums.ptr + _BYTES * queued
                self._launch(stream)
                queued += 1
            if not queued:
                return
            sums = bytearray(self._sums.nbytes)
            self._sums.download(sums, stream)
            yield from (bytes(sums[_BYTES * i : _BYTES * (i + 1)]) for i in range(queued))

    def close(self) -> None:
        self._sums.close()
        self._module.close()
