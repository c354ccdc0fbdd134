"""Loops from branches: on code written by hand, and on what the compilers make of the shipped kernels."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.kernels import catalog, spec
from harness.kernels.compiler import compile_kernel
from harness.sass.instructions import Instruction, disassemble
from harness.sass.loops import Loop, blocks, hot_loop, loops
from harness.support import tools
from harness.support.cache import Cache
from shared import sweeps

ARCHS = ("sm_75", "sm_80", "sm_90a", "sm_120")


def code(*lines: str) -> tuple[Instruction, ...]:
    """One instruction a line, ``@P0 BRA top``; a name before a colon marks its line."""
    names = {line.split(":")[0]: n for n, line in enumerate(lines) if ":" in line}
    found = []
    for n, line in enumerate(lines):
        words = line.rpartition(":")[2].split()
        predicate = words.pop(0) if words[0].startswith("@") else ""
        operands = re.sub(
            r"\w+$", lambda m: hex(16 * names[m[0]]) if m[0] in names else m[0], "".join(words[1:])
        )
        found.append(
            Instruction(address=16 * n, opcode=words[0], operands=operands, predicate=predicate, line=n + 1)
        )
    return tuple(found)


def ranges(*lines: str) -> list[tuple[int, int, int, bool]]:
    """(first line, last line, depth, innermost) of every loop, lines counted from 0."""
    found = loops(code(*lines))
    return [(loop.header // 16, loop.last // 16, loop.depth, loop.innermost) for loop in found]


TRAP = ("EXIT", "trap: BRA trap")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], []),
        (["EXIT"], []),
        (["MOV", "@P0 BRA out", "FADD", "out: EXIT"], []),
        (["MOV", *TRAP], []),
        (["MOV", "EXIT", "trap: @PT BRA trap"], []),
        (["MOV", "top: FFMA", "@P0 BRA top", *TRAP], [(1, 2, 1, True)]),
        (["top: FFMA", "@P0 BRA top", "EXIT"], [(0, 1, 1, True)]),
        (["MOV", "top: @P0 BRA top", "EXIT"], [(1, 1, 1, True)]),
        (["MOV", "top: BRA.U !UP0, top", "EXIT"], [(1, 1, 1, True)]),
        (["MOV", "top: FFMA", "BRA.U UP0, top", "EXIT"], [(1, 2, 1, True)]),
        (["MOV", "top: FFMA", "@!P0 EXIT", "BRA top"], [(1, 3, 1, True)]),
        (["MOV", "top: FFMA", "@!P0 RET.REL.NODEC R2,matmul", "BRA top"], [(1, 3, 1, True)]),
        (["MOV", "top: FFMA", "EXIT", "BRA top"], []),
        (["MOV", "top: FFMA", "JMP top"], [(1, 2, 1, True)]),
        (["MOV", "top: FFMA", "BRA 0x9990", "EXIT"], []),
        # a loop within a loop, two within one, three deep
        (
            ["outer: MOV", "inner: FFMA", "@P0 BRA inner", "IADD3", "@P1 BRA outer", "EXIT"],
            [(0, 4, 1, False), (1, 2, 2, True)],
        ),
        (
            ["a: MOV", "b: FFMA", "@P0 BRA b", "c: FADD", "@P1 BRA c", "@P2 BRA a", "EXIT"],
            [(0, 5, 1, False), (1, 2, 2, True), (3, 4, 2, True)],
        ),
        (
            ["a: MOV", "b: FFMA", "c: FADD", "@P0 BRA c", "@P1 BRA b", "@P2 BRA a", "EXIT"],
            [(0, 5, 1, False), (1, 4, 2, False), (2, 3, 3, True)],
        ),
        # one after another
        (["a: FFMA", "@P0 BRA a", "b: FADD", "@P1 BRA b", "EXIT"], [(0, 1, 1, True), (2, 3, 1, True)]),
        # two ways back to one header are one loop
        (["MOV", "top: FFMA", "@P0 BRA top", "FADD", "@P1 BRA top", "EXIT"], [(1, 4, 1, True)]),
        # break; continue into a header of one instruction; a guard that skips the loop
        (["MOV", "top: FFMA", "@P1 BRA out", "FADD", "@P0 BRA top", "out: EXIT"], [(1, 4, 1, True)]),
        (["BRA next", "top: IADD3", "next: FFMA", "@P0 BRA top", "EXIT"], [(2, 3, 1, True)]),
        (
            ["top: IADD3", "mid: FFMA", "@P1 BRA mid", "@P0 BRA top", "EXIT"],
            [(0, 3, 1, False), (1, 2, 2, True)],
        ),
        (["@P0 BRA out", "top: FFMA", "@P1 BRA top", "out: EXIT"], [(1, 2, 1, True)]),
        # its test stands first, its body after the exit
        (["top: ISETP", "@P0 BRA body", "EXIT", "body: FFMA", "BRA top"], [(0, 4, 1, True)]),
        # two ways in: no natural loop
        (["@P0 BRA mid", "top: FADD", "mid: FFMA", "@P1 BRA top", "EXIT"], []),
        (["@P0 BRA b", "a: FADD", "BRA b2", "b: FFMA", "b2: MOV", "@P1 BRA a", "EXIT"], []),
        (["@P0 BRA b", "a: FADD", "@P2 BRA out", "b: FFMA", "@P1 BRA a", "out: EXIT"], []),
        # calls: within the function a jump, to another it returns
        (["top: FFMA", "@P0 CALL.REL.NOINC out", "BRA top", "out: EXIT"], [(0, 2, 1, True)]),
        (["top: FFMA", "CALL.REL.NOINC out", "BRA top", "out: EXIT"], []),
        (["top: FFMA", "@P0 BRA out", "CALL.REL.NOINC top", "out: EXIT"], [(0, 2, 1, True)]),
        (
            ["top: FFMA", "@!P0 BRA on", "CALL.REL.NOINC $div", "MOV", "on: FADD", "@P1 BRA top", "EXIT"],
            [(0, 5, 1, True)],
        ),
        (
            [
                "top: FFMA",
                "CALL.REL.NOINC fun",
                "@P1 BRA top",
                "EXIT",
                "fun: @P0 BRA on",
                "MOV",
                "on: RET R2",
            ],
            [(0, 2, 1, True)],
        ),
        (["top: FFMA", "CALL.ABS.NOINC R2", "@P1 BRA top", "EXIT"], [(0, 2, 1, True)]),
        (["top: FFMA", "CALL.REL fun", "@P1 BRA top", "EXIT", "fun: FADD", "RET.REL R2"], [(0, 2, 1, True)]),
        # whether the warp is together decides: sm_75 names no operand
        (
            ["top: FFMA", "BRA.DIV far", "back: MOV", "@P1 BRA top", "EXIT", "far: BRA back"],
            [(0, 5, 1, True)],
        ),
        (["top: FFMA", "BRA.CONV on", "FADD", "on: MOV", "@P1 BRA top", "EXIT"], [(0, 4, 1, True)]),
        # a switch in the loop, and one before it
        (
            ["top: LDG", "BRX R2,-0x20", "FADD", "BRA end", "FMUL", "end: MOV", "@P0 BRA top", "EXIT"],
            [(0, 6, 1, True)],
        ),
        (["BRX R2,-0x10", "MOV", "top: FFMA", "@P0 BRA top", "EXIT", "FADD", "EXIT"], [(2, 3, 1, True)]),
        (["BRX R2,-0x10", "EXIT"], []),
        # what nothing reaches is an entry of its own
        (["EXIT", "MOV", "top: FFMA", "@P0 BRA top", "EXIT"], [(2, 3, 1, True)]),
    ],
)
def test_loops_of_written_code(lines: list[str], expected: list[tuple[int, int, int, bool]]) -> None:
    assert ranges(*lines) == expected
    assert brute_force(code(*lines)) == expected


def test_code_in_a_loop_is_what_runs_in_it() -> None:
    """Code between header and branch that leaves the loop does not belong to it."""
    (loop,) = loops(code("top: FFMA", "@P0 BRA on", "STG", "EXIT", "on: FADD", "@P1 BRA top", "STG", "EXIT"))
    assert [i.opcode for i in loop.instructions] == ["FFMA", "BRA", "FADD", "BRA"]
    assert (loop.count("FFMA"), loop.count("STG"), loop.header, loop.last) == (1, 0, 0, 0x50)


def test_a_branch_into_the_middle_parts_a_block() -> None:
    found = blocks(code("MOV", "FADD", "mid: FFMA", "@P0 BRA mid", "EXIT"))
    assert [(b.start, b.end, b.successors) for b in found] == [(0, 2, (1,)), (2, 4, (1, 2)), (4, 5, ())]


def test_the_hot_loop_does_the_most_arithmetic_in_blocks_of_its_own() -> None:
    lines = ["a: MOV", "b: FFMA", "LDS", "LDS", "LDS", "@P0 BRA b", "c: FFMA", "FFMA", "@P1 BRA c"]
    hot = hot_loop(loops(code(*lines, "FFMA", "FFMA", "FFMA", "@P2 BRA a", "EXIT")))
    assert hot is not None
    assert (hot.header, hot.arithmetic) == (6 * 16, 2)
    assert hot_loop([]) is None


MMA = ["m: LDSM", "HMMA.16816.F32", "@P0 BRA m"]
FMA = ["f: FFMA", "FFMA", "FFMA", "@P1 BRA f"]


@pytest.mark.parametrize(
    ("lines", "header"),
    [
        ([*FMA, *MMA], 4),  # a matrix instruction outweighs any number of others
        ([*MMA, *FMA], 0),
        (["m: HGMMA.64x64x16.F32", "@P0 BRA m", *FMA], 0),
        (["m: UTCHMMA", "@P0 BRA m", *FMA], 0),
        ([*MMA, "n: HMMA.16816.F32", "HMMA.16816.F32", "@P2 BRA n"], 3),  # of two the one with more of them
        ([*MMA, "n: HMMA.16816.F32", "FADD", "@P2 BRA n"], 3),  # and of equals the one with more arithmetic
        # copies inside that reckon addresses are none of the work, multiply-adds after it neither
        (["t: HMMA.16816.F32", "c: LDG", "IMAD", "IMAD", "@P2 BRA c", "@P3 BRA t", *FMA], 0),
        # but a loop of products in it is; floating point counts before integers, too
        (["t: HMMA.16816.F32", "FADD", *MMA, "@P3 BRA t"], 2),
        (["t: FFMA", "c: LDG", "IMAD", "@P2 BRA c", "@P3 BRA t"], 0),
        (["t: IMAD", "c: LDG", "IMAD", "@P2 BRA c", "@P3 BRA t"], 1),
        (["m: LDSM", "MOVM.16.MT88", "@P0 BRA m", *FMA], 3),  # it only moves a matrix
    ],
)
def test_loops_of_matrix_instructions_come_first(lines: list[str], header: int) -> None:
    hot = hot_loop(loops(code(*lines, "EXIT")))
    assert hot is not None and hot.header == 16 * header


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [
        ("FFMA", 1),
        ("FFMA.FTZ", 1),
        ("HGMMA.64x128x16.F32", 1),
        ("HMMA.16816.F32", 1),
        ("IMAD", 1),
        ("IMAD.MOV.U32", 0),
        ("IMAD.SHL.U32", 0),
        ("LDS.128", 0),
        ("IADD3", 0),
    ],
)
def test_arithmetic(opcode: str, expected: int) -> None:
    (loop,) = loops(code(f"top: {opcode}", "@P0 BRA top", "EXIT"))
    assert loop.arithmetic == expected


# An independent reckoning: dominance by taking blocks away, bodies by paths


def brute_force(instructions: Sequence[Instruction]) -> list[tuple[int, int, int, bool]]:
    graph = blocks(instructions)
    after = [set(b.successors) for b in graph]
    entries = (set(range(len(graph))) - set().union(*after)) | {0}

    def reach(starts: set[int], without: int) -> set[int]:
        seen: set[int] = set()
        todo = [k for k in starts if k != without]
        while todo:
            k = todo.pop()
            if k not in seen:
                seen.add(k)
                todo += [s for s in after[k] if s != without]
        return seen

    alive = reach(entries, -1) if graph else set()
    bodies: dict[int, set[int]] = {}
    for tail, header in itertools.product(range(len(graph)), repeat=2):
        if header not in after[tail] or tail not in alive or tail in reach(entries - {header}, header):
            continue
        body = {k for k in alive if k != header and tail in reach({k}, header)} | {header}
        bodies.setdefault(header, set()).update(body)
    found = []
    for header, body in sorted(bodies.items()):
        depth = 1 + sum(header in b for h, b in bodies.items() if h != header)
        innermost = not any(h in body for h in bodies if h != header)
        last = max(graph[k].end for k in body) - 1
        found.append((graph[header].start, last, depth, innermost))
    return found


# The shipped kernels


def shipped(name: str, arch: str, cache: Cache) -> tuple[spec.Kernel, tuple[Instruction, ...]]:
    (kernel,) = catalog.find(name)
    return kernel, disassemble(compile_kernel(kernel.variant(), arch, cache), cache).instructions


@pytest.mark.parametrize(("name", "arch"), sweeps.builds(ARCHS, each=2))
def test_loops_of_shipped_kernels(cache: Cache, name: str, arch: str) -> None:
    kernel, instructions = shipped(name, arch, cache)
    found = loops(instructions)
    for loop in found:
        addresses = [i.address for i in loop.instructions]
        assert addresses == sorted(set(addresses))
        assert (loop.header, loop.last) == (addresses[0], addresses[-1])
        assert set(loop.instructions) <= set(instructions)
        assert any(f"{loop.header:#x}" in i.operands for i in loop.instructions), "nothing goes back"
    expected = [(loop.header // 16, loop.last // 16, loop.depth, loop.innermost) for loop in found]
    assert expected == brute_force(instructions)
    hot = hot_loop(found)
    assert hot is not None
    assert not any(hot.contains(loop) and loop.work[not hot.work[0]] for loop in found)
    source = kernel.source.splitlines()
    sums = {n for n, line in enumerate(source, 1) if re.search(r"\bsums?(\[[^]]+\])* \+=", line)}
    if "fp32" not in kernel.dtypes or kernel.problem == "mma":
        assert hot.count("HGMMA") + hot.count("HMMA") >= 4
    elif sums:
        assert sums & {i.line for i in hot.instructions}
        assert hot.count("FFMA") >= 4
    elif kernel.language == "ptx":
        assert hot.count("FFMA") > 0
    elif kernel.problem == "fma":
        assert hot.count("FFMA") >= 256
    else:
        assert kernel.problem == "copy"


_NODE = re.compile(r'^"([^"]+)"\n\[label="(.*)"\]$', re.MULTILINE)
_EDGE = re.compile(r'^"([^"]+)":\w+:\w -> "([^"]+)":', re.MULTILINE)
Steps = set[tuple[int, int]]


def nvdisasm_steps(cubin: bytes, folder: Path) -> Steps:
    """(address, address of what may come next), as nvdisasm draws it."""
    file = folder / "kernel.cubin"
    file.write_bytes(cubin)
    command = [tools.require("nvdisasm"), "-bbcfg", "-poff", file]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    nodes = {
        name: [int(a, 16) for a in re.findall(r"(?:\\l|>|\{)([0-9a-f]{4,}):\\ ", label)]
        for name, label in _NODE.findall(text)
    }
    steps = {pair for addresses in nodes.values() for pair in itertools.pairwise(addresses)}
    drawn = [(nodes[a], nodes[b]) for a, b in _EDGE.findall(text) if a in nodes and b in nodes]
    return steps | {(a[-1], b[0]) for a, b in drawn if a and b}


def our_steps(instructions: Sequence[Instruction]) -> Steps:
    graph = blocks(instructions)
    at = [i.address for i in instructions]
    steps = {pair for b in graph for pair in itertools.pairwise(at[b.start : b.end])}
    steps |= {(at[b.end - 1], at[graph[s].start]) for b in graph for s in b.successors}
    trap = at[-1]  # of which nvdisasm says nothing
    return steps - {(trap, trap)}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arch"), sweeps.builds(ARCHS, each=2))
def test_the_same_steps_as_nvdisasm_draws(cache: Cache, tmp_path: Path, name: str, arch: str) -> None:
    """It does not draw a function without a name: a division's second copy."""
    (kernel,) = catalog.find(name)
    cubin = compile_kernel(kernel.variant(), arch, cache)
    code = disassemble(cubin, cache).instructions
    ours, theirs = our_steps(code), nvdisasm_steps(cubin.code, tmp_path)
    drawn = {address for step in theirs for address in step}
    assert {step for step in ours if not drawn.isdisjoint(step)} == theirs
    undrawn = [i for i in code[:-1] if i.address not in drawn]
    assert not undrawn or (undrawn[-1].opcode.startswith("RET") and "EXIT" not in {i.opcode for i in undrawn})


