"""``mma.sp`` and Volta's ``mma.m8n8k4``, exactly, by the layouts that the PTX ISA gives."""

from __future__ import annotations

import numpy as np
import pytest

from harness.emulator.numbers.formats import encode
from harness.errors import NeedsGpu
from shared.emulator_kernels import launch

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "e4m3": 8, "s4": 4}
CASES = [
    ((16, 8, 16), "f16", "f32", 0),
    ((16, 8, 16), "f16", "f32", 3),
    ((16, 8, 32), "bf16", "f32", 1),
    ((16, 8, 8), "tf32", "f32", 2),
    ((16, 8, 16), "tf32", "f32", 1),
    ((16, 8, 32), "s8", "s32", 0),
    ((16, 8, 32), "u8", "s32", 1),
    ((16, 8, 64), "s8", "s32", 0),
    ((16, 8, 64), "e4m3", "f32", 0),
    ((16, 8, 64), "s4", "s32", 1),
    ((16, 8, 128), "s4", "s32", 0),
]


def code(value: float, kind: str) -> int:
    """The bits of an element."""
    if kind[0] in "su":
        return int(value) & ((1 << BITS[kind]) - 1)
    if kind == "tf32":
        return int(np.float32(value).view(np.uint32))
    return int(encode(np.array([float(value)]), kind)[0])


