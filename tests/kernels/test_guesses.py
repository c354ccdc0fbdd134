"""How a kernel without front matter is launched: grids of host code, and what a block covers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.kernels import catalog, text
from harness.kernels.cpp import brought, calls, elements, guesses
from harness.kernels.cpp.host import launches, values
from harness.kernels.cpp.source.anew import instances
from harness.kernels.expr import Expr
from shared.sweeps import sweep

KERNEL = """\
#define T 128
__global__ void k(float* x, int rows, int cols) { x[blockIdx.x * cols] = blockIdx.y * T; }
"""
GRID = "dim3 block(16, 8); dim3 grid((w + block.x - 1) / block.x, h / block.y);"
COLUMN_AND_ROW = "int c = blockIdx.x * W + threadIdx.x, r = blockIdx.y * 4 + threadIdx.y;"


def blocks(host: str, kernel: str = KERNEL, **sizes: int) -> list[int]:
    """Return the grid that is guessed for the kernel `k` of a file with this host code."""
    source = f"{kernel}int main(int argc, char** argv) {{\n{host}\n}}"
    grid = guesses.of(source, text.find(text.entries(source), "k"), "k").grid
    return [e(sizes or {"rows": 40, "cols": 300}) for e in grid]


@pytest.mark.parametrize(
    ("host", "grid"),
    [
        ("k<<<dim3(w / T, h), T>>>(x, h, w);", [3, 40]),  # rounded up, as sizes are no multiples here
        ("k<<<(w + T - 1) / T, T>>>(x, h, w);", [3]),
        ("int n = (w + T - 1) / T; k<<<n, T>>>(x, h, w);", [3]),
        (f"{GRID} k<<<grid, block>>>(x, h, w);", [19, 5]),
        ("k<<<div_up(w, T), T>>>(x, h, w);", [3]),
        ("k<<<CEIL_DIV(w, T), T>>>(x, h, w);", [3]),
        ("k<<<(unsigned)(w + 255u) / 256u, T>>>(x, h, w);", [2]),
        ("const int w = 1 << 20; k<<<w / T, T>>>(x, h, w);", [3]),  # of the argument, whatever it is there
        ("k<<<h - 40, T>>>(x, h, w);", [1]),
        ("k<<<1, T>>>(x, h, w);", [1]),
        ("k<<<8, T>>>(x, h, w);", []),
        ("k<<<n / T, T>>>(x, h, w);", []),
        ("k<<<properties.multiProcessorCount, T>>>(x, h, w);", []),
        ("k<<<a, T>>>(x, h, w); int a = b, b = a;", []),
        ("k<<<blocks_for(w), T>>>(x, h, w);", []),
        ("k<<<w / T, T>>>(x, h", []),
    ],
)  # fmt: skip
def test_the_grid_of_host_code_in_terms_of_the_kernels_sizes(host: str, grid: list[int]) -> None:
    assert blocks(host) == grid


def test_blocks_that_are_counted_in_tiles() -> None:
    """Count blocks of C++ by sizes, so that guards show; of Triton's kernels one has to do."""
    source = """__global__ void k(float* x, int n, int m) {
        int tiles = (n + 15) / 16, row = blockIdx.x / tiles * 16 + threadIdx.y;
        if (row < m) x[row * n + blockIdx.x % tiles * 16 + threadIdx.x] = 0;
    }"""
    (entry,) = text.entries(source)
    assert not guesses.of(source, entry, "k").grid
    assert [str(e) for e in guesses.of(source, entry, "k", ptx=()).grid] == ["1"]


def test_blocks_that_each_have_an_item_are_no_more_than_others() -> None:
    kernel = "__global__ void k(float* x, int rows, int cols) { x[blockIdx.x * cols + threadIdx.x] = 1; }\n"
    assert blocks("k<<<rows, 32>>>(x, rows, cols);", kernel, rows=40, cols=8) == [40]
    assert blocks("k<<<rows, 32>>>(x, rows, cols);", kernel, rows=4000, cols=8) == [64]


