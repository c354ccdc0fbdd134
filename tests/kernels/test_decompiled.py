"""Hold what is written in C++ of a PTX text against what it computes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from emulator.test_mutated_ptx import mutated
from harness.kernels import text
from harness.kernels.cpp.source.ptx import assembly, decompiled
from harness.kernels.cpp.source.ptx.sums import Sum, compared, computed
from shared.emulator_kernels import compile_ptx

TRITON = Path(__file__).parents[1] / "data" / "triton"
SOURCE = """
extern "C" __global__ void add(const double* x, double* y, const int* order, unsigned char* mask, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    y[i * 3 + 1] = x[order[i]] * 2;
    mask[i] = 1;
    atomicAdd(&y[i / 8], 1.0);
}
extern "C" __global__ void __launch_bounds__(96) rows(float* x, int stride, int rows, float by) {
    extern __shared__ float s[];
    s[threadIdx.x] = by;
    for (int r = blockIdx.y; r < rows; r += gridDim.y) x[r * stride + threadIdx.x] += s[0];
}
struct Pair { float* x; int n; };
extern "C" __global__ void whole(Pair p) { p.x[threadIdx.x] = p.n; }
"""


def lines(name: str, source: str = SOURCE) -> str:
    """The function `name` of what `source` compiles to."""
    found = decompiled.cpp(compile_ptx(source))
    return next(part for part in found.split("__global__")[1:] if f" {name}(" in part)


def test_addresses_and_guards() -> None:
    found = lines("add")
    assert "(const double* param_0, double* param_1, const int* param_2, unsigned char* " in found
    assert "int r1 = blockIdx.x * blockDim.x + threadIdx.x;" in found and "if (r1 >= param_4)" in found
    assert "param_1[r1 * 3 + 1] = " in found and "param_3[r1] = " in found
    loaded = next(line for line in found.splitlines() if "param_2[r1]" in line).split("=")[0].strip()
    assert f"param_0[{loaded}]" in found  # an index that is loaded
    assert "atomicAdd(&param_1[r1 / 8], " in found


def test_loops_bounds_and_shared_memory() -> None:
    found = lines("rows")
    assert "__launch_bounds__(96)" in found and "float param_3" in found
    assert "int stride_1" in found and "* stride_1 + threadIdx.x]" in found  # it leads from row to row
    assert "int param_2" in found  # a size
    assert "extern __shared__ char s[];" in decompiled.cpp(compile_ptx(SOURCE))


def test_a_struct_has_what_is_loaded_from_it() -> None:
    found = lines("whole")
    assert "whole(whole_param_0 param_0)" in found and "param_0.m0[threadIdx.x] = param_0.m8;" in found


def test_conditions_are_told_as_triton_has_them() -> None:
    found = decompiled.cpp((TRITON / "product.ptx").read_text())
    assert (
        "const __half* param_0" in found and "float* param_2" in found and "__launch_bounds__(128)" in found
    )
    assert "int param_3, int param_4, int param_5, int stride_6, int stride_7" in found
    stores = [line for line in found.splitlines() if "param_2[" in line]
    assert len(stores) == 8 and all("< param_3" in line and "< param_4" in line for line in stores)
    assert all("stride_10 * " in line or "* stride_10" in line for line in stores)


@pytest.mark.parametrize(
    ("base", "a", "b", "said"),
    [
        ("add", Sum({"i": 1}, 2), Sum({"i": 3}), "i * 4 + 2"),
        ("sub", Sum({"i": 1}), Sum({"i": 1, "n": 1}), "n * -1"),
        ("mul", Sum({"i": 1}, 1), Sum(number=4), "i * 4 + 4"),
        ("mul", Sum({"i": 1}, 1), Sum({"n": 1}), "(i + 1) * n"),
        ("shl", Sum({"i": 2}), Sum(number=3), "i * 16"),
        ("or", Sum({"i": 32}), Sum({"j": 1}), "i * 32 + j"),
        ("shr", Sum({"i": 1}, 63), Sum(number=6), "(i + 63) / 64"),
        ("rem", Sum({"i": 1}), Sum({"n": 1}), "(i % n)"),
        ("min", Sum({"i": 1}), Sum(number=8), "min(i, 8)"),
    ],
)
def test_integers(base: str, a: Sum, b: Sum, said: str) -> None:
    assert str(computed(base, [base, "s32"], [a, b])) == said


def test_bytes_become_elements() -> None:
    assert str(Sum({"i": 8, "j": 4}, 12, "x").over(4)) == "i * 2 + j + 3"
    assert str(Sum({"i": 6}).over(4)) == "(i * 6) / 4"


def test_entries() -> None:
    found = {entry.name: entry for entry in assembly.entries(compile_ptx(SOURCE))}
    assert [found[name].threads for name in ("add", "rows", "whole")] == [0, 96, 0]
    assert [p.bytes for p in found["whole"].parameters] == [16] and found["rows"].dynamic
    assert not found["add"].dynamic  # of another entry of the text


def test_a_mutated_text_is_read_or_left() -> None:
    """Whatever it is, nothing is raised: the compiler says what is wrong with it."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    texts = [compile_ptx(SOURCE), *(path.read_text() for path in sorted(TRITON.glob("*.ptx")))]
    known = [text.entries(decompiled.cpp(mutated(chance.choice(texts), chance))) for _ in range(60)]
    assert sum(map(bool, known)) > 45


