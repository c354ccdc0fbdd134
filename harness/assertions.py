"""Assertions for test suites, without a GPU: on a variant's machine code, and on its run in the emulator.

`assert_holds` compiles a kernel and checks its SASS. The other assertions emulate it and check for races,
uncoalesced accesses and shared-memory bank conflicts. A failed one raises AssertionError with a message that
shows the instructions or source lines at fault. `harness.pytest_plugin` offers them as fixtures.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

from harness.bench.emulation import Options, row
from harness.bench.row import ERROR, REFUSED, Measurement
from harness.emulator import Counts, Source
from harness.errors import HarnessError, NeedsGpu, UsageError
from harness.kernels.compiler import compile_kernel
from harness.kernels.expectation import parse
from harness.kernels.spec import Variant
from harness.launch.builds import Built
from harness.launch.kernel import unmet
from harness.problems import checks
from harness.problems.protocol import Axes
from harness.problems.registry import resolve
from harness.sass.code import Code
from harness.sass.contract import Finding, check
from harness.sass.instructions import Instruction, disassemble
from harness.support.cache import default as default_cache
from harness.support.tools import find

SHOWN = 40  # instructions of a loop that a message lists, half from each end
EVIDENCE = 4  # counted instructions that a message lists for each failed expectation


def machine_code(variant: Variant, arch: str) -> Code:
    """Compile and disassemble `variant` for `arch`, such as ``"sm_90a"``; both steps use the user's cache."""
    cubin = compile_kernel(variant, arch)
    return Code.of(cubin, disassemble(cubin))


def assert_holds(variant: Variant, arch: str, texts: Sequence[str]) -> Code:
    """Check expectations on the machine code of `variant` for `arch`, and return that code.

    `texts` are expectations such as ``"LDS.128 in loop"``. If there are none, those in the kernel file's
    front matter are checked. Raises AssertionError if one does not hold, and UsageError if there is nothing
    to check.
    """
    wrong = [text for text in texts if not isinstance(text, str)]
    if wrong:
        raise UsageError(f"an expectation is text, not {wrong[0]!r}", hint="such as 'LDS.128 in loop'")
    wanted = [parse(text) for text in texts] or [*variant.expectations(arch)]
    if not wanted:
        raise UsageError(
            f"nothing to check: the file expects nothing of its code for {arch}",
            where=str(variant.kernel.path),
            hint="add a [sass] table to its front matter, or give an expectation",
        )
    code = machine_code(variant, arch)
    findings = check(wanted, code)
    for f in findings:
        if f.note and f.holds:
            warnings.warn(f"{f.expectation}: {f.note}", stacklevel=4)
    if not all(f.holds for f in findings):
        raise AssertionError(message(code, findings))
    return code


def message(code: Code, findings: Sequence[Finding]) -> str:
    """Return the text of an AssertionError for `findings`, of which at least one does not hold.

    It lists the failed expectations with some of the instructions counted for each, then the hot loop; or
    where the most registers are live, if only figures such as ``registers <= 40`` do not hold.
    """
    failed = [f for f in findings if not f.holds]
    lines = [
        f"{code.name}: {len(failed)} of {len(findings)} expectations "
        f"{'does' if len(failed) == 1 else 'do'} not hold"
    ]
    for f in failed:
        lines.append(f"  FAILED {f.expectation}: {counted(f)}")
        lines += [f"    {_instruction(i)}  {code.place(i)}".rstrip() for i in f.evidence[:EVIDENCE]]
        if len(f.evidence) > EVIDENCE:
            lines.append(f"    ... and {len(f.evidence) - EVIDENCE} more")
    if all(f.expectation.kind == "metric" for f in failed):
        return "\n".join([*lines, *_resources(code)])  # no instruction is at fault
    loop = code.hot_loop
    if loop is None:
        return "\n".join([*lines, "the code has no loop"])
    return "\n".join([*lines, f"hot loop at {loop.header:#x}, {len(loop.instructions)} instructions:"]) + (
        "\n" + "\n".join(_listing(code, loop.instructions))
    )


