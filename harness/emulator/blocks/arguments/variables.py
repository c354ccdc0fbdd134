"""A module's variables in an emulated launch, and what else a kernel needs in memory."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from harness.emulator.instructions.texture.objects import Texture
from harness.emulator.memory import GLOBAL_BASE, HEAP, HEAP_BYTES, WORKSPACE, Arena, Buffer
from harness.emulator.ptx.declarations import OPAQUE, Variable, pointers_of, values_of
from harness.emulator.ptx.program import Entry
from harness.errors import EmulatorError

_WORD = re.compile(r"[\w$%]+")
_PARAMETERS = "the parameters"  # the buffer that holds them where a kernel takes the address of one


def bind_textures(kernel: Entry, textures: Mapping[str, Texture]) -> dict[str, Texture]:
    """Return the objects of the texture and surface references that a kernel uses, by name.

    Raises EmulatorError for a reference that is not bound, or a name that is none.
    """
    references = {v.name for v in kernel.variables.values() if v.type in OPAQUE[:2]}
    if unknown := sorted(textures.keys() - references):
        known = ", ".join(sorted(references)) or "none"
        raise EmulatorError(
            f"no texture or surface reference {unknown[0]!r}", hint=f"The module has {known}."
        )
    text = " ".join(operand for i in kernel.instructions for operand in i.operands) if references else ""
    used = references & set(_WORD.findall(text))
    if unbound := sorted(used - textures.keys()):
        raise EmulatorError(
            f"{kernel.name} reads the texture reference {unbound[0]!r}, which is not bound",
            hint=f"Pass emulate(..., textures={{{unbound[0]!r}: Texture(...)}}), or pass texture objects.",
        )
    return {name: textures[name] for name in used}


def reached(kernel: Entry, given: Collection[str]) -> list[Variable]:
    """Return the variables of the module in memory that a kernel reads, or others that it reads lead to.

    So are those that are `given`. A module of templates has thousands of others.
    """
    words = {word for i in kernel.instructions for o in i.operands for word in _WORD.findall(o)}
    found = dict[str, Variable]()
    left = [*(words & kernel.variables.keys()), *(n for n in given if n in kernel.variables)]
    while left:
        name = left.pop()
        if name not in found:
            found[name] = kernel.variables[name]
            left += [n for _, n, _ in pointers_of(found[name]) if n in kernel.variables]
    in_memory = (v for v in kernel.variables.values() if v.name in found and v.space in ("global", "const"))
    return [v for v in in_memory if v.type not in OPAQUE]


def own_buffers(kernel: Entry) -> list[Buffer]:
    """Return the buffers that the kernel needs of its own: malloc's heap, the grid's barrier, parameters."""
    found = []
    if any(i.opcode[0] == "call" and "malloc" in i.operands for i in kernel.instructions):
        found.append(Buffer(array=np.zeros(HEAP_BYTES, np.uint8), name=HEAP, initialised=False))
    if any("%envreg1" in i.operands for i in kernel.instructions):
        found.append(Buffer(array=np.zeros(8, np.uint8), name=WORKSPACE))
    names = {p.name for p in kernel.parameters}
    if any(i.opcode[0] == "mov" and names & set(i.operands) for i in kernel.instructions):
        size = max(p.offset + p.size for p in kernel.parameters)
        found.append(Buffer(array=np.zeros(size, np.uint8), name=_PARAMETERS))
    return found


def point(
    kernel: Entry, arena: Arena, symbols: dict[str, int], space: bytes, module: Sequence[Variable]
) -> None:
    """Put addresses where they belong: in initial values that name variables, and of parameters in `symbols`.

    space: the bytes of the parameters
    module: the variables that have buffers, where those that the launch begins with have no addresses yet
    """
    block = next((a for a in arena.allocations if a.name == _PARAMETERS), None)
    octets = arena.view(1)
    if block is not None:
        octets[block.start - GLOBAL_BASE : block.end - GLOBAL_BASE] = np.frombuffer(space, np.uint8)
        symbols |= {p.name: block.start + p.offset for p in kernel.parameters}
    for variable in module:
        for offset, name, addend in pointers_of(variable):
            if name not in symbols:
                raise EmulatorError(
                    f"variable {variable.name} starts with the address of {name!r}, which is none"
                )
            start = symbols[variable.name] - GLOBAL_BASE + offset
            octets[start : start + 8] = np.frombuffer(
                (symbols[name] + addend).to_bytes(8, "little"), np.uint8
            )


def first_bytes(variable: Variable, given: Mapping[str, NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Return the bytes of a variable of the module: those `given`, else its initial values, zero without any.

    Raises EmulatorError if those given are not as many as the variable has.
    """
    found = given.get(variable.name)
    if found is None:
        return values_of(variable)
    if found.dtype != np.uint8 or found.shape != (variable.size,):
        raise EmulatorError(f"variable {variable.name} has {variable.size} bytes, not {found.nbytes}")
    return found