@pytest.mark.parametrize(
    ("body", "template", "block", "tile"),
    [
        ("int i = blockIdx.x * B + threadIdx.x;", "<float, 16>", (16,), (16,)),
        ("int i = threadIdx.x + B * blockIdx.x;", "<float, 16>", (16,), (16,)),
        ("int i = (blockIdx.x * B) + threadIdx.x;", "<float, 16>", (16,), (16,)),
        ("int b = blockIdx.x, t = threadIdx.x; int i = b * B + t;", "<float, 16>", (16,), (16,)),
        ("int i = blockIdx.x * B;", "<float, 16>", (1,), (16,)),
        ("int i = blockIdx.x * W + threadIdx.x;", "<float, 16>", (64,), (64,)),
        ("int i = blockIdx.x * (W * 2) + threadIdx.x;", "<float, 16>", (128,), (128,)),
        ("int i = blockIdx.x * n + threadIdx.x;", "<float, 16>", (256,), (1,)),
        ("int i = blockIdx.x * blockDim.x + threadIdx.x;", "<float, 16>", (256,), (256,)),
        ("int i = blockIdx.x * W + threadIdx.x, j = blockIdx.x * 3;", "<float, 16>", (256,), (256,)),
        ("int i = blockIdx.x * 4096 + threadIdx.x;", "<float, 16>", (256,), (4096,)),
        (COLUMN_AND_ROW, "<float, 16>", (64, 4), (4, 64)),
        (COLUMN_AND_ROW.replace("* 4", "* R"), "<float, 16>", (64,), (1, 64)),
        ("int i = blockIdx.x * W + threadIdx.x; x += blockIdx.y * B * n;", "<float, 16>", (64,), (16, 64)),
        ("const int row_threads = 16; int i = threadIdx.x / row_threads;", "<float, 16>", (256,), (256,)),
    ],
)  # fmt: skip
def test_what_a_block_covers(body: str, template: str, block: tuple[int, ...], tile: tuple[int, ...]) -> None:
    source = (
        "constexpr int W = 64, R = 1;\n"
        f"template <typename T, int B> __global__ void k(T* x, int n) {{ {body} x[i] = 0; }}\n"
        "int other() { int n = 77; }\n"
    )
    found = guesses.of(source, text.find(text.entries(source), "k"), f"k{template}")
    assert (found.block, found.tile) == (block, tile)


@pytest.mark.parametrize(
    ("host", "block"),
    [
        ("", (128,)),
        ("int main() { own::k<<<1, 64>>>(x); }", (64,)),
        ("int main() { k<<<1, dim3(96, 1, 1)>>>(x); }", (96,)),
        ("int main() { k<<<1, dim3(1, 32, 1)>>>(x); }", (1, 32)),
        ("int main() { dim3 b(32, 2); int t = b.x * b.y; k<<<1, t>>>(x); }", (64,)),
        ("int main() { k<<<4, threads>>>(x); }", (128,)),
    ],
)
@pytest.mark.parametrize("name", ["own::k<float>", "own::k"])
def test_the_block_of_a_constant_or_a_launch(host: str, block: tuple[int, ...], name: str) -> None:
    """Take the launch of a kernel in a namespace, too, and without one what the kernel's constants say."""
    source = (
        "constexpr int BLOCK_SIZE = 128, OTHER_THREADS = 32;\n"
        "namespace own { template <typename T> __global__ void k(T* x) { __shared__ T all[BLOCK_SIZE];\n"
        "all[threadIdx.x] = x[blockIdx.x * (BLOCK_SIZE - 4) + threadIdx.x]; } }\n"
    )
    entry = text.find(text.entries(source), "own::k")
    assert entry is not None
    assert instances.launched(f"{source}int main() {{ k<half><<<1, 32>>>(x); }}", entry) == ["own::k<half>"]
    assert guesses.of(source + host, entry, name).block == block


def test_names_with_several_values_have_none() -> None:
    known = values.constants(["int a = 3; int b = 4; void f() { b = 5; }"], {"c"}, {"T": "7"})
    assert [known.number(name) for name in ("a", "b", "c", "T", "a * T")] == [3, None, None, 7, 21]


