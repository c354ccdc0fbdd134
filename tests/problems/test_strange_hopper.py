"""Hopper's kernels and extensions of PyTorch, without front matter, as strangers write them.

Host code makes tensor maps by functions of its own, and launches by pointers to kernels and through classes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.kernels.cpp import includes
from shared.sweeps import sweep

DATA = Path(__file__).parents[1] / "data"
HOPPER, TORCH = DATA / "strangers_hopper", DATA / "strangers_torch"
SAID = {  # of sizes, grids and clusters
    "adam": "--block 512,1,1",
    "attention": "--grid 2,4,1 --block 384,1,1",
    "decode": "-a k=262144 -a v=262144",
    "device_maps": "-a tensorMapA=65536 -a tensorMapB=65536 -a M=256 -a N=512 -a K=320",
    "distances": "-a out.0=50 -a out.1=55",
    "elementwise": "-a n=1000",
    "fp8": "--grid 4,1,1 --block 256,1,1",
    "gru": "-a gates.0=32 -a gates.1=3 -a gates.2=32",
    "halves": "-a rows=50 -a groups=55",
    "histogram": "-a nbins=128 -a bins_per_block=64",
    "layer_norm": "--grid 64,1,1 --block 256,1,1",
    "ldmatrix": "-a M=256 -a N=512 -a K=320",
    "multicast": "-a m=120 -a n=248 -a k=384 in clusters of 2,1,1",
    "params": "-a params.in=32768 -a params.out=8192",
    "queue": "--grid 128,1,1 --block 384,1,1",
    "roi_pool": "--block 512,1,1",
    "rotary": "-a query_stride=1024 -a key_stride=1024",
    "scatter": "scatter_add_kernel<float,int>",
    "softmax": "softmax_forward<float,float,4>",
    "st_async": "in clusters of 4,1,1",
    "tf32": "--grid 4,4,1 --block 256,1,1",
    "tickets": "--grid 4,1,1 --block 160,1,1",
}
QUICK = ("halves",)
needs_cccl = pytest.mark.skipif(
    not any((folder / "cuda/barrier").is_file() for folder in includes.libraries()), reason="needs CCCL"
)


def check(tmp_path: Path, name: str, old: str = "", new: str = "") -> tuple[int, str]:
    """Return what `harness check` says of a kernel that was edited."""
    (path,) = (folder / f"{name}.cu" for folder in (HOPPER, TORCH) if (folder / f"{name}.cu").exists())
    source = path.read_text(encoding="utf-8")
    assert old in source
    edited = tmp_path / path.name
    edited.write_text(source.replace(old, new, 1) if old else source)
    ran = CliRunner().invoke(main, ["check", str(edited), "--seconds", "120"])
    return ran.exit_code, ran.output


def test_all_are_tried() -> None:
    assert {path.stem for folder in (HOPPER, TORCH) for path in folder.glob("*.cu")} == SAID.keys()


@needs_cccl
@pytest.mark.parametrize("name", sweep(sorted(SAID), lambda name: name in QUICK))
def test_a_right_kernel_is_clean(name: str, tmp_path: Path) -> None:
    code, output = check(tmp_path, name)
    assert code == 0 and SAID[name] in " ".join(output.split()), output


@needs_cccl
@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    sweep(
        [
            (
                "device_maps",
                "    warpgroup_wait<0>();\n    __syncthreads();\n",
                "    __syncthreads();\n",
                "WAR hazard",
            ),
            ("device_maps", "    warpgroup_arrive();\n", "", "missing wgmma.fence"),
            (
                "device_maps",
                "    cde::fence_proxy_async_shared_cta();\n  }\n  __syncthreads();\n",
                "    cde::fence_proxy_async_shared_cta();\n  }\n",
                "mbarrier misuse",
            ),
            (
                "device_maps",
                "barrier_arrive_tx(barB, 1, sizeof(sB))",
                "barrier_arrive_tx(barB, 1, sizeof(sB) / 2)",
                "deadlock",
            ),
            (
                "queue",
                "init_barrier(&empty[i], 0, num_consumers)",
                "init_barrier(&empty[i], 0, num_consumers - 1)",
                "deadlock",
            ),
            (
                "queue",
                "init_barrier(&empty[i], 0, num_consumers)",
                "init_barrier(&empty[i], 0, num_consumers + 1)",
                "deadlock",
            ),
            (
                "queue",
                "          wait(&empty[qidx], p ^ 1);\n          expect",
                "          expect",
                "mbarrier misuse",
            ),
            (
                "queue",
                "          wait(&empty[qidx], p ^ 1);\n          expect",
                "          wait(&empty[qidx], p);\n          expect",
                "deadlock",
            ),
            ("ldmatrix", "(iter / NUM_STAGES - 1) % 2", "(iter / NUM_STAGES) % 2", "mbarrier misuse"),
            (
                "ldmatrix",
                "if (iter >= NUM_STAGES) mbarrier_wait",
                "if (iter > NUM_STAGES) mbarrier_wait",
                "mbarrier misuse",
            ),
            (
                "ldmatrix",
                "      mbarrier_wait(tma_mbar + stage * 8, (iter / NUM_STAGES) % 2);\n",
                "",
                "deadlock",
            ),
            ("ldmatrix", '"r"(A_size + B_size)', '"r"(A_size)', "uninitialised read"),
            ("multicast", "mbar_init(&s.empty[i], CLUSTER)", "mbar_init(&s.empty[i], 1)", "mbarrier misuse"),
            ("multicast", "  }\n  cluster.sync();\n}", "  }\n}", "block has left"),
            ("multicast", "rank * BM / 2 * BK", "rank * BM / 4 * BK", "WAW hazard"),
            (
                "multicast",
                "if (threadIdx.x < CLUSTER) mbar_arrive_cluster(&s.empty[st], threadIdx.x)",
                "if (threadIdx.x == 0) mbar_arrive_cluster(&s.empty[st], rank)",
                "deadlock",
            ),
            ("histogram", "  }\n  cluster.sync();\n\n  int *lbins", "  }\n\n  int *lbins", "RAW hazard"),
            ("histogram", "atomicAdd(dst_smem + dst_offset, 1);", "dst_smem[dst_offset] += 1;", "WAR hazard"),
            (
                "st_async",
                "(uint32_t)(kCluster * sizeof(float))",
                "(uint32_t)((kCluster - 1) * sizeof(float))",
                "uninitialised read",
            ),
            ("st_async", "  wait_parity(&bar[1], 0);\n", "", "block has left"),
            (
                "st_async",
                "map_to(smem_addr(&part[0][rank]), threadIdx.x)",
                "map_to(smem_addr(&part[0][0]), threadIdx.x)",
                "WAW hazard",
            ),
            (
                "st_async",
                "  cluster_arrive();\n  cluster_wait();\n\n  float most",
                "  __syncthreads();\n\n  float most",
                "st misuse",
            ),
            ("attention", "      Barrier::wait(&shared.v_full[stage], phase);\n", "", "mbarrier misuse"),
            (
                "attention",
                "Barrier::init(&shared.empty[i], 2)",
                "Barrier::init(&shared.empty[i], 1)",
                "deadlock",
            ),
            ("attention", "((n / kStages) & 1) ^ 1);", "((n / kStages) & 1));", "deadlock"),
            (
                "attention",
                "      wait_group<0>();\n      if (threadIdx.x % 128 == 0)",
                "      if (threadIdx.x % 128 == 0)",
                "WAR hazard",
            ),
            (
                "fp8",
                'if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");\n',
                "",
                "WAR hazard",
            ),
            ("fp8", "empty_barriers[i].init(4)", "empty_barriers[i].init(5)", "deadlock"),
            (
                "fp8",
                "(n_block * BLOCK_N / 128) * kIters + k",
                "(n_block * BLOCK_N / 128) * shape_m * kIters + k + 102400",
                "out of bounds",
            ),
            ("fp8", "arrive_and_expect_tx(SMEM_A + SMEM_B)", "arrive_and_expect_tx(SMEM_A)", "deadlock"),
            (
                "params",
                '  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");\n',
                "",
                "missing proxy fence",
            ),
            (
                "params",
                "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group",
                "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group",
                "global race",
            ),
            (
                "params",
                '    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");\n',
                "",
                "block has left",
            ),
            ("params", "(uint32_t)sizeof(tile)", "(uint32_t)sizeof(tile) / 4", "deadlock"),
            (
                "tf32",
                "        __syncthreads();\n        if (threadIdx.x == 0 && step",
                "        if (threadIdx.x == 0 && step",
                "WAR hazard",
            ),
            ("tf32", "fetch(step + kPipe - 1)", "fetch(step + kPipe)", "deadlock"),
            ("tf32", '"n"((kM + kN) * kK * 4)', '"n"((kM + kN) * kK * 2)', "deadlock"),
            ("tf32", "step / kPipe & 1", "(step / kPipe + 1) & 1", "uninitialised read"),
            (
                "decode",
                "        __syncthreads();\n        float page_max",
                "        float page_max",
                "RAW hazard",
            ),
            ("decode", '"r"(2 * bytes)', '"r"(bytes)', "uninitialised read"),
            (
                "decode",
                "part[at * HEAD_DIM + threadIdx.x] = acc",
                "part[head * HEAD_DIM + threadIdx.x] = acc",
                "global race",
            ),
            (
                "tickets",
                "      ptx::fence_proxy_async(ptx::space_shared);\n      ptx::mbarrier_arrive",
                "      ptx::mbarrier_arrive",
                "missing proxy fence",
            ),
            (
                "tickets",
                "ptx::mbarrier_init(&sm.empty[i], 128)",
                "ptx::mbarrier_init(&sm.empty[i], 1)",
                "mbarrier misuse",
            ),
            (
                "tickets",
                "          ptx::mbarrier_arrive(&sm.full[s]);\n          break;",
                "          break;",
                "deadlock",
            ),
            ("tickets", "const int t = atomicAdd(ticket, 1);", "const int t = (*ticket)++;", "global race"),
            ("gru", "if (c < gates.size(2)) {", "if (c <= gates.size(2)) {", "out of bounds"),
            ("gru", "if (c < gates.size(2)) {", "{", "out of bounds"),
            ("roi_pool", "output[index] =", "output[index + 1] =", "out of bounds"),
            ("elementwise", "if (at < n) out[at]", "out[at]", "out of bounds"),
            ("elementwise", "if (at < n) out[at]", "if (at <= n) out[at]", "out of bounds"),
            ("elementwise", "base + i * kBlock", "base + i", "WAW hazard"),
            (
                "scatter",
                "  __syncthreads();\n  if (threadIdx.x < C10_WARP_SIZE) {\n",
                "  if (threadIdx.x < C10_WARP_SIZE) {\n",
                "RAW hazard",
            ),
            ("rotary", "x_index = 2 * rot_offset;", "x_index = rot_offset;", "WAR hazard"),
            (
                "rotary",
                "head_idx * head_size;\n    apply_token_rotary_embedding<scalar_t, IS_NEOX>(key",
                "head_idx * num_heads / 2;\n    apply_token_rotary_embedding<scalar_t, IS_NEOX>(key",
                "WAR hazard",
            ),
            ("softmax", "  __syncthreads();\n  for (int offset", "  for (int offset", "WAR hazard"),
            (
                "softmax",
                "[threadIdx.x / C10_WARP_SIZE] = val;\n  __syncthreads();",
                "[threadIdx.x / C10_WARP_SIZE] = val;",
                "RAW hazard",
            ),
            (
                "halves",
                "if (col >= groups * 32 || row >= rows) return;",
                "if (row >= rows) return;",
                "out of bounds",
            ),
            ("halves", "i < n; i +=", "i <= n; i +=", "out of bounds"),
            ("halves", "out[row * groups * 32 + col]", "out[row * groups + col]", "out of bounds"),
            (
                "distances",
                "if (i < out.size(0) && j < out.size(1))",
                "if (i < out.size(1) && j < out.size(0))",
                "out of bounds",
            ),
            ("distances", "j < distances.size(1); ++j", "j <= distances.size(1); ++j", "out of bounds"),
            (
                "distances",
                "if (i >= distances.size(0)) return;",
                "if (i > distances.size(0)) return;",
                "out of bounds",
            ),
            ("adam", "if (i < n) { p[i]", "{ p[i]", "out of bounds"),
            (
                "adam",
                "base + threadIdx.x + ii * blockDim.x;\n      if",
                "base + threadIdx.x + ii;\n      if",
                "WAR hazard",
            ),
            ("adam", "r_g[ii] = i < n ? MATH_T(g[i])", "r_g[ii] = i <= n ? MATH_T(g[i])", "out of bounds"),
            (
                "layer_norm",
                "  if (lane == 0) parts[warp] = all;\n  __syncthreads();",
                "  if (lane == 0) parts[warp] = all;",
                "RAW hazard",
            ),
            ("layer_norm", "    }\n  }\n  __syncthreads();\n", "    }\n  }\n", "RAW hazard"),
            (
                "layer_norm",
                "c < cols; c += blockDim.x)\n    y",
                "c <= cols; c += blockDim.x)\n    y",
                "out of bounds",
            ),
        ],
        lambda name, *_: name in QUICK,
    ),
)
def test_a_fault_is_found(name: str, old: str, new: str, said: str, tmp_path: Path) -> None:
    code, output = check(tmp_path, name, old, new)
    assert code == 1 and said in output, output
