"""PTX with tokens deleted, doubled, swapped and exchanged: it runs, or it ends with an EmulatorError."""

from __future__ import annotations

import random
import re
from collections import Counter

import numpy as np
import pytest

from harness.emulator import Buffer, emulate
from harness.emulator.blocks.schedule import SCHEDULES
from harness.emulator.ptx.module import parse
from harness.errors import EmulatorError
from shared.emulator_kernels import TILED16, compile_ptx

SOURCE = """struct Pair { float x; double y[2]; };
__device__ int table[4] = {1, 2, 3, 4};
__constant__ float scale[2] = {2.f, 3.f};
__device__ __noinline__ int twice(int a) { return a < 3 ? a : twice(a - 1) + table[a & 3]; }
extern "C" __device__ int printf(const char*, ...);
extern "C" __global__ void one(float* o, Pair p, int n) {
  __shared__ float s[64]; int i = threadIdx.x; s[i] = p.x * i + (float)p.y[n & 1]; __syncthreads();
  float v = __shfl_xor_sync(~0u, s[63 - i], 1); if (i == n) printf("%d %f\\n", i, v);
  atomicAdd(o, v); o[1 + i] = v * scale[i & 1] + twice(i & 7); }
extern "C" __global__ void two(unsigned* o, long long n) {
  int i = threadIdx.x; unsigned long long a = o[i] * n; int hi = __popcll(a) + __clz((int)a);
  unsigned odd = __ballot_sync(~0u, i & 1) >> (i & 31);
  o[i] = __byte_perm(hi, (unsigned)a, 0x3210) + (unsigned)(a / (n + 1)) + odd; }
"""
TYPES = (".u8", ".s16", ".u32", ".s32", ".b64", ".f32", ".f64", ".pred", ".f16x2", ".bf16", ".v4.f32")
NUMBERS = ("0", "-1", "4294967296", "99999999999999999999", "0x7fffffff", "08", "7")


def mutated(text: str, chance: random.Random) -> str:
    """Change one to three places of a text."""
    lines = text.split("\n")
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        at = chance.choice([i for i, line in enumerate(lines) if line.strip()])
        tokens = re.findall(r"[\w$%.]+|\S|\s+", lines[at])
        one = chance.randrange(len(tokens))
        how = chance.randrange(8)
        if how == 0:
            lines[at] = ""
        elif how == 1:
            lines.insert(at, lines[at])
        elif how == 2:
            other = chance.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        elif how == 3:
            lines[at] = "".join(tokens[:one] + tokens[one + 1 :])
        elif how == 4:
            lines[at] = "".join(tokens[: one + 1] + tokens[one:])
        elif how == 5:
            lines[at] = re.sub(r"\.[subf](8|16|32|64)\b", chance.choice(TYPES), lines[at], count=1)
        elif how == 6:
            register = chance.choice(re.findall(r"%\w+", text))
            lines[at] = re.sub(r"%\w+", register, lines[at], count=1)
        else:
            lines[at] = re.sub(r"\b\d+\b", lambda _: chance.choice(NUMBERS), lines[at], count=1)
    return "\n".join(lines)


def outcome(text: str, chance: random.Random) -> str:
    """Run one entry of a text with arrays and small numbers; return what came of it."""
    try:
        entries = list(parse(text).values())
        if not entries:
            return "no entry"
        entry = chance.choice(entries)
        arguments: list[Buffer | np.generic] = []
        for parameter in entry.parameters:
            if parameter.size == 8 and parameter is entry.parameters[0]:
                arguments.append(Buffer(array=np.ones(2048, np.float32), name=parameter.name))
            else:
                small = np.frombuffer(b"\3".ljust(parameter.size, b"\0"), f"V{parameter.size}")[0]
                arguments.append(small)
        emulate(text, entry.name, grid=(2,), block=(64,), arguments=arguments, shared=2048, budget=20_000)
    except EmulatorError as error:
        assert str(error)
        return "error"
    return "ran"


def attempt(count: int, seed: int) -> Counter[str]:
    """Run `count` mutants and count what came of them. Anything but an EmulatorError ends it."""
    chance = random.Random(seed)
    texts = [compile_ptx(SOURCE, arch) for arch in ("compute_80", "compute_90")] + [compile_ptx(TILED16)]
    return Counter(outcome(mutated(chance.choice(texts), chance), chance) for _ in range(count))


