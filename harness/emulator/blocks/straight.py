"""Straight code: instructions that follow one another whatever happens, executed without a look at each.

These are the basic blocks of a kernel, cut where lanes may part, wait or let others run. Where all lanes of a
group come to one together, they leave it together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.emulator.blocks.control import PROGRESS, unit_of
from harness.emulator.instructions.floating.fused import fuse

if TYPE_CHECKING:
    from harness.emulator.decode import Decoder, Run, Step
    from harness.emulator.executable import Executable

_LEAST = 2  # instructions that are worth it


@dataclass(frozen=True)
class Straight:
    """The instructions from `first` up to but not including `end`.

    runs: the functions that execute them, each with the instruction to name where it fails
    progress: how many of them change memory
    """

    first: int
    end: int
    runs: tuple[tuple[int, Run], ...]
    progress: int


def straight(code: Executable, decoder: Decoder) -> dict[int, Straight]:
    """Return the straight code of a kernel, by first instruction."""
    targets = {target for ins in code.entry.instructions for target in ins.targets}
    found: dict[int, Straight] = {}
    first = 0
    for pc, step in enumerate(code.steps):
        if pc in targets:
            _add(found, code, decoder, range(first, pc))
            first = pc
        if not _plain(step, code.paces[pc]):
            _add(found, code, decoder, range(first, pc))
            first = pc + 1
    _add(found, code, decoder, range(first, len(code.steps)))
    return found


def _add(found: dict[int, Straight], code: Executable, decoder: Decoder, pcs: range) -> None:
    if len(pcs) >= _LEAST:
        progress = sum(code.paces[pc] == PROGRESS for pc in pcs)
        found[pcs.start] = Straight(pcs.start, pcs.stop, tuple(_runs(code, decoder, pcs)), progress)


def _runs(code: Executable, decoder: Decoder, pcs: range) -> Iterable[tuple[int, Run]]:
    """Yield what executes straight code, in order; several fma at once where they can be."""
    together = fuse(decoder, [code.entry.instructions[pc] for pc in pcs], code.registers_of)
    for pc in pcs:
        run = together.get(pc, code.steps[pc].run)
        if run is not None:
            yield pc, run


def _plain(step: Step, pace: str) -> bool:
    """Return whether the lanes that come to an instruction go on to the next one, together and at once."""
    ins = step.instruction
    alone = step.run is not None and not step.kind and step.guard < 0 and step.members is None
    if not alone or pace not in ("", PROGRESS) or unit_of(ins):
        return False
    return not any("clock" in text or "timer" in text for text in ins.operands)  # they count instructions
