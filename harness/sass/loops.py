"""Machine instructions -> basic blocks and loops, from the branches that stand in the code.

A loop is a natural loop (Aho et al., Compilers, 2nd ed., 9.6.6): a branch back to a block that dominates
it, and every block from which that branch is reached without passing through its header. Loops that share a
header are one. Targets of indirect branches (BRX, of a switch) are not in the code: blocks that nothing else
reaches count as those of the last one before them, and without one as entries of their own. A call of another
function (a division's slow path, say) comes back; a function is what a RET ends, for not all have a name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.sass.instructions import Instruction

# Opcodes whose operand is the address of the next instruction, and those after which there is none.
_JUMPS = {"BRA", "JMP", "CALL"}
_INDIRECT = {"BRX", "BRXU", "JMX", "JMXU"}
_ENDS = {"EXIT", "RET", "KILL"} | _INDIRECT
_TARGET = re.compile(r"(?:^|,)(0x[0-9a-f]+)$")

# What a kernel is there for: the arithmetic that marks the hot loop. A matrix instruction does most of it.
MATRIX = frozenset(
    [
        *("HMMA", "IMMA", "DMMA", "BMMA", "QMMA", "OMMA", "HGMMA", "IGMMA", "QGMMA", "BGMMA"),
        *("UTCHMMA", "UTCIMMA", "UTCQMMA", "UTCOMMA"),
    ]
)
ARITHMETIC = MATRIX | frozenset(
    ["FFMA", "FFMA2", "DFMA", "HFMA2", "FADD", "FMUL", "DADD", "DMUL", "HADD2", "HMUL2", "IDP", "IMAD"]
)


@dataclass(frozen=True)
class Block:
    """Instructions with one way in and one way out; `start` and `end` index the kernel's instructions."""

    start: int
    end: int
    successors: tuple[int, ...]


@dataclass(frozen=True)
class Loop:
    """`header` is the address of its first block; `depth` 1 is outermost; `innermost` has no loop inside."""

    header: int
    depth: int
    innermost: bool
    instructions: tuple[Instruction, ...]

    def count(self, pattern: str) -> int:
        return sum(i.matches(pattern) for i in self.instructions)

    @cached_property
    def addresses(self) -> frozenset[int]:
        return frozenset(i.address for i in self.instructions)

    def contains(self, other: Loop) -> bool:
        return other.header != self.header and other.header in self.addresses

    @property
    def arithmetic(self) -> int:
        """How many of its instructions `is_arithmetic`."""
        return sum(is_arithmetic(i) for i in self.instructions)

    @property
    def work(self) -> tuple[int, int]:
        """(matrix instructions, arithmetic): by this loops are ranked, so any with the former come first."""
        return sum(i.opcode.split(".")[0] in MATRIX for i in self.instructions), self.arithmetic

    @property
    def last(self) -> int:
        """Address of its last instruction."""
        return self.instructions[-1].address


def is_arithmetic(i: Instruction) -> bool:
    """Of `ARITHMETIC`; IMAD only as a real multiply-add, since compilers move with it."""
    base, *modifiers = i.opcode.split(".")
    return base in ARITHMETIC and not (base == "IMAD" and modifiers)


def blocks(instructions: Sequence[Instruction]) -> list[Block]:
    """The basic blocks in address order; `successors` index the list."""
    index_of = {i.address: n for n, i in enumerate(instructions)}
    targets = {n: index_of.get(_target(i), -1) for n, i in enumerate(instructions)}
    calls = [n for n, t in targets.items() if t >= 0 and _base(instructions[n]) == "CALL"]
    called = {n for n in calls if _returns(instructions[targets[n] :])}
    leaders = {0} | {t for t in targets.values() if t >= 0}
    leaders |= {n + 1 for n, i in enumerate(instructions) if _base(i) in _JUMPS | _ENDS}
    starts = sorted(n for n in leaders if n < len(instructions))
    number = {start: k for k, start in enumerate(starts)}
    ends = [*starts[1:], len(instructions)] if starts else []
    successors: list[list[int]] = []
    for end in ends:
        jumps = targets[end - 1] >= 0 and end - 1 not in called
        following = [targets[end - 1]] if jumps else []
        if end < len(instructions) and (end - 1 in called or _falls_through(instructions[end - 1])):
            following.append(end)
        successors.append([number[s] for s in following])
    reached = {s for following in successors for s in following}
    switch = None
    for k, end in enumerate(ends):
        if switch is not None and k not in reached:
            successors[switch].append(k)
        if _base(instructions[end - 1]) in _INDIRECT:
            switch = k
    return [
        Block(start, end, tuple(dict.fromkeys(following)))
        for start, end, following in zip(starts, ends, successors, strict=True)
    ]


