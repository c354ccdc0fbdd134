"""Expectations asserted: machine code of a variant, checked, and a message that shows what does not hold."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

from harness.build import compile_kernel
from harness.code import Code
from harness.contract import Finding, check
from harness.errors import UsageError
from harness.expect import parse
from harness.sass import Instruction, disassemble
from harness.spec import Variant

SHOWN = 40  # instructions of a loop, half from each end
EVIDENCE = 4  # of the instructions that an expectation counted


def machine_code(variant: Variant, arch: str) -> Code:
    """Compiled and disassembled, or from the user's cache."""
    cubin = compile_kernel(variant, arch)
    return Code.of(cubin, disassemble(cubin))


def assert_holds(variant: Variant, arch: str, texts: Sequence[str]) -> Code:
    """The code of which all of `texts` hold, or where there are none, all that the kernel's file expects.

    Raises AssertionError where one does not, and UsageError where there is nothing to check.
    """
    wrong = [text for text in texts if not isinstance(text, str)]
    if wrong:
        raise UsageError(f"an expectation is text, not {wrong[0]!r}", hint="such as 'LDS.128 in loop'")
    wanted = [parse(text) for text in texts] or [*variant.kernel.expectations(arch)]
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
    """For `findings` of which at least one does not hold."""
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
    loop = code.hot_loop
    if loop is None:
        return "\n".join([*lines, "the code has no loop"])
    return "\n".join([*lines, f"hot loop at {loop.header:#x}, {len(loop.instructions)} instructions:"]) + (
        "\n" + "\n".join(_listing(code, loop.instructions))
    )


def counted(finding: Finding) -> str:
    """``4``, ``28.1%``, or why there was nothing to count; a warning behind it."""
    warned = finding.note and finding.actual is not None
    return f"{finding.amount} ({finding.note})" if warned else finding.amount


def _listing(code: Code, instructions: Sequence[Instruction]) -> Iterator[str]:
    """Each run of one source line under that line; a long middle left out."""
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