HEAD = 'extern "C" __global__ void matmul(const int* a, const float* b, float* c, int n)\n{\n'
HARD = {
    "division": "    for (int i = 0; i < n; ++i) s += b[i] / c[i];\n",
    "long division": "    for (int i = 0; i < n; ++i) s += ((long long*)c)[i] / ((long long*)b)[i];\n",
    "nested": """\
    for (int i = a[threadIdx.x]; i < n; ++i) {
        for (int j = a[i]; j != 1; j = j & 1 ? 3 * j + 1 : j / 2) if (b[j] > s) { s += b[j]; break; }
        s *= b[i];
    }
""",
    "divergent": """\
    for (int i = a[threadIdx.x]; i < n; ++i) {
        if (a[i]) s += __shfl_sync(0xffffffff, s, i);
        __syncwarp();
    }
""",
    "switch": """\
    for (int i = 0; i < n; ++i) switch (a[i]) {
        case 0: s += b[i]; break;
        case 1: s = s * b[i] + 1; break;
        case 2: s = sqrtf(s); break;
        case 3: s = __sinf(s); break;
        case 4: s = s * s; break;
        case 5: c[i] = s; break;
        case 6: s = __expf(s); break;
        case 7: s = __logf(s); break;
    }
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("arch", sweeps.archs(ARCHS, "sm_80"))
@pytest.mark.parametrize(
    "which", sweeps.sweep(HARD, lambda which: which in ("division", "divergent", "switch"))
)
def test_loops_that_call_branch_and_diverge(
    kernel_file: Any, tmp_path: Path, cache: Cache, which: str, arch: str
) -> None:
    """A slow path outside the function, a switch, warps that part: none of them hides the loop."""
    body = (
        f"{HEAD}    float s = b[threadIdx.x];\n#pragma unroll 1\n{HARD[which]}    c[threadIdx.x] = s;\n}}\n"
    )
    path = kernel_file(body=body)
    cubin = compile_kernel(spec.load(path).variant(), arch, cache)
    instructions = disassemble(cubin, cache).instructions
    first = 1 + path.read_text().splitlines().index("#pragma unroll 1")
    around: list[Loop] = [
        loop for loop in loops(instructions) if any(i.line == first + 1 for i in loop.instructions)
    ]
    assert around
    ours, theirs = our_steps(instructions), nvdisasm_steps(cubin.code, tmp_path)
    if which == "switch":
        indirect = {i.address for i in instructions if i.opcode == "BRX"}
        assert indirect, "the compiler made no jump table of it"
        ours, theirs = ({(a, b) for a, b in s if a not in indirect} for s in (ours, theirs))
    assert ours == theirs


def test_a_wait_inside_does_not_make_the_loop_around_it_any_less_innermost() -> None:
    """A spin on a barrier in a loop of multiply-adds, and a small loop of them after it."""
    code = [
        (0x00, "", "FFMA", "R1,R2,R3,R1"),
        (0x10, "", "FFMA", "R4,R2,R3,R4"),
        (0x20, "", "SYNCS.PHASECHK.TRANS64.TRYWAIT", "P0,[R5],R6"),
        (0x30, "@!P0", "BRA", "0x20"),
        (0x40, "@P1", "BRA", "0x0"),
        (0x50, "", "FFMA", "R1,R2,R3,R1"),
        (0x60, "@P2", "BRA", "0x50"),
        (0x70, "", "EXIT", ""),
    ]
    instructions = [Instruction(address=a, opcode=o, operands=x, predicate=p, line=0) for a, p, o, x in code]
    found = loops(instructions)
    assert [loop.header for loop in found] == [0x00, 0x20, 0x50]
    hot = hot_loop(found)
    assert hot is not None and hot.header == 0x00 and hot.count("FFMA") == 2


COPIES = """\
template <int BM, int BN, int BK, int T>
__global__ void __launch_bounds__(BM * BN / (T * T)) k(const float* A, const float* B, float* C, int N, int K)
{
    __shared__ float As[BM * BK], Bs[BK * BN];
    const int threads = BM * BN / (T * T);
    int column = threadIdx.x % (BN / T), row = threadIdx.x / (BN / T);
    float sums[T * T] = {}, a[T], b[T];
    for (int k0 = 0; k0 < K; k0 += BK) {
        #pragma unroll 1
        for (int i = threadIdx.x; i < BM * BK; i += threads)
            As[i] = (i / BK * 7 + i % BK * 13 + i * K) % 3 ? A[i / BK * K + k0 + i % BK] : 0;
        #pragma unroll 1
        for (int i = threadIdx.x; i < BK * BN; i += threads)
            Bs[i] = (i / BN * 5 + i % BN * 11 + i * N) % 3 ? B[(k0 + i / BN) * N + i % BN] : 0;
        __syncthreads();
        for (int k = 0; k < BK; ++k) {
            for (int i = 0; i < T; ++i) a[i] = As[(row * T + i) * BK + k], b[i] = Bs[k * BN + column * T + i];
            for (int i = 0; i < T * T; ++i) sums[i] += a[i / T] * b[i % T];
        }
        __syncthreads();
    }
    for (int i = 0; i < T * T; ++i) C[(row * T + i / T) * N + column * T + i % T] = sums[i];
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("blocking", ["64, 64, 8, 4", "64, 64, 8, 8", "32, 64, 16, 4"])
def test_index_arithmetic_of_copies_does_not_win_over_a_register_blocked_product(
    blocking: str, tmp_path: Path, cache: Cache
) -> None:
    """The step of k is unrolled: only the copies are innermost loops, and integers are all they do."""
    path = tmp_path / "k.cu"
    path.write_text(COPIES)
    (kernel,) = catalog.chosen(catalog.load_each(path), f"k<{blocking}>", [])
    cubin = compile_kernel(kernel.variant(), "sm_80", cache)
    hot = hot_loop(loops(disassemble(cubin, cache).instructions))
    assert hot is not None and hot.count("FFMA") / len(hot.instructions) >= 0.5
