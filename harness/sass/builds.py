"""A selection of variants -> each compiled and disassembled, or skipped with its reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace

from harness.dispatch import choose
from harness.dispatch.split import Part, brief, divided
from harness.errors import HarnessError, MissingDependency, SpecError, UsageError
from harness.kernels.compiler import Cubin, compile_kernel
from harness.kernels.spec import Variant
from harness.problems.gemm import Gemm
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
    """One variant compiled and disassembled: everything known without a GPU.

    `sass` is None where nvdisasm is not installed. A build of `building` comes without it, too, since it is
    passed from process to process; `tally` is what is left of it, and `unmet` says which of the file's
    expectations it does not meet. `seconds` is what it took, next to nothing from the cache.
    `chosen_for`, where it is the dispatcher that is measured, are the problems for which it takes this
    variant, each with the launches that make it; `others` the code of those beside this variant's. None for
    a kernel that was named itself.
    """

    variant: Variant
    cubin: Cubin
    sass: Sass | None
    tally: Tally | None = None
    unmet: str = ""
    seconds: float = 0.0
    chosen_for: Mapping[Problem, tuple[Part, ...]] | None = None
    others: tuple[Cubin, ...] = ()

    def __post_init__(self) -> None:
        if self.tally is None and self.sass is not None:
            object.__setattr__(self, "tally", self.sass.tally)

    @property
    def label(self) -> str:
        """``03_tiled TILE=16``, or ``matmul -> 15_split_k SPLIT=4``: there only what is not a default."""
        return self.variant.label if self.chosen_for is None else f"{choose.NAME} -> {self.brief}"

    @property
    def brief(self) -> str:
        """Of all its launches."""
        return brief([self.variant, *(cubin.variant for cubin in self.others)])

    def serves(self, problem: Problem) -> bool:
        """Whether it is to be run on this problem."""
        if self.chosen_for is not None:
            return isinstance(problem, Gemm) and problem in self.chosen_for
        return resolve(self.variant.kernel) is type(problem)

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


def build_chosen(
    problems: Sequence[Gemm], arch: str, cache: Cache, progress: Progress, *, sms: int, gpu: str
) -> tuple[list[Built], list[Skipped]]:
    """What `harness.matmul` runs for each of these problems on such a GPU, each kernel or pair once."""
    chosen: dict[str, dict[Problem, tuple[Part, ...]]] = {}
    for problem in problems:
        shape, dtype = (problem.M, problem.N, problem.K), problem.dtype.name
        made = divided(*shape, sms=sms, arch=arch, gpu=gpu, dtype=dtype)
        chosen.setdefault(brief(part.variant for part in made), {})[problem] = made
    variants = {p.variant.label: p.variant for by in chosen.values() for made in by.values() for p in made}
    built, skipped = build_all(list(variants.values()), [arch], cache, progress)
    known = {one.variant.label: one for one in built}
    found = []
    for by in chosen.values():
        labels = [part.variant.label for part in next(iter(by.values()))]
        if all(label in known for label in labels):
            main, *rest = (known[label] for label in labels)
            found.append(replace(main, chosen_for=by, others=tuple(one.cubin for one in rest)))
    return found, skipped


def _build(variant: Variant, arch: str, cache: Cache, *, live: bool = True) -> Built:
    began = time.perf_counter()
    cubin = compile_kernel(variant, arch, cache)
    try:
        sass = disassemble(cubin, cache, live=live)
    except MissingDependency:
        sass = None  # what it would have counted is not what this kernel is measured by
    return Built(variant=variant, cubin=cubin, sass=sass, seconds=time.perf_counter() - began)
