"""A parsed program: instructions, entries, and functions that entries call."""

from __future__ import annotations

from dataclasses import dataclass

from harness.emulator.ptx.declarations import Variable
from harness.emulator.ptx.headers import Header, Parameter
from harness.emulator.watch.findings import Source


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """An instruction of an entry.

    index: its number in `Entry.instructions`
    opcode: its dotted parts, ``("ld", "global", "f32")``
    operands: the text of each
    guard, negated: the predicate of ``@p`` or ``@!p``, "" without one
    source: the line of the kernel's source
    ptx_line: the line of the PTX text
    targets: of a branch, the indices of the instructions that it can go to
    """

    index: int
    opcode: tuple[str, ...]
    operands: tuple[str, ...]
    guard: str = ""
    negated: bool = False
    source: Source
    ptx_line: int
    targets: tuple[int, ...] = ()

    def __str__(self) -> str:
        return ".".join(self.opcode)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A kernel of a PTX module.

    variables: its own variables and the module's, by name
    registers: the type of each register, by name
    sizes: bytes in use of each state space; dynamic shared memory is left out
    cluster, blocks, most: those of `Header`
    """

    name: str
    parameters: tuple[Parameter, ...]
    variables: dict[str, Variable]
    registers: dict[str, str]
    sizes: dict[str, int]
    cluster: tuple[int, int, int]
    blocks: int
    most: int
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function that can be called; `body` is None for one that is only declared, such as ``vprintf``.

    Its names are kept with its own in front, so that they are unique in the module. Its parameters are
    registers that hold the addresses of what is passed.
    """

    header: Header
    body: Entry | None = None

    def kept(self, parameter: Parameter) -> str:
        """Return the register of a parameter or result."""
        return f"{self.header.name}:{parameter.name}:1"
