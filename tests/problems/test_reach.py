"""Guessed buffers are as long as their kernel goes, where the numbers of its text explain that."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.problems.guessed.reach import Reach

PLANES = """#define H 12
#define W 20
__global__ void planes(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  for (int h = 0; h < H; h++)
    for (int w = 0; w < W; w++) y[i * H * W + h * W + w] = x[i * H * W + h * W + w] + 1.f;
}
"""
ROWS = """#define N 300
__global__ void rows(const float* x, float* y) {
  int row = blockIdx.x, t = threadIdx.x;
  for (int i = t; i < N; i += blockDim.x) y[row * N + i] = 2.f * x[row * N + i];
}
int main() { float *x, *y; rows<<<64, 128>>>(x, y); }
"""
NORM = """constexpr int DIM = 256;
__global__ void norm(const float* x, float* y, int rows) {
  const int row = blockIdx.x;
  if (row >= rows) return;
  const float* in = x + row * DIM;
  __shared__ float s[DIM];
  s[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  for (int w = DIM / 2; w; w /= 2) {
    if (threadIdx.x < w) s[threadIdx.x] += s[threadIdx.x + w];
    __syncthreads();
  }
  y[row * DIM + threadIdx.x] = in[threadIdx.x] / s[0];
}
"""
BOTH = """__global__ void both(const float* a, const float* b, float* c, int n, int m) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, whole = n + m;
  for (; i < whole; i += gridDim.x * blockDim.x) c[i] = i < n ? a[i] : b[i - n];
}
"""
IMAGE = """__global__ void gray(const unsigned char* in, unsigned char* out, int w, int h, int channels) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= w || y >= h) return;
  int sum = 0;
  for (int c = 0; c < channels; c++) sum += in[(y * w + x) * channels + c];
  out[y * w + x] = sum / channels;
}
int main() {
  dim3 block(16, 16), grid((w + 15) / 16, (h + 15) / 16);
  gray<<<grid, block>>>(in, out, w, h, 3);
}
"""


def check(folder: Path, source: str, *arguments: str) -> tuple[int, str]:
    path = folder / "k.cu"
    path.write_text(source)
    ran = CliRunner().invoke(main, ["check", str(path), *arguments], env={"COLUMNS": "200"})
    return ran.exit_code, ran.output


@pytest.mark.parametrize(
    ("source", "said", "right", "wrong"),
    [
        (PLANES, "-a x=240000 -a y=240000 -a n=1000", "w < W", "w <= W"),
        (PLANES, "-a x=240000 -a y=240000 -a n=1000", "  if (i >= n) return;\n", ""),
        (ROWS, "-a x=1200 -a y=1200", "i < N", "i <= N"),
        (NORM, "--grid 64,1,1 --block 256,1,1 -a x=16384 -a y=16384", "y[row * DIM", "y[row * DIM + 1"),
        (BOTH, "-a c=2000", "i < whole", "i <= whole"),
        (IMAGE, "-a in=12288 -a out=4096 -a w=64 -a h=64 -a channels=3", "c < channels", "c <= channels"),
    ],
    ids=["planes", "guard", "rows", "norm", "sum", "image"],
)
def test_a_buffer_is_as_long_as_its_kernel_goes(
    tmp_path: Path, source: str, said: str, right: str, wrong: str
) -> None:
    """And a kernel that goes further than it means to is found."""
    code, output = check(tmp_path, source)
    assert code == 0 and said in output, output
    assert said.partition("-a")[2].split()[0] in output.partition("shapes:")[2].splitlines()[0]
    assert source.count(right) == 1
    code, output = check(tmp_path, source.replace(right, wrong))
    assert code == 1 and "out of bounds" in output, output


def test_what_is_given_is_not_guessed(tmp_path: Path) -> None:
    code, output = check(tmp_path, PLANES, "-a", "x=12000")
    assert code == 1 and "-a x=12000 -a y=240000 -a n=1000" in output, output
    code, output = check(tmp_path, PLANES, "-a", "n=10")
    assert code == 0 and "-a x=2400 -a y=2400 -a n=10" in output, output


@pytest.mark.parametrize(
    ("elements", "explained"),
    [
        (240_000, True),  # n * 12 * 20
        (12_000, True),
        (1_001, False),  # one too far
        (1_024, False),  # the end of the last block of 256
        (245_760, False),
        (240_001, False),
        (1_300, True),  # n + m
        (300 * 20, True),
        (2_000, False),  # 2 is none of the text's numbers
        (3_000, True),  # but 3 is given
        (1000 * 12**4, False),  # of more factors than an index has
        (64 * 12, True),  # a block has an item
        (64, True),
        (0, False),
        (1, False),
        (1000 * 300 * 300, False),  # larger than a guess may be
    ],
)
def test_products(elements: int, explained: bool) -> None:
    reach = Reach(numbers=frozenset({12, 20}), sums=frozenset({("n", "m"), ("n", "k")}), items=frozenset("x"))
    found = reach.explains(elements, {"n": 1000, "m": 300}, (64, 4, 1, 256, 1, 1), {0, 1, 3})
    assert found == explained


def test_without_sizes_it_is_the_launch_that_explains() -> None:
    reach = Reach(numbers=frozenset({300}), sums=frozenset(), items=frozenset())
    launch = (4, 1, 1, 128, 1, 1)
    assert reach.explains(1200, {}, launch) and reach.explains(512, {}, launch)
    assert not reach.explains(1201, {}, launch) and not reach.explains(300, {}, (1, 1, 1, 1, 1, 1))
    assert not reach.explains(1200, {"n": 1000}, launch), "with sizes it is these"
