"""One kernel's machine code and everything known of it without running it, wherever it came from."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from harness.kernels.compiler import Cubin
from harness.sass.instructions import Instruction, Sass
from harness.sass.loops import Loop, hot_loop, loops
from harness.sass.occupancy import Occupancy, occupancy
from harness.sass.register_banks import Pressure, pressure


@dataclass(frozen=True, kw_only=True)
class Code:
    """What expectations speak about. `origin` and `variant` name it: a kernel and its parameters, or a file
    and a function of it. `registers` and `stack` (bytes) are a thread's, `shared` bytes a block's, dynamic
    ones included where they are known. None is what nobody has said: `spills` of a foreign cubin, since ptxas
    tells them and the code does not; the resources of a device function; `threads` of a block. `source` is
    the text that line numbers count in, `file` its name.
    """

    origin: str
    variant: str
    sass: Sass
    registers: int | None
    shared: int | None
    stack: int | None
    spills: int | None = None
    threads: int | None = None
    source: str = ""
    file: str = ""
    compiler: str = ""

    @classmethod
    def of(cls, cubin: Cubin, sass: Sass) -> Self:
        """Of a kernel that harness built."""
        resources, kernel = cubin.resources, cubin.variant.kernel
        return cls(
            origin=kernel.name,
            variant=cubin.variant.params_label,
            sass=sass,
            registers=resources.registers,
            shared=cubin.shared,
            stack=resources.stack,
            spills=resources.spill_stores + resources.spill_loads,
            threads=cubin.variant.threads,
            source=kernel.source,
            file=kernel.path.name,
            compiler=cubin.compiler,
        )

    @property
    def arch(self) -> str:
        return self.sass.arch

    @property
    def label(self) -> str:
        return f"{self.origin} {self.variant}".rstrip()

    @property
    def name(self) -> str:
        """``03_tiled TILE=16, sm_75``."""
        return f"{self.label}, {self.arch}"

    @property
    def foreign(self) -> bool:
        """Not built here, so that nobody knows how it is launched."""
        return self.spills is None

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        return loops(self.sass.instructions)

    @cached_property
    def hot_loop(self) -> Loop | None:
        return hot_loop(self.loops)

    @cached_property
    def banks(self) -> Pressure | None:
        """Register-bank pressure of the hot loop; None where it has no FFMA."""
        found = None if self.hot_loop is None else pressure(self.hot_loop.instructions)
        return found if found is not None and found.ffma else None

    @property
    def occupancy(self) -> Occupancy | None:
        """Theoretical; None where the number of threads is not known."""
        if self.threads is None or self.registers is None or self.shared is None:
            return None
        return occupancy(self.arch, threads=self.threads, registers=self.registers, shared=self.shared)

    @property
    def hot_mix(self) -> Counter[str]:
        """Of the hot loop; of all the code where there is no loop."""
        loop = self.hot_loop
        return self.sass.mix if loop is None else Counter(i.opcode for i in loop.instructions)

    def metric(self, name: str) -> float | None:
        return {
            "registers": self.registers,
            "spills": self.spills,
            "stack": self.stack,
            "shared": self.shared,
            "instructions": len(self.sass.instructions),
            "loops": len(self.loops),
        }[name]

    def line(self, number: int) -> str:
        """A line of the source, counted from 1; empty where there is none."""
        return self._lines[number - 1] if 0 < number <= len(self._lines) else ""

    @cached_property
    def _lines(self) -> list[str]:
        return self.source.splitlines()

    def place(self, i: Instruction) -> str:
        """``03_tiled.cu:41``; empty where that is not known."""
        return f"{self.file}:{i.line}" if i.line else ""
