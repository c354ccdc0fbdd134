"""Find the basic blocks and loops of machine code from its branches.

A loop is a natural loop (Aho et al., Compilers, 2nd ed., 9.6.6): a branch back to a block that dominates it,
and every block from which that branch is reached without passing through its header. Loops that share a
header count as one. The targets of an indirect branch (BRX, from a switch) are not in the code: blocks that
nothing else reaches count as targets of the last indirect branch before them, or, without one, as entries of
their own. A call of another function (the slow path of a division, say) returns to the next instruction. Code
that ends in RET is taken as a function, since not every function has a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.sass.instructions import Instruction

# Opcodes that continue at the address in their operand, at an unknown address, or after which a path ends.
_JUMPS = {"BRA", "JMP", "CALL"}
_INDIRECT = {"BRX", "BRXU", "JMX", "JMXU"}
_ENDS = {"EXIT", "RET", "KILL"} | _INDIRECT
_TARGET = re.compile(r"(?:^|,)(0x[0-9a-f]+)$")

# The arithmetic by which the hot loop is found: matrix instructions rank above floating point, and that above
# integers, which compute addresses (`Loop.work`).
MATRIX = frozenset(
    [
        *("HMMA", "IMMA", "DMMA", "BMMA", "QMMA", "OMMA", "HGMMA", "IGMMA", "QGMMA", "BGMMA"),
        *("UTCHMMA", "UTCIMMA", "UTCQMMA", "UTCOMMA"),
    ]
)
FLOATING = frozenset(
    [
        *(
            "FFMA",
            "FFMA2",
            "DFMA",
            "HFMA2",
            "FADD",
            "FADD2",
            "FMUL",
            "FMUL2",
            "DADD",
            "DMUL",
            "HADD2",
            "HMUL2",
        ),
        *("FFMA32I", "FADD32I", "FMUL32I", "MUFU"),
    ]
)
ARITHMETIC = MATRIX | FLOATING | frozenset(["IDP", "IMAD"])
_TRIPS = (
    8  # how often a loop is assumed to run where another contains it: register blocking's usual step of k
)


@dataclass(frozen=True)
class Block:
    """A basic block: instructions with one way in and one way out.

    `start` and `end` (exclusive) index the kernel's instructions, `successors` the list of blocks.
    """

    start: int
    end: int
    successors: tuple[int, ...]


@dataclass(frozen=True)
class Loop:
    """A loop with its instructions in address order.

    `header` is the address of its first block. `depth` is 1 for an outermost loop. `innermost` is True if
    there is no loop inside.
    """

    header: int
    depth: int
    innermost: bool
    instructions: tuple[Instruction, ...]

    def count(self, pattern: str) -> int:
        """Return how many instructions match `pattern`."""
        return sum(i.matches(pattern) for i in self.instructions)

    @cached_property
    def addresses(self) -> frozenset[int]:
        """The addresses of its instructions."""
        return frozenset(i.address for i in self.instructions)

    def contains(self, other: Loop) -> bool:
        """Return True if `other` is a loop inside this one."""
        return other.header != self.header and other.header in self.addresses

    @property
    def arithmetic(self) -> int:
        """The number of its instructions that `is_arithmetic`."""
        return sum(is_arithmetic(i) for i in self.instructions)

    @property
    def work(self) -> tuple[int, int, int]:
        """The number of matrix instructions, of floating-point operations and of all arithmetic instructions.

        A fused multiply-add is two operations.

        Loops are ranked by these, so those with matrix instructions come first.
        """
        return _work(self.instructions)

    @property
    def last(self) -> int:
        """The address of its last instruction."""
        return self.instructions[-1].address


def is_arithmetic(i: Instruction) -> bool:
    """Return True if the opcode is in `ARITHMETIC`.

    IMAD counts only without modifiers: with them compilers use it to move and shift values, as they do HFMA2
    of zeros.
    """
    base, *modifiers = i.opcode.split(".")
    moves = (base == "IMAD" and modifiers) or (base == "HFMA2" and "-RZ,RZ" in i.operands.replace(" ", ""))
    return base in ARITHMETIC and not moves


def _work(instructions: Iterable[Instruction]) -> tuple[int, int, int]:
    """Count as `Loop.work` does."""
    bases = [_base(i) for i in instructions if is_arithmetic(i)]
    floating = sum(2 if "FMA" in b else 1 for b in bases if b in FLOATING)
    return sum(b in MATRIX for b in bases), floating, len(bases)


def blocks(instructions: Sequence[Instruction]) -> list[Block]:
    """Return the basic blocks in address order."""
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
    """Return every loop, ordered by the address of the header, an outer loop before those inside it."""
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
    """Return the loop that does most work in blocks of its own, or None if there is no loop.

    Work is `Loop.work`, without that of the loops inside, which count for themselves. A loop inside another
    runs more often: its work counts eight times that of the outer one. So a register-blocked product whose
    step of k is unrolled is found, though loops that copy lie inside it. Of equal ones it is the innermost,
    then the one with more instructions, then the first.
    """

    def rank(loop: Loop) -> tuple[tuple[int, ...], bool, int]:
        inside = {a for other in found if loop.contains(other) for a in other.addresses}
        matrix, floating, every = _work(i for i in loop.instructions if i.address not in inside)
        # Integers decide where there is no other work.
        own = matrix, floating, 0 if matrix or floating else every
        return tuple(n * _TRIPS**loop.depth for n in own), loop.innermost, len(loop.instructions)

    return max(found, key=rank, default=None)


def _dominators(graph: Sequence[Block], before: Sequence[Sequence[int]]) -> list[int]:
    """Return each block's immediate dominator.

    The algorithm is that of Cooper, Harvey and Kennedy ("A Simple, Fast Dominance Algorithm", 2001). The last
    element of the result stands for a root before every entry. Entries are block 0, blocks without
    predecessors, and one block of each cycle that no other entry leads to.
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
    """Return True if `block` dominates `other`."""
    while other != block and other != immediate[other]:
        other = immediate[other]
    return other == block


def _is_trap(instructions: Sequence[Instruction], block: Block, to_itself: bool) -> bool:
    """Return True for the branch to itself that compilers put after the last EXIT."""
    return to_itself and block.end - block.start == 1 and not _falls_through(instructions[block.start])


def _target(i: Instruction) -> int:
    """Return the address that a jump or call leads to; -1 if the instruction has none."""
    match = _TARGET.search(i.operands) if _base(i) in _JUMPS else None
    return int(match[1], 16) if match else -1


def _returns(code: Sequence[Instruction]) -> bool:
    """Return True if a function begins here: RET comes before any EXIT of the kernel."""
    return next((_base(i) for i in code if _base(i) in ("RET", "EXIT")), "") == "RET"


def _falls_through(i: Instruction) -> bool:
    """Return True if the next instruction may follow: always, except after an unconditional jump or end."""
    base = _base(i)
    if base == "CALL" and ("NOINC" not in i.opcode or _target(i) < 0):
        return True  # the call returns; a CALL.REL.NOINC within the function is a jump
    if base not in _JUMPS | _ENDS:
        return True
    if i.predicate and i.predicate not in ("@PT", "@UPT"):
        return True
    # Conditional forms without a predicate: BRA.U !UP0,0x620 has its condition as an operand; BRA.DIV and
    # BRA.CONV branch on whether the warp has diverged, on sm_75 without an operand.
    return base == "BRA" and ("," in i.operands or not {"DIV", "CONV"}.isdisjoint(i.opcode.split(".")))


def _base(i: Instruction) -> str:
    """Return the opcode without its modifiers."""
    return i.opcode.split(".")[0]
