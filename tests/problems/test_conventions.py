"""`harness check` of PTX whose compiler passes arrays in a way of its own: Numba, Warp and CuTe.

They are written in CUDA C++ with the names and parameters that those compilers give.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.checking import check_file
from shared.emulator_kernels import compile_ptx
from shared.sweeps import sweep

NUMBA_ROWS = "_ZN8__main__4rowsB2v1E5ArrayIfLi2E1A7mutable7alignedEi5ArrayIfLi1E1C7mutable7alignedE"
NUMBA = f"""typedef unsigned long long u64;
extern "C" __global__ void {NUMBA_ROWS}(
    u64 meminfo, u64 parent, long long items, long long item, char* x, long long rows, long long columns,
    long long by_row, long long by_column, int power,
    u64 meminfo_, u64 parent_, long long items_, long long item_, float* sums, long long count,
    long long step) {{
  long long r = blockIdx.x;
  float sum = 0;
  for (long long c = threadIdx.x; c < columns; c += 32) sum += *(float*)(x + r * by_row + c * by_column);
  for (int d = 16; d; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
  if (threadIdx.x == 0 && r < items_) sums[r] = sum * power;
}}"""
WARP = """struct Bounds { unsigned shape[2]; unsigned long long size, together; };
struct Array { float* data; float* grad; int shape[4]; int strides[4]; int ndim, flags; };
extern "C" __global__ void shift_cuda_kernel_forward(Bounds to, Array x, Array y, float by) {
  unsigned long long first = blockIdx.x * blockDim.x + threadIdx.x, all = blockDim.x * gridDim.x;
  for (unsigned long long t = first; t < to.size; t += all) {
    int i = t / to.together / to.shape[1], j = t / to.together % to.shape[1];
    if (i < 1 || j < 1 || i >= x.shape[0] - 1 || j >= x.shape[1]) continue;
    float* from = (float*)((char*)x.data + (i - 1) * x.strides[0] + j * x.strides[1]);
    float* below = (float*)((char*)x.data + (i + 1) * x.strides[0] + j * x.strides[1]);
    float* into = (float*)((char*)y.data + i * y.strides[0] + j * y.strides[1]);
    for (int k = 0; k < 3; k++) into[k] = from[k] + by * below[k];
  }
}"""
CUTE_ADD = "kernel_cutlass_add_tensorptrf32gmemoi641_tensorptrf32gmemalign16oi641_tensorptrf32gmemo1_0"
CUTE = f"""struct Matrix {{ float* data; int rows, columns; long long stride; }};
struct Vector {{ float* data; int length; }};
extern "C" __global__ void {CUTE_ADD}(Matrix x, Matrix y, Vector bias) {{
  int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;
  if (r < x.rows && c < x.columns) y.data[r * y.stride + c] = x.data[r * x.stride + c] + bias.data[c];
}}"""
TURN = "kernel_cutlass_turn_tensorptrf32gmemoi641_tensorptrf32gmemo1i64_0"
COLUMNS = CUTE.replace(CUTE_ADD, TURN).replace(", Vector bias", "").replace(" + bias.data[c]", "")
COLUMNS = COLUMNS.replace("y.data[r * y.stride + c]", "y.data[r + y.stride * c]")
MIDDLE = """struct Batch { float* data; int m, k, l; long long of_m, of_l; };
extern "C" __global__ void kernel_cutlass_set_tensorptrf32gmemoi641i64_0(Batch x) {
  int k = blockIdx.x * 8 + threadIdx.x, m = blockIdx.y * 8 + threadIdx.y, l = threadIdx.z;
  if (k < x.k && m < x.m && l < x.l) x.data[m * x.of_m + k + l * x.of_l] = m * 7 + k;
}"""
OLDER = WARP.replace(
    "shape[2]; unsigned long long size, together;", "shape[4]; int ndim; unsigned long long size;"
)
OLDER = OLDER.replace("t / to.together / to.shape[1], j = t / to.together %", "t / to.shape[1], j = t %")
COMPLEX = """typedef unsigned long long u64;
extern "C" __global__ void _ZN8__main__4rowsB2v1E9complex645ArrayIfLi1E1C7mutable7alignedE(
    float re, float im, u64 meminfo, u64 parent, long long items, long long item, float* x, long long count,
    long long step) {
  long long i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) x[i] = re * i + im;
}"""
BLOCKS = {"rowsB2v1": "32", "_cuda_kernel_forward": "256", "gmemoi641i64": "8,8,2"}
CASES = [
    (NUMBA, "", "", "", True),
    (NUMBA, "c < columns", "c <= columns", "out of bounds", True),
    (NUMBA, "sums[r] =", "sums[0] =", "race", False),
    (NUMBA, "r * by_row", "r * by_row * 2", "out of bounds", False),
    (NUMBA, "r * by_row", "r * by_column", "", False),  # other numbers, of the same array
    (WARP, "", "", "", True),
    (WARP, "x.shape[0] - 1", "x.shape[0]", "out of bounds", True),
    (WARP, "i < 1 || ", "", "out of bounds", False),
    (WARP, "i * y.strides[0]", "i / 2 * y.strides[0]", "hazard", False),
    (CUTE, "", "", "", True),
    (CUTE, "r < x.rows", "r <= x.rows", "out of bounds", True),
    (CUTE, "c < x.columns", "c <= x.columns", "out of bounds", False),
    (CUTE, "r < x.rows && ", "", "out of bounds", False),
    (CUTE, "r * y.stride", "r / 2 * y.stride", "hazard", False),
    (COLUMNS, "", "", "", False),
    (COLUMNS, "r < x.rows", "r <= x.rows", "out of bounds", False),
    (MIDDLE, "", "", "", False),
    (MIDDLE, "k < x.k", "k <= x.k", "race", False),
    (OLDER, "", "", "", False),
    (OLDER, "x.shape[0] - 1", "x.shape[0]", "out of bounds", False),
    (COMPLEX, "", "", "", False),
    (COMPLEX, "i < count", "i <= count", "out of bounds", False),
]


def checked(folder: Path, source: str, *options: str) -> tuple[int, str]:
    """Check a kernel as the PTX of its compiler, which ends with NVRTC's NUL."""
    path = folder / "kernel.ptx"
    path.write_text(compile_ptx(source) + "\0")
    block = next((threads for name, threads in BLOCKS.items() if name in source), "16,16")
    return check_file(path, "--block", block, *options)


