"""Kernels that a stranger may bring, in `tests/data/strangers`: their guesses, and planted faults."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from shared.sweeps import sweep

KERNELS = Path(__file__).parents[1] / "data" / "strangers"
MORE = {"ldpc": ["-a", "iterations=2"], "persistent": ["-a", "work=40", "--grid", "4"]}
SAID = {  # of sizes and blocks
    "attention_cp": "--block 64,1,1 -a Q=262144 -a K=262144 -a V=262144",
    "bfs": "-a g.offsets=1001",
    "bitonic": "--grid 1,1,1 --block 256,1,1 --shared 49152 -a v=256 -a n=256",
    "ldpc": "-a llr=576000 -a msg=576000",
    "lookback": "-a tile.state=1000",
    "merge": "-a out=2000 -a na=1000 -a nb=1000",
    "odd_even": "--grid 1,1,1 --block 256,1,1 -a v=512 -a n=512",
    "persistent": "--block 128,1,1 -a in=5120 -a carry=40",
    "scan_tree": "--grid 1,1,1 --block 256,1,1 --shared 49152 -a out=512 -a in=512 -a n=512",
    "softmax_online": "--grid 8,1,1 --block 256,1,1",
    "transposed": "--grid 2,2,1 --block 32,8,1",
    "wmma_plain": "--grid 16,16,1 --block 128,4,1",
}
QUICK = ("bfs", "bitonic", "merge", "scan_tree", "softmax_online", "transposed")
LOAD, SYNC = "if (threadIdx.x == 0) id = atomicAdd(tile.ticket, 1u);\n", "  __syncthreads();\n"


def check(folder: Path, name: str, old: str = "", new: str = "") -> tuple[int, str]:
    """Return what `harness check` says of a kernel that was edited."""
    source = (KERNELS / f"{name}.cu").read_text(encoding="utf-8")
    assert old in source
    path = folder / f"{name}.cu"
    path.write_text(source.replace(old, new, 1) if old else source)
    ran = CliRunner().invoke(main, ["check", str(path), *MORE.get(name, ())])
    return ran.exit_code, ran.output


def test_all_are_tried() -> None:
    assert {path.stem for path in KERNELS.glob("*.cu")} == SAID.keys()


@pytest.mark.parametrize("name", sweep(sorted(SAID), lambda name: name in QUICK))
def test_a_guess_makes_sense(name: str, tmp_path: Path) -> None:
    code, output = check(tmp_path, name)
    assert code == 0 and SAID[name] in output, output


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    sweep(
        [
            ("lookback", LOAD + SYNC, LOAD, "WAR hazard"),
            ("persistent", "      __threadfence();\n      work", "      work", "global race"),
            ("persistent", " __threadfence(); before", " before", "global race"),
            ("persistent", "work.done[t] = 1", "work.done[t + 1] = 1", "the kernel hangs"),
            ("attention_cp", "wait_prior(1);\n    __syncthreads();", "wait_prior(1);", ""),
            ("attention_cp", "__pipeline_wait_prior(1);", "__pipeline_wait_prior(2);", ""),
            ("bfs", "int at = atomicAdd(&count, 1)", "int at = count++", ""),
            ("softmax_online", "y += (size_t)row", "y += (size_t)(row + 1)", "of y, "),
            ("merge", "j >= nb ||", "j > nb ||", "of b, "),
            ("merge", "out[diag + k]", "out[diag + k + 1]", "of out, "),
            ("wmma_plain", "if (row < M && col < N) wmma::store", "if (row < M) wmma::store", "of c, "),
            ("odd_even", "i + 1 < n", "i < n", "of s, "),
            ("transposed", "    __syncthreads();\n", "", "RAW hazard"),
            ("transposed", "height + x]", "height + x + 1]", "of odata, "),
            ("bitonic", "            __syncthreads();\n", "", "RAW hazard"),
            ("scan_tree", "step >>= 1;\n        __syncthreads();", "step >>= 1;", "RAW hazard"),
            ("scan_tree", "out[2 * t + 1]", "out[2 * t + 2]", "out of bounds"),
            ("ldpc", "app[6 * Z]", "app[5 * Z]", "out of bounds"),
        ],
        lambda name, *_: name in QUICK,
    ),
)
def test_a_fault_is_found(name: str, old: str, new: str, said: str, tmp_path: Path) -> None:
    code, output = check(tmp_path, name, old, new)
    assert code == 1 and said in output, output


def told(folder: Path, source: str) -> str:
    """Return what `harness check` says of a file."""
    (path := folder / "k.cu").write_text(source)
    return CliRunner().invoke(main, ["check", str(path)]).output


SUM = """__global__ void total(float* out, const float* in, int count)
{
    extern __shared__ float part[];
    const int t = threadIdx.x;
    part[t] = LOAD;
    __syncthreads();
    for (int s = count / 2; s > 0; s /= 2) {
        if (t < s) part[t] += part[t + s];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = part[0];
}
"""
SEARCH = """__global__ void lower(int* out, const float* sorted, const float* x, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int at = 0;
    for (int d = n >> 1; d > 0; d >>= 1)
        if (at + d < n && sorted[at + d] <= x[i]) at += d;
    out[i] = at;
}
"""


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (SUM.replace("LOAD", "in[blockIdx.x * count + t]"), "-a count=256"),
        (SUM.replace("LOAD", "in[t] + in[t + count / 2]").replace("s = count / 2", "s = count >> 1"), "=512"),
        (SEARCH, "-a n=1000"),  # each thread halves on its own: no tree of a block
    ],
)
def test_what_a_block_halves_is_as_long_as_the_block(tmp_path: Path, source: str, said: str) -> None:
    output = told(tmp_path, source)
    assert said in output and "out of bounds" not in output and "hazard" not in output, output


TILES = """#define TILE 48
__global__ void tiles(float* y, const float* x, int n)
{
    __shared__ float s[SIZE];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0;
    for (int t = 0; t < COUNT; ++t) {
        if (threadIdx.x < SIZE && t * SIZE + threadIdx.x < n) s[threadIdx.x] = x[t * SIZE + threadIdx.x];
        __syncthreads();
        for (int j = 0; j < SIZE; ++j) sum += s[j];
        __syncthreads();
    }
    y[i] = sum;
}
"""


@pytest.mark.parametrize(
    ("count", "size", "said"),
    [
        ("n / blockDim.x", "256", "-a n=1024"),
        ("n / TILE", "TILE", "-a n=1008"),
        ("(n + TILE - 1) / TILE", "TILE", "-a n=1000"),
        ("n / blockDim.x + 1", "256", "-a n=1000"),
        ("n / blockDim.x + (n % blockDim.x > 0)", "256", "-a n=1000"),
    ],
)
def test_what_is_divided_into_whole_blocks_is_a_multiple(
    tmp_path: Path, count: str, size: str, said: str
) -> None:
    """Rounded up it is none, and the return before a barrier shows."""
    output = told(tmp_path, TILES.replace("COUNT", count).replace("SIZE", size))
    assert said in output
    assert ("divergent barrier" in output) is ("n=1024" not in said), output


def test_infinity_needs_no_header(tmp_path: Path) -> None:
    """Include math in every file, as nvcc does."""
    path = tmp_path / "k.cu"
    path.write_text("__global__ void k(float* x, int n) { if (n) x[threadIdx.x] = fminf(INFINITY, M_PI); }")
    assert CliRunner().invoke(main, ["check", str(path)]).exit_code == 0


@pytest.mark.parametrize(
    ("length", "place", "block"),
    [
        ("64", "t", 64),
        ("64", "threadIdx.x", 64),
        ("T", "t", 96),
        ("512", "t", 256),
        ("64", "t / 4", 256),
        ("8", "t", 256),
    ],
)
def test_a_block_has_a_place_in_shared_memory_for_each_thread(
    tmp_path: Path, length: str, place: str, block: int
) -> None:
    output = told(
        tmp_path,
        "#define T 96\n__global__ void k(float* x, int n) {\n"
        f"int t = threadIdx.x; __shared__ float s[{length}]; s[{place}] = 1; __syncthreads();\n"
        "if (t < n) x[t] = s[0]; }",
    )
    assert f"--block {block},1,1" in output, output


@pytest.mark.parametrize(
    "head", ["if (t < 32)", "for (int k = 0; k < 2; k++) if (t < 32)", "if (n < 5) { } else"]
)
def test_a_place_for_some_threads_says_nothing_of_the_others(tmp_path: Path, head: str) -> None:
    """A block of one warp would hide what is missing between warps."""
    output = told(
        tmp_path,
        "__global__ void k(float* x, int n) {\n__shared__ float s[32]; int t = threadIdx.x;\n"
        f"{head} {{ s[t] = 0; }}\nif (t % 32 == 0) s[t / 32] = 1;\n"
        "__syncthreads(); if (t < n) x[t] = s[t / 32]; }",
    )
    assert "--block 256,1,1" in output and ("hazard" in output or "out of bounds" in output), output
