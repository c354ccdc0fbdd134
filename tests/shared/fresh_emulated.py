"""The kernels of ``fresh.cu`` in the emulator, on matrices that tables of addresses lead to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.emulator import Buffer, emulate
from harness.emulator.memory import Arena
from harness.kernels import spec
from harness.kernels.arch import Arch
from harness.kernels.compiler import compile_kernel
from harness.launch.fresh.code import BLOCK, SOURCE


@dataclass
class Table:
    """A table of the addresses of `arrays`, and after the launch what they hold.

    With `sizes` each address is followed by the array's size in bytes, and the arrays lie `gap` bytes apart.
    """

    arrays: list[Any]
    sizes: bool = False
    gap: int = 0
    keep: bool = False  # what lay between the arrays after the launch before

    def blob(self, start: int) -> Any:
        """Return the table and the arrays behind it as bytes, as they lie at the address `start`."""
        if self.keep:
            return self.memory
        words, at = [], 16 * len(self.arrays)
        self.places = []
        for one in self.arrays:
            at = -(-(at + self.gap) // 16) * 16
            self.places.append(at)
            words += [start + at, one.nbytes] if self.sizes else [start + at]
            at += one.nbytes + self.gap
        self.addresses = [start + place for place in self.places]
        found = np.zeros(-(-at // 16) * 16, np.uint8)
        found[: 8 * len(words)] = np.array(words, np.uint64).view(np.uint8)
        for place, one in zip(self.places, self.arrays, strict=True):
            found[place : place + one.nbytes] = one.reshape(-1).view(np.uint8)
        return found

    def take(self, blob: Any) -> None:
        for place, one in zip(self.places, self.arrays, strict=True):
            one.reshape(-1).view(np.uint8)[:] = blob[place : place + one.nbytes]
        self.memory = blob


def run(name: str, *arguments: Any, sets: int = 1, blocks: int = 2) -> None:
    """Run one kernel; arrays and the arrays of tables are changed in place. There must be no findings."""
    ptx = compile_kernel(spec.load(SOURCE).variant(), str(Arch.parse("sm_90a"))).ptx
    blobs = [a.blob(0) if isinstance(a, Table) else a for a in arguments]
    bound = [Buffer(array=b, name=f"p{i}") for i, b in enumerate(blobs) if isinstance(b, np.ndarray)]
    starts = iter(a.start for a in Arena(bound).allocations)
    given = []
    for one in arguments:
        if not isinstance(one, Table | np.ndarray):
            given.append(one)
            continue
        start = next(starts)
        given.append(Buffer(array=one.blob(start) if isinstance(one, Table) else one, name="p"))
    found = emulate(ptx, name, grid=(blocks, sets), block=(BLOCK,), arguments=given, count=False)
    assert found.findings == ()
    for one, passed in zip(arguments, given, strict=True):
        if isinstance(one, Table):
            one.take(passed.array)
