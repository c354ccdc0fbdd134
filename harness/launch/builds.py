"""Compile and disassemble a selection of variants, several at a time; those that fail are skipped."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self

from harness.errors import BuildError, HarnessError, MissingDependency, SpecError, UsageError
from harness.kernels.compiler import Cubin, compile_kernel
from harness.kernels.spec import Variant
from harness.problems.protocol import Problem
from harness.problems.registry import resolve
from harness.sass.code import Code
from harness.sass.contract import check
from harness.sass.instructions import Sass, Tally, disassemble
from harness.sass.occupancy import Occupancy, occupancy
from harness.support.cache import Cache
from harness.support.daemons import Daemons, Overdue
from harness.support.processes import ENDED, cores, outcome, processes

if TYPE_CHECKING:
    from harness.launch.kernel import Launch
    from harness.launch.operands import Operands

_SECONDS = "HARNESS_COMPILE_SECONDS"
_MOST_SECONDS = 120
Progress = Callable[[str], None]  # called with a short text about each step that begins
# How far a kernel is built: to its cubin; to its instructions, which takes ten times as long if it is small;
# to the number of registers that are live at each, which takes twice as long again.
Depth = Literal["cubin", "sass", "live"]


@dataclass(frozen=True, kw_only=True)
class Built:
    """A variant compiled and disassembled: everything known about it without a GPU. It is a `Runnable`.

    `sass` is None if nvdisasm was not asked (`Depth`) or is not installed, and also if the build comes from
    another process (`building`), because instructions are too large to send. Such a build has instead their
    summary in `tally`, and in `unmet` those of the kernel file's expectations that they do not meet, as text.
    `seconds` is the time that the build took on the host; from the cache it is close to 0.
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

    def __repr__(self) -> str:
        return f"<Built {self.label}, {self.cubin.arch}>"

    @property
    def label(self) -> str:
        """The kernel's name and all its parameters, such as ``03_tiled TILE=16``."""
        return self.variant.label

    @property
    def dtype(self) -> str:
        """The name of the element type in which it multiplies, such as ``"bf16"``."""
        return self.variant.kernel.dtype

    @property
    def built(self) -> Self:
        """This object, as the machine code of a `Runnable`."""
        return self

    def serves(self, problem: Problem) -> bool:
        """Return True if `problem` is of the class that the kernel's file names."""
        return resolve(self.variant.kernel) is type(problem)

    def check(self, problem: Problem, *, sms: int) -> None:
        """Raise UsageError if it cannot be launched for `problem` on a GPU with `sms` multiprocessors."""
        from harness.launch import kernel

        kernel.grid(self.variant, problem, sms=sms)

    def prepare(self, operands: Operands) -> Launch:
        """Load the code and bind it to `operands`; see `harness.launch.kernel.prepare`."""
        from harness.launch import kernel  # inspecting machine code needs no CUDA driver

        return kernel.prepare(self.cubin, operands)

    def same_code(self, other: Built) -> bool:
        """Return True if both have the same instructions, block, tile and shared memory.

        Their times then differ only by noise. False if the instructions of either are not known.
        """
        if self.tally is None or other.tally is None:
            return False
        a, b = self.variant, other.variant
        launched = (a.block, a.tile, a.shared) == (b.block, b.tile, b.shared)
        return launched and self.tally.sha256 == other.tally.sha256

    @property
    def occupancy(self) -> Occupancy:
        """The theoretical occupancy, calculated from threads, registers and shared memory without a GPU."""
        threads, registers = self.variant.threads, self.cubin.resources.registers
        return occupancy(self.cubin.arch, threads=threads, registers=registers, shared=self.cubin.shared)

    @property
    def intensity(self) -> float | None:
        """The FLOP per byte loaded from global memory; None if the front matter has no ``loads``."""
        loads = self.variant.loads
        return None if loads is None else resolve(self.variant.kernel).intensity(self.variant.tile, loads)


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A variant that could not be built for `arch`, and the `error` that says why."""

    variant: Variant
    arch: str
    error: HarnessError

    @property
    def failed(self) -> bool:
        """True if the kernel is at fault; False if it is merely not meant for this architecture or choice."""
        return isinstance(self.error, SpecError) or not isinstance(self.error, UsageError)


def build_all(
    variants: Sequence[Variant],
    archs: Sequence[str],
    cache: Cache,
    progress: Progress,
    *,
    some: bool = True,
    until: float = math.inf,
    end: float = math.inf,
    depth: Depth = "sass",
) -> tuple[list[Built], list[Skipped]]:
    """Compile each variant for each architecture in several threads, and disassemble it if `depth` says so.

    Returns what was built and what could not be, each in the order of `archs` and then `variants`. If nothing
    could be built, raises the first variant's HarnessError, except with `some` False. `progress` is called as
    each result is awaited. Once something is built, what is not before the monotonic clock shows `until` is
    in neither. What has no front matter is not compiled beyond `end`, nor longer than `compile_seconds`.
    """
    built: list[Built] = []
    skipped: list[Skipped] = []
    jobs = [(variant, arch) for arch in archs for variant in variants]
    limit = compile_seconds()
    with Daemons(min(cores(), max(1, len(jobs)))) as pool:
        begun = [(job, pool.submit(functools.partial(_build, *job, cache, depth, end))) for job in jobs]
        for (variant, arch), future in begun:
            progress(f"build {variant.label} {arch}")
            if until < math.inf and not pool.ended(future, until) and (built or _any(begun)):
                continue
            try:
                built.append(pool.result(future, limit))
            except HarnessError as e:
                skipped.append(Skipped(variant=variant, arch=arch, error=e))
            except Overdue:
                late = BuildError(
                    f"{variant.label} is not compiled for {arch} after {limit:g} s",
                    where=str(variant.kernel.path),
                    hint=f"{_SECONDS} sets another limit",
                )
                skipped.append(Skipped(variant=variant, arch=arch, error=late))
    if some and skipped and not built:
        raise skipped[0].error
    return built, skipped


def _any(begun: Iterable[tuple[object, Future[Built]]]) -> bool:
    """Return True if one of these jobs has built something."""
    return any(future.done() and future.exception() is None for _, future in begun)


def compile_seconds() -> float:
    """Return how many seconds a kernel may take to be compiled: ``HARNESS_COMPILE_SECONDS``, or else 120.

    NVRTC cannot be stopped, and a macro that doubles thirty times keeps it busy for years.
    """
    text = os.environ.get(_SECONDS, "")
    try:
        found = float(text or _MOST_SECONDS)
    except ValueError:
        found = math.nan
    if not found > 0:
        raise UsageError(f"{_SECONDS}={text} is no number of seconds")
    return found


@contextmanager
def building(
    variants: Sequence[Variant], arch: str, cache: Cache, done: Callable[[], object]
) -> Iterator[Iterator[Built | Skipped]]:
    """Compile and disassemble each variant for `arch` in other processes, while the block runs.

    Yields an iterator over the outcomes, in the order of `variants`; it waits for each while later ones are
    being compiled. `done` is called after each build, from another thread. Leaving the block cancels what has
    not begun.

    Processes, not threads: parsing nvdisasm's output takes the interpreter as long as a measurement does, and
    threads would take it from the one that feeds the GPU.
    """
    with processes(min(cores(spared=1), max(1, len(variants)))) as pool:
        futures = [pool.submit(_candidate, variant, arch, cache) for variant in variants]
        for future in futures:
            future.add_done_callback(lambda f: None if f.cancelled() else done())
        yield (_outcome(pool, v, arch, f) for v, f in zip(variants, futures, strict=True))


def _candidate(variant: Variant, arch: str, cache: Cache) -> Built | Skipped:
    """Build a variant in a worker process, and replace its instructions by `tally` and `unmet`."""
    try:
        built = _build(variant, arch, cache, "sass")
    except HarnessError as e:
        return Skipped(variant=variant, arch=arch, error=e)
    return replace(built, sass=None, unmet=unmet(built))


def _outcome(
    pool: ProcessPoolExecutor, variant: Variant, arch: str, future: Future[Built | Skipped]
) -> Built | Skipped:
    """Return the result of `_candidate`, or a `Skipped` if its process was ended."""
    try:
        return outcome(pool, future)
    except BrokenProcessPool:
        error = HarnessError("the process that compiled it was ended", hint=ENDED)
        return Skipped(variant=variant, arch=arch, error=error)


def unmet(built: Built) -> str:
    """Return the expectations in the kernel's file that its machine code does not meet, or "".

    Each is followed by the amount found; several are joined by ``"; "``.
    """
    if built.sass is None:
        return built.unmet
    expected = built.variant.expectations(built.cubin.arch)
    broken = [f for f in check(expected, Code.of(built.cubin, built.sass)) if not f.holds]
    return "; ".join(f"{f.expectation.text} ({f.amount})" for f in broken)


def _build(variant: Variant, arch: str, cache: Cache, depth: Depth, end: float = math.inf) -> Built:
    """Compile one variant, and disassemble it if `depth` says so."""
    began = time.perf_counter()
    cubin = compile_kernel(variant, arch, cache, until=min(end, time.monotonic() + compile_seconds()))
    try:
        sass = None if depth == "cubin" else disassemble(cubin, cache, live=depth == "live")
    except MissingDependency:
        sass = None  # without nvdisasm the kernel can still be verified and timed
    return Built(variant=variant, cubin=cubin, sass=sass, seconds=time.perf_counter() - began)
