"""PTX with tokens deleted, doubled, swapped and exchanged: it runs, or it ends with an EmulatorError."""

from __future__ import annotations

import random
import re
from collections import Counter

import numpy as np
import pytest

from harness.emulator import Buffer, emulate
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


def test_a_mutated_text_runs_or_is_an_error() -> None:
    found = attempt(60, 1)
    assert found["ran"] > 5
    assert found["error"] > 5


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(10))
def test_thousands_of_mutated_texts(seed: int) -> None:
    assert sum(attempt(1000, 100 + seed).values()) == 1000
