"""The machine code of one function, with everything known of it without running it."""

from __future__ import annotations

import html
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
    """The machine code that expectations are checked against, whether harness built it or not.

    `origin` and `variant` name it: a kernel and its parameters, or a file and a function of it. `registers`
    and `stack` (bytes) are per thread. `shared` is in bytes per block, dynamic shared memory included where
    it is known. `spills` counts the bytes of spill stores and loads that ptxas reports. `threads` are per
    block. `source` is the text that line numbers refer to, `file` its name, `compiler` the assembler with its
    version.

    None stands for a value that is not known: `spills` of a cubin that harness did not build, since only
    ptxas reports it; the resources of a device function; `threads`, if nobody has said how the code is
    launched.
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
        """Return the code of a kernel that harness built, with its disassembly `sass`."""
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

    def __repr__(self) -> str:
        return f"<Code {self.name}: {len(self.sass.instructions)} instructions, {self.registers} registers>"

    def _repr_html_(self) -> str:
        """Return the listing for a notebook, under the source lines."""
        from harness.sass import listing  # which imports this module

        return f"<pre>{html.escape(chr(10).join([repr(self), *listing.by_address(self)]))}</pre>"

    @property
    def arch(self) -> str:
        """The architecture, as ``sm_90a``."""
        return self.sass.arch

    @property
    def label(self) -> str:
        """`origin` and `variant`, as ``03_tiled TILE=16``."""
        return f"{self.origin} {self.variant}".rstrip()

    @property
    def name(self) -> str:
        """`label` and architecture, as ``03_tiled TILE=16, sm_75``."""
        return f"{self.label}, {self.arch}"

    @property
    def foreign(self) -> bool:
        """True if harness did not build the code and does not know how it is launched."""
        return self.spills is None

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """Every loop of the code, an outer loop before those inside it."""
        return loops(self.sass.instructions)

    @cached_property
    def hot_loop(self) -> Loop | None:
        """The loop that does most of the work (see `harness.sass.loops.hot_loop`), or None."""
        return hot_loop(self.loops)

    @cached_property
    def banks(self) -> Pressure | None:
        """Register-bank pressure of the hot loop; None without a hot loop or if it has no FFMA."""
        found = None if self.hot_loop is None else pressure(self.hot_loop.instructions)
        return found if found is not None and found.ffma else None

    @property
    def occupancy(self) -> Occupancy | None:
        """Theoretical occupancy; None if the threads, registers or shared memory are not known."""
        if self.threads is None or self.registers is None or self.shared is None:
            return None
        return occupancy(self.arch, threads=self.threads, registers=self.registers, shared=self.shared)

    @property
    def hot_mix(self) -> Counter[str]:
        """The count of each opcode in the hot loop, or in all the code if there is no loop."""
        loop = self.hot_loop
        return self.sass.mix if loop is None else Counter(i.opcode for i in loop.instructions)

    def metric(self, name: str) -> float | None:
        """Return the metric `name` of an expectation, such as ``registers``; None if it is not known."""
        return {
            "registers": self.registers,
            "spills": self.spills,
            "stack": self.stack,
            "shared": self.shared,
            "instructions": len(self.sass.instructions),
            "loops": len(self.loops),
        }[name]

    def line(self, number: int) -> str:
        """Return a line of the source, counted from 1; "" if there is no such line."""
        return self._lines[number - 1] if 0 < number <= len(self._lines) else ""

    @cached_property
    def _lines(self) -> list[str]:
        return self.source.splitlines()

    def place(self, i: Instruction) -> str:
        """Return the source line of an instruction as ``03_tiled.cu:41``; "" if it is not known."""
        return f"{self.file}:{i.line}" if i.line else ""
