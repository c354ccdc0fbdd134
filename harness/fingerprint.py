"""What stands for the contents of device memory: equal bits, equal fingerprint, and hardly ever otherwise.

Verifying compares an output with float64 on the host, and inputs with what they were. Candidates of one
kernel mostly write the same bits, and hardly any overwrites its inputs: 128 bits computed where the data are
say so in microseconds, where a copy to the host takes milliseconds. That two different contents share theirs
has a probability of 2^-128.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harness import spec
from harness.arch import Arch
from harness.build import compile_kernel
from harness.closing import Closing
from harness.driver import Buffer, Context, Module, Stream

SOURCE = Path(__file__).parent / "probes" / "fingerprint.cu"
_BYTES = 16
_AT_ONCE = 256  # buffers
_BLOCKS_AN_SM = 4

Fingerprint = bytes


class Fingerprints(Closing):
    """``fingerprints.of(buffers, stream)``: one each."""

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

    def of(self, buffers: Sequence[Buffer], stream: Stream) -> list[Fingerprint]:
        """Of each buffer, after what is queued in `stream` before."""
        found: list[Fingerprint] = []
        for start in range(0, len(buffers), _AT_ONCE):
            some = buffers[start : start + _AT_ONCE]
            self._sums.fill_u32(0, stream)
            for place, buffer in enumerate(some):
                self._data.value, self._nbytes.value = buffer.ptr, buffer.nbytes
                self._to.value = self._sums.ptr + _BYTES * place
                self._launch(stream)
            sums = bytearray(self._sums.nbytes)
            self._sums.download(sums, stream)
            found += [bytes(sums[_BYTES * i : _BYTES * (i + 1)]) for i in range(len(some))]
        return found

    def close(self) -> None:
        self._sums.close()
        self._module.close()