def packed(matrix: np.ndarray, kind: str, halves: int) -> np.ndarray:
    """The registers of each lane for a matrix by rows: `halves` rows eight apart, four lanes along a row."""
    pack = 32 // BITS[kind]
    found = np.zeros((32, matrix.shape[1] * halves // (4 * pack)), np.uint32)
    for lane in range(32):
        place = 0
        for first in range(lane % 4 * pack, matrix.shape[1], 4 * pack):
            for half in range(halves):
                row = matrix[lane // 4 + 8 * half, first : first + pack]
                found[lane, place] = sum(code(v, kind) << BITS[kind] * j for j, v in enumerate(row))
                place += 1
    return found


def sparse_matrix(
    kind: str, depth: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """A with its zeros, what is stored of it, and the metadata of each row as one number."""
    full, stored, metadata = np.zeros((16, depth)), [], []
    unit = 2 if kind == "s4" else 1
    for row in range(16):
        kept, meta, place = [], 0, 0
        for group in range(0, depth, 2 if kind == "tf32" else 4 * unit):
            if kind == "tf32":
                one = int(rng.integers(2))
                chosen, bits = [group + one], (0b0100, 0b1110)[one]
            else:
                low, high = sorted(rng.choice(4, 2, replace=False).tolist())
                chosen = [group + unit * n + i for n in (low, high) for i in range(unit)]
                bits = low | high << 2
            meta |= bits << place
            place += 4
            for column in chosen:
                full[row, column] = rng.integers(0 if kind[0] == "u" else -4, 4)
                kept.append(full[row, column])
        stored.append(kept)
        metadata.append(meta)
    return full, np.array(stored), metadata


def held(metadata: list[int], width: int, narrow: bool, selector: int) -> np.ndarray:
    """The metadata register of each lane; lanes that are not selected hold noise."""
    found = np.full(32, 0x5A5A5A5A, np.uint32)
    for row in range(8):
        pieces = [metadata[row], metadata[row + 8]]
        if narrow:
            for part in range(width // 32):
                for upper in (0, 1):
                    found[4 * row + 2 * selector + 2 * part + upper] = pieces[upper] >> 32 * part & 0xFFFFFFFF
        else:
            for part in range(width // 16):
                low, high = (piece >> 16 * part & 0xFFFF for piece in pieces)
                found[4 * row + selector * (width // 16) + part] = low | high << 16
    return found


def listed(first: int, count: int) -> str:
    return "{" + ", ".join(f"%{i}" for i in range(first, first + count)) + "}"


def product(opcode: str, registers: list[np.ndarray], out: np.ndarray, tail: str = "") -> None:
    """Run one instruction on registers (32, count) of each operand A, B and C, and perhaps metadata."""
    letter = {"f": "f", "i": "r", "u": "r"}[out.dtype.kind]
    kind = {"f": "float", "i": "int", "u": "unsigned"}[out.dtype.kind]
    count, starts = out.shape[1], [out.shape[1]]
    inputs = []
    for place, one in enumerate(registers):
        of = letter if place == 2 else "r"
        inputs += [f'"{of}"(p{place}[i * {one.shape[1]} + {j}])' for j in range(one.shape[1])]
        starts.append(starts[-1] + one.shape[1])
    operands = [
        listed(0, count),
        *(listed(s, r.shape[1]) for s, r in zip(starts, registers[:3], strict=False)),
    ]
    operands += [f"%{starts[3]}"] if len(registers) > 3 else []
    pointers = [f"const {kind if place == 2 else 'unsigned'}* p{place}" for place in range(len(registers))]
    source = f"""extern "C" __global__ void k({", ".join(pointers)}, {kind}* d) {{
      int i = threadIdx.x; {kind} o[{count}];
      asm volatile("{opcode} {", ".join(operands)}{tail};"
        : {", ".join(f'"={letter}"(o[{j}])' for j in range(count))} : {", ".join(inputs)});
      for (int j = 0; j < {count}; j++) d[i * {count} + j] = o[j]; }}"""
    launch(source, "k", (1,), (32,), *registers, out)


@pytest.mark.parametrize(("shape", "kind", "to", "selector"), CASES)
def test_a_sparse_product_is_that_of_the_full_matrix(
    shape: tuple[int, int, int], kind: str, to: str, selector: int
) -> None:
    rng = np.random.default_rng(5)
    m, n, k = shape
    full, stored, metadata = sparse_matrix(kind, k, rng)
    b = rng.integers(0 if kind[0] == "u" else -4, 4, (k, n))
    c = rng.integers(-9, 9, (m, n))
    dtype = "float32" if to == "f32" else "int32"
    place = [[(i // 4 + 8 * (r // 2), i % 4 * 2 + r % 2) for r in range(4)] for i in range(32)]
    width = k * (2 if kind == "tf32" else 1) // (2 if kind == "s4" else 1)
    words = held(metadata, width, BITS[kind] <= 8, selector).reshape(32, 1)
    sums = np.array([[c[at] for at in lane] for lane in place], dtype)
    out = np.zeros((32, 4), dtype)
    opcode = f"mma.sp.sync.aligned.m{m}n{n}k{k}.row.col.{to}.{kind}.{kind}.{to}"
    given = [packed(stored, kind, 2), packed(b.T, kind, 1), sums, words]
    product(opcode, given, out, f", {selector}")
    wanted = full @ b + c
    assert np.array_equal(out, np.array([[wanted[at] for at in lane] for lane in place], dtype))
    given[3] = words ^ np.uint32(0x20002)
    product(opcode, given, out, f", {selector}")
    assert not np.array_equal(out, np.array([[wanted[at] for at in lane] for lane in place], dtype))


def test_what_is_not_stored_is_not_multiplied() -> None:
    """The first two of each four of A are stored, all 1. The control: what they meet."""
    stored, b = np.ones((16, 8)), np.ones((16, 8))
    b[3, 1], b[1, 2], b[6, 4] = np.inf, np.inf, np.nan
    words = np.full((32, 1), 0x44444444, np.uint32)
    given = [packed(stored, "f16", 2), packed(b.T, "f16", 1), np.zeros((32, 4), np.float32), words]
    out = np.zeros((32, 4), np.float32)
    product("mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", given, out, ", 0")
    wanted = np.tile([[8, 8, 8, 8], [np.inf, 8, np.inf, 8], [8, 8, 8, 8], [8, 8, 8, 8]], (8, 1))
    assert np.array_equal(out, wanted)


def test_a_selector_that_names_no_lanes_is_refused() -> None:
    words = [np.zeros((32, n), np.uint32) for n in (2, 2)]
    given = [*words, np.zeros((32, 4), np.float32), np.zeros((32, 1), np.uint32)]
    opcode = "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    with pytest.raises(NeedsGpu, match="selector 4"):
        product(opcode, given, np.zeros((32, 4), np.float32), ", 4")


@pytest.mark.parametrize("to", ["f32", "f16"])
@pytest.mark.parametrize("layouts", [("row", "col"), ("col", "row"), ("row", "row")])
def test_voltas_mma_makes_four_products(layouts: tuple[str, str], to: str) -> None:
    rng = np.random.default_rng(6)
    a, b = rng.integers(-4, 4, (4, 8, 4)), rng.integers(-4, 4, (4, 4, 8))
    c = rng.integers(-9, 9, (4, 8, 8))
    wanted = a @ b + c
    lanes = [(i % 16 // 4, i % 4 + 4 * (i // 16), i % 4, 4 * (i // 16)) for i in range(32)]
    left = [a[q, row] if layouts[0] == "row" else a[q, up : up + 4, j] for q, row, j, up in lanes]
    right = [b[q, :, row] if layouts[1] == "col" else b[q, j, up : up + 4] for q, row, j, up in lanes]

    def halves(values: list[np.ndarray]) -> np.ndarray:
        return np.array(values).astype(np.float16).view(np.uint32)

    def sums(matrix: np.ndarray) -> np.ndarray:
        if to == "f16":
            return halves([matrix[q, row] for q, row, _, _ in lanes])
        spots = [
            [(q, (i & 1) + (e & 2) + up, (e & 4) + (i & 2) + (e & 1)) for e in range(8)]
            for i, (q, _, _, up) in enumerate(lanes)
        ]
        return np.array([[matrix[at] for at in lane] for lane in spots], np.float32)

    out = np.zeros_like(sums(c))
    opcode = f"mma.sync.aligned.m8n8k4.{'.'.join(layouts)}.{to}.f16.f16.{to}"
    product(opcode, [halves(left), halves(right), sums(c)], out)
    assert np.array_equal(out, sums(wanted))