CONFIGURED = """\
int main() {
  cudaLaunchConfig_t config = {0};
  int threads = 128, per_cluster = 2;
  config.gridDim = dim3(n / threads, 3); config.blockDim = threads;
  config.dynamicSmemBytes = 2 * threads * sizeof(float);
  cudaLaunchAttribute attribute[1];
  attribute[0].id = cudaLaunchAttributeClusterDimension;
  attribute[0].val.clusterDim.x = per_cluster; attribute[0].val.clusterDim.y = 1;
  config.attrs = attribute;
  CHECK(cudaLaunchKernelEx(&config, k<float, 16>, x, n));
  config.blockDim = 64; attribute[0].val.clusterDim.x = 4;
  cudaLaunchKernelEx(&config, other, x);
}
"""


def test_a_launch_by_a_configuration() -> None:
    first, second = launches.launches(CONFIGURED)
    assert (first.entry, first.block, first.shared) == ("k<float, 16>", (128,), 1024)
    assert first.arguments == ("x", "n") and [Expr.parse(b)({"n": 300}) for b in first.blocks] == [3, 3]
    assert (second.entry, second.block, second.arguments) == ("other", (64,), ("x",))


def test_shared_memory_that_follows_from_an_argument_is_not_known() -> None:
    launch = "int n = 64, m = 32; k<<<1, 32, {} * sizeof(float)>>>(x, n);"
    assert [launches.launches(launch.format(size))[0].shared for size in "mn"] == [128, None]
    named = "int n = 64, m = 32; size_t a = 2 * {0}, b = a + 4; k<<<1, 32, b>>>(x, n);"
    assert [launches.launches(named.format(size))[0].shared for size in "mn"] == [68, None]


def test_names_for_names_take_no_time() -> None:
    """Each of them leads to the others: without what is kept 12 definitions took a minute."""
    names = ["T", "value_type", "scalar", "number"]
    texts = [f"typedef {a} {b}; typedef {a} {b} ;" for a in names for b in names if a != b]
    structs = [f"struct S{n} {{ {' '.join(f'S{n + 1} m{k};' for k in range(9))} }};" for n in range(7)]
    began = time.process_time()
    assert elements.of("T", texts) is None
    assert elements.of("T", [*texts, "typedef float scalar;"]) == ("float32", 1)
    assert elements.of("S0", structs) is None
    most = elements.of("S4", [*structs, "struct S7 { float x; };"])
    assert most is not None and elements.size(most) == 4 * 9**3
    macros = [f"#define M{i} ({' + '.join(9 * [f'M{i - 1}'])})" for i in range(1, 9)]
    launches.launches("\n".join(["#define M0 n", *macros, "k<<<M8, 32>>>(x, n);"]))
    assert time.process_time() - began < 2


def test_odd_names_and_alignments(tmp_path: Path) -> None:
    assert not brought.is_there("a" * 300 + ".h", [str(tmp_path)], [str(tmp_path / "k.cu")])
    empty = elements.of("E", ["struct alignas(0) E { };"])
    assert empty is not None and elements.size(empty) == 1
    assert elements.size(elements.of("E", ["struct alignas(32) E { int x; };"]) or ("int8", 1)) == 32


@pytest.mark.parametrize(
    ("kernel", "name", "size"),
    [
        ("", "k<float, 16>", (2, 1, 1)),  # at its own launch
        ("", "other", (4, 1, 1)),
        ("", "third", (1, 1, 1)),
        ("__global__ void __cluster_dims__(1, 3, 1) k(float* x);", "k<float, 16>", (1, 3, 1)),
        ("#define C 8\n__global__ void __cluster_dims__(C) __launch_bounds__(128, 1) third(int* x);", "third",
         (8, 1, 1)),
        ("__global__ void __launch_bounds__(128) __cluster_dims__(2 * N, 1, 1) third(float* x);", "third",
         (1, 1, 1)),
        ("__cluster_dims__(2, 1, 1) __global__ void third(float* x);", "third", (2, 1, 1)),
        ("__global__ void __cluster_dims__(2, 1, 1) fourth(float* x);", "third", (1, 1, 1)),
    ],
)  # fmt: skip
def test_the_cluster_of_a_kernel_or_of_its_launch(kernel: str, name: str, size: tuple[int, ...]) -> None:
    assert launches.cluster(kernel + CONFIGURED, name) == size


