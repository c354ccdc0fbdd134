"""Members of a struct of parameters are parameters: their sizes and strides are guessed as others are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.kernels import catalog, text
from harness.kernels.cpp import calls
from harness.kernels.cpp.source import strided
from harness.problems.protocol import Struct
from harness.problems.registry import resolve
from shared.checking import check, of_programs, programs

PROGRAMS = programs("members")
SAID = {
    "attend": "-a p_q_batch_stride=4096 -a p_q_head_stride=256 -a p_q_row_stride=16 -a p_k_batch_stride=4096",
    "causal": "-a rows_q_stride_batch=4096 -a rows_q_stride_head=256 -a rows_q_stride_row=16",
    "host": "-a p_in=2750 -a p_out=2750 -a p_height=50 -a p_width=55 -a p_pitch=55 -a p_gain=0.5",
    "mesh": "As long as the kernel goes: m_picture (17576 guessed)",
    "pool": "-a s_height=26 -a s_width=31 -a s_batch_stride=1024 -a s_row_stride=32",
}
QUICK = ("host", "causal")
FAULTS = [
    ("attend", "row >= p.length", "row > p.length"),
    ("attend", "c < p.width", "c <= p.width"),
    ("attend", "j <= row", "j <= row + 1"),
    ("attend", "head * p.o_head_stride", "head * p.o_row_stride"),
    ("attend", " + row * p.o_row_stride", ""),
    ("causal", "        __syncthreads();\n        sum", "        sum"),
    ("causal", "t < rows.length", "t <= rows.length"),
    ("causal", "head * rows.o_stride_head", "batch * rows.o_stride_head"),
    ("causal", "        if (threadIdx.x < rows.width)", "        if (threadIdx.x <= rows.width)"),
    ("host", "x >= p.width", "x > p.width"),
    ("host", " || y >= p.height", ""),
    ("host", "&from, rows * cols", "&from, rows * (cols - 1)"),
    ("mesh", "x >= m.width", "x > m.width"),
    ("mesh", "c < m.channels; c++)\n        out", "c <= m.channels; c++)\n        out"),
    ("pool", "x >= s.width", "x > s.width"),
    ("pool", " || y >= s.height", ""),
    ("pool", "b * s.height + y", "b * s.width + y"),
]  # fmt: skip


test_all_are_tried, test_a_right_program_is_clean, test_a_planted_fault_is_found = of_programs(
    PROGRAMS, SAID, FAULTS, QUICK
)


def test_an_argument_is_put_together_of_its_members(tmp_path: Path) -> None:
    """Give zero for what the kernel does not read, and operands for pointers."""
    path = tmp_path / "k.cu"
    path.write_text("""struct Own { short tag; float* y; int n, unread, m; double d = 2; };
      __global__ void k(const float* x, Own own) { own.y[own.n * own.m] = x[0] * own.d; }""")
    (kernel,) = catalog.load_each(path)
    problem = resolve(kernel).from_axes({"own_n": 5, "own_m": 7})
    first, own = problem.arguments()
    assert first == "x" and isinstance(own, Struct) and own.operands() == ["own_y"]
    packed = own.pack(lambda name: 2**40)
    assert len(packed) == 40 and np.frombuffer(packed[8:16], np.uint64)[0] == 2**40
    assert np.frombuffer(packed[16:28], np.int32).tolist() == [5, 0, 7]
    assert np.frombuffer(packed[32:], np.float64)[0] == 2


STRUCT = "struct S { float* x; int n, m; };\n"


@pytest.mark.parametrize(
    "kernel",
    [
        "__device__ void f(S s) { S t = s; t.x[s.n] = 1; }\n__global__ void k(S s) { if (s.n < s.m) f(s); }",
        "__global__ void k(S s) { s.x[0] = s.n; }",
        "__global__ void k(S s) { int s_n = 1; s.x[s_n] = s.n + s.m; }",
        "__global__ void k(S* s) { s->x[0] = s->n + s->m; }",
        "struct T : S { S more[2]; };\n__global__ void k(T s) { s.x[0] = s.n + s.m; }",
    ],
)
def test_what_is_more_than_read_by_its_members_stays_a_struct(kernel: str) -> None:
    """It is handed on whole, or a name is taken, or it has an array."""
    source = STRUCT + kernel
    assert calls.seen(source, ()).texts[0] == source


def test_functions_that_get_a_struct_read_its_members(tmp_path: Path) -> None:
    """Read one that a kernel hands all on to as the kernel."""
    source = """struct S { const float* x; float* y; int rows, cols, stride; int more[3]; };
template <bool TWICE>
static __device__ void add(const S& s)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y;
    if (i < s.cols && j < s.rows) s.y[j * s.cols + i] = s.x[j * s.stride + i] + s.more[2] * TWICE;
}
__global__ void once(const S s) { add<false>(s); }
__global__ void twice(const S s) { add<true>(s); }
"""
    code, said = check(tmp_path, source)
    assert code == 0 and "k:twice was launched as by --grid 1,64,1 --block 256,1,1 -a s_x=65536" in said, said
    code, said = check(tmp_path, source.replace("j * s.cols", "j * s.rows"))
    assert code == 1 and said.count("s_y at offset") == 2, said


def test_lines_stay_and_launches_pass_what_members_are_given() -> None:
    source = STRUCT + (
        "__global__ void k(\n  S\n  s, int a) { s.x[s .\n n] = s.m + a; }\n"
        "void run(float* d, int n) { S all{d, n, n + 1}; k<<<1, 32>>>(all, 3); }\n"
        "void set(float* d, int n) { S t; t.n = n; k<<<1, 32>>>(t, t.n); t.m = f(t.n); }\n"
    )
    (seen,) = calls.seen(source, ()).texts
    assert seen.count("\n") == source.count("\n")
    (entry,) = text.entries(seen)
    assert [p.name for p in entry.parameters] == ["s_x", "s_n", "s_m", "a"] and "s_x[s_n" in entry.body
    assert "k<<<1, 32>>>(d, n, n + 1, 3)" in seen and "k<<<1, 32>>>(t_x, n, f(t.n), t_n)" in seen


def test_a_pointer_that_begins_in_a_buffer_is_that_buffer() -> None:
    body = "{ const float* row = x + i * s_row; auto one = &row[j * s_one]; y[i] = one[k]; z = *one; }"
    assert "x[i * s_row + j * s_one + k]" in strided.direct(body, "x")
    moved = body.replace("z =", "row += 2; z =")
    assert strided.direct(moved, "x") == moved
    two = "{ float *row = x + i * s_row, *one = y + i * s_one; row[j] = one[j]; }"
    assert "x[i * s_row + j]" in strided.direct(two, "x") and "y[i * s_one + j]" in strided.direct(two, "y")
    names = ["s_row", "s_one"]
    assert strided.layout(body + "if (k < n) ;", "x", names) == [*names, strided.ENDLESS]
    assert strided.layout(body.replace("*one", "0") + "k < n", "x", names)[-1] == strided.ALONE


@pytest.mark.slow
def test_what_equal_sizes_do_not_show_is_in_doubt(tmp_path: Path) -> None:
    """The width for the height is the same index at equal sizes, and says less of how long buffers are."""
    source = PROGRAMS["mesh"]
    code, found = check(tmp_path, source.replace("y + m.height * layer", "y + m.width * layer"))
    assert code == 3 and "IN DOUBT" in found and "m_picture" in found, found
