"""Variables in constant memory hold what host code copies there, or what their use suggests."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.checking import check, of_programs, programs

PROGRAMS = programs("constants", "constant_maps")
SAID = {  # of sizes and blocks
    "aes": "-a blocks=1000 -a rounds=10",
    "copy": "-a source_map=4096 -a target_map=4096 -a columns=80",
    "experts": "-a weights=128 -a expert_of=160",
    "gradient": "-a gx=307200 -a u=307200 -a nx=640 -a ny=480",
    "groups": "-a width=128 -a height=64 -a groups=8",
    "life": "-a in=2750 -a out=2750",
    "network": "-a d_weights=1000 -a net_bias=1000 -a net_out=1000 -a net_n=1000",
    "offsets": "-a in=2750 -a out=2750 -a width=50 -a height=55",
    "pair": "-a maps_0=1024 -a maps_1=1024 -a rows=16",
    "perlin": "-a w=50 -a h=55",
    "product": "-a problem_M=120 -a problem_N=256 -a problem_K=80",
    "spheres": "-a num_spheres=32",
    "tile": "--grid 8,8,1 --block 32,1,1 -a out=64 -a tensor_map=4096",
    "gather": "-a rows=1000 -a d_count=24",
    "lattice": "-a f=9216 -a out=9216 -a solid=1024 -a nx=32 -a ny=32",
    "median": "-a width=64 -a height=64 -a radius=3",
    "motif": "-a text=1000 -a hits=1000 -a n=1000",
    "params": "-a count=4096 -a params_numBodies=1000 -a params_gridSize=64",
    "separable": "-a imageW=98 -a imageH=98",
    "sizes": "-a u=2750 -a v=2750 -a NX=50 -a NY=55 -a alpha=1",
    "volume": "-a u=37975 -a v=37975 -a grid__nx=31",
}
QUICK = ("median", "sizes")
FAULTS = [
    ("separable", "c_Kernel[KERNEL_RADIUS - j]", "c_Kernel[KERNEL_RADIUS - j + 1]"),
    ("separable", "    __syncthreads();\n", ""),
    ("separable", "if (x >= imageW) return;", "if (x > imageW) return;"),
    ("lattice", "(x - cx[k] + nx) % nx", "(x - cx[k] + nx)"),
    ("lattice", "f[opposite[k] * n", "f[(opposite[k] + 1) * n"),
    ("lattice", "2, 7, 8, 5, 6}", "2, 7, 9, 5, 6}"),
    ("sizes", "j >= NY - 1", "j >= NY"),
    ("sizes", "i >= NX - 1 || j >= NY - 1", "i >= NX - 1 || j >= NX"),
    ("sizes", "int at = j * NX + i;", "int at = j * NY + i;"),
    ("params", "i >= params.numBodies", "i > params.numBodies"),
    ("params", "int at = gy * params.gridSize + gx;", "int at = (gy + 1) * params.gridSize + gx;"),
    ("params", "atomicAdd(&count[at], 1);", "count[at]++;"),
    ("gather", "columns[i] = i * STRIDE + 4;", "columns[i] = i * STRIDE + 5;"),
    ("gather", "d_columns[k]]", "d_columns[k + 1]]"),
    ("gather", "row >= rows", "row > rows"),
    ("median", "weights[dx + radius]", "weights[dx - radius]"),
    ("median", "width - 1);", "width);"),
    ("median", "int at = min(max(x + dx, 0), width - 1);", "int at = x + dx;"),
    ("motif", "n - PATTERN + 1", "n - PATTERN + 2"),
    ("motif", "pattern[k])", "pattern[k + 1])"),
    ("motif", "own[failure[threadIdx.x]] = 1", "own[failure[threadIdx.x] + 1] = 1"),
    ("motif", "= 1;\n    __syncthreads();\n", "= 1;\n"),
    ("volume", "int z = RADIUS; z <", "int z = RADIUS - 1; z <"),
    ("volume", "z < grid_.nz - RADIUS", "z <= grid_.nz - RADIUS"),
    ("volume", "{nx, ny, nz, nx, nx * ny}", "{nx, ny, nz, nx, nx * nz}"),
    ("aes", "rk[4 * r + 3]", "rk[4 * r + 8]"),
    ("aes", "constant__ uint32_t rk[44]", "constant__ uint32_t rk[36]"),
    ("spheres", "spheres[i].material].albedo", "spheres[i].material + MAX_MATERIALS].albedo"),
    ("spheres", "i < num_spheres", "i <= num_spheres"),
    ("network", "i >= net.n", "i > net.n"),
    ("network", "d_weights[i] *", "d_weights[i + 1] *"),
    ("life", "y >= h - 1) return;\n  int n", "y >= h) return;\n  int n"),
    ("life", "mask[j][i]", "mask[j + 1][i]"),
    ("gradient", "i < nx * ny", "i <= nx * ny"),
    ("gradient", "part[256]", "part[192]"),
    ("offsets", "y >= height - 1", "y >= height"),
    ("offsets", "-width, width}", "-width, 2 * width}"),
    ("tile",
     "__shared__ alignas(128) float tile[BY][BX];",
     "__shared__ alignas(128) float tile[BY - 1][BX];"),
    ("tile", "init(&bar, 1);\n  __syncthreads();", "init(&bar, 1);"),
    ("tile", "  wait(&bar, 0);\n", ""),
    ("tile", "blockIdx.y * gridDim.x + blockIdx.x]", "blockIdx.y * gridDim.x + blockIdx.x + 1]"),
    ("copy",
     'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");\n  __syncthreads();',
     "__syncthreads();"),
    ("copy",
     '"memory");\n  __syncthreads();\n  if (threadIdx.x == 0) store',
     '"memory");\n  if (threadIdx.x == 0) store'),
    ("copy", "expect(&bar, sizeof(tile));", "expect(&bar, sizeof(tile) / 2);"),
    ("product", "    phase ^= 1;\n", ""),
    ("product", "* problem.N +", "* problem.M +"),
    ("product", "encode(B, N, K, BN, BK)", "encode(B, N, K, BN, BK / 2)"),
    ("product", "* sB[j * BN + col];\n    __syncthreads();", "* sB[j * BN + col];"),
    ("pair", "const int which = blockIdx.y;", "const int which = blockIdx.y + 1;"),
    ("pair", "(size_t)which * rows + row", "(size_t)which * (rows + 1) + row"),
    ("pair", "encode(y, WIDTH, rows, WIDTH, ROWS)", "encode(y, WIDTH, rows, WIDTH, 2 * ROWS)"),
    ("groups", "&maps[group]", "&maps[group + 1]"),
    ("groups", "  __syncthreads();\n  wait", "  wait"),
    ("experts", "weights + expert, k", "weights + expert + EXPERTS, k"),
    ("experts", "expect(&bar, sizeof(sX) + sizeof(sW));", "expect(&bar, sizeof(sX));"),
    ("experts", "if (threadIdx.x < BM && row < rows)", "if (row < rows)"),
]  # fmt: skip


test_all_are_tried, test_a_right_program_is_clean, test_a_planted_fault_is_found = of_programs(
    PROGRAMS, SAID, FAULTS, QUICK
)


RAYS = """__constant__ float matrix[4];
__global__ void cast(float* out, const float* volume, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  if (matrix[0] != 0.0f || matrix[1] != 0.0f)
    return;
  out[i] = volume[i + 1];
}
"""


def test_a_line_that_random_numbers_miss_is_tried_with_zeros(tmp_path: Path) -> None:
    code, said = check(tmp_path, RAYS)
    assert code == 1 and "line 7: out[i] = volume[i + 1];" in said, said
    assert check(tmp_path, RAYS.replace("i + 1", "i"))[0] == 0


UNKNOWN = """struct Grid { int n; int rest; };
__constant__ Grid grid;
__constant__ int initial = 3, table[2] = {0, 1};
__global__ void k(float* x, int grid_rows) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < grid.n) x[i] = table[i & 1] * initial;
}
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("grid_rows", "rows", "-a x=1000 -a rows=1000 -a grid_n=1000"),  # the part that is read
        ("grid_rows", "grid", "-a grid"),  # a parameter hides it
        (
            "struct Grid { int n; int rest; };",
            "enum Mode { MEAN }; struct Grid { int n; Mode mode; };",
            "-a x=1000 -a grid_rows=1000 ",
        ),
        ("grid_rows", "grid_n", "-a x=1000 -a grid_n=1000 ("),  # a name that is taken
    ],
)
def test_parts_that_are_read_are_parameters(tmp_path: Path, old: str, new: str, said: str) -> None:
    source = UNKNOWN.replace(old, new) if new != "grid" else UNKNOWN.replace("int grid_rows", "Grid grid")
    assert said.rstrip(" (") in check(tmp_path, source)[1]


def test_a_size_in_constant_memory_can_be_given(tmp_path: Path) -> None:
    source = UNKNOWN.replace("grid_rows", "rows")
    assert "-a grid_n=77" in check(tmp_path, source, "-a", "grid_n=77")[1]
    wrong = source.replace("i < grid.n", "i <= grid.n")
    assert check(tmp_path, wrong)[0] == 1 and check(tmp_path, source)[0] == 0


MADE = """#define KERNEL __global__ void
__constant__ int n;
KERNEL fill(float* x) { int i = threadIdx.x; if (i < n) x[i] = 1; }
int main() {
  int count = 64;
  float* x;
  cudaMalloc(&x, 256);
  cudaMemcpyToSymbol(n, &count, 4);
  fill<<<1, 64>>>(x);
}
"""


def test_numbers_of_a_kernel_that_a_macro_makes_stay_zero(tmp_path: Path) -> None:
    code, said = check(tmp_path, MADE)
    assert code == 0 and "failed" not in said, said
