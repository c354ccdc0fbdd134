"""Behaviour asserted: a kernel run in the emulator, and a message that shows what is not as it should be."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness import problem_checks
from harness.build import compile_kernel
from harness.builds import Built
from harness.cache import default as default_cache
from harness.emulation import Options, row
from harness.emulator import Counts
from harness.errors import HarnessError
from harness.measure import ERROR, Measurement
from harness.problems import resolve
from harness.sass import disassemble
from harness.spec import Variant
from harness.tools import find

Shape = int | Mapping[str, int | float]  # an axis, or N alone


def emulate(
    variant: Variant,
    arch: str,
    shape: Shape,
    *,
    seed: int = 1,
    schedule: str = "lockstep",
    as_compiled: bool = False,
) -> Measurement:
    """One run: `.before` holds the verdict on its numbers, `.emulation` findings and counts by source line.

    Raises HarnessError where the emulator cannot run it.
    """
    cubin = compile_kernel(variant, arch)
    sass = disassemble(cubin) if find("nvdisasm") else None
    cls = resolve(variant.kernel)
    problem = problem_checks.instance(cls, {"N": shape} if isinstance(shape, int) else shape)
    inputs, reference = problem_checks.data(problem, seed)
    options = Options(seed=seed, schedule=schedule, as_compiled=as_compiled, cache=default_cache())
    found = row(Built(variant=variant, cubin=cubin, sass=sass), problem, inputs, reference, options)
    if found.status == ERROR:
        raise HarnessError(found.error)
    return found


def assert_race_free(variant: Variant, arch: str, shape: Shape) -> Measurement:
    """No race, no barrier or wait that is missing or divergent, no access that is out of bounds, misaligned
    or of what nothing wrote.
    """
    found = emulate(variant, arch, shape)
    findings = found.emulation.findings if found.emulation is not None else ()
    if findings:
        told = "\n".join(f"  {f}" for f in findings)
        raise AssertionError(f"{found.label}, {found.problem.label}: {len(findings)} findings\n{told}")
    return found


def assert_coalesced(variant: Variant, arch: str, shape: Shape, *, max_sectors: float = 4) -> Measurement:
    """No source line's global requests touch more than `max_sectors` sectors of 32 bytes on average: 4 is a
    warp of floats in a row, 16 one of float4.
    """

    def wrong(c: Counts) -> str:
        average = c.sectors / c.global_requests if c.global_requests else 0
        return f"{average:.3g} sectors a request, more than {max_sectors:g}" if average > max_sectors else ""

    return _by_line(variant, arch, shape, wrong)


def assert_no_bank_conflicts(
    variant: Variant, arch: str, shape: Shape, *, as_compiled: bool = False
) -> Measurement:
    """No shared request takes more wavefronts than its width needs: as the PTX has it, or with the widths of
    the machine code.
    """

    def wrong(c: Counts) -> str:
        least = c.wavefronts - c.conflicts
        return f"{c.wavefronts / least:.3g} times the wavefronts that it needs" if c.conflicts else ""

    return _by_line(variant, arch, shape, wrong, as_compiled=as_compiled)


def _by_line(
    variant: Variant, arch: str, shape: Shape, wrong: Callable[[Counts], str], *, as_compiled: bool = False
) -> Measurement:
    found = emulate(variant, arch, shape, as_compiled=as_compiled)
    lines = found.emulation.lines if found.emulation is not None else ()
    told = [f"  {c.source}: {text}" for c in lines if (text := wrong(c))]
    if told:
        raise AssertionError("\n".join([f"{found.label}, {found.problem.label}", *told]))
    return found