def _resources(code: Code) -> Iterator[str]:
    """Yield what the code takes, and the line at which most registers are live."""
    yield f"{code.registers} registers, {code.shared} B shared, {code.spills} B of spills"
    peak = code.sass.peak
    if peak is not None:
        place = code.place(peak) or f"{peak.address:#x}"
        yield f"most are live ({peak.live}) at {place}: {code.line(peak.line).strip()}".rstrip(": ")


def counted(finding: Finding) -> str:
    """Return the counted amount as text, such as ``4`` or ``28.1%``, and the finding's warning if it has one.

    If nothing could be counted, the text is the reason.
    """
    warned = finding.note and finding.actual is not None
    return f"{finding.amount} ({finding.note})" if warned else finding.amount


def _listing(code: Code, instructions: Sequence[Instruction]) -> Iterator[str]:
    """Yield the lines of a listing: each run of instructions from one source line below that line.

    Of more than `SHOWN` instructions those in the middle are left out.
    """
    half = SHOWN // 2
    left_out = len(instructions) - 2 * half
    at = None
    for n, i in enumerate(instructions):
        if left_out > 0 and half <= n < half + left_out:
            if n == half:
                yield f"  ... {left_out} instructions left out ..."
                at = None
            continue
        if i.line != at:
            at = i.line
            yield f"  {code.place(i) or '(not in the source)'}: {code.line(i.line).strip()}".rstrip(": ")
        yield f"    {_instruction(i)}"


def _instruction(i: Instruction) -> str:
    return f"{i.address:#06x} {i}"


Shape = int | Mapping[str, int | float]  # the problem's axes by name, or N alone


def sizes(variant: Variant) -> list[Axes]:
    """Return the sizes that `harness verify` visits, but those that ``requires`` excludes."""
    cls = resolve(variant.kernel)
    every = list(cls.verify_axes)
    taken = [axes for axes in every if not unmet(variant, checks.instance(cls, axes))]
    return taken or every[:1]  # of one that takes none, the first: its error says which it takes


def emulate(
    variant: Variant,
    arch: str,
    shape: Shape,
    *,
    seed: int = 1,
    schedule: str = "lockstep",
    as_compiled: bool = False,
) -> Measurement:
    """Run `variant`, compiled for `arch`, once in the emulator on inputs from `seed`; return the result.

    `shape` gives the problem's axes by name, or N alone. `schedule` is ``"lockstep"`` or ``"warp-serial"``.
    `as_compiled` counts memory accesses in the widths of the machine code, not those of the PTX. In the
    result `before` is the verdict on the numbers and `emulation` holds the findings and the counts by source
    line.

    Raises HarnessError if the emulator cannot run it.
    """
    cubin = compile_kernel(variant, arch)
    sass = disassemble(cubin) if find("nvdisasm") else None
    cls = resolve(variant.kernel)
    problem = checks.instance(cls, {"N": shape} if isinstance(shape, int) else shape)
    inputs, reference = checks.data(problem, seed)
    options = Options(seed=seed, schedule=schedule, as_compiled=as_compiled, cache=default_cache())
    found = row(Built(variant=variant, cubin=cubin, sass=sass), problem, inputs, reference, options)
    if found.status == ERROR:
        raise HarnessError(found.error)
    if found.status == REFUSED:
        raise NeedsGpu(found.error)
    return found


