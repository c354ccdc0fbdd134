"""Calls become branches: the functions that an entry calls are put before its own instructions.

A function's body is there once, at lower instructions than its callers, so lanes inside it run first and meet
the others after the call. A call moves the addresses of what it passes into registers, and the number of its
own place into another, by which ``ret`` finds back. Parameters and the variables of functions lie in local
memory. A function that may call itself has them in a frame; its caller's registers are pushed before such a
call and popped after it (``call.push``, ``call.pop``). ABI: PTX ISA, "Function Calls", and "Abstracting the
ABI".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter

from harness.emulator.memory import LOCAL_BASE
from harness.emulator.ptx.declarations import Variable, aligned
from harness.emulator.ptx.program import Entry, Function, Instruction
from harness.errors import EmulatorError

FUNCTIONS = 3 << 32  # address of the first function; they lie 16 bytes apart
STACK = 1 << 15  # bytes of frames and of ``alloca`` in a thread
FRAME, TARGET = "call:frame", "call:target"  # registers: the frame's address, and the function to call
STACK_NAME, TOP = "call:stack", "call:top"  # the memory of frames and allocas, and the lowest alloca
ASSERTION = "__assertfail"
_NAME = re.compile(r"[\w$%]+")
Label = tuple[str, int]  # (function, its instruction); -1 - i is the place to which the call i returns


@dataclass
class _Draft:
    """An instruction whose targets are not placed yet."""

    instruction: Instruction
    labels: list[Label] = field(default_factory=list)


def linked(entry: Entry, functions: Mapping[str, Function]) -> Entry:
    """Return an entry with the functions that it calls; the entry itself if it calls none."""
    addresses = {name: FUNCTIONS + 16 * place for place, name in enumerate(functions)}
    variables = {name: _with_addresses(v, addresses) for name, v in entry.variables.items()}
    units = {entry.name: replace(entry, variables=variables)}
    if not any(i.opcode[0] in ("call", "alloca") for i in entry.instructions):
        return units[entry.name]
    linker = _Linker(entry, functions, addresses)
    return linker.link(units[entry.name])


def _with_addresses(variable: Variable, addresses: Mapping[str, int]) -> Variable:
    """Return a variable with the names of functions in its initial values replaced by their addresses."""
    if not variable.values or not addresses:
        return variable
    values = _NAME.sub(lambda m: str(addresses.get(m[0], m[0])), variable.values)
    return replace(variable, values=values)


class _Linker:
    """The state of linking one entry: its functions, and the instructions so far."""

    def __init__(self, entry: Entry, functions: Mapping[str, Function], addresses: Mapping[str, int]) -> None:
        self.entry = entry
        self.functions = functions
        self.addresses = addresses
        self.names = list(functions)
        self.drafts: list[_Draft] = []
        self.labels: dict[Label, int] = {}
        self.sites: dict[str, list[Label]] = {}
        self.bodies: dict[str, Entry] = {n: f.body for n, f in functions.items() if f.body is not None}
        self.calls: dict[str, set[str]] = {}
        self._reach(entry)
        self.recursive = {name for name in self.calls if name in self._below(name)}

    def _reach(self, unit: Entry) -> None:
        """Note which functions a unit may call, and those that they call."""
        called: set[str] = set()
        for ins in unit.instructions:
            if ins.opcode[0] == "call":
                called.update(name for name in self.targets(ins) if name in self.bodies)
        self.calls[unit.name] = called
        for name in sorted(called - self.calls.keys()):
            self._reach(self.bodies[name])

    def _below(self, name: str) -> set[str]:
        """Return the functions that a function may call, directly or not."""
        found: set[str] = set()
        left = set(self.calls[name])
        while left:
            one = left.pop()
            found.add(one)
            left |= self.calls[one] - found
        return found

    def targets(self, ins: Instruction) -> list[str]:
        """Return the functions that a call may go to: the one it names, or all that take as many operands."""
        returned, callee, passed = parts(ins)
        if callee in self.functions:
            return [callee]
        return [
            name
            for name, f in self.functions.items()
            if f.body is not None
            and len(f.header.parameters) == len(passed)
            and len(f.header.returns) == len(returned)
        ]

    def link(self, entry: Entry) -> Entry:
        """Return the entry with all functions that it reaches."""
        units = [self.bodies[name] for name in self._order(entry.name) if name != entry.name]
        first = entry.instructions[0]
        if self.recursive:
            self._move(first, "b64", FRAME, STACK_NAME)
        self._emit(self._instruction(first, ("bra",), ()), (entry.name, 0))
        for unit in units:
            self.sites.setdefault(unit.name, [])
        for unit in (*units, entry):
            self._lower(unit)
        registers = {TARGET: "b64", FRAME: "b64", TOP: "b64"}
        for unit in (*units, entry):
            registers |= unit.registers
            registers[_site(unit.name)] = "b32"
        variables, sizes = self._place(entry, units)
        return replace(
            entry,
            registers=registers,
            variables=variables,
            sizes=sizes,
            instructions=tuple(
                replace(d.instruction, index=place, targets=tuple(self.labels[label] for label in d.labels))
                for place, d in enumerate(self.drafts)
            ),
        )

    def _order(self, root: str) -> list[str]:
        """Return the functions in an order in which, recursion apart, each comes before its callers."""
        graph = {
            name: {c for c in called if name not in self._below(c)} for name, called in self.calls.items()
        }
        try:
            return list(TopologicalSorter(graph).static_order())
        except CycleError:  # cannot be: edges within a cycle were left out
            raise EmulatorError(f"the calls of {root} cannot be put in order") from None

    # -- instructions

    def _emit(self, instruction: Instruction, *labels: Label) -> None:
        self.drafts.append(_Draft(instruction, list(labels)))

    def _instruction(self, at: Instruction, opcode: Iterable[str], operands: Iterable[str]) -> Instruction:
        """Return an instruction that stands for a part of `at`, without a guard."""
        return replace(
            at, opcode=tuple(opcode), operands=tuple(operands), guard="", negated=False, targets=()
        )

    def _move(self, at: Instruction, kind: str, into: str, value: str) -> None:
        """Emit a ``mov``."""
        self._emit(self._instruction(at, ("mov", kind), (into, value)))

    def _lower(self, unit: Entry) -> None:
        """Emit the instructions of a function, or of the entry."""
        for place, ins in enumerate(unit.instructions):
            self.labels[unit.name, place] = len(self.drafts)
            if ins.opcode[0] == "call" and self._is_own(ins):
                self._call(unit, ins)
            elif ins.opcode[0] == "ret" and unit.name in self.sites:
                self._return(unit, ins)
            else:
                named = ins.opcode[0] == "call"
                operands = ins.operands if named else tuple(self._resolved(text) for text in ins.operands)
                labels = [(unit.name, target) for target in ins.targets]
                self._emit(replace(ins, operands=operands), *labels)
                if named and parts(ins)[1] == ASSERTION:  # does not return
                    self._emit(replace(ins, opcode=("exit",), operands=()))
        self.labels[unit.name, len(unit.instructions)] = len(self.drafts)
        if unit.name in self.sites and unit.instructions:
            self._return(unit, replace(unit.instructions[-1], guard="", negated=False))

    def _is_own(self, ins: Instruction) -> bool:
        """Return whether a call goes to a function with a body or through a pointer, not to the system."""
        callee = parts(ins)[1]
        return callee in self.bodies or callee not in self.functions

    def _resolved(self, text: str) -> str:
        """Return an operand; the name of a function becomes its address."""
        return str(self.addresses[text]) if text in self.addresses else text

    def _return(self, unit: Entry, ins: Instruction) -> None:
        """Emit the branch back to the call."""
        sites = self.sites[unit.name]
        draft = _Draft(replace(ins, opcode=("brx", "idx"), operands=(_site(unit.name), "sites")), sites)
        self.drafts.append(draft)

    def _call(self, unit: Entry, ins: Instruction) -> None:
        """Emit a call: what it passes, the branch, and the place to which it returns."""
        returned, callee, passed = parts(ins)
        after, back = (unit.name, ins.index + 1), (unit.name, -1 - ins.index)
        if ins.guard:
            skip = replace(ins, opcode=("bra",), operands=(), negated=not ins.negated)
            self._emit(skip, after)
        candidates = [name for name in self.targets(ins) if name in self.bodies]
        again = any(unit.name in self._below(name) for name in candidates)
        frame = str(self._frame()) if self.recursive & set(candidates) else ""
        if again:
            kept = [n for n in unit.registers if n not in self._results(unit.name)]
            self._emit(self._instruction(ins, ("call", "push"), [*kept, _site(unit.name)]))
        for name in candidates:
            self._pass(ins, name, returned, passed)
            self.sites[name].append(back)
        if frame:
            self._emit(self._instruction(ins, ("add", "s64"), (FRAME, FRAME, frame)))
        if callee in self.bodies:
            self._emit(self._instruction(ins, ("bra",), ()), (callee, 0))
        else:
            self._indirect(ins, callee, candidates, back)
        self.labels[back] = len(self.drafts)
        if frame:
            self._emit(self._instruction(ins, ("sub", "s64"), (FRAME, FRAME, frame)))
        if again:
            self._emit(self._instruction(ins, ("call", "pop"), ()))
        for name in candidates:
            for into, one in zip(returned, self.functions[name].header.returns, strict=False):
                if one.register:
                    self._move(ins, one.type, into, self.functions[name].kept(one))

    def _results(self, name: str) -> set[str]:
        """Return the registers in which a function leaves its results."""
        function = self.functions.get(name)
        return {function.kept(r) for r in function.header.returns if r.register} if function else set()

    def _pass(self, ins: Instruction, name: str, returned: list[str], passed: list[str]) -> None:
        """Emit the moves of what is passed to one function, and of the number of the call."""
        function = self.functions[name]
        head = function.header
        if len(head.parameters) != len(passed) or len(head.returns) != len(returned):
            raise EmulatorError(
                f"a call of {name} with {len(passed)} parameters and {len(returned)} results",
                where=f"PTX line {ins.ptx_line}",
                hint=f"It takes {len(head.parameters)} and gives {len(head.returns)}.",
            )
        for one, actual in zip(head.parameters, passed, strict=True):
            self._move(ins, one.type if one.register else "b64", function.kept(one), self._resolved(actual))
        for one, actual in zip(head.returns, returned, strict=True):
            if not one.register:
                self._move(ins, "b64", function.kept(one), actual)
        self._move(ins, "b32", _site(name), str(len(self.sites[name])))

    def _indirect(self, ins: Instruction, pointer: str, candidates: list[str], back: Label) -> None:
        """Emit the branch to the function whose address a register holds."""
        last = str(len(self.names))
        self._emit(self._instruction(ins, ("sub", "s64"), (TARGET, pointer, str(FUNCTIONS))))
        self._emit(self._instruction(ins, ("shr", "u64"), (TARGET, TARGET, "4")))
        self._emit(self._instruction(ins, ("min", "u64"), (TARGET, TARGET, last)))
        wrong = (f"{back[0]}:wrong", back[1])
        labels = [(name, 0) if name in candidates else wrong for name in self.names]
        self._emit(self._instruction(ins, ("brx", "idx"), (TARGET, "functions")), *labels, wrong)
        self.labels[wrong] = len(self.drafts)
        self._emit(self._instruction(ins, ("call", "nowhere"), (pointer,)))
        self._emit(self._instruction(ins, ("exit",), ()))

    # -- memory

    def _frame(self) -> int:
        """Return the bytes of the largest frame of a recursive function."""
        return max((self._extent(self.bodies[name]) for name in self.recursive), default=0)

    def _extent(self, unit: Entry) -> int:
        """Return the bytes of a function's own variables and parameters in local memory."""
        end = 0
        for variable in unit.variables.values():
            if variable.space in ("local", "param"):
                end = aligned(end, max(variable.align, 1), 0) + variable.size
        return aligned(end, 16, 0)

    def _place(self, entry: Entry, units: list[Entry]) -> tuple[dict[str, Variable], dict[str, int]]:
        """Return all variables, placed, and the bytes of each space."""
        found: dict[str, Variable] = {}
        sizes = {space: size for space, size in entry.sizes.items() if space not in ("local", "param")}
        for name, variable in entry.variables.items():
            found[name] = _put(variable, sizes) if variable.space in ("local", "param") else variable
        for unit in units:
            own: dict[str, int] = {}
            framed = unit.name in self.recursive
            for name, variable in unit.variables.items():
                if variable.space in ("local", "param") and framed:
                    found[name] = replace(_put(variable, own), frame=FRAME)
                else:
                    found[name] = _put(variable, sizes)
        stack = Variable(name=STACK_NAME, space="local", type="b8", offset=0, size=STACK, align=16)
        if self.recursive or any(d.instruction.opcode[0] == "alloca" for d in self.drafts):
            found[STACK_NAME] = _put(stack, sizes)
        start = sizes["shared"] = aligned(sizes.get("shared", 0), 16, 0)
        dynamic = {
            n: replace(v, offset=start) for n, v in found.items() if v.space == "shared" and not v.size
        }
        return found | dynamic, sizes


def _put(variable: Variable, sizes: dict[str, int]) -> Variable:
    """Return a variable at the next free place of its space.

    What a call passes lies in local memory, and its offset is a generic address.
    """
    passes = variable.space == "param"
    space = "local" if passes else variable.space
    offset = aligned(sizes.get(space, 0), max(variable.align, 1), 0)
    sizes[space] = offset + variable.size
    return replace(variable, offset=offset + LOCAL_BASE if passes else offset)


def _site(name: str) -> str:
    """Return the register that holds the number of the call by which a function was entered."""
    return f"{name}:site"


def parts(ins: Instruction) -> tuple[list[str], str, list[str]]:
    """Return (results, function or register, what is passed) of a ``call``."""
    operands = list(ins.operands)
    returned = _listed(operands.pop(0)) if operands and operands[0].startswith("(") else []
    if not operands:
        raise EmulatorError("a call of nothing", where=f"PTX line {ins.ptx_line}")
    callee = operands.pop(0)
    return returned, callee, _listed(operands[0]) if operands and operands[0].startswith("(") else []


def _listed(text: str) -> list[str]:
    """Return the names of ``(a, b)``."""
    return [name.strip() for name in text.strip("()").split(",") if name.strip()]
