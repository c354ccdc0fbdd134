"""The SM clock as the SMs themselves count it: cycles over nanoseconds between two small launches.

NVML's clock is a reading of a sensor at some moment; this one is the mean over exactly the launches in
between, which is what turns times into cycles.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness import spec
from harness.arch import Arch
from harness.build import compile_kernel
from harness.closing import Closing
from harness.driver import Context, Module, PinnedBuffer

STAMP = Path(__file__).parent / "probes" / "stamp.cu"
_SMS = 1024  # entries; numbers of SMs may have holes
# %globaltimer advances in steps of up to 1 us (32 ns on recent GPUs): shorter spans would show the step.
_SHORTEST_NS = 400_000


class ClockProbe(Closing):
    """``probe.start(stream)``, launches, ``probe.end(stream)``; after synchronizing, `hertz`."""

    def __init__(self, context: Context) -> None:
        kernel = spec.load(STAMP)
        cubin = compile_kernel(kernel.variant(), str(Arch.of_capability(*context.device.capability)))
        self._module = Module(context, cubin.code)
        self._stamps = PinnedBuffer(context, 2 * _SMS * 16)
        self._entries = self._stamps.array(np.uint64, (2, _SMS, 2))
        function = self._module.function(kernel.entry)
        blocks = context.device.sms  # one on each SM, as idle SMs are filled first
        self.start, self.end = (
            function.prepare(blocks, 32, [np.uint64(self._stamps.ptr + half), np.uint32(_SMS)])
            for half in (0, self._entries[0].nbytes)
        )

    def reset(self) -> None:
        """Forget the last stamps; while none are on their way."""
        self._entries[:] = 0

    def hertz(self) -> float | None:
        """The clock between the last two stamps, the median over the SMs; None where it was too short."""
        seen = self._entries.all(axis=(0, 2))
        cycles, nanoseconds = (self._entries[1, seen] - self._entries[0, seen]).T.astype(np.float64)
        if not len(cycles) or nanoseconds.min() < _SHORTEST_NS:
            return None
        return float(np.median(cycles / nanoseconds)) * 1e9

    def close(self) -> None:
        self._stamps.close()
        self._module.close()