@pytest.mark.parametrize(
    "statement",
    ["and.pred %p1;", "not.pred %p1;", "setp %p1, 1, 2;", "setp.lt.and.s32 %p1, 1, 2;", "mov.u32;"],
)
def test_what_lacks_operands_is_left_to_the_assembler(statement: str) -> None:
    ptx = f".visible .entry k(.param .u64 k_param_0) {{ {statement} ret; }}"
    assert "return;" in decompiled.cpp(ptx)


def test_a_long_copy_is_its_first_and_last_element() -> None:
    ptx = """.visible .entry k(.param .u64 k_param_0) { ld.param.u64 %rd1, [k_param_0];
        cp.async.bulk.shared.global [%r1], [%rd1], 65536, [%r2]; ret; }"""
    found = decompiled.cpp(ptx)
    assert found.count("param_0[") == 2 and "param_0[16383]" in found, found


def test_what_leads_to_no_address_is_left_out() -> None:
    source = """extern "C" __global__ void noisy(float* y, int n, int seed) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        unsigned r = (i ^ seed) * 747796405u + 2891336453u;
        r = (r >> 7 ^ r) * 277803737u;
        if (n > i) y[i] = (r >> 9) * .5f;
    }"""
    found = lines("noisy", source)
    assert "param_2" not in found.partition(")")[2] and "param_0[r1] = " in found
    assert "(r1 >= param_1)" in found  # the size stands behind the sign


@pytest.mark.parametrize(("a", "b", "said"), [("n", "i", "i < n"), ("i", "n", "i > n"), ("n", "", "n > 0")])
def test_sizes_stand_behind_signs(a: str, b: str, said: str) -> None:
    known = {"n": Sum({"param_1": 1}), "i": Sum({"r1": 1}), "": Sum()}
    found = compared(known[a], "gt", known[b])
    assert found.replace("param_1", "n").replace("r1", "i") == said


def test_a_struct_whose_address_a_register_has() -> None:
    """LLVM moves it, and then loads by the register."""
    ptx = """.visible .entry k(.param .align 8 .b8 k_param_0[16]) {
        mov.b64 %rd2, k_param_0; mov.u64 %rd1, %rd2; ld.param::entry.u64 %rd3, [%rd1];
        ld.param.u32 %r2, [%rd1+8]; mov.u32 %r1, %tid.x; setp.ge.s32 %p1, %r1, %r2; @%p1 bra END;
        mul.wide.s32 %rd4, %r1, 4; add.s64 %rd5, %rd3, %rd4; st.global.f32 [%rd5], 0f00000000;
        END: ret; }"""
    found = decompiled.cpp(ptx)
    assert "struct k_param_0 { float* m0; int m8;" in found and "(threadIdx.x >= param_0.m8)" in found
    escaped = decompiled.cpp(ptx.replace("mul.wide", "add.s64 %rd9, %rd1, 8; mul.wide"))
    assert "struct_of_16_bytes" in escaped


def test_loaded_indices_are_integers() -> None:
    """Triton loads all as bits."""
    ptx = """.visible .entry k(.param .u64 .ptr .global k_param_0, .param .u64 .ptr .global k_param_1) {
        ld.param.b64 %rd1, [k_param_0]; ld.param.b64 %rd2, [k_param_1]; ld.global.b32 %r1, [%rd1];
        mul.wide.s32 %rd3, %r1, 4; add.s64 %rd4, %rd2, %rd3; ld.global.b32 %r2, [%rd4]; ret; }"""
    assert "(const int* param_0, const float* param_1)" in decompiled.cpp(ptx)


@pytest.mark.parametrize(
    ("bounds", "block"),
    [(".reqntid 16, 8, 1", (16, 8, 1)), (".maxntid 128, 1, 1", ()), (".maxntid 16, 16", (16, 16)), ("", ())],
)
def test_blocks(bounds: str, block: tuple[int, ...]) -> None:
    assert decompiled.block(f".visible .entry k() {bounds} {{ ret; }}", "k") == block