def loops(instructions: Sequence[Instruction]) -> tuple[Loop, ...]:
    """Every loop, outer before inner, in address order of their headers."""
    graph = blocks(instructions)
    before: list[list[int]] = [[] for _ in graph]
    for k, block in enumerate(graph):
        for s in block.successors:
            before[s].append(k)
    immediate = _dominators(graph, before)
    bodies: dict[int, set[int]] = {}
    for tail, block in enumerate(graph):
        for header in block.successors:
            if _dominates(header, tail, immediate) and not _is_trap(instructions, block, tail == header):
                body = bodies.setdefault(header, {header})
                todo = [tail]
                while todo:
                    k = todo.pop()
                    if k not in body:
                        body.add(k)
                        todo += before[k]
    found = []
    for header, body in sorted(bodies.items()):
        outside = [b for h, b in bodies.items() if h != header and body < b]
        inside = [b for h, b in bodies.items() if h != header and b < body]
        code = [i for k in sorted(body) for i in instructions[graph[k].start : graph[k].end]]
        found.append(
            Loop(instructions[graph[header].start].address, len(outside) + 1, not inside, tuple(code))
        )
    return tuple(sorted(found, key=lambda loop: (loop.header, loop.depth)))


def hot_loop(found: Sequence[Loop]) -> Loop | None:
    """The innermost loop with the most work; the first of equals; None where there is no loop. Loops inside
    that do none of it do not count: a wait for a barrier, say, or copies in a loop of matrix instructions.
    """
    matrix = any(loop.work[0] for loop in found)
    busy = [loop for loop in found if loop.work[not matrix]]
    innermost = [loop for loop in found if not any(loop.contains(other) for other in busy)]
    return max(innermost, key=lambda loop: (loop.work, len(loop.instructions)), default=None)


def _dominators(graph: Sequence[Block], before: Sequence[Sequence[int]]) -> list[int]:
    """Each block's immediate dominator, by the algorithm of Cooper, Harvey and Kennedy ("A Simple, Fast
    Dominance Algorithm", 2001). A last element stands for a root before every entry: block 0 and those that
    nothing leads to. Blocks that no entry leads to (a loop around itself) are entries, too.
    """
    root = len(graph)
    order: list[int] = []
    seen = [False] * root
    entries: set[int] = set()
    candidates = [k for k in range(root) if k == 0 or not before[k]]
    for entry in (*candidates, *range(root)):
        if seen[entry]:
            continue
        entries.add(entry)
        seen[entry] = True
        stack = [(entry, iter(graph[entry].successors))]
        while stack:
            k, following = stack[-1]
            s = next((s for s in following if not seen[s]), None)
            if s is None:
                order.append(k)
                stack.pop()
            else:
                seen[s] = True
                stack.append((s, iter(graph[s].successors)))
    number = {k: n for n, k in enumerate(order)} | {root: root}  # in postorder
    immediate = [root if k in entries else -1 for k in range(root)] + [root]

    def common(a: int, b: int) -> int:
        while a != b:
            while number[a] < number[b]:
                a = immediate[a]
            while number[b] < number[a]:
                b = immediate[b]
        return a

    changed = True
    while changed:
        changed = False
        for k in reversed(order):
            if k in entries:
                continue
            new = -1
            for p in before[k]:
                if immediate[p] >= 0:
                    new = p if new < 0 else common(p, new)
            if new != immediate[k]:
                immediate[k], changed = new, True
    return immediate


def _dominates(block: int, other: int, immediate: Sequence[int]) -> bool:
    while other != block and other != immediate[other]:
        other = immediate[other]
    return other == block


def _is_trap(instructions: Sequence[Instruction], block: Block, to_itself: bool) -> bool:
    """The branch to itself that compilers put after the last EXIT."""
    return to_itself and block.end - block.start == 1 and not _falls_through(instructions[block.start])


def _target(i: Instruction) -> int:
    match = _TARGET.search(i.operands) if _base(i) in _JUMPS else None
    return int(match[1], 16) if match else -1


def _returns(code: Sequence[Instruction]) -> bool:
    """Whether what begins here is a function: a RET ends it, not the EXIT of the kernel."""
    return next((_base(i) for i in code if _base(i) in ("RET", "EXIT")), "") == "RET"


def _falls_through(i: Instruction) -> bool:
    """Whether the next instruction may follow: always, but after an unconditional jump or end."""
    base = _base(i)
    if base == "CALL" and ("NOINC" not in i.opcode or _target(i) < 0):
        return True  # and returns; CALL.REL.NOINC within the function is a jump
    if base not in _JUMPS | _ENDS:
        return True
    if i.predicate and i.predicate not in ("@PT", "@UPT"):
        return True
    # BRA.U !UP0,0x620; BRA.DIV and BRA.CONV ask whether the warp is together, on sm_75 without an operand
    return base == "BRA" and ("," in i.operands or not {"DIV", "CONV"}.isdisjoint(i.opcode.split(".")))


def _base(i: Instruction) -> str:
    return i.opcode.split(".")[0]
