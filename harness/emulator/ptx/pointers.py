"""Which variable in shared memory an access means: C++ lets no pointer leave the array that it was made of.

Of each register it is worked out from which variable its value derives: that of a ``mov`` or ``cvta``, or of
an address plus integers. An access through an address of one variable alone has to stay within it, even
where another one follows.
"""

from __future__ import annotations

import re

from harness.emulator.ptx.declarations import Variable
from harness.emulator.ptx.program import Entry, Instruction

_NUMBER, _MIXED = "", "?"  # what derives from no variable, and what from several, or in another way
_ACCESSES = {"ld", "st", "atom", "red", "cp", "ldmatrix", "stmatrix"}
_VALUES = {"ld", "atom", "shfl", "setp"}  # what these give is taken for a number
_COPIES = {"mov", "cvta", "cvt", "mapa"}
_SUMS = {"add", "or", "mad", "sub"}  # of an address and integers; by `or` where bits are known to be 0
_NAME = re.compile(r"[%$\w.:]+")


def pointed(entry: Entry) -> dict[int, Variable]:
    """Return the variable that each access to static shared memory means, by index of the instruction."""
    shared = {name: v for name, v in entry.variables.items() if v.space == "shared" and not v.frame}
    if len(shared) < 2:  # there is nothing to confuse it with
        return {}
    known = entry.registers.keys() | shared.keys()
    named = [
        (ins, [[name for name in _NAME.findall(text) if name in known] for text in ins.operands])
        for ins in entry.instructions
        if ins.operands
    ]
    writing = [(ins, names) for ins, names in named if names[0] and ins.operands[0][0] != "["]
    bases = {name: name for name in shared}
    changed = True
    while changed:
        changed = False
        for ins, names in writing:
            base = _derived(ins, [_base(some, bases) for some in names[1:]], len(names[0]))
            if base is None:
                continue
            for name in names[0]:
                joined = base if bases.get(name, base) == base else _MIXED
                if bases.get(name) != joined:
                    bases[name], changed = joined, True
    found = {}
    for ins, names in named:
        if ins.opcode[0] in _ACCESSES:
            pairs = [*zip(ins.operands, names, strict=True)][_shared(ins) :]
            address = next((some for text, some in pairs if text.startswith("[")), [])
            variable = shared.get(_base(address, bases) or _NUMBER)
            if variable is not None and variable.size:
                found[ins.index] = variable
    return found


def _shared(ins: Instruction) -> int:
    """Return the number of the operand in shared memory: of bulk stores it is the second one."""
    spaces = [part for part in ins.opcode if part in ("global", "shared::cta")]
    return int("bulk" in ins.opcode and spaces == ["global", "shared::cta"])


def _derived(ins: Instruction, operands: list[str | None], results: int) -> str | None:
    """Return what the result of an instruction derives from, None if that is not known yet.

    operands: what these derive from
    """
    what = ins.opcode[0]
    if what in _VALUES:
        return _NUMBER
    some = {base for base in operands if base != _NUMBER}
    if None in some or not some:
        return None if some else _NUMBER
    if what == "selp":
        return operands[0] if operands[0] == operands[1] else _MIXED
    alone = operands.count(_NUMBER) == len(operands) - 1 and results == 1
    takes = {"mad": operands[-1], "sub": operands[0]}.get(what, next(iter(some)))
    return takes if alone and what in _COPIES | _SUMS and takes else _MIXED


def _base(names: list[str], bases: dict[str, str]) -> str | None:
    """Return what an operand derives from that names these; None if that is not known yet."""
    found = {bases.get(name) for name in names} or {_NUMBER}
    return found.pop() if len(found) == 1 else _MIXED