CLUSTERED = """#include <cooperative_groups.h>
__device__ int* there(int* here, int rank) {
  unsigned at, own = (unsigned)__cvta_generic_to_shared(here);
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(own), "r"(rank));
  int* found; asm("{ .reg .u64 x; cvt.u64.u32 x, %1; cvta.shared.u64 %0, x; }" : "=l"(found) : "r"(at));
  return found;
}
__global__ void DIMS k(int* x, int n) {
  __shared__ int part;
  if (threadIdx.x == 0) part = x[0];
  asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = *there(&part, LAST);
}
"""


@pytest.mark.parametrize("dims", ["", "__cluster_dims__(2, 1, 1)"])
@pytest.mark.slow
def test_a_guessed_grid_consists_of_whole_clusters(tmp_path: Path, dims: str) -> None:
    path, host = tmp_path / "k.cu", CONFIGURED.replace("k<float, 16>", "k")
    path.write_text(
        (CLUSTERED + ("" if dims else host)).partition("\n")[2].replace("DIMS", dims).replace("LAST", "1")
    )
    found = CliRunner().invoke(main, ["check", str(path), "--grid", "3", "--block", "128", "-a", "n=300"])
    assert "--grid 4,1,1" in found.output and "in clusters of 2,1,1" in found.output, found.output
    assert "block has left" in found.output and "mapa misuse" not in found.output
    path.write_text(path.read_text().replace("&part, 1", "&part, 2"))  # the control
    assert "mapa misuse" in CliRunner().invoke(main, ["check", str(path)]).output


def test_a_tensor_map_is_said_how_it_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text("__global__ void k(const __grid_constant__ CUtensorMap map, float* x) { *x = 1; }\n")
    found = CliRunner().invoke(main, ["check", str(path)])
    assert found.exit_code == 2 and "[tensormaps]" in found.output and "TensorMap(...)" in found.output


PRODUCT = """\
#define BM 64
#define BK 8
__global__ void product(int M, int N, int K, const float* A, const float* B, float* C)
{
    __shared__ float a[BK][BM], b[BK][BM];
    int row = blockIdx.y * BM, col = blockIdx.x * BM, x = threadIdx.x % 16, y = threadIdx.x / 16;
    float sum[4][4] = {};
    for (int k = 0; k < K; k += BK) {
        for (int i = threadIdx.x; i < BM * BK; i += 256) {
            a[i % BK][i / BK] = A[(row + i / BK) * K + k + i % BK];
            b[i / BM][i % BM] = B[(k + i / BM) * N + col + i % BM];
        }
        __syncthreads();
        for (int i = 0; i < BK; ++i)
            for (int j = 0; j < 16; ++j) sum[j / 4][j % 4] += a[i][y * 4 + j / 4] * b[i][x * 4 + j % 4];
        __syncthreads();
    }
    for (int j = 0; j < 16; ++j) C[(row + y * 4 + j / 4) * N + col + x * 4 + j % 4] = sum[j / 4][j % 4];
}
"""


def test_instances_that_are_tried_and_named() -> None:
    """Know the instances of a template that counts a block's threads; say how to name one of others."""
    source = "template <typename T, int BLOCK_SIZE> __global__ void k(T* x) { x[threadIdx.AXIS] = 1; }\n"
    for axis, instance in (("x", "k<float, 256>"), ("y", "k<float, 16>")):
        (entry,) = text.entries(source.replace("AXIS", axis))
        assert instances.guessed(entry) == instance
        assert guesses.of(source.replace("AXIS", axis), entry, instance).block[0] == int(instance[9:-1])
    (entry,) = text.entries(source.replace("BLOCK_SIZE", "STEPS").replace("typename", "Number"))
    assert (instances.guessed(entry), instances.example(entry)) == ("", "k<float, 128>")


