"""Filters and their weights, indices that add two sizes, blocks made of sizes, shares of blocks, arrays."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.checking import check, check_clean, check_fault
from shared.sweeps import sweep

FILTER = """
__global__ void filter(const float* in, const float* weights, float* out, int width, int height, int k) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  int half = k / 2;
  float sum = 0;
  for (int i = 0; i < k; i++)
    for (int j = 0; j < k; j++) {
      int row = y - half + i, column = x + j - half;
      if (row >= 0 && row < height && column >= 0 && column < width)
        sum += in[row * width + column] * weights[i * k + j];
    }
  out[y * width + x] = sum;
}
"""
CONSTANT = FILTER.replace("const float* weights, ", "").replace(
    "\n__global__", "\n__constant__ float weights[9 * 9];\n__global__", 1
)
FILTER_FAULTS = [
    ("i < k", "i <= k"),
    ("j < k", "j <= k"),
    ("row < height", "row <= height"),
    ("weights[i * k + j]", "weights[i * k + j + 1]"),
]


def test_a_filter_has_weights_of_its_own_length(tmp_path: Path) -> None:
    check_clean(tmp_path, FILTER, "-a weights=25 -a out=2750 -a width=50 -a height=55 -a k=5")


@pytest.mark.slow
def test_weights_in_constant_memory_have_room(tmp_path: Path) -> None:
    check_clean(tmp_path, CONSTANT, "-a k=5")
    code, said = check(tmp_path, CONSTANT.replace("[9 * 9]", "[24]"))
    assert code == 1 and "up to 4 bytes past the end" in said, said


@pytest.mark.parametrize(("old", "new"), sweep(FILTER_FAULTS, lambda old, new: new == "i <= k"))
def test_a_fault_of_a_filter(tmp_path: Path, old: str, new: str) -> None:
    check_fault(tmp_path, FILTER, old, new)


SHIFTED = """
__global__ void shifted(const float* x, float* y, int n, int taps) {
  int step = gridDim.x * blockDim.x, j = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
    j = i + taps - 1;
    y[i] = x[j];
  }
}
"""
SHIFTED_FAULTS = [("x[j]", "x[j + 1]"), ("y[i]", "y[i + 1]"), ("i < n", "i <= n")]


def test_an_index_that_adds_two_sizes(tmp_path: Path) -> None:
    check_clean(tmp_path, SHIFTED, "-a x=1999 -a y=1000")


@pytest.mark.parametrize(("old", "new"), sweep(SHIFTED_FAULTS, lambda old, new: "y" in old))
def test_what_goes_further_is_a_fault(tmp_path: Path, old: str, new: str) -> None:
    check_fault(tmp_path, SHIFTED, old, new)


HEADS = """
#define LENGTH 8
#define HEADS 4
__global__ void added(float* x, float slope, int length) {
  int row = threadIdx.y, column = threadIdx.x;
  int at = blockIdx.x * length * length + row * length + column;
  if (column >= row) x[at] -= slope * (column - row);
}
int main() {
  float* x;
  cudaMalloc(&x, HEADS * LENGTH * LENGTH * sizeof(float));
  added<<<dim3(HEADS), dim3(LENGTH, LENGTH)>>>(x, 0.5f, LENGTH);
}
"""


@pytest.mark.slow
def test_a_block_that_is_made_of_sizes_has_the_host_s_grid(tmp_path: Path) -> None:
    check_clean(tmp_path, HEADS, "--grid 4,1,1 --block 8,8,1 -a x=256")
    check_fault(tmp_path, HEADS, "blockIdx.x * length", "(blockIdx.x + 1) * length")
    check_fault(tmp_path, HEADS, "dim3(HEADS)", "dim3(HEADS + 1)")


LATTICE = """
#include "lattice.h"
__constant__ int dx[5], dy[5], back[5];
void fill() {
  cudaMemcpyToSymbol(dx, Lattice::x.data(), sizeof dx);
  cudaMemcpyToSymbol(dy, Lattice::y.data(), sizeof dy);
  cudaMemcpyToSymbol(back, Lattice::opposite.data(), sizeof back);
}
__global__ void stream(const float* from, float* to, int nx, int ny) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= nx || y >= ny) return;
  for (int q = 0; q < 5; q++) {
    int there = x + dx[q], up = y + dy[q];
    bool inside = there >= 0 && up >= 0 && there < nx && up < ny;
    to[inside ? (up * nx + there) * 5 + q : (y * nx + x) * 5 + back[q]] = from[(y * nx + x) * 5 + q];
  }
}
"""
HEADER = """#include <array>
struct Lattice {
  static constexpr std::array<int, 5> x = {0, 1, -1, 0, 0}, y = {0, 0, 0, 1, -1};
  static constexpr std::array<int, 5> opposite = {OPPOSITE};
};
"""


@pytest.mark.slow
@pytest.mark.parametrize(("opposite", "wanted"), [("0, 2, 1, 4, 3", 0), ("0, 1, 2, 4, 3", 1)])
def test_constants_of_a_header_s_arrays(tmp_path: Path, opposite: str, wanted: int) -> None:
    """Each place has one writer, if steps and opposite directions are those of the header."""
    (tmp_path / "lattice.h").write_text(HEADER.replace("OPPOSITE", opposite))
    code, said = check(tmp_path, LATTICE)
    assert code == wanted and ("WAW hazard" in said) == bool(wanted), said


QUADS = """
const int N = 1 << 25;
__global__ void quads(const float* a, float* b) {
  int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (i < N) *(float4*)&b[i] = *(const float4*)&a[i];
}
int main() {
  float *a, *b;
  cudaMalloc(&a, N * sizeof(float)), cudaMalloc(&b, N * sizeof(float));
  int blocks = N / 256;
  quads<<<blocks / 4, 256>>>(a, b);
}
"""


@pytest.mark.slow
def test_long_buffers_of_which_each_block_has_a_share(tmp_path: Path) -> None:
    check_clean(tmp_path, QUADS, "--grid 4,1,1 --block 256,1,1 -a a=4096 -a b=4096")
    check_fault(tmp_path, QUADS, "<<<blocks / 4", "<<<blocks / 2")
    check_fault(tmp_path, QUADS, "&a[i]", "&a[i + 4]")


@pytest.mark.slow
def test_what_is_far_from_its_block_is_not_shared(tmp_path: Path) -> None:
    """Leave two halves as they are: of each a share would be needed."""
    _, said = check(tmp_path, QUADS.replace("&a[i]", "&a[(i + N / 2) % N]"))
    assert "-a a=4096" not in said


PLACES = """
__global__ void back(float* out, const float* x, const int* at, int rows, int wide, int n) {
  int j = blockIdx.x * blockDim.x + threadIdx.x, last = blockIdx.y * 8 + 8;
  if (j >= n) return;
  if (last > rows) last = rows;
  for (int i = blockIdx.y * 8; i < last; ++i) out[i * wide + at[j]] = x[i * n + j];
}
"""


@pytest.mark.slow
def test_as_many_places_as_there_are_elements_all_differ(tmp_path: Path) -> None:
    """Also where there are fewer rows than these."""
    check_clean(tmp_path, PLACES, "-a at=199 -a rows=194 -a wide=199")
    check_fault(tmp_path, PLACES, "at[j]]", "at[j] / 2]")


NUMBERS = """
typedef unsigned long long number_t[6];
typedef number_t value_t;
typedef struct { number_t x, y, z; } point_t;
__device__ void add(number_t& z, const number_t& x, const number_t& y) {
  unsigned long long carry = 0;
  for (int i = 0; i < 6; i++) {
    unsigned long long sum = x[i] + y[i] + carry;
    carry = sum < x[i];
    z[i] = sum;
  }
}
__global__ void sums(value_t* out, const value_t* a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) add(out[i], a[i], a[i]);
}
__global__ void points(point_t* p, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) add(p[i].z, p[i].x, p[i].y);
}
"""


@pytest.mark.slow
def test_arrays_with_a_name_of_their_own(tmp_path: Path) -> None:
    check_clean(tmp_path, NUMBERS, "k:sums was launched as by --grid 4,1,1 --block 256,1,1 -a out=1000")
    check_fault(tmp_path, NUMBERS, "i < n) add(out", "i <= n) add(out")
    check_fault(tmp_path, NUMBERS, "i < 6", "i <= 6")
    passed = NUMBERS + "__global__ void set(number_t x, int n) { if (threadIdx.x < n) x[0] = 1; }\n"
    assert "x of k:set is a number_t, for which no value can be guessed" in check(tmp_path, passed)[1]


PITCHED = """
__global__ void turned(float* to, const float* from, int n, size_t pitch) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < n && y < n) to[x * pitch + y] = from[y * pitch + x];
}
int main() {
  const int n = 1000;
  size_t pitch = 0;
  float *to, *from;
  cudaMallocPitch(&to, &pitch, n * sizeof(float), n);
  cudaMallocPitch(&from, &pitch, n * sizeof(float), n);
  turned<<<dim3((n + 15) / 16, (n + 15) / 16), dim3(16, 16)>>>(to, from, n, pitch / sizeof(float));
}
"""


@pytest.mark.slow
def test_a_pitch_that_cuda_chooses_is_not_what_it_was_before(tmp_path: Path) -> None:
    check_clean(tmp_path, PITCHED, "-a n=64 -a pitch=64")
    check_fault(tmp_path, PITCHED, "y < n)", "y <= n)")
    check_fault(tmp_path, PITCHED, "to[x * pitch + y]", "to[x * (pitch - 1) + y]")