@pytest.mark.parametrize(
    ("source", "old", "new", "said"), sweep([c[:4] for c in CASES], lambda *case: (*case, True) in CASES)
)
def test_faults(tmp_path: Path, source: str, old: str, new: str, said: str) -> None:
    assert old in source
    changed = source.replace(old, new, 1) if old else source
    code, output = checked(tmp_path, changed)
    assert code == bool(said) and said in output, output


def test_lengths_are_free_and_strides_follow(tmp_path: Path) -> None:
    code, output = checked(tmp_path, NUMBA, "-a", "param_5=7", "-a", "param_6=40", "--grid", "7")
    assert code == 0 and "param_4=280" in output and "param_7" not in output, output
    code, output = checked(tmp_path, WARP, "-a", "param_1_m16=9", "-a", "param_1_m20=5", "-a", "param_0_m0=9",
                           "-a", "param_0_m4=5", "-a", "param_2_m16=9", "-a", "param_2_m20=5")  # fmt: skip
    assert code == 0 and "param_1_m0=135" in output and "param_1_m32" not in output, output


def test_a_struct_of_another_layout_is_what_is_loaded_from_it(tmp_path: Path) -> None:
    other = CUTE.replace("long long stride; };", "long long stride, more; };")
    code, output = checked(tmp_path, other)
    assert code == 0 and "param_0_m16=" in output, output  # a stride by itself