def test_what_a_launch_leaves_to_be_deduced_is_guessed() -> None:
    source = "template <int N, bool B, typename T, class... R> __global__ void k(T* x, R... more) {}"
    (entry,) = text.entries(source)
    assert instances.launched("k<4, true><<<1, 32>>>(x);", entry) == ["k<4, 1, float>"], "a pack of nothing"
    known = "float a; k<4, true><<<1, 32>>>(x, a, 2 * unknown);".replace("2 * unknown", "a")
    assert instances.launched(known, entry) == ["k<4, 1, float, float, float>"]
    assert instances.launched("k<4, true><<<1, 32>>>(x, unknown());", entry) == ["k<4, 1>"], "a pack is not"
    (entry,) = text.entries(source.replace(", class... R", "").replace(", R... more", ""))
    assert instances.launched("k<4, true><<<1, 32>>>(x);", entry) == ["k<4, 1, float>"]
    assert instances.launched("k<4, true, double><<<1, 32>>>(x);", entry) == ["k<4, 1, double>"]
    assert instances.launched("k<n><<<1, 32>>>(x);", entry) == []


POINTS = """\
__global__ void squared(const float* points, float* out, int n);
__global__ void squared(const float* points, float* out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float x = points[i * 3 + 0], y = points[i * 3 + 1], z = points[3 * i + 2];
        out[i] = x * x + y * y + z * z;
    }
}
"""


@pytest.mark.slow
def test_points_have_as_many_numbers_as_their_indices_say(tmp_path: Path) -> None:
    """The definition counts, not a declaration before it."""
    path = tmp_path / "points.cu"
    path.write_text(POINTS)
    right = CliRunner().invoke(main, ["check", str(path)])
    assert right.exit_code == 0 and "-a points=3000 -a out=1000 -a n=1000" in right.output, right.output
    path.write_text(POINTS.replace("i < n", "i <= n"))
    wrong = CliRunner().invoke(main, ["check", str(path)])
    assert wrong.exit_code == 1 and wrong.output.count("out of bounds, seen") == 2, wrong.output


WIDE = """\
__global__ void narrow(float* x) { const int W = 32; x[blockIdx.x * W + threadIdx.x] = 1; }
__global__ void wide(float* out, const float* in, int width, int height)
{
    const int W = 128;
    int x = blockIdx.x * W + threadIdx.x, y = blockIdx.y * W + threadIdx.y;
    for (int i = 0; i < W; i += blockDim.y)
        for (int j = 0; j < W; j += blockDim.x) out[(y + i) * width + x + j] = in[(y + i) * width + x + j];
}
"""
TURNED = """\
__global__ void turned(float* out, const float* in, int width, int height)
{
    __shared__ float tile[32][33];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * width + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x, y = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) out[(y + j) * height + x] = tile[threadIdx.x][threadIdx.y + j];
}
int main()
{
    dim3 grid(nx / 32, ny / 32, 1), block(32, 8, 1);
    turned<<<grid, block>>>(b, a, nx, ny);
}
"""


FIXED = """\
#define W 48
#define H (W * 2)
__global__ void ramp(unsigned char* image, float scale)
{
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    for (int c = 0; c < 3; ++c) image[(y * W + x) * 3 + c] = scale * c;
}
int main()
{
    unsigned char* d;
    const int bytes = W * H * 3;
    cudaMalloc((void**)&d, bytes);
    dim3 grid(W / 16, H / 16), block(16, 16);
    ramp<<<grid, block>>>(d, 2);
}
"""


def test_a_kernel_without_sizes_has_those_of_host_code(tmp_path: Path) -> None:
    """A size that a macro fixes was unknown: what was within the host's buffer was out of bounds here."""
    path = tmp_path / "ramp.cu"
    path.write_text(FIXED)
    right = CliRunner().invoke(main, ["check", str(path)])
    assert right.exit_code == 0, right.output
    assert "--grid 3,6,1 --block 16,16,1 -a image=13824" in right.output
    path.write_text(FIXED.replace("bytes = W * H * 3", "bytes = W * H * 3 - 1"))
    wrong = CliRunner().invoke(main, ["check", str(path)])
    assert wrong.exit_code == 1 and "out of bounds, seen once" in wrong.output, wrong.output


