"""The modules of a program: the PTX in its fat binaries, with its kernels and variables."""

from __future__ import annotations

import ctypes
import functools
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.emulator.executable import executable
from harness.emulator.ptx.declarations import OPAQUE, Variable, pointers_of, values_of
from harness.emulator.ptx.module import OF_ANOTHER, parse
from harness.emulator.ptx.program import Entry
from harness.errors import EmulatorError
from harness.programs.runtime.memory import MANAGED, VARIABLE, DeviceMemory

# The wrapper that nvcc's code hands over (fatbinary_section.h), and what it points to (as read from such
# files, beside what cuobjdump says of them).
_WRAPPER, _FATBIN, _PTX = 0x466243B1, 0xBA55ED50, 1
_HEADER, _ENTRY = "<IHHQ", "<HHIQ"
_FILE = re.compile(r'^[ \t]*\.file[ \t]+\d+[ \t]+"([^"]*)"[^\n]*\n', re.MULTILINE)
_ACCESS = {"ld", "st", "atom", "red"}
_SAMPLING = {"tex", "tld4", "txq", "suq", "suld", "sust"}


@dataclass(kw_only=True, eq=False)
class Module:
    """A module of PTX text.

    symbols: address of each variable, by its PTX name, once they are in memory
    """

    ptx: str
    symbols: dict[str, int] = field(default_factory=dict)

    @functools.cached_property
    def entries(self) -> dict[str, Entry]:
        """Return the kernels by their PTX names. Raises EmulatorError for PTX that cannot be read."""
        return parse(self.ptx)

    @functools.cached_property
    def variables(self) -> dict[str, Variable]:
        """Return the ``__device__`` and ``__constant__`` variables that its kernels may use, by name."""
        found = (v for entry in self.entries.values() for v in entry.variables.values())
        return {v.name: v for v in found if v.space in ("global", "const") and v.type not in OPAQUE}

    def place(self, memory: DeviceMemory, managed: Sequence[str] = ()) -> dict[str, int]:
        """Put the variables into memory with their initial values, the first time; return their addresses."""
        if self.symbols or not self.variables:
            return self.symbols
        for variable in self.variables.values():
            kind = MANAGED if variable.name in managed else VARIABLE
            found = memory.allocate(variable.size, kind, variable.name)
            if found is None:
                raise EmulatorError(f"no room for the variable {variable.name}")
            memory.view(found.start, found.size)[:] = values_of(variable)
            self.symbols[variable.name] = found.start
        for variable in self.variables.values():
            for offset, name, addend in pointers_of(variable):
                raw = (self.symbols.get(name, 0) + addend).to_bytes(8, "little")
                place = self.symbols[variable.name] + offset
                memory.view(place, 8)[:] = np.frombuffer(raw, np.uint8)
        return self.symbols


def texts(wrapper: int) -> list[str]:
    """Return the PTX in a fat binary at this address.

    Raises EmulatorError if that is none, or has no PTX that can be read.
    """
    magic, _, data, _ = struct.unpack("<IIQQ", ctypes.string_at(wrapper, 24))
    if magic != _WRAPPER:
        raise EmulatorError("the program registers something that is no fat binary")
    magic, _, header, size = struct.unpack(_HEADER, ctypes.string_at(data, struct.calcsize(_HEADER)))
    if magic != _FATBIN:
        raise EmulatorError("the program has a fat binary of another form")
    content = ctypes.string_at(data + header, size)
    found, place = [], 0
    while place + struct.calcsize(_ENTRY) <= len(content):
        kind, _, begin, length = struct.unpack_from(_ENTRY, content, place)
        if kind == _PTX:
            raw = content[place + begin : place + begin + length].rstrip(b"\0")
            found.append(raw.decode(errors="replace"))
        place += begin + length
    return found


def ordered(ptx: str, sources: Sequence[str]) -> str:
    """Return PTX in which the program's own files come first, so that headers are told by who calls."""
    own = [match[0] for match in _FILE.finditer(ptx) if match[1] in sources]
    return OF_ANOTHER + "".join(own) + _FILE.sub(lambda m: "" if m[0] in own else m[0], ptx)


@functools.cache
def grain(module: Module, name: str) -> int:
    """Return the bytes of a kernel's narrowest access to memory, at most 4."""
    least = 4
    for ins in executable(module.ptx, name).entry.instructions:
        if ins.opcode[0] in _ACCESS and "shared" not in ins.opcode and "param" not in ins.opcode:
            bits = re.search(r"\d+", ins.opcode[-1])
            least = min(least, int(bits[0]) // 8) if bits and int(bits[0]) in (8, 16) else least
    return least


@functools.cache
def allocates(module: Module, name: str) -> bool:
    """Return whether a kernel calls malloc, as ``new`` does."""
    found = executable(module.ptx, name).entry.instructions
    return any(ins.opcode[0] == "call" and "malloc" in ins.operands for ins in found)


@functools.cache
def samples(module: Module, name: str) -> bool:
    """Return whether a kernel reads or writes textures or surfaces."""
    found = executable(module.ptx, name).entry.instructions
    return any(ins.opcode[0] in _SAMPLING for ins in found)
