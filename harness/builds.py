"""A selection of variants -> each compiled and disassembled, or skipped with its reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.build import Cubin, compile_kernel
from harness.cache import Cache
from harness.errors import HarnessError, MissingDependency, SpecError, UsageError
from harness.occupancy import Occupancy, occupancy
from harness.problems import resolve
from harness.sass import Sass, disassemble
from harness.spec import Variant

Progress = Callable[[str], None]  # told what begins now


@dataclass(frozen=True, kw_only=True)
class Built:
    """One variant compiled and disassembled: everything known without a GPU.

    `sass` is None where nvdisasm is not installed.
    """

    variant: Variant
    cubin: Cubin
    sass: Sass | None

    @property
    def occupancy(self) -> Occupancy:
        """Theoretical, by calculation; a GPU's driver is asked again where there is one."""
        threads, registers = self.variant.threads, self.cubin.resources.registers
        return occupancy(self.cubin.arch, threads=threads, registers=registers, shared=self.cubin.shared)

    @property
    def intensity(self) -> float | None:
        """FLOP a byte loaded from global memory, where the front matter says what a block loads."""
        loads = self.variant.loads
        return None if loads is None else resolve(self.variant.kernel).intensity(self.variant.tile, loads)


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A variant without a row, and why. `failed` where the kernel is to blame, not the architecture."""

    variant: Variant
    arch: str
    error: HarnessError

    @property
    def failed(self) -> bool:
        return isinstance(self.error, SpecError) or not isinstance(self.error, UsageError)


def build_all(
    variants: Sequence[Variant], archs: Sequence[str], cache: Cache, progress: Progress
) -> tuple[list[Built], list[Skipped]]:
    """Compile and disassemble each variant for each architecture.

    One that cannot be is skipped with its reason; where nothing is left the first reason is raised.
    """
    built, skipped = [], []
    for arch in archs:
        for variant in variants:
            progress(f"build {variant.label} {arch}")
            try:
                cubin = compile_kernel(variant, arch, cache)
                try:
                    sass = disassemble(cubin, cache)
                except MissingDependency:
                    sass = None  # what it would have counted is not what this kernel is measured by
                built.append(Built(variant=variant, cubin=cubin, sass=sass))
            except HarnessError as e:
                skipped.append(Skipped(variant=variant, arch=arch, error=e))
    if skipped and not built:
        raise skipped[0].error
    return built, skipped
