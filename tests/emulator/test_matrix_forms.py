"""mma.sync and wmma in all element types, exactly, by the layouts that the PTX ISA gives for mma.sync."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from harness.emulator.numbers.formats import encode
from shared.emulator_kernels import launch

BITS = {"s8": 8, "u8": 8, "s4": 4, "u4": 4, "e4m3": 8, "e5m2": 8, "f16": 16, "bf16": 16, "f64": 64, "b1": 1}
CASES = [
    ((16, 8, 16), "s32", "u8", "s8", ""),
    ((16, 8, 32), "s32", "s8", "s8", ""),
    ((8, 8, 16), "s32", "s8", "s8", ".satfinite"),
    ((16, 8, 32), "s32", "s4", "u4", ""),
    ((16, 8, 64), "s32", "s4", "s4", ""),
    ((8, 8, 32), "s32", "u4", "u4", ""),
    ((16, 8, 32), "f32", "e4m3", "e5m2", ""),
    ((16, 8, 8), "f32", "bf16", "bf16", ""),
    ((16, 8, 16), "f32", "f16", "f16", ""),
    ((8, 8, 4), "f64", "f64", "f64", ""),
    ((16, 8, 4), "f64", "f64", "f64", ""),
    ((16, 8, 16), "f64", "f64", "f64", ""),
]


def code(value: float, kind: str) -> int:
    """The bits of an element."""
    if kind[0] in "su":
        return int(value) & ((1 << BITS[kind]) - 1)
    return int(encode(np.array([float(value)]), kind)[0])


def registers(matrix: np.ndarray, kind: str, by_column: bool) -> np.ndarray:
    """The registers of each lane: element j of register r is at depth ``lane % 4 * pack + j + ...``.

    A is by rows; B is given transposed, which makes it the same.
    """
    rows, depth = matrix.shape
    pack = max(1, 32 // BITS[kind])
    steps = depth // (4 * pack)
    halves = 1 if by_column else rows // 8
    found = []
    for lane in range(32):
        of_lane = []
        for step in range(steps):
            for half in range(halves):
                row, first = lane // 4 + 8 * half, lane % 4 * pack + 4 * pack * step
                values = matrix[row, first : first + pack]
                if kind == "f64":
                    of_lane.append(float(values[0]))
                else:
                    of_lane.append(sum(code(v, kind) << BITS[kind] * j for j, v in enumerate(values)))
        found.append(of_lane)
    return np.array(found, np.float64 if kind == "f64" else np.uint32)


def sums(matrix: np.ndarray, dtype: str) -> np.ndarray:
    """The elements of C in each lane."""
    count = matrix.shape[0] // 4
    found = [[matrix[i // 4 + 8 * (r // 2), i % 4 * 2 + r % 2] for r in range(count)] for i in range(32)]
    return np.array(found, dtype)


@pytest.mark.parametrize(("shape", "to", "left", "right", "extra"), CASES)
def test_products_of_small_whole_numbers_are_exact(
    shape: tuple[int, int, int], to: str, left: str, right: str, extra: str
) -> None:
    rng = np.random.default_rng(3)
    m, n, k = shape
    a = rng.integers(0 if left[0] == "u" else -4, 4, (m, k))
    b = rng.integers(0 if right[0] == "u" else -4, 4, (k, n))
    c = rng.integers(-9, 9, (m, n))
    dtype, ctype, letter = {
        "s32": ("int32", "int", "r"),
        "f32": ("float32", "float", "f"),
        "f64": ("float64", "double", "d"),
    }[to]
    packed_a, packed_b = registers(a, left, False), registers(b.T, right, True)
    held = sums(c, dtype)
    counts = [held.shape[1], packed_a.shape[1], packed_b.shape[1], held.shape[1]]
    starts = np.cumsum([0, *counts])
    places = [",".join(f"%{i}" for i in range(s, e)) for s, e in itertools.pairwise(starts)]
    raw, of = ("double", "d") if left == "f64" else ("unsigned", "r")
    inputs = [f'"{of}"(a[i * {counts[1]} + {j}])' for j in range(counts[1])]
    inputs += [f'"{of}"(b[i * {counts[2]} + {j}])' for j in range(counts[2])]
    inputs += [f'"{letter}"(c[i * {counts[3]} + {j}])' for j in range(counts[3])]
    outputs = [f'"={letter}"(o[{j}])' for j in range(counts[0])]
    types = f"{extra}.{to}.{left}.{right}.{to}"
    source = f"""extern "C" __global__ void k(const {raw}* a, const {raw}* b, const {ctype}* c, {ctype}* d) {{
      int i = threadIdx.x; {ctype} o[{counts[0]}];
      asm volatile("mma.sync.aligned.m{m}n{n}k{k}.row.col{types} {{{places[0]}}}, {{{places[1]}}}, "
        "{{{places[2]}}}, {{{places[3]}}};" : {", ".join(outputs)} : {", ".join(inputs)});
      for (int j = 0; j < {counts[0]}; j++) d[i * {counts[0]} + j] = o[j]; }}"""
    out = np.zeros_like(held)
    launch(source, "k", (1,), (32,), packed_a, packed_b, held, out)
    wanted = sums(a @ b + c, dtype)
    assert np.array_equal(out, wanted)
    wrong = sums(a @ np.roll(b, 1, 0) + c, dtype)
    assert not np.array_equal(out, wrong)


WMMA = """extern "C" __global__ void k(const KIND* a, const KIND* b, SUM* d) {
  asm volatile("{ .reg .b32 %a<8>, %b<8>, %c<8>;\\n"
    "wmma.load.a.sync.aligned.row.SHAPE.global.TYPE {A}, [%0], LDA;\\n"
    "wmma.load.b.sync.aligned.col.SHAPE.global.TYPE {B}, [%1], LDB;\\n"
    "ZERO\\n"
    "wmma.mma.sync.aligned.row.col.SHAPE.TYPES {C}, {A}, {B}, {C};\\n"
    "wmma.store.d.sync.aligned.LAYOUT.SHAPE.global.TO [%2], {C}, LDD; }" :: "l"(a), "l"(b), "l"(d)); }"""


@pytest.mark.parametrize("layout", ["row", "col"])
@pytest.mark.parametrize("shape", [(16, 16, 16), (32, 8, 16), (8, 32, 16)])
@pytest.mark.parametrize("kind", ["f16", "s8"])
def test_wmma_multiplies_what_it_loads(kind: str, shape: tuple[int, int, int], layout: str) -> None:
    m, n, k = shape
    rng = np.random.default_rng(4)
    dtype, total = ("float16", "float32") if kind == "f16" else ("int8", "int32")
    a, b = rng.integers(-4, 5, (m, k)), rng.integers(-4, 5, (k, n))
    lists = {"A": 8, "B": 8} if kind == "f16" else {"A": m * k // 128, "B": k * n // 128}
    text = WMMA.replace("ZERO", " ".join(f"mov.b32 %c{i}, 0;" for i in range(8)))
    for name, count in {**lists, "C": 8}.items():
        text = text.replace(f"{{{name}}}", "{" + ",".join(f"%{name.lower()}{i}" for i in range(count)) + "}")
    types = "f32.f32" if kind == "f16" else "s32.s8.s8.s32"
    for old, new in {
        "SHAPE": f"m{m}n{n}k{k}",
        "TYPES": types,
        "TYPE": kind,
        "TO": types[:3],
        "LAYOUT": layout,
        "LDA": str(k),
        "LDB": str(k),
        "LDD": str(n if layout == "row" else m),
        "KIND": "unsigned short" if kind == "f16" else "signed char",
        "SUM": "float" if kind == "f16" else "int",
    }.items():
        text = text.replace(old, new)
    text = text.replace("%a", "%%a").replace("%b", "%%b").replace("%c", "%%c")
    out = np.zeros((m, n) if layout == "row" else (n, m), total)
    run = launch(text, "k", (1,), (32,), a.astype(dtype), np.ascontiguousarray(b.T).astype(dtype), out)
    assert run.findings == ()
    assert np.array_equal(out if layout == "row" else out.T, a @ b)


def test_movmatrix_transposes() -> None:
    numbers = np.arange(64, dtype=np.uint16).reshape(8, 8)
    out = np.zeros_like(numbers)
    source = """extern "C" __global__ void k(const unsigned* a, unsigned* o) { unsigned r;
      asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(a[threadIdx.x]));
      o[threadIdx.x] = r; }"""
    launch(source, "k", (1,), (32,), numbers, out)
    assert np.array_equal(out, numbers.T)