def fresh_seed() -> int:
    """A seed that no run before had; it is printed, so that a failure tells which."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return seed


def test_a_mutated_text_runs_or_is_an_error() -> None:
    found = attempt(60, 1)
    assert found["ran"] > 5
    assert found["error"] > 5


def test_parameters_that_no_gpu_has_room_for() -> None:
    """An alignment of 2^62 bytes, which was a traceback: seed 2826537082."""
    text = (
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a,{}.u32 b){{ ret; }}"
    )
    chance = random.Random(1)
    assert outcome(text.format(" .param "), chance) == "ran"
    assert outcome(text.format(f" .param .align {2**62} "), chance) == "error"


@pytest.mark.slow
def test_mutated_texts_that_nobody_has_seen() -> None:
    assert sum(attempt(150, fresh_seed()).values()) == 150


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(10))
def test_thousands_of_mutated_texts(part: int) -> None:
    assert sum(attempt(1000, fresh_seed()).values()) == 1000


# CUDA C++: operators, numbers and names exchanged, statements left out or doubled. Larger numbers would make
# arrays for which NVRTC takes all memory of a machine.
KERNELS = """struct Node { int next; float weight; double sums[2]; };
struct Graph { Node* nodes; float* out; int count; short tag[3]; };
__device__ Node spare[4] = {{1, 2.f, {3., 4.}}, {2, 1.f, {0., 1.}}};
__device__ unsigned long long total;
__constant__ float table[8] = {1, 2, 3, 4, 5, 6, 7, 8};
__device__ __noinline__ float walk(const Graph& g, int at, int depth) {
  if (depth > 3) return 0;
  float w = g.nodes[at].weight;
  return w + walk(g, g.nodes[at].next, depth + 1);
}
__global__ void visit(Graph g) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  __shared__ Node held[32];
  Node mine = i < g.count ? g.nodes[i] : spare[i & 3];
  held[threadIdx.x & 31] = mine;
  __syncthreads();
  Node other = held[(threadIdx.x + 1) & 31];
  double s = mine.sums[0] * other.sums[1] + table[i & 7];
  for (int k = 0; k < 3; k++) s += g.tag[k] * other.weight;
  if (i < g.count) g.out[i] = (float)s + walk(g, i, 0);
  atomicAdd(&total, (unsigned long long)i);
}
__global__ void fold(float* out, const Graph* graphs, int n) {
  extern __shared__ float part[];
  int i = threadIdx.x;
  float v = i < n ? out[i] : 0.f;
  for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffffu, v, d);
  part[i & 63] = v;
  __syncthreads();
  switch (i & 3) { case 0: out[i] = part[i]; break; case 1: out[i] += sqrtf(v); break; default: out[i] = -v; }
  if (i == 0) spare[1].weight = out[n & 31] + total;
}
__global__ void bits(unsigned* out, char4 c, ushort2 h, int n) {
  unsigned i = threadIdx.x;
  unsigned v = __byte_perm(i * 2654435761u, *(unsigned*)&c, 0x5140) ^ __brev(h.x + i);
  unsigned same = __match_any_sync(__activemask(), v & 3);
  if (i % 3 == 0) v = __popc(same) + __clz(v) + (v >> (n & 31));
  atomicMax(&out[i & 15], v % (unsigned)(n + 1));
  atomicCAS(out + 16, v, i);
}
"""
WORDS = {
    "symbols": ["+", "-", "*", "/", "%", "&", "|", "^", "<", ">", "==", "<=", ">>", "<<", "&&"],
    "numbers": ["0", "1", "2", "3", "7", "31", "32", "64", "-1", "100", "1000"],
    "names": ["i", "n", "v", "k", "s", "mine.next", "threadIdx.x", "blockIdx.x", "g.count", "total"],
}
_TOKEN = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*|0x[0-9a-fA-F]+u?|\d+(?:\.\d*)?[fu]?|[-+*/%&|^<>=!]+|\s+|.")


def mutated_source(text: str, chance: random.Random) -> str:
    """Change one to three places of CUDA C++."""
    for _ in range(chance.choice([1, 1, 2, 3])):
        tokens = _TOKEN.findall(text)
        how = chance.randrange(4)
        if how == 3:
            lines = text.split("\n")
            at = chance.choice([i for i, line in enumerate(lines) if line.endswith(";")])
            lines[at] = "" if chance.random() < 0.5 else lines[at] + " " + lines[at]
            text = "\n".join(lines)
            continue
        kind = list(WORDS)[how]
        known = re.compile(r"0x\w+|\d+") if kind == "numbers" else None
        places = [i for i, t in enumerate(tokens) if (known.fullmatch(t) if known else t in WORDS[kind])]
        tokens[chance.choice(places)] = chance.choice(WORDS[kind])
        text = "".join(tokens)
    return text


def ran(text: str, chance: random.Random) -> str:
    """Compile a mutant and run one of its entries on arguments drawn anew; return what came of it."""
    try:
        ptx = compile_ptx.__wrapped__(text, chance.choice(("compute_75", "compute_90")))
    except RuntimeError:
        return "not compiled"
    try:
        entry = chance.choice(list(parse(ptx).values()))
        arguments: list[Buffer | np.generic] = []
        for parameter in entry.parameters:
            small = chance.choice((b"", b"\1", b"\x20", b"\xff\xff\xff\xff"))[: parameter.size]
            if parameter.size == 8 and parameter.type in ("u64", "b64") and chance.random() < 0.9:
                size = chance.choice((4, 64, 4096))
                arguments.append(Buffer(array=np.ones(size, np.int32), name=parameter.name))
            else:
                arguments.append(np.frombuffer(small.ljust(parameter.size, b"\0"), f"V{parameter.size}")[0])
        schedule = chance.choice(SCHEDULES)
        block = (chance.choice((1, 33, 64)),)
        emulate(
            ptx,
            entry.name,
            grid=(chance.choice((1, 3)),),
            block=block,
            arguments=arguments,
            shared=chance.choice((0, 256)),
            schedule=schedule,
            budget=20_000,
        )
    except EmulatorError as error:
        assert str(error)
        return "error"
    return "ran"


def attempt_sources(count: int, seed: int) -> Counter[str]:
    """Run `count` mutants of kernels with globals, structs and several entries; others do not compile."""
    chance = random.Random(seed)
    found: Counter[str] = Counter()
    while found["ran"] + found["error"] < count:
        found[ran(mutated_source(KERNELS, chance), chance)] += 1
    return found


@pytest.mark.slow
def test_a_mutated_kernel_runs_or_is_an_error() -> None:
    found = attempt_sources(20, fresh_seed())
    assert found["ran"] > 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(10))
def test_a_thousand_mutated_kernels(part: int) -> None:
    found = attempt_sources(100, fresh_seed())
    assert found["ran"] > 20
