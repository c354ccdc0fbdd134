"""Decoding of control flow: branches, exits, and barriers with all their forms (PTX ISA, "bar, barrier").

`pace` tells which instructions other threads may be waiting for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.emulator.watch.faults import fault
from harness.errors import EmulatorError

if TYPE_CHECKING:
    from harness.emulator.decode import Decoder, Run, Step
    from harness.emulator.group import Group
    from harness.emulator.numbers.values import Integer, Lanes
    from harness.emulator.ptx.program import Instruction

POLL, PROGRESS = "poll", "progress"
_ORDERED = {"volatile", "relaxed", "acquire", "mmio", "cv"}
_REDUCING = {"cta", "red", "aligned", "popc", "and", "or", "u32", "pred"}


def control(decoder: Decoder, step: Step) -> None:
    """Fill in the step of a branch, an exit or a barrier. Raises NeedsGpu for a form that is not known."""
    ins = step.instruction
    opcode = ins.opcode[0]
    if opcode == "bra":
        step.kind = "branch"
    elif opcode == "brx":
        step.kind = "table"
        if not ins.targets:
            raise EmulatorError(f"cannot read {decoder.text(ins)!r}", where=decoder.where(ins))
        step.operands = (decoder.integer(ins, ins.operands[0], 32),)
    elif opcode in ("ret", "exit"):
        step.kind = "exit"
    elif opcode == "trap":
        step.kind, step.run = "exit", _trap(ins)
    else:
        _barrier(decoder, step)


_MASKED = {"shfl": 4, "vote": 2, "match": 2, "redux": 2, "elect": 1, "bar": 0, "barrier": 0}
_WHOLE = ("mma", "wmma", "ldmatrix", "stmatrix", "movmatrix")


def members(decoder: Decoder, ins: Instruction) -> Callable[[Group], Integer] | None:
    """Return a reader of the mask of a warp instruction, of all lanes if it has none; None for others."""
    if "sync" not in ins.opcode:
        return None
    if ins.opcode[0] in _WHOLE:
        return lambda group: -1
    place = _MASKED.get(ins.opcode[0], len(ins.operands))
    return decoder.integer(ins, ins.operands[place], 32) if place < len(ins.operands) else None


def _barrier(decoder: Decoder, step: Step) -> None:
    """Fill in the step of a barrier of the block: its number, threads, and for ``bar.red`` the reduction."""
    ins = step.instruction
    parts, operands = set(ins.opcode[1:]), list(ins.operands)
    if "red" in parts and parts <= _REDUCING and len(operands) in (3, 4):
        step.reduce = next(part for part in ("popc", "and", "or") if part in parts)
        step.into = decoder.register(ins, operands.pop(0))
        step.says = decoder.predicate(ins, operands.pop())
    elif not parts <= {"cta", "sync", "arrive", "aligned"} or len(operands) not in (1, 2):
        raise decoder.refusal(ins)
    step.kind, step.arrives = "barrier", "arrive" in parts
    step.operands = tuple(decoder.integer(ins, operand, 32) for operand in operands)


def _trap(ins: Instruction) -> Run:
    """Return the function that reports a ``trap``, which ends a kernel with an error."""

    def run(group: Group, where: Lanes) -> None:
        fault(group, ins, "trap", where, "", 0, "the kernel is aborted here")

    return run


_UNITS = ("wgmma", "mbarrier", "setmaxnreg", "griddepcontrol", "mapa", "stmatrix", "elect")


def unit_of(ins: Instruction) -> str:
    """Return the name under which an instruction of Hopper's asynchronous units is registered, "" for others.

    That is its opcode, and where others share the opcode its second part: ``cp.bulk``, ``st.async``,
    ``barrier.cluster``, ``fence.proxy``, ``prefetch.tensormap``.
    """
    opcode, parts = ins.opcode[0], set(ins.opcode[1:])
    if opcode == "cp":
        for part in ("bulk", "mbarrier"):
            if part in parts:
                return f"cp.{part}"
        return ""
    if opcode in ("st", "red") and "async" in parts:
        return f"{opcode}.async"
    if opcode in ("barrier", "fence", "prefetch"):
        for part in ("cluster", "proxy", "mbarrier_init", "tensormap"):
            if part in parts and (opcode, part) != ("fence", "cluster"):
                return f"{opcode}.{part}"
        return ""
    return opcode if opcode in _UNITS else ""


def asynchronous(ins: Instruction) -> bool:
    """Return whether a kernel with this instruction needs the emulation of asynchronous units.

    ``griddepcontrol`` does nothing here: a grid runs alone. Without it blocks run many side by side.
    """
    return (
        unit_of(ins) not in ("", "elect", "griddepcontrol", "stmatrix")
    ) or "shared::cluster" in ins.opcode


def pace(ins: Instruction) -> str:
    """Return POLL for an instruction by which threads wait for others, PROGRESS if it changes memory.

    An atomic polls; that it changed something is noted where it is executed.
    """
    opcode = ins.opcode[0]
    if opcode in ("atom", "nanosleep", "test_wait") or "test_wait" in ins.opcode:
        return POLL
    if opcode == "ld" and _ORDERED & set(ins.opcode):
        return POLL
    return PROGRESS if opcode in ("st", "red", "cp", "mbarrier", "stmatrix", "wgmma", "bar") else ""