@pytest.mark.parametrize(
    ("host", "held"),
    [
        ("cudaMalloc(&a, N * sizeof(float)); k<<<2, 32>>>(a);", {"x": 400}),
        ("cudaMallocManaged((void **)&a, sizeof(int) * N); k<<<2, 32>>>(a);", {"x": 400}),
        ("int n = 5; cudaMalloc(&a, n); n = 7; k<<<2, 32>>>(a);", {"x": 5}),
        ("cudaMalloc(&a, argc); k<<<2, 32>>>(a);", {}),
        ("k<<<2, 32>>>(a); cudaMalloc(&a, N);", {}),
        ("cudaMalloc(&a, N); k<<<argc, 32>>>(a);", {}),
        ("cudaMalloc(&a, N); k<<<2, 32>>>(b);", {}),
        ("cudaMalloc(&a, N << 20); k<<<2, 32>>>(a);", {}),
        ("cudaMalloc(&a, N); k<<<1048576, 32>>>(a);", {"x": 100}),
    ],
)
def test_what_host_code_allocates(host: str, held: dict[str, int]) -> None:
    source = f"#define N 100\n__global__ void k(float* x) {{}}\nint main(int argc, char**) {{ {host} }}"
    (entry,) = text.entries(source)
    assert guesses.allocated(source, entry, "k") == held
    more = source.replace("float* x", "float* x, int n")
    assert guesses.allocated(more, text.entries(more)[0], "k") == {}, "its buffers follow from n"


@pytest.mark.parametrize(("many", "grid"), [("8192", [8192]), ("N * 256", [])])
def test_a_grid_that_is_too_long_is_not_taken_and_its_buffers_are(many: str, grid: list[int]) -> None:
    kernel = "#define N 4096\n__global__ void k(float* x) { x[blockIdx.x % N] = 1; }\n"
    host = f"cudaMalloc(&a, N * sizeof(float)); k<<<{many}, 64>>>(a);"
    assert blocks(host, kernel) == grid
    assert guesses.allocated(kernel + host, text.entries(kernel)[0], "k") == {"x": 16384}


SHIFTED = """\
__global__ void k(float* x, int n, int offset, int step)
{
    int i = offset + (blockIdx.x * blockDim.x + threadIdx.x) * step;
    if (i < n) x[i] += 1;
    x[offset] = 0;
}
int main() { k<<<n / 128, 128>>>(d, n, 0, 1); k<<<n / 128, 128>>>(d, n, 64, 1); }
"""


def test_a_parameter_to_which_host_code_gives_0_or_1_is_no_size(tmp_path: Path) -> None:
    path = tmp_path / "shifted.cu"
    for old, new, found in (("", "", False), ("n, 0, 1)", "n, start, 1)", True)):
        path.write_text(SHIFTED.replace(old, new))
        result = CliRunner().invoke(main, ["check", str(path)])
        assert ("out of bounds" in result.output) == found, result.output
        assert ("-a offset=0 -a step=1" in " ".join(result.output.split())) != found


@pytest.mark.parametrize(
    ("source", "grid", "old", "new"),
    sweep(
        [
            (PRODUCT, "1,1,1", "C[(row", "C[(row + 1"),
            (PRODUCT, "1,1,1", "        __syncthreads();\n    }", "    }"),
            (TURNED, "2,2,1", "nx / 32", "nx / 16"),
            (WIDE, "1,1,1", "y * W", "y * W + 8"),
            (TURNED, "2,2,1", "    __syncthreads();\n", ""),
        ],
        lambda source, grid, old, new: source is TURNED and "sync" in old,
    ),
)
def test_a_right_kernel_has_no_finding_and_a_wrong_one_has(
    source: str, grid: str, old: str, new: str, tmp_path: Path
) -> None:
    """All once had findings that were of the guess: a block a row, blocks along an axis of no index, and a
    tile that is larger than the sizes.
    """
    path = tmp_path / "one.cu"
    path.write_text(source)
    right = CliRunner().invoke(main, ["check", str(path)])
    assert right.exit_code == 0 and f"--grid {grid}" in right.output, right.output
    assert "notice" not in right.output
    assert old in source
    path.write_text(source.replace(old, new))
    wrong = CliRunner().invoke(main, ["check", str(path)])
    assert wrong.exit_code == 1, wrong.output


