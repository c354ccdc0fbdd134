"""Decoding: every PTX instruction becomes a Python function once, before anything runs.

An instruction module registers a maker for an opcode and a family of types with `handles`. The maker gets the
`Decoder` and the instruction and returns the function that executes it, ``run(group, lanes)``. An instruction
without a maker is refused with NeedsGpu, even if it would never be reached.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.emulator.blocks import special
from harness.emulator.blocks.control import control, members, unit_of
from harness.emulator.group import Group, Value
from harness.emulator.numbers.values import Integer, Lanes, shift, signed
from harness.emulator.ptx.declarations import BYTES
from harness.emulator.ptx.literals import literal
from harness.emulator.ptx.program import Entry, Instruction
from harness.emulator.watch.findings import Finding
from harness.errors import EmulatorError, NeedsGpu

Run = Callable[[Group, Lanes], None]
Reader = Callable[[Group], Any]
Maker = Callable[["Decoder", Instruction], "Run | Attempt"]
FLOAT: dict[str, Any] = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
HANDLERS: dict[tuple[str, str], Maker] = {}
_CONTROL = ("bra", "brx", "ret", "exit", "bar", "barrier", "trap")  # control flow, executed by `batch`


def handles(
    *opcodes: str, family: str = "any", flops: int | Callable[[Instruction], int] = 0
) -> Callable[[Maker], Maker]:
    """Register the decorated function as the maker for `opcodes`.

    family: integer, float (f32, f64), half (f16, bf16 and their pairs), pair (f32x2), pred, or any, which is
      used where the instruction's own family has no maker
    flops: floating-point operations that the instruction counts per thread, or a function that returns them
    """

    def register(maker: Maker) -> Maker:
        for opcode in opcodes:
            HANDLERS[opcode, family] = maker
            FLOPS[opcode, family] = flops
        return maker

    return register


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An instruction that may have to wait.

    run: executes it in the lanes that need not wait, and returns them; the others try again later
    describe: returns what the lanes wait for, in words
    """

    run: Callable[[Group, Lanes], Lanes]
    describe: Callable[[Group, Lanes], str]


FLOPS: dict[tuple[str, str], int | Callable[[Instruction], int]] = {}


@dataclass(kw_only=True)
class Step:
    """A decoded instruction.

    run: the function that executes it; None for control flow, which `batch` executes
    members: of an instruction of a warp, reads the mask of the lanes that execute it together
    kind: for control flow ``branch``, ``table`` (brx.idx), ``barrier`` or ``exit``, otherwise ""
    guard: register number of the guard predicate, -1 without one; `negated` is for ``@!p``
    flops: floating-point operations per thread
    operands: functions that read a table's index, or a barrier's number and thread count, from a group
    arrives: the barrier is only arrived at (``bar.arrive``)
    reduce, says, into: of ``bar.red`` the operation, the predicate and the register of the result
    attempt, describe: those of `Attempt`
    """

    instruction: Instruction
    members: Reader | None = None
    run: Run | None = None
    kind: str = ""
    guard: int = -1
    negated: bool = False
    flops: int = 0
    operands: tuple[Reader, ...] = ()
    arrives: bool = False
    reduce: str = ""
    says: Callable[[Group], Lanes] | None = None
    into: int = -1
    attempt: Callable[[Group, Lanes], Lanes] | None = None
    describe: Callable[[Group, Lanes], str] | None = None


def family_of(instruction: Instruction) -> str:
    """Return the family of an instruction's last type: float, half, pair, pred, integer or other."""
    kind = instruction.opcode[-2 if instruction.opcode[-1] == "relu" else -1]  # max.s32.relu
    if kind in ("f32", "f64"):
        return "float"
    if kind in ("f16", "f16x2", "bf16", "bf16x2"):
        return "half"
    if kind == "f32x2":
        return "pair"
    if kind == "pred":
        return "pred"
    return "integer" if re.fullmatch(r"[usb](8|16|32|64)", kind) else "other"


