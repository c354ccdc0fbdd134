"""A selection of variants -> each compiled and disassembled, or skipped with its reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

from harness.errors import HarnessError, MissingDependency, SpecError, UsageError
from harness.kernels.compiler import Cubin, compile_kernel
from harness.kernels.spec import Variant
from harness.launch import kernel
from harness.launch.kernel import Launch
from harness.launch.operands import Operands
from harness.problems.protocol import Problem
from harness.problems.registry import resolve
from harness.sass.code import Code
from harness.sass.contract import check
from harness.sass.instructions import Sass, Tally, disassemble
from harness.sass.occupancy import Occupancy, occupancy
from harness.support.cache import Cache
from harness.support.processes import ENDED, cores, processes

Progress = Callable[[str], None]  # told what begins now


@dataclass(frozen=True, kw_only=True)
class Built:
    """One variant compiled and disassembled: everything known of it without a GPU. It is a `Runnable`.

    `sass` is None where nvdisasm is not installed, and in a build that came from another process
    (`building`), where instructions are too much to pass on; `tally` is what is left of them, and `unmet`
    says which of the file's expectations they do not meet. `seconds` is the time the build took, next to
    nothing from the cache.
    """

    variant: Variant
    cubin: Cubin
    sass: Sass | None
    tally: Tally | None = None
    unmet: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.tally is None and self.sass is not None:
            object.__setattr__(self, "tally", self.sass.tally)

    @property
    def label(self) -> str:
        """``03_tiled TILE=16``."""
        return self.variant.label

    @property
    def built(self) -> Self:
        """Itself: a `Runnable` whose machine code is known."""
        return self

    def serves(self, problem: Problem) -> bool:
        """Return True if `problem` is of the class that the kernel's file names."""
        return resolve(self.variant.kernel) is type(problem)

    def prepare(self, operands: Operands) -> Launch:
        """Load the code and bind it to `operands`; see `kernel.prepare`."""
        return kernel.prepare(self.cubin, operands)

    def same_code(self, other: Built) -> bool:
        """Return True if both are the same instructions, launched alike: their times differ by noise only."""
        if self.tally is None or other.tally is None:
            return False
        a, b = self.variant, other.variant
        launched = (a.block, a.tile, a.shared) == (b.block, b.tile, b.shared)
        return launched and self.tally.sha256 == other.tally.sha256

    @property
    def occupancy(self) -> Occupancy:
        """The theoretical occupancy, by calculation; on a GPU its driver is asked as well."""
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
    """Compile and disassemble each variant for each architecture, several at a time.

    One that cannot be is skipped with its reason; where nothing is left the first reason is raised.
    """
    built, skipped = [], []
    jobs = [(variant, arch) for arch in archs for variant in variants]
    with ThreadPoolExecutor(cores()) as pool:
        try:
            for (variant, arch), future in [(job, pool.submit(_build, *job, cache)) for job in jobs]:
                progress(f"build {variant.label} {arch}")
                try:
                    built.append(future.result())
                except HarnessError as e:
                    skipped.append(Skipped(variant=variant, arch=arch, error=e))
        finally:
            pool.shutdown(cancel_futures=True)  # Ctrl-C leaves nothing running behind
    if skipped and not built:
        raise skipped[0].error
    return built, skipped


@contextmanager
def building(
    variants: Sequence[Variant], arch: str, cache: Cache, done: Callable[[], object]
) -> Iterator[Iterator[Built | Skipped]]:
    """The same in the background: one by one, in order, while the next ones are compiled. `done` is called
    after each build, from another thread. Leaving gives up what has not begun.

    In processes: reading what nvdisasm says takes the interpreter as long as a measurement does, and threads
    would take it from the one that feeds the GPU.
    """
    with processes(min(cores(spared=1), max(1, len(variants)))) as pool:
        futures = [pool.submit(_candidate, variant, arch, cache) for variant in variants]
        for future in futures:
            future.add_done_callback(lambda f: None if f.cancelled() else done())
        yield (_outcome(v, arch, f) for v, f in zip(variants, futures, strict=True))


def _candidate(variant: Variant, arch: str, cache: Cache) -> Built | Skipped:
    """In a process of its own: the build, and what can be said of it with its instructions at hand."""
    try:
        built = _build(variant, arch, cache, live=False)
    except HarnessError as e:
        return Skipped(variant=variant, arch=arch, error=e)
    return replace(built, sass=None, unmet=unmet(built))


def _outcome(variant: Variant, arch: str, future: Future[Built | Skipped]) -> Built | Skipped:
    try:
        return future.result()
    except BrokenProcessPool:
        error = HarnessError("the process that compiled it was ended", hint=ENDED)
        return Skipped(variant=variant, arch=arch, error=error)


def unmet(built: Built) -> str:
    """Which of the expectations of its file its machine code does not meet, each with what was found."""
    if built.sass is None:
        return built.unmet
    expected = built.variant.kernel.expectations(built.cubin.arch)
    broken = [f for f in check(expected, Code.of(built.cubin, built.sass)) if not f.holds]
    return "; ".join(f"{f.expectation.text} ({f.amount})" for f in broken)


def _build(variant: Variant, arch: str, cache: Cache, *, live: bool = True) -> Built:
    began = time.perf_counter()
    cubin = compile_kernel(variant, arch, cache)
    try:
        sass = disassemble(cubin, cache, live=live)
    except MissingDependency:
        sass = None  # what it would have counted is not what this kernel is measured by
    return Built(variant=variant, cubin=cubin, sass=sass, seconds=time.perf_counter() - began)