FLIPPED = """\
__global__ void k(int* x, int n) { __shared__ int s[48]; s[threadIdx.x] = x[threadIdx.x]; __syncthreads();
    x[threadIdx.x] = s[n - threadIdx.x - 1]; }
int main() { const int n = 48; dim3 block(n); k<<<1, block>>>(d, n); }
"""


@pytest.mark.parametrize(("old", "new"), [("", ""), ("1, block>>>", "1, n>>>")])
def test_a_size_of_which_the_block_is_made_is_the_blocks(tmp_path: Path, old: str, new: str) -> None:
    """The block is that of host code, and the shared memory fits it: another size was out of bounds."""
    path = tmp_path / "flipped.cu"
    path.write_text(FLIPPED.replace(old, new))
    right = CliRunner().invoke(main, ["check", str(path)])
    assert right.exit_code == 0 and "--block 48,1,1 -a x=48 -a n=48" in right.output, right.output
    path.write_text(FLIPPED.replace("(d, n)", "(d, length)"))
    wrong = CliRunner().invoke(main, ["check", str(path)])
    assert wrong.exit_code == 1 and "n=1000" in wrong.output, wrong.output


def test_dynamic_shared_memory_is_as_much_as_host_code_asks_for(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    source = "__global__ void k(float* x) { extern __shared__ float s[]; s[0] = *x; *x = s[0]; }\n"
    asks = "void f() { cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES); }\n"
    array, copy = "extern __shared__ float s[];", "s[0] = *x; *x = s[0];"
    functions = "namespace n { __device__ void first(float* x) {1} }\n"
    functions += "template <int N> __device__ void f(float* x) {2}\n"
    called = functions + "__global__ void k(float* x) { f<1>(x); }\n"
    within = called.replace("{1}", f"{{ {array} {copy} }}").replace("{2}", "{ if (N) { n::first(x); } }")
    beside = array + called.replace("{1}", "{}").replace("{2}", f"{{ {copy} }}")
    for text_, much in (
        (source, 48),
        (source + asks, 224),
        (within, 48),
        (beside, 48),
        (within.replace("n::first(x)", "x[0] = 1"), 0),
        (beside.replace("f<1>(x)", "x[0] = 1"), 0),
    ):
        path.write_text(text_)
        (kernel,) = catalog.load_each(path)
        assert calls.launchable(kernel).shared({}) == much * 1024


IN_A_TEMPLATE = """
template <typename T, size_t TILE, unsigned int WIDE> __global__ void k(T* x, size_t n) {
  x[blockIdx.x * TILE + threadIdx.x] = WIDE;
}
template <typename T> void host(T* x, size_t n, cudaStream_t stream) {
  constexpr unsigned int TILE{64U};
  static constexpr int THREADS{TILE * 2};
  dim3 const block_dim{THREADS, 1U, 1U};
  dim3 const grid_dim{(static_cast<unsigned int>(n) + TILE - 1U) / TILE, 1U, 1U};
  k<T, TILE, 2 * THREADS><<<grid_dim, block_dim, 0U, stream>>>(x, n);
}
EXPLICIT
"""


@pytest.mark.parametrize(
    ("explicit", "element"),
    [
        ("template void host<double>(double*, size_t);", "double"),
        ("template Grid<int, 2>* host<double>(double*, size_t);", "double"),
        ("template Grid<int, 2>* other<double>(double*, size_t);", "float"),
        ("", "float"),
    ],
)
def test_a_launch_in_a_template_of_the_host(explicit: str, element: str) -> None:
    source = IN_A_TEMPLATE.replace("EXPLICIT", explicit)
    (entry,) = text.entries(source)
    (instance,) = instances.launched(source, entry)
    assert instance == f"k<{element}, 64, 256>"
    guess = guesses.of(source, entry, instance)
    assert guess.block == (128,) and [blocks({"n": 129}) for blocks in guess.grid] == [3, 1, 1]


@pytest.mark.parametrize("name", ["threads_per_block", "THREADS_PER_BLOCK", "nThreadsPerBlock", "tpb"])
def test_a_parameter_that_is_called_as_the_threads_of_a_block_is_their_number(name: str) -> None:
    source = f"__global__ void k(int* x, int n, int {name}) {{ x[blockIdx.x * {name} + threadIdx.x] = n; }}"
    (entry,) = text.entries(source)
    assert guesses.as_threads(source, entry, "k", 256) == {name: 256}


def test_one_block_of_unknown_threads_is_one_block() -> None:
    source = (
        "__global__ void k(int* x, int n) { x[threadIdx.x] = n; }\n"
        "__global__ void l(int* x, int n) { x[threadIdx.x] = n; }\n"
        "void host(int* x, int n, int t) { k<<<1, t>>>(x, n); l<<<1, t>>>(x, n); l<<<n, t>>>(x, n); }"
    )
    one, several = (guesses.of(source, entry, entry.name) for entry in text.entries(source))
    assert [blocks({}) for blocks in one.grid] == [1] and several.grid == ()


@pytest.mark.parametrize(
    ("text_", "grid"),
    [
        ("__device__ void turn(int* v) { v[threadIdx.x] = 1; }\n__global__ void k(int* x) { turn(x); }", [1]),
        ("__device__ void turn(int* v) { v[blockIdx.x] = 1; }\n__global__ void k(int* x) { turn(x); }", []),
        ("#define I (blockIdx.x * 8)\n__global__ void k(int* x) { x[I + threadIdx.x] = 1; }", []),
        (
            "#define L(i) \\\n  for (int i = blockIdx.x;;)\n__global__ void k(int* x) { L(i) x[i] = 1; }",
            [],
        ),
        ('#include "loops.h"\n__global__ void k(int* x) { x[where()] = 1; }', []),
        ("__global__ void k(int* x) { KERNEL_LOOP(i, 8) { x[i] = 1; } }", []),
        ("struct At { int i = blockIdx.x; };\n__global__ void k(int* x) { At at; x[at.i] = 1; }", []),
    ],
)
def test_a_kernel_that_never_asks_which_block_it_is_in_has_one(text_: str, grid: list[int]) -> None:
    found = guesses.of(text_, text.find(text.entries(text_), "k"), "k").grid
    assert [e({}) for e in found] == grid


def test_what_a_text_only_declares_is_no_kernel_of_it(tmp_path: Path) -> None:
    declared = "__global__ void k(int* x);\ntemplate <class T> __global__ void t(T* x);\n"
    assert text.entries(declared) == []
    both = declared + "__global__ void k(int* x) { x[threadIdx.x] = 1; }\n"
    assert [e.name for e in text.entries(both)] == ["k"]
    instance = (
        "template <class T> __global__ void t(T* x) { *x = 1; }\ntemplate __global__ void t<int>(int*);\n"
    )
    assert [e.name for e in text.entries(instance)] == ["t", "t<int>"]
    (tmp_path / "a.cu").write_text(declared)
    result = CliRunner().invoke(main, ["check", str(tmp_path / "a.cu")])
    assert result.exit_code and "no definition of a __global__ function" in result.output


SHARED_BY_CLASS = """template <class T> struct Shared {
  __device__ operator T*() { extern __shared__ int raw[]; return (T*)raw; }
};
__global__ void k(const float* in, float* out) {
  float* s = Shared<float>();
  s[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x]; __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}
"""


def test_dynamic_shared_memory_of_a_class_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text(SHARED_BY_CLASS)
    (kernel,) = catalog.load_each(tmp_path / "a.cu")
    assert calls.dynamic(calls.texts(kernel), text.entries(SHARED_BY_CLASS)[0].body)
    other = SHARED_BY_CLASS.replace("Shared<float>()", "(float*)out")
    assert not calls.dynamic((other,), text.entries(other)[0].body)
    assert CliRunner().invoke(main, ["check", str(tmp_path / "a.cu")]).exit_code == 0