class Decoder:
    """Decodes the instructions of one entry, and gives makers what they need to know of an operand.

    A reader is a function that takes a group and returns an operand's value in it.
    """

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.numbers = {name: number for number, name in enumerate(entry.registers)}

    def steps(self) -> list[Step]:
        """Decode all instructions of the entry, in order.

        Raises NeedsGpu for an instruction that the emulator does not know, EmulatorError for one that it
        cannot read.
        """
        return [self.step(instruction) for instruction in self.entry.instructions]

    def step(self, ins: Instruction) -> Step:
        """Decode one instruction and its guard."""
        guard = self.predicate_number(ins, ins.guard) if ins.guard else -1
        step = Step(instruction=ins, guard=guard, negated=ins.negated)
        opcode, family = unit_of(ins) or ins.opcode[0], family_of(ins)
        if "cc" in ins.opcode and opcode in ("add", "sub", "mad"):
            opcode += ".cc"
        if "warp" in ins.opcode and opcode in ("bar", "barrier"):
            opcode = "bar.warp"
        if opcode == "mma":
            opcode = _matrix_unit(ins)
        key = (opcode, family) if (opcode, family) in HANDLERS else (opcode, "any")
        if key not in HANDLERS and opcode not in _CONTROL:
            raise self.refusal(ins)
        try:
            if opcode in _CONTROL:
                control(self, step)
                return step
            found = HANDLERS[key](self, ins)
            if isinstance(found, Attempt):
                step.kind, step.attempt, step.describe = "attempt", found.run, found.describe
            else:
                step.run = found
        except (IndexError, ValueError, KeyError, StopIteration) as error:
            raise EmulatorError(f"cannot read {self.text(ins)!r}", where=self.where(ins)) from error
        step.members = members(self, ins)
        flops = FLOPS[key]
        step.flops = flops if isinstance(flops, int) else flops(ins)
        return step

    def text(self, ins: Instruction) -> str:
        """Return the instruction as text, without its guard."""
        return f"{ins} {', '.join(ins.operands)}".strip()

    def where(self, ins: Instruction) -> str:
        """Return the source line and the PTX line of an instruction, for messages."""
        return f"{ins.source} (PTX line {ins.ptx_line})"

    def refusal(self, ins: Instruction, what: str = "") -> NeedsGpu:
        """Return the error for an instruction, or for `what` in it, that only a GPU can run."""
        # The first line is the same for all kernels with such an instruction, so it can be printed once.
        return NeedsGpu(
            f"the emulator does not know {what or ins}",
            hint=f"{self.where(ins)}, {self.text(ins)!r}: this kernel needs a GPU",
        )

    def parts(self, ins: Instruction, allowed: Iterable[str]) -> set[str]:
        """Return the opcode's modifiers and types. Raises NeedsGpu for one that is not in `allowed`."""
        found = set(ins.opcode[1:])
        if not found <= set(allowed):
            raise self.refusal(ins)
        return found

    # -- operands

    def register(self, ins: Instruction, name: str) -> int:
        """Return the number of a destination register, -1 for the sink ``_``.

        Raises EmulatorError for a register that was not declared.
        """
        if name == "_":
            return -1
        if name not in self.numbers:
            raise EmulatorError(f"{self.text(ins)!r} names no register {name!r}", where=self.where(ins))
        return self.numbers[name]

    def bits(self, name: str) -> int:
        """Return the width of a declared register in bits."""
        return 8 * BYTES[self.entry.registers[name]]

    def predicate_number(self, ins: Instruction, name: str) -> int:
        """Return the number of a predicate register. Raises EmulatorError if `name` is not one."""
        if self.entry.registers.get(name) != "pred":
            raise EmulatorError(f"{name!r} is no predicate", where=self.where(ins))
        return self.numbers[name]

    def value(self, ins: Instruction, text: str) -> Reader:
        """Return a reader of an operand's value in the form in which it is held, see `group`.

        Raises EmulatorError for a name that was not declared.
        """
        if text in self.numbers:
            number = self.numbers[text]

            def read(group: Group) -> Value:
                found = group.registers[number]
                return unset(group, ins, text) if found is None else found

            return read
        return (
            _constant(self._literal(ins, text)) if not self._symbol(text) else self._symbol_reader(ins, text)
        )

    def integer(self, ins: Instruction, text: str, bits: int) -> Reader:
        """Return a reader of an integer operand; a literal is wrapped to `bits` bits, signed."""
        read = self.value(ins, text)
        if text in self.numbers:
            if self.entry.registers[text] == "pred":
                raise EmulatorError(f"{self.text(ins)!r} takes no predicate {text!r}", where=self.where(ins))
            return lambda group: group.integer(read(group), bits)
        return lambda group: signed(value, bits) if isinstance(value := read(group), int) else value

    def floating(self, ins: Instruction, text: str, dtype: Any) -> Reader:
        """Return a reader of an operand as `dtype`: a scalar, or an array that broadcasts to (T, C).

        Raises EmulatorError for a predicate or a register of another width.
        """
        read = self.value(ins, text)
        if text in self.numbers and self.entry.registers[text] == "pred":
            raise EmulatorError(f"{self.text(ins)!r} takes no predicate {text!r}", where=self.where(ins))
        if text in self.numbers and 8 * np.dtype(dtype).itemsize != self.bits(text):
            raise EmulatorError(f"{self.text(ins)!r}: {text!r} has another width", where=self.where(ins))
        if text in self.numbers:
            number = self.numbers[text]

            def read_float(group: Group) -> Any:
                found = group.registers[number]
                if found.__class__ is np.ndarray and found.dtype.type is dtype:
                    return found
                return group.floating(read(group), dtype)

            return read_float
        literal = self._literal(ins, text)
        found = literal if not isinstance(literal, int) else dtype(literal)
        return _constant(dtype(found))

    def predicate(self, ins: Instruction, text: str) -> Callable[[Group], Lanes]:
        """Return a reader of a predicate operand, ``p`` or ``!p``."""
        negated = text.startswith("!")
        read = self.value(ins, text.lstrip("!"))
        if text.lstrip("!") in self.numbers:
            self.predicate_number(ins, text.lstrip("!"))
        if negated:
            return lambda group: group.algebra.negate(_lanes(read(group)))
        return lambda group: _lanes(read(group))

    def address(self, ins: Instruction, text: str) -> Callable[[Group], tuple[Integer, int]]:
        """Return a reader of an address ``[base + offset]``: (value of the base, offset in bytes)."""
        match = re.fullmatch(r"\[\s*([\w$%.:]+)\s*(?:\+\s*(-?\w+)|(-\s*\w+))?\s*\]", text)
        if not match:
            raise EmulatorError(f"cannot read the address {text!r}", where=self.where(ins))
        offset = int((match[2] or match[3] or "0").replace(" ", ""), 0)
        read = self.integer(ins, match[1], 64)
        return lambda group: (read(group), offset)

    def _symbol(self, text: str) -> bool:
        """Return whether an operand names a variable or a special register."""
        named = text in self.entry.variables or any(text == p.name for p in self.entry.parameters)
        return named or text.startswith("%") or text == "WARP_SZ"

    def _symbol_reader(self, ins: Instruction, text: str) -> Reader:
        """Return a reader of a variable's address or of a special register.

        Raises EmulatorError for an unknown name.
        """
        if text in self.entry.variables:
            if self.entry.variables[text].space == "shared":
                return lambda group: group.launch.symbols[text] + group.batch.base
            frame = self.entry.variables[text].frame
            if not frame:
                return lambda group: group.launch.symbols[text]
            base = self.integer(ins, frame, 64)
            return lambda group: shift(base(group), group.launch.symbols[text])
        if any(text == parameter.name for parameter in self.entry.parameters):
            return lambda group: group.launch.symbols[text]
        read = special.reader(text, ins.index)
        if read is None:
            raise EmulatorError(
                f"{self.text(ins)!r} reads {text!r}, which nobody declares", where=self.where(ins)
            )
        return read

    def _literal(self, ins: Instruction, text: str) -> Any:
        """Return the value of a literal, an int or a NumPy float; of a parameter its offset."""
        found = literal(text)
        if found is None:
            raise EmulatorError(
                f"{self.text(ins)!r} reads {text!r}, which nobody declares", where=self.where(ins)
            )
        return found


def _matrix_unit(ins: Instruction) -> str:
    """Return the name under which an ``mma`` is registered; sparse ones and Volta's have their own."""
    if ins.opcode[1:2] in (("sp",), ("sp::ordered_metadata",)):
        return "mma.sp"
    return "mma.m8n8k4" if {"m8n8k4", "f16"} <= set(ins.opcode) else "mma"


def _constant(value: Any) -> Reader:
    """Return a reader that always returns `value`."""
    return lambda group: value


def _lanes(value: Value) -> Lanes:
    """Return a predicate's value as lanes; of an integer all lanes if it is not 0."""
    return bool(value) if isinstance(value, int) else value


def unset(group: Group, ins: Instruction, name: str) -> Value:
    """Report the read of a register that was never written, and return zero or a false predicate."""
    launch = group.launch
    if launch.check:

        def make() -> Finding:
            return Finding(
                kind="uninitialised read",
                message=f"{ins} reads register {name} before anything wrote it",
                sources=(ins.source,),
                variable=name,
            )

        launch.findings.add("uninitialised read", (ins.index, name), 1, make)
    return False if launch.entry.registers[name] == "pred" else 0