def assert_race_free(variant: Variant, arch: str, shape: Shape, *, strict: bool = False) -> Measurement:
    """Emulate `variant` on `shape`, assert that the emulator finds nothing wrong, and return the result.

    It finds data races, missing or divergent barriers and waits, and accesses that are out of bounds,
    misaligned or read what nothing has written. With `strict` stores of the same value by several threads
    count, too. Raises AssertionError with all findings; other arguments and errors are those of `emulate`.
    """
    found = emulate(variant, arch, shape)
    findings = found.emulation.findings if found.emulation is not None else ()
    if strict and found.emulation is not None:
        findings += found.emulation.notices
    if findings:
        told = [f"{found.label}, {found.problem.label}: {len(findings)} findings"]
        for f in findings:
            told += [f"  {f.kind}: {f.message}", *(f"    {_quoted(found, source)}" for source in f.sources)]
        raise AssertionError("\n".join(told))
    return found


def assert_right(variant: Variant, arch: str, shape: Shape, *, seed: int = 1) -> Measurement:
    """Emulate `variant` on `shape`, assert that its numbers are right, and return the result.

    Every element of the outputs has to lie within the bound of the problem's reference, as in `harness
    verify`. Findings such as races are not looked at: see `assert_race_free`. Raises AssertionError with the
    verdict; other arguments and errors are those of `emulate`.
    """
    found = emulate(variant, arch, shape, seed=seed)
    if found.before is None:
        raise AssertionError(
            f"{found.label}, {found.problem.label}: its numbers were compared with nothing, for want of a "
            "reference: give it front matter and a problem (`harness new` writes both)"
        )
    if not found.before.ok:
        raise AssertionError(f"{found.label}, {found.problem.label}: {found.before}")
    return found


def _quoted(found: Measurement, source: Source) -> str:
    """Return a source line with its text: ``03_tiled.cu:41: sum += As[ty][k];``."""
    if source.file or found.built is None:
        return str(source)
    kernel = found.built.variant.kernel
    lines = kernel.source.splitlines()
    text = lines[source.line - 1].strip() if 0 < source.line <= len(lines) else ""
    return f"{kernel.path.name}:{source.line}: {text}".rstrip(": ")


def assert_coalesced(variant: Variant, arch: str, shape: Shape, *, max_sectors: float = 4) -> Measurement:
    """Emulate `variant` on `shape`, assert that global accesses are coalesced, and return the result.

    The global requests of each source line must touch at most `max_sectors` 32-byte sectors on average: 4 is
    a warp that reads consecutive floats, 16 one that reads consecutive float4. Raises AssertionError with the
    lines that exceed it; other arguments and errors are those of `emulate`.
    """

    def wrong(c: Counts) -> str:
        average = c.sectors / c.global_requests if c.global_requests else 0
        return f"{average:.3g} sectors a request, more than {max_sectors:g}" if average > max_sectors else ""

    return _by_line(variant, arch, shape, wrong)


def assert_no_bank_conflicts(
    variant: Variant, arch: str, shape: Shape, *, as_compiled: bool = False
) -> Measurement:
    """Emulate `variant` on `shape`, assert that there are no shared-memory bank conflicts, return the result.

    No shared request may take more wavefronts than its width needs. Widths are those of the PTX, or with
    `as_compiled` those of the machine code. Raises AssertionError with the lines that have conflicts; other
    arguments and errors are those of `emulate`.
    """

    def wrong(c: Counts) -> str:
        least = c.wavefronts - c.conflicts
        return f"{c.wavefronts / least:.3g} times the wavefronts that it needs" if c.conflicts else ""

    return _by_line(variant, arch, shape, wrong, as_compiled=as_compiled)


def _by_line(
    variant: Variant, arch: str, shape: Shape, wrong: Callable[[Counts], str], *, as_compiled: bool = False
) -> Measurement:
    """Emulate, and raise AssertionError with every source line for whose counts `wrong` returns a text."""
    found = emulate(variant, arch, shape, as_compiled=as_compiled)
    lines = found.emulation.lines if found.emulation is not None else ()
    told = []
    for c in lines:
        if text := wrong(c):
            told += [f"  {text}", f"    {_quoted(found, c.source)}"]
    if told:
        raise AssertionError("\n".join([f"{found.label}, {found.problem.label}", *told]))
    return found
