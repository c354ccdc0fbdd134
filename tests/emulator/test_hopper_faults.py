"""Faults planted in Hopper rungs: each is found, by the clocks, by a deadlock or in the numbers.

The kinds are those of public bugs: a fence or a wait that is missing or comes too early, a wrong number of
bytes or arrivals, a stage or box that is filled again while it is read, a cluster barrier relaxed too far, a
block that leaves while others need it, a map that disagrees with shared memory.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness import ladder
from harness.bench.emulation import Options
from harness.bench.row import OK, Measurement
from harness.kernels import catalog
from shared.hopper_rungs import compiled, launched

RUNGS = {kernel.path.stem: kernel for kernel in ladder()}
INCLUDE = Path(next(iter(RUNGS.values())).path).parents[1] / "include"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """An edit of a rung, or of the `header` that it includes, run with these parameters at this shape."""

    name: str
    rung: str
    old: str
    new: str = ""
    header: str = ""
    parameters: dict[str, int] = field(default_factory=dict)
    axes: dict[str, float] = field(default_factory=lambda: {"M": 128, "N": 64, "K": 400})

    def __str__(self) -> str:
        return f"{self.rung.partition('_')[0]}: {self.name}"


def faults(
    rung: str, parameters: dict[str, int], axes: dict[str, float], *edits: tuple[str, ...]
) -> list[Fault]:
    """Return the faults of one rung from (name, old, new, header), of which the last two may be left out."""
    found = []
    for name, old, *rest in edits:
        new, header = (*rest, "", "")[:2]
        found.append(
            Fault(name=name, rung=rung, old=old, new=new, header=header, parameters=parameters, axes=axes)
        )
    return found


RAGGED = {"M": 128, "N": 64, "K": 397}  # rows that have no tensor map
TILES = {"M": 128, "N": 640, "K": 200}  # more than one tile for each of four blocks
PAIRS = {"M": 256, "N": 640, "K": 600}
NO_WAIT_FOR_TMA = (  # before the warp writes what is less than a box, in 23
    "if (lane == 0) tma_store_wait_group_read<0>();\n                    __syncwarp();\n"
    "                    write_box(LAST);",
    "__syncwarp();\n                    write_box(LAST);",
)
TILED, PANELS, GRID = "small_tiles.cuh", "panels.cuh", "grid_sync.cuh"

FAULTS = [
    *faults(
        "22_wgmma",
        {"BM": 128, "BN": 64},
        {"M": 128, "N": 64, "K": 400},
        ("no wait for the boxes", "mbarrier_wait(full + now, parity);"),
        ("the first wait has the other parity", "int now = 0, parity = 0", "int now = 0, parity = 1"),
        ("the parity never turns", "now = 0, parity ^= 1;", "now = 0;"),
        ("no barrier before a stage is filled again", "__syncthreads();        // those", "// those"),
        ("no wait for products in the loop", "wgmma_wait_group<1>();"),
        ("a wait for products that leaves two", "wgmma_wait_group<1>();", "wgmma_wait_group<2>();"),
        ("no wgmma.fence", "wgmma_fence();"),
        ("no fence after the init", "fence_mbarrier_init();"),
        ("no barrier after the init", "__syncthreads();  // the barriers exist"),
        ("half the bytes of A are expected", "? sizeof *As : 0", "? sizeof *As / 2 : 0"),
        ("twice the bytes of B are expected", "? sizeof *Bs : 0", "? 2 * sizeof *Bs : 0"),
        ("two arrivals are expected", "? 1 : 1 + THREADS", "? 2 : 1 + THREADS"),
        ("the next stage is filled too early", "next = now;", "next = (now + 1) % STAGES;"),
        ("B without the swizzle", "B = {box = [64, 64], swizzle = 128}", "B = {box = [64, 64]}"),
        ("boxes of half the height", 'A = {box = ["BM", 64]', 'A = {box = ["BM // 2", 64]'),
        ("rows eight apart at half the distance",
         "[self / 128 * 64], 0, 1024)", "[self / 128 * 64], 0, 512)"),
        ("the second warpgroup multiplies the rows of the first", "As[now][self / 128 * 64]", "As[now][0]"),
    ),
    *faults(
        "22_wgmma",
        {"BM": 128, "BN": 64},
        RAGGED,
        ("no proxy fence after copies by threads", "fence_proxy_async();"),
        ("no arrival after copies by threads", "        mbarrier_arrive(full + stage);"),
    ),
    *faults(
        "22a_warp_specialized",
        {"BM": 128, "BN": 64},
        {"M": 128, "N": 64, "K": 600},
        ("no wait for an empty stage", "mbarrier_wait(empty + stage, parity);"),
        ("the stage in use is released", "mbarrier_arrive(empty + last)", "mbarrier_arrive(empty + stage)"),
        ("one warpgroup's release is enough", "CONSUMERS / 128);", "1);"),
        ("more registers than there are", "setmaxnreg_inc<200>", "setmaxnreg_inc<240>"),
        ("nobody gives registers back", "if (BM == 128) setmaxnreg_dec<104>();", ""),
        ("the producer waits for full stages", "int stage = 0, parity = 1;", "int stage = 0, parity = 0;"),
        ("the release does not wait for the products", "wgmma_wait_group<1>();", "wgmma_wait_group<2>();"),
    ),
    *faults(
        "23_wgmma_pipeline",
        {"BM": 64, "BN": 128, "STAGES": 6},
        TILES,
        ("no proxy fence before the TMA store",
         "fence_proxy_async();\n                    __syncwarp();", "__syncwarp();"),
        ("no barrier before the TMA store",
         "fence_proxy_async();\n                    __syncwarp();", "fence_proxy_async();"),
        ("the box of the last tile is written again",
         "if (lane == 0 && j == 0) tma_store_wait_group_read<0>();"),
        ("no barrier after the wait for a box",
         "  // what was in this one\n                    __syncwarp();", ""),
        ("no wait at the end", "if (lane == 0) tma_store_wait_group_read<0>();  // shared", "// shared"),
        ("no group of stores", "cs);\n                        tma_store_commit_group();",
         "cs);"),
        ("no fence after the init", "fence_mbarrier_init();", "", "stage16.cuh"),
        ("the other box is stored", "own_q + 64 * j, cs);",
         "own_q + 64 * j, Cs[warp][(j + 1) % BOXES]);"),
        ("a thread of each warp loads", "if (maps && warp == CONSUMERS / 32 && elect_one())",
         "if (maps && elect_one())"),
        ("all threads of a warp load", "if (maps && warp == CONSUMERS / 32 && elect_one())",
         "if (maps && warp == CONSUMERS / 32)"),
    ),
    *faults(
        "23_wgmma_pipeline",
        {"BM": 192, "BN": 192, "STAGES": 0},  # four stages, and one box of C for each warp
        {"M": 192, "N": 192, "K": 600},
        ("one box more than there is room for", "2 * OF_BOXES <= MOST_SHARED", "OF_BOXES <= MOST_SHARED"),
        ("one stage more than there is room for", "(MOST_SHARED - OF_BOXES) / OF_STAGE", "5"),
    ),
    *faults(
        "23_wgmma_pipeline",
        {"BM": 144, "BN": 128, "STAGES": 4},  # from the other side: nine boxes in eight places
        {"M": 288, "N": 256, "K": 200},
        ("no proxy fence before the warpgroup's stores", "if (map_for_c) fence_proxy_async();"),
        ("no barrier before the warpgroup's stores",
         "fence_proxy_async();\n                    warpgroup_sync(warp / 4);", "fence_proxy_async();"),
        ("what others store is written again",
         "  // what was there, of this warp's stores;\n                    warpgroup_sync(warp / 4);",
         "  // what was there, of this warp's stores;"),
        ("own stores are written again",
         "if (lane == 0) tma_store_wait_group_read<0>();  // what was there, of", "// what was there, of"),
        ("no group of the warpgroup's stores", "if (map_for_c && lane == 0) tma_store_commit_group();"),
        ("results are not turned back", "stmatrix_x4_trans(", "stmatrix_x4("),
        ("the ninth box lies where the first did", "const unsigned row = own_q + 16 * box;",
         "const unsigned row = own_q + 16 * (box % 8);"),
        ("both warpgroups meet at one barrier", "warpgroup_sync(warp / 4);                       // and",
         "warpgroup_sync(0);  // and"),
        ("the columns of a box are those of another warp", "unit = warp % 4 * 2 + lane / 8 % 2, i",
         "unit = warp % 2 * 2 + lane / 8 % 2, i"),
    ),
    *faults(
        "23_wgmma_pipeline",
        {"BM": 64, "BN": 128, "STAGES": 6, "CLUSTER": 2},
        PAIRS,
        ("no barrier of the cluster before the first multicast",
         "if (CLUSTER > 1) cluster_sync_relaxed();", "if (CLUSTER > 1) __syncthreads();"),
        ("releases in the own block only", "consumer_release<CLUSTER>", "consumer_release<1>"),
        ("the other block's release is not waited for", "CONSUMERS / 128) * CLUSTER", "CONSUMERS / 128)"),
        ("a block leaves while others arrive at it",
         "producer_tail<DEEP>(empty, stage, parity);", ";"),
    ),
    *faults(
        "23_wgmma_pipeline",
        {"BM": 64, "BN": 128, "STAGES": 8, "CLUSTER": 4, "ALONG_N": 2},
        {"M": 256, "N": 512, "K": 600},
        ("A goes to the blocks that have the same B",
         "tma_load_shared<BLOCKS, APART>", "tma_load_shared<BLOCKS, 1>", "stage16.cuh"),
        ("blocks beside each other load the same half of A",
         "EACH * sharer<BLOCKS, APART>(rank)", "EACH * (rank % BLOCKS)", "stage16.cuh"),
        ("the other blocks' releases are not waited for", "CONSUMERS / 128) * CLUSTER", "CONSUMERS / 128)"),
    ),
    *faults(
        "23_wgmma_pipeline",
        {"BM": 256, "BN": 96, "STAGES": 3},  # a box and a half, of two times 64 rows, in one place
        {"M": 256, "N": 192, "K": 300},
        ("the second 64 rows are multiplied like the first", "8192 * i + ", "", "stage16.cuh"),
        ("half a box is written over a whole one", *NO_WAIT_FOR_TMA),
        ("more registers than there are", "SUMS <= 160 ? 208", "SUMS <= 160 ? 216"),
    ),
    *faults(
        "23_wgmma_pipeline",
        {"BM": 64, "BN": 128, "STAGES": 6, "PINGPONG": 1},
        {"M": 128, "N": 1280, "K": 450},  # five tiles for each of four blocks, of eight steps in six stages
        ("no warpgroup waits for its turn", "if (PINGPONG && tile > first) wait_for_turn(turn);"),
        ("the turn is given to the wrong warpgroup", "give_turn_to(1 - turn)", "give_turn_to(turn)"),
        ("the other one's stages are not left out", "        if (PINGPONG) leave_out_a_tile();\n"),
        ("the second warpgroup begins with the first one's stages", "    if (turn) leave_out_a_tile();\n"),
        ("the parity is that of an earlier turn", "parity ^= next / DEEP % 2;", "parity ^= next / DEEP % 1;"),
        ("both warpgroups take the same tiles", "tile = first + turn * step", "tile = first"),
        ("a tile is left out by both", "tile += (1 + PINGPONG) * step", "tile += (2 + PINGPONG) * step"),
        ("both release a stage", "(PINGPONG ? 1 : CONSUMERS / 128)", "(CONSUMERS / 128)"),
        ("the second warpgroup multiplies other rows", "part = PINGPONG ? 0 : warp / 4", "part = warp / 4"),
    ),
    *faults(
        "23_wgmma_pipeline",
        {"BM": 256, "BN": 128, "STAGES": 4},
        {"M": 256, "N": 128, "K": 72},
        ("the box of the first 64 rows is written again",
         "if (lane == 0 && j == 0) tma_store_wait_group_read<0>();"),
    ),
    *faults(
        "15_split_k",
        {},
        {"M": 64, "N": 64, "K": 300},
        ("the cluster's barrier is relaxed", "cluster_sync();", "cluster_sync_relaxed();"),
        ("no barrier of the cluster", "cluster_sync();"),
        ("no wait for the sums of others", "mbarrier_wait(all_received, 0);"),
        ("more bytes are expected than are sent", "(SPLIT - 1) * QUADS", "SPLIT * QUADS"),
        ("a tile is read before it has landed",
         "cp_async_wait_group<STAGES - 2>();\n                __syncthreads();",
         "cp_async_wait_group<STAGES - 1>();\n                __syncthreads();"),
        ("a tile is filled while it is read",
         "cp_async_wait_group<STAGES - 2>();\n                __syncthreads();",
         "cp_async_wait_group<STAGES - 2>();"),
    ),
    *faults(
        "25_wgmma_tf32",
        {"BM": 64, "BN": 64, "STAGES": 8},
        {"M": 64, "N": 640, "K": 160},
        ("no proxy fence before the TMA store",
         "fence_proxy_async();\n                both_warps();", "both_warps();"),
        ("no barrier before the TMA store",
         "fence_proxy_async();\n                both_warps();", "fence_proxy_async();"),
        ("registers of A are loaded while they are read", "wgmma_wait_group<1>();", "wgmma_wait_group<2>();"),
        ("the stage is released before its products", "release(before);  // the stage before",
         "release(stage);  // the stage before"),
        ("two boxes of C are not enough",
         "b > 0) tma_store_wait_group_read<1>", "b > 0) tma_store_wait_group_read<2>"),
    ),
    *faults(
        "25_wgmma_tf32",
        {"BM": 96, "BN": 64, "STAGES": 8},
        {"M": 96, "N": 640, "K": 100},
        ("the last of three boxes of C is written again while it is read",
         "tma_store_wait_group_read<BOXES % 2 == 0>", "tma_store_wait_group_read<1>"),
    ),
    *faults(
        "25_wgmma_tf32",
        {"BM": 64, "BN": 64, "STAGES": 8, "CLUSTER": 4, "ALONG_N": 2},
        {"M": 256, "N": 256, "K": 600},
        ("no barrier of the cluster before the first multicast",
         "if (CLUSTER > 1) __syncwarp(), cluster_sync_relaxed();", "if (CLUSTER > 1) __syncthreads();"),
        ("releases in the own block only", "mbarrier_arrive_cluster(empty + stage, lane)",
         "mbarrier_arrive(empty + stage)"),
        ("the other blocks' releases are not waited for", "CONSUMERS / 32) * CLUSTER", "CONSUMERS / 32)"),
        ("a block leaves while others arrive at it",
         "producer_tail<STAGES>(empty, stage, parity);", ";"),
        ("A goes to the blocks that have the same B",
         "tma_load_shared<SHARE_A, SHARE_B>", "tma_load_shared<SHARE_A, 1>"),
        ("the tail waits for one stage less", "i < NUM_STAGES; ++i) {\n        mbarrier_wait",
         "i < NUM_STAGES - 1; ++i) {\n        mbarrier_wait", "cluster.cuh"),
    ),
    *faults(
        "25_wgmma_tf32",
        {"BM": 64, "BN": 64, "STAGES": 8, "CLUSTER": 4},
        {"M": 260, "N": 100, "K": 300},
        ("rows of k that another block loads", "of_b, k + n % 32,", "of_b, k,"),
        ("columns that begin within a box", "at.col + n / 32 * 32,", "at.col + n,"),
        ("rows of k go to the first rows of the box",
         "Bs[stage][n / 32][n % 32], of_b", "Bs[stage][n / 32], of_b"),
        ("whole boxes where sixteen rows are the block's",
         '["(1 - TRANSB) * min(32, BN // SHARE_B)', '["(1 - TRANSB) * 32'),
    ),
    *faults(
        "25_wgmma_tf32",
        {"BM": 64, "BN": 128, "STAGES": 6, "SPLIT": 2},
        {"M": 64, "N": 64, "K": 300},
        ("the sums of others are read too early",
         "cluster_sync();  // all sums", "cluster_sync_relaxed();  // all sums"),
        ("a block leaves while others read its memory",
         "cluster_sync_relaxed();  // no block", "// no block"),
        ("no barrier before stages become sums", "named_barrier_sync<CONSUMERS>();  // all", "// all"),
    ),
    *faults(
        "25_wgmma_tf32",
        {"BM": 64, "BN": 64, "STAGES": 8, "SPLIT": 2, "SHARE": 1},
        {"M": 64, "N": 64, "K": 520},  # a tile of two clusters
        ("blocks are counted before all threads have stored", "__shared__ bool last;\n    sync();",
         "__shared__ bool last;", GRID),
        ("threads go on before the count is known", "sync();\n    return last;", "return last;", GRID),
        ("the counter is relaxed", "last = atomic_add_acq_rel(counter", "last = atomicAdd(counter", GRID),
        ("the counter is of a block", "last = atomic_add_acq_rel(counter", "last = atomicAdd_block(counter",
         GRID),
        ("counters are left as they are", "if (last) *counter = 0;", "", GRID),
        ("the first block adds up", "== members - 1", "== 0", GRID),
        ("pieces are those of the same cluster", "pieces[low + i * SPLIT]", "pieces[low + i]"),
        ("shares overlap", "* (part_of_k + 1) / (SPLIT * sharers)",
         "* (part_of_k + 1) / (SPLIT * sharers) + (part_of_k == 0)"),
        ("one counter", "workspace + tile * SPLIT + rank", "workspace + tile * SPLIT"),
    ),
    *faults(
        "25_wgmma_tf32",
        {"BM": 128, "BN": 64, "STAGES": 8, "TRANSA": 1, "TRANSB": 1},
        {"M": 136, "N": 64, "K": 100, "transa": 1, "transb": 1},
        ("boxes of C lie where its transpose has them",
         "TRANSA ? col : row + m,\n                              TRANSA ? row + m : col", "row + m, col"),
        ("boxes of C are not swizzled", "swizzle * (n_row % 8 * 4)", "0"),
    ),
    *faults(
        "25_wgmma_tf32",
        {"BM": 64, "BN": 128, "STAGES": 6, "PINGPONG": 1},
        {"M": 64, "N": 2560, "K": 230},  # five tiles for each of four blocks, of eight steps in six stages
        ("no warpgroup waits for its turn", "if (PINGPONG && tile > first_tile) wait_for_turn(turn);"),
        ("the turn is given to the wrong warpgroup", "give_turn_to(1 - turn)", "give_turn_to(turn)"),
        ("the other one's stages are not left out", "            if (PINGPONG) leave_out_a_tile();\n"),
        ("the second warpgroup begins with the first one's stages", "    if (turn) leave_out_a_tile();\n"),
        ("the parity is that of an earlier turn", "parity ^= next / STAGES % 2;",
         "parity ^= next / STAGES % 1;"),
        ("both warpgroups take the same tiles", "tile = first_tile + turn * at_once", "tile = first_tile"),
        ("both release a stage", "(PINGPONG ? 4 : CONSUMERS / 32)", "(CONSUMERS / 32)"),
        ("the second half has the first one's columns", "(half * 2 + box) * 32", "box * 32"),
        ("the second half multiplies the first one's columns", "Bs[stage][half * 2 + box][0]",
         "Bs[stage][box][0]"),
        ("a stage is released between its halves", "if (half == 0 && add) release(before);",
         "if (half == 1) release(stage); if (half == 0 && !add) release(before);"),
        ("both warpgroups have the same boxes of C", "Cs[warp / 2][b % 2]", "Cs[box][b % 2]"),
    ),
    *faults(
        "35_wgmma_stream_k",
        {"BM": 64, "BN": 64, "STAGES": 12, "CLUSTER": 4, "ALONG_N": 2},
        {"M": 256, "N": 256, "K": 1800},
        ("no barrier of the cluster before the first multicast",
         "if (CLUSTER > 1) cluster_sync_relaxed();", "if (CLUSTER > 1) __syncthreads();"),
        ("releases in the own block only", "consumer_release<CLUSTER>", "consumer_release<1>"),
        ("the other blocks' releases are not waited for", "CONSUMERS / 128 * CLUSTER", "CONSUMERS / 128"),
        ("a block leaves while others arrive at it",
         "producer_tail<DEEP>(empty, stage, parity);", ";"),
    ),
    *faults(
        "35_wgmma_stream_k",
        {"BM": 32, "BN": 64, "STAGES": 12, "CLUSTER": 2},
        {"M": 64, "N": 192, "K": 600},  # three tiles for two clusters
        ("the next tile is the same one", "part = 0, ++tile;", "part = 0;"),
        ("one place for sums", "parts[cluster * CLUSTER + rank]", "parts[cluster * CLUSTER]"),
        ("one counter", "workspace + low * CLUSTER + rank", "workspace + low * CLUSTER"),
    ),
    *faults(
        "16_pipeline",
        {},
        {"M": 128, "N": 256, "K": 200},
        ("the next stage is not waited for", "mbarrier_wait(full + stage, parity);"),
        ("a stage is not released", "mbarrier_arrive(empty + done);"),
        ("copies are not waited for",
         "cp_async_mbarrier_arrive(full + stage);", "mbarrier_arrive(full + stage);", "fp32_producer.cuh"),
    ),
    *faults(
        "20_stream_k",
        {"BM": 64, "WM": 32, "CHUNK": 16, "TRANSB": 1},
        {"M": 64, "N": 256, "K": 200, "transb": 1},
        ("lines are read as if nothing were swizzled", "(unit ^ swizzle_b) * 4", "unit * 4"),
        ("the next four k are the same ones", "(chunk - CHUNK + k) / 4", "(chunk - CHUNK) / 4"),
        ("columns stay eight apart", "for (int i = 0; i < ROWS; ++i) lines_to_quads(mine[i]);", ";"),
        ("a lane stores another one's columns", "lane / 8 % 2 * 4 + lane % 2 * 2 + lane / 16",
         "lane / 8 * 2 + lane % 2", "fp32_lines.cuh"),
        ("half of the columns are not exchanged", "exchange(sum[4], sum[5], 1), exchange(sum[6], sum[7], 1)",
         "exchange(sum[4], sum[5], 1)", "fp32_lines.cuh"),
    ),
    *faults(
        "20_stream_k",
        {"BM": 256, "BN": 32, "WN": 32, "SLICES": 2},
        {"M": 250, "N": 60, "K": 200, "ldb": 61},  # A has a map, B none
        ("lines of A are read as if nothing were swizzled", "(unit ^ swizzle_a) * 4", "unit * 4"),
        ("the box of A is not swizzled", "TALL * 4 * BK", "0"),
        ("the next four k of A are read before these are done", "if (k % 4 == 0 && j == TN - 1) read_line_a",
         "if (k % 4 == 3 && j == TN - 1) read_line_a"),
        ("rows are stored as if they were quads", "A_IN_LINES ? i * LANES_M : i / 4", "i / 4"),
        ("both slices read the same k of A", "first_unit = slice * DEEP / 4", "first_unit = 0"),
    ),
    *faults(
        "20_stream_k",
        {"BM": 64, "BK": 16, "WM": 32, "STAGES": 8, "TRANSA": 1, "TRANSB": 1},
        {"M": 64, "N": 250, "K": 100, "transa": 1, "transb": 1, "ldb": 101},  # B has no map
        ("threads copy lines as if nothing were swizzled", "(k / 4 ^ lines_swizzle<TILE_K>(line)) * 4",
         "k / 4 * 4", "fp32_lines.cuh"),
        ("the rest of k is not zeros", "at + j, j < left);", "at + j, true);", "fp32_lines.cuh"),
        ("lines past the last one are read", "(first + min(line, last)) * ld", "(first + line) * ld",
         "fp32_lines.cuh"),
    ),
    *faults(
        "20_stream_k",
        {"BM": 128, "BN": 64, "WM": 32, "SLICES": 2, "TRANSA": 1},
        {"M": 130, "N": 63, "K": 100, "transa": 1, "lda": 131, "ldb": 66},  # pairs of floats of B alone
        ("two floats are copied where one lies alone",
         "64 == 0 && aligned8(matrix, ld)", "64 == 0 && aligned8(matrix, 0)", "fp32_producer.cuh"),
        ("a lane's pair is its float's", "&to[lane / 32 + i][lane % 32 * FLOATS + j]",
         "&to[lane / 32 + i][lane % 32 + j]", "fp32_producer.cuh"),
        ("half of a row is copied", "j < SIDE; j += 32 * FLOATS)", "j < SIDE; j += 64 * FLOATS)",
         "fp32_producer.cuh"),
        ("a warp copies its first row again", "next += PRODUCERS / 32 * (long long)ld)", "next += 0)",
         "fp32_producer.cuh"),
    ),
    *faults(
        "20_stream_k",
        {"BM": 256, "BN": 64, "BK": 16, "STAGES": 8, "WM": 32},
        {"M": 200, "N": 64, "K": 100, "lda": 101},  # rows of A are turned as they are copied
        ("rows past the last one are read", "if (r + PRODUCERS / 8 <= last) at +=", "at +=",
         "fp32_producer.cuh"),
    ),
    *faults(
        "20_stream_k",
        {"BM": 64, "WM": 32, "CHUNK": 16, "TRANSB": 1},
        {"M": 64, "N": 200, "K": 100, "transb": 1, "ldb": 102},  # B has no map, but pairs of floats
        ("lines past the last one are read", "if (line + THREADS / 8 <= last) at +=", "at +=",
         "fp32_lines.cuh"),
        ("a lane's pair is its float's",
         "place(to, line, lane % 8 * FLOATS + k)", "place(to, line, lane % 8 + k)", "fp32_lines.cuh"),
        ("half of a line is copied", "k < TILE_K; k += 8 * FLOATS)", "k < TILE_K; k += 16 * FLOATS)",
         "fp32_lines.cuh"),
    ),
    *faults(
        "26_wgmma_split",
        {},
        {"M": 64, "N": 64, "K": 700},
        ("others may not have begun", "cluster_wait();  // all", "// all"),
        ("no wait for the sums of others", "mbarrier_wait(all_received, 0);"),
    ),
    *faults(
        "32_bf16x6_panels",
        {"BM": 64, "BN": 64, "STAGES": 4},
        {"M": 100, "N": 260, "K": 150},
        ("no proxy fence after the split",
         'asm volatile("fence.proxy.async.global;" ::: "memory");', "", PANELS),
        ("no barrier of the block after the split", "{\n    named_barrier_sync<COUNT>();\n    if",
         "{\n    if", PANELS),
        ("nobody waits for the other blocks",
         "while ((load_acquire(counter) ^ before) >> 31 == 0) {}", "", PANELS),
        ("the counter flips one block too early", "(gridDim.x - 1)", "(gridDim.x - 2)", PANELS),
        ("a stage is filled before it is empty", "mbarrier_wait(empty + stage, parity);", "", PANELS),
        ("half of B's panel is copied",
         "b, sizeof stages[stage].b,", "b, sizeof stages[stage].b / 2,", PANELS),
        ("a warpgroup does not release its stage", "consumer_release<1>(empty + stage,",
         "if (half) consumer_release<1>(empty + stage,", PANELS),
        ("sums are exchanged over those of the last tile",
         "named_barrier_sync<CONSUMERS>();  // what was", "// what was", PANELS),
        ("sums are read before they are there",
         "named_barrier_sync<CONSUMERS>();\n            if (half == 1) continue;",
         "if (half == 1) continue;", PANELS),
    ),
    *faults(
        "32_bf16x6_panels",
        {"BM": 64, "BN": 64, "STAGES": 4},
        {"M": 60, "N": 60, "K": 1100},
        ("sums are added before all sharers have written theirs",
         "grid_sync<CONSUMERS>(workspace);", "", PANELS),
        ("sums are read of the sharer behind", "first * sharers + i", "first * sharers + i + 1", PANELS),
    ),
    *faults(
        "36_fp16x3",
        {"BM": 64, "BN": 64, "STAGES": 6},
        {"M": 100, "N": 260, "K": 150},
        ("nobody waits for the scales", "grid_sync(counter);"),
        ("largest elements are cleared while others are raised",
         "largest[self] = 0;\n            __syncthreads();", "largest[self] = 0;"),
        ("scales are read before all warps have raised them",
         "__syncthreads();\n            const unsigned group", "const unsigned group"),
        ("the largest is raised without an atomic", "red.relaxed.cta.shared::cta.max.u32", "st.shared.u32"),
    ),
    *faults(
        "38_3xtf32_panels",
        {"BM": 64, "BN": 64, "STAGES": 6},
        {"M": 100, "N": 260, "K": 350},  # B is transposed, by some warps twice
        ("lines are read before all lanes have written theirs",
         "__syncwarp();\n            #pragma unroll\n            for (int j = 0; j < UNIT; ++j) v[j].low",
         "#pragma unroll\n            for (int j = 0; j < UNIT; ++j) v[j].low", PANELS),
        ("lines are written before all lanes have read the last ones",
         "__syncwarp();  // the last ones", "// the last ones", PANELS),
        ("no proxy fence between transposed lines and stages",
         "if (a.TRANSPOSED || b.TRANSPOSED) fence_proxy_async();", "", PANELS),
        ("warps transpose in the same place", "threadIdx.x / 32 * 32 * a.PITCH", "threadIdx.x / 32 * a.PITCH",
         PANELS),
        ("half of A's panel is copied",
         "a, sizeof stages[stage].a,", "a, sizeof stages[stage].a / 2,", PANELS),
        ("the stage is released before its products",
         "wgmma_wait_all(part);\n                if (pass == PASSES - 1) consumer_release<1>(empty + stage,",
         "if (pass == PASSES - 1) consumer_release<1>(empty + stage, self, warp);\n"
         "                wgmma_wait_all(part);\n"
         "                if (false) consumer_release<1>(empty + stage,",
         PANELS),
    ),
    *faults(
        "29_wgmma_grid_split",
        {"BM": 64, "BN": 128, "STAGES": 6},
        {"M": 64, "N": 64, "K": 700},
        ("the counter is relaxed", "atom.add.release.gpu", "atom.add.relaxed.gpu", "grid_sync.cuh"),
        ("the counter is for the block", "atom.add.release.gpu", "atom.add.release.cta", "grid_sync.cuh"),
        ("the poll is a plain load", "ld.acquire.gpu", "ld", "grid_sync.cuh"),
        ("no barrier before the counter", "named_barrier_sync<CONSUMERS>();  // the stores", "// the stores"),
        ("no barrier after the poll",
         "named_barrier_sync<CONSUMERS>();\n        const unsigned low", "const unsigned low"),
        ("the counter flips one block too early", "0x80000000 - (sharers - 1)", "0x80000000 - (sharers - 2)"),
        ("no tail", "producer_tail<DEEP>(empty, stage, parity);", ";"),
        ("the first release is left out", "if (part > rank) consumer", "if (part > rank + sharers) consumer"),
    ),
    *faults(
        "29_wgmma_grid_split",
        {"BM": 80, "BN": 64, "STAGES": 8, "ACROSS": 1},
        {"M": 72, "N": 128, "K": 1200},
        ("neighbours load the same half of A", "EACH * sharer<BLOCKS, APART>(rank)", "0", "stage16.cuh"),
        ("results go where those of the other side do", "store_fragment<ACROSS>", "store_fragment<false>"),
        ("the other blocks' releases are not waited for", "CONSUMERS / 128 * CLUSTER", "CONSUMERS / 128"),
        ("sums go where a stage is still read",
         "named_barrier_sync<CONSUMERS>();  // the stores", "// the stores"),
    ),
    *faults(
        "20_stream_k",
        {"BM": 128, "BN": 128, "BK": 32, "WM": 64, "STAGES": 4, "CHUNK": 8, "SLICES": 2},
        {"M": 128, "N": 640, "K": 400},
        ("sums go where a stage is still read",
         "named_barrier_sync<CONSUMERS>();  // all have read the last stage", "// all have read"),
        ("the other slice's sums are read too early",
         "            named_barrier_sync<CONSUMERS>();\n        }\n", "        }\n"),
        ("the plan is read before it is made", "__syncthreads();  // the plan", "// the plan"),
        ("the parts are published without a barrier",
         "named_barrier_sync<CONSUMERS>();  // the stores of all", "// the stores of all"),
        ("one slice's arrival is enough", "init_barriers(full, empty, CONSUMERS)",
         "init_barriers(full, empty, CONSUMERS / 2)"),
    ),
    *faults(
        "19_pipeline_split",
        {},
        {"M": 64, "N": 128, "K": 500},
        ("a lane arrives before its warp has read", "__syncwarp();\n        if (EACH", "if (EACH"),
        ("the cluster's barrier is relaxed", "cluster_sync();  // all", "cluster_sync_relaxed();  // all"),
        ("the bytes of B are not expected",
         "mbarrier_expect_tx(full, sizeof to);", "", "fp32_producer.cuh"),
        ("copies arrive on top of what is expected", "cp_async_mbarrier_arrive(full + stage);",
         'asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];"'
         ' :: "r"(shared_address(full + stage)) : "memory");', "fp32_producer.cuh"),
        ("stages are filled without a wait",
         "mbarrier_wait(empty + stage, parity);  // the consumers", "// the consumers", "fp32_producer.cuh"),
        ("the parity turns one stage too late",
         "if (++stage == STAGES) stage = 0, parity ^= 1;",
         "if (++stage == STAGES) stage = 0; parity ^= stage == 1;"),
    ),
    *faults(
        "23_wgmma_pipeline",
        {"BM": 64, "BN": 128, "STAGES": 6, "CLUSTER": 2},
        PAIRS,
        ("a multicast to the own block only",
         "tma_load_shared<BLOCKS, APART>", "tma_load_shared<1, APART>", "stage16.cuh"),
        ("all release to the first block",
         "mbarrier_arrive_cluster(empty, block + warp % 4)", "mbarrier_arrive_cluster(empty, 0)",
         "stage16.cuh"),
        ("the stage is released before its products",
         "wgmma_wait_group<1>();  // the",
         "if (left < K) consumer_release<CLUSTER>(empty + last, self, warp);\n"
         "            if (left == K) wgmma_wait_group<1>();  // the"),
        ("the first product adds to what is there", "accumulate || k > 0);", "true);", "stage16.cuh"),
        ("A lies half as far apart",
         "make_descriptor(a[m], 0, 1024)", "make_descriptor(a[m], 0, 512)", "stage16.cuh"),
        ("the boxes of B overlap", "TILE_K * WIDE * 2, 16", "TILE_K * WIDE, 16", "stage16.cuh"),
        ("only one warp waits for a stage", "mbarrier_wait(full + stage, parity);\n            stages",
         "if (warp == 0) mbarrier_wait(full + stage, parity);\n            stages"),
    ),
    *faults(
        "23_wgmma_pipeline",
        {"BM": 64, "BN": 128, "STAGES": 6, "CLUSTER": 2, "ALONG_N": 1},
        {"M": 64, "N": 512, "K": 200},
        ("both blocks load the same rows of A", "EACH * sharer<BLOCKS, APART>(rank)", "0", "stage16.cuh"),
        ("a block has its own rows of A only",
         "load_part<BLOCKS, APART, A_MN, TILE_M, 64>", "load_part<1, APART, A_MN, TILE_M, 64>",
         "stage16.cuh"),
        ("both blocks have the same columns", "rank / SHARE_Q) * BQ", "0) * BQ"),
        ("rows of A are shared before all blocks have begun",
         "if (SHARE_A == 1) load_a(map_a, row, k, full);",
         "load_a<SHARE_A, SHARE_B>(map_a, row, k, full, true, true, blockIdx.x % SHARE_A);", "stage16.cuh"),
    ),
    *faults(
        "23_wgmma_pipeline",
        {"BM": 64, "BN": 192, "STAGES": 4, "CLUSTER": 2},
        PAIRS,
        ("the halves of a box lie on each other", "(box * TILE_K + of_k) *", "box * TILE_K *", "stage16.cuh"),
        ("both halves of a box are the first", "MN ? k + of_k :", "MN ? k :", "stage16.cuh"),
    ),
    *faults(
        "23_wgmma_pipeline",
        {"BM": 72, "BN": 64, "STAGES": 8, "CLUSTER": 4, "ALONG_N": 1},  # nine eights of rows, for four blocks
        {"M": 144, "N": 512, "K": 200},
        ("all blocks load what one should in its turn",
         "if (IN_TURN && k / TILE_K % BLOCKS != sharer<BLOCKS, APART>(rank)) return;", "", "stage16.cuh"),
        ("half a box is stored whole", "HALF ? min(16, BQ - 16 * box) : 16;", "16;"),
        ("half a box is not stored", "if (box >= (BQ + 15) / 16) continue;", "if (box >= BQ / 16) continue;"),
    ),
    *faults(
        "23_wgmma_pipeline",
        {"BM": 64, "BN": 64, "STAGES": 8, "CLUSTER": 8, "ALONG_N": 2},
        {"M": 128, "N": 256, "K": 1200},
        ("four of eight blocks learn that a stage is empty",
         "block < BLOCKS; block += 4", "block < 4; block += 4", "stage16.cuh"),
        ("eight blocks release, and four are waited for", "/ 128) * CLUSTER", "/ 128) * 4"),
    ),
    *faults(
        "35_wgmma_stream_k",
        {"BN": 16, "SHARE": 0},
        {"M": 128, "N": 64, "K": 200, "ldb": 65},  # no tensor map of B
        ("narrow rows are copied like wide ones", "B_WIDE / 4, 2 * B_WIDE>", "16>", "stage16.cuh"),
    ),
    *faults(
        "35_wgmma_stream_k",
        {"BN": 16, "SHARE": 0},
        {"M": 128, "N": 64, "K": 200},
        ("narrow boxes are read like wide ones", "16 * WIDE, 2 * WIDE)", "16 * WIDE)", "stage16.cuh"),
    ),
    *faults(
        "23_wgmma_pipeline",
        {"BM": 64, "BN": 192, "STAGES": 6},
        {"M": 64, "N": 960, "K": 200},
        # This rung before it was mended by reading: of three boxes in two places one is not waited for.
        ("three boxes share two places",
         "if (lane == 0 && j == 0) tma_store_wait_group_read<0>();  // the last tile's boxes, long ago\n"
         "                    if (lane == 0 && j >= BOXES) tma_store", "if (lane == 0) tma_store"),
    ),
    *faults(
        "23_wgmma_pipeline",
        {"BM": 64, "BN": 160, "STAGES": 6},
        {"M": 64, "N": 1592, "K": 72},
        ("what is less than a box goes where TMA still reads", *NO_WAIT_FOR_TMA),
        ("a lane alone waits until TMA has read", "__syncwarp();\n                    write_box(LAST);",
         "write_box(LAST);"),
        ("less than a box is stored beyond the last column", "if (row < M && col < N)", "if (row < M)"),
        ("its units are taken to be in order",
         "[r][(unit ^ r % 8) * 8];\n                    }", "[r][unit * 8];\n                    }"),
    ),
    *faults(
        "22c_tma_store",
        {"BM": 64, "BN": 128, "STAGES": 6},
        TILES,
        ("a box is stored by a lane that did not wait", "if (lane == 0) {\n                    tma_store(",
         "if (lane == 1) {\n                    tma_store("),
        ("the store is committed only once",
         "tma_store_commit_group();", "if (!j) tma_store_commit_group();"),
        ("empty stages belong to a single thread", "mbarrier_init(empty + self, CONSUMERS / 128)",
         "mbarrier_init(empty + self, CONSUMERS)"),
    ),
    *faults(
        "34_small_tiles_tf32",
        {"BM": 32, "BN": 32, "BLOCKS": 4},
        {"M": 40, "N": 20, "K": 270},  # two tiles, of two blocks each
        ("a stage is read before it has landed", "cp_async_wait_group<STAGES - 2>();",
         "cp_async_wait_group<STAGES - 1>();", TILED),
        ("a stage is filled while it is read", "__syncthreads();  // everyone's", "// everyone's", TILED),
        ("sums lie over the last stage", "__syncthreads();  // the last stage", "// the last stage", TILED),
        ("rows beyond the matrix are copied", "r + i < rows ? bytes : 0", "bytes", TILED),
        ("columns beyond the matrix are copied", "(int)sizeof(ELEMENT) * min(max(columns - c, 0), UNIT)",
         "16", TILED),
        ("sums are stored before all have them", "__syncthreads();\n    staged->store", "staged->store"),
    ),
    *faults(
        "34_small_tiles_tf32",
        {"BM": 32, "BN": 32, "BLOCKS": 4},
        {"M": 20, "N": 32, "K": 650},  # a tile of five blocks
        ("shares overlap", "stages * (split + 1) / splits", "(stages * (split + 1) + splits - 1) / splits",
         TILED),
    ),
    *faults(
        "34_small_tiles_tf32",
        {"BM": 32, "BN": 32, "BLOCKS": 4, "SPLIT": 8},
        {"M": 20, "N": 32, "K": 1050},  # a cluster
        ("the cluster's barrier is relaxed", "cluster_sync();  // all", "cluster_sync_relaxed();  // all",
         TILED),
        ("a block leaves while others read", "cluster_sync_relaxed();  // no block", "// no block", TILED),
        ("a piece is one quad short", "QUADS * (rank + 1) / SPLIT;", "QUADS * (rank + 1) / SPLIT - 1;",
         TILED),
    ),
    *faults(
        "34_small_tiles_tf32",
        {"BM": 32, "BN": 32, "BLOCKS": 4, "SPLIT": 8},
        {"M": 20, "N": 17, "K": 2060},  # two clusters
        ("pieces have one counter", "workspace + tile * SPLIT + rank", "workspace + tile", TILED),
        ("each block of a cluster has another part", "blockIdx.y / SPLIT, gridDim.y / SPLIT",
         "blockIdx.y % (gridDim.y / SPLIT), gridDim.y / SPLIT"),
    ),
    *faults(
        "34_small_tiles_tf32",
        {"BM": 32, "BN": 32, "BLOCKS": 4},
        {"M": 40, "N": 21, "K": 271},  # rows begin anywhere
        ("rows are read from where units begin", "lane_row * ld) % 4", "lane_row * ld) % 1"),
        ("a row has no unit more", "r += 32) copy_unit(first + r, across);", "r += 32) {}", TILED),
        ("bytes before a row count as its own", "before + (int)sizeof(ELEMENT) * columns",
         "(int)sizeof(ELEMENT) * columns", TILED),
    ),
    *faults(
        "33_small_tiles",
        {"BM": 32, "BN": 64, "WARPS_M": 1, "STAGES": 3, "BLOCKS": 3, "TURN": 1, "SLICES": 4},
        {"M": 40, "N": 68, "K": 270},
        ("sums of a slice are lost", "if (turn > 0)", "if (false)"),
        ("all slices take the same k", "as.at[slice * DEEP]", "as.at[0]"),
        ("slices add up at once", "        __syncthreads();\n    }\n    staged", "    }\n    staged"),
        ("pairs stay swapped", "v.y, v.x, v.w, v.z", "v.x, v.y, v.z, v.w", TILED),
        ("a fragment is of the k before", "read(k + 1);", "read(k);"),
    ),
    *faults(
        "41_turned_tiles",
        {"BM": 32, "BN": 64, "WARPS_M": 1, "OUTPUTS": 32, "BK": 16, "STAGES": 3},
        {"M": 70, "N": 68, "K": 53},  # a whole tile and ragged ones, and a stage that is not full
        ("a fragment is of the k before", "read(k + 1);", "read(k);"),
        ("columns go back where they were", "n = i % 2 ? TN - 1 - j : j;", "n = TN - 1 - j;"),
        ("a tile that is not whole is copied as one", "if (rows >= EXTENT && columns >= BK)",
         "if (rows >= EXTENT)", TILED),
        ("all warps have the same columns", "warp_n = warp / (WARPS_M * SLICES) * WN", "warp_n = 0"),
        ("threads copy below the tile", "if (step <= height || r < height) ", "", TILED),
        ("the last stage is read as it comes", "cp_async_wait_group<STAGES - 2>();",
         "cp_async_wait_group<STAGES - 1>();", TILED),
    ),
    *faults(
        "42_single_floats",
        {"BM": 32, "BN": 64, "WARPS_M": 1},
        {"M": 70, "N": 68, "K": 53},  # tiles that are whole and ragged, and a stage that is not full
        ("rows are read that do not exist", "min(y + i * down, extent - 1)", "(y + i * down)"),
        ("columns are read that do not exist", "min(right, extent - 1)", "right"),
        ("k are read that do not exist", "source, k < left)", "source, true)"),
        ("a row of k too many counts", "source, k + m < left);", "source, k + m <= left);"),
        ("the next stage is read before it has landed", "                cp_async_wait_group<STAGES - 2>();",
         "                cp_async_wait_group<STAGES - 1>();"),
        ("a stage is overwritten that is read", "free = now, now = next;", "free = next, now = next;"),
        ("a fragment is of the k before", "read(stage_at(now), k + 1,", "read(stage_at(now), k,"),
        ("the first operands are those of this stage", "read(stage_at(next), 0,", "read(stage_at(now), 0,"),
        ("sums go where the last stage is still read", "    __syncthreads();      // all copies",
         "// all copies"),
        ("zeros land among the sums", "    cp_async_wait_group<0>();\n}", "}"),
        ("a warp stores what its lanes have not written",
         "        __syncwarp();\n        if ((unsigned long long)C",
         "        if ((unsigned long long)C", TILED),
    ),
    *faults(
        "42_single_floats",
        {"BM": 32, "BN": 64, "WARPS_M": 1, "TRANSA": 1},
        {"M": 70, "N": 69, "K": 53, "lda": 72, "ldb": 72, "transa": 1},  # units that exist in part
        ("units are copied whole", "k + m < left ? 4 * floats[i % across] : 0", "k + m < left ? 16 : 0"),
        ("units of k are copied that do not exist", "k + m < left ? 4 * floats[i % across] : 0",
         "4 * floats[i % across]"),
    ),
    *faults(
        "42_single_floats",
        {"BM": 32, "BN": 32, "WARPS_M": 1, "BLOCKS": 4},
        {"M": 40, "N": 36, "K": 270},
        ("each block takes the first k", "begin = share.begin * BK", "begin = 0"),
        ("a block takes what is the next one's", "int(min((unsigned)K, share.end * (unsigned)BK))", "K"),
    ),
    *faults(
        "37_small_tiles_16_bits",
        {"BM": 32, "BN": 32, "BLOCKS": 4},
        {"M": 40, "N": 19, "K": 270, "lda": 273, "ldb": 21},  # no row of either operand is where units begin
        ("rows are shifted before all of the warp's copies have landed",
         "__syncwarp();\n        #pragma unroll\n        for (int i = 0; i < quarter; i += rows)",
         "#pragma unroll\n        for (int i = 0; i < quarter; i += rows)", TILED),
        ("a unit is written before its neighbour has read it",
         "__syncwarp();  // another lane", "// another lane", TILED),
        ("the unit that a row has more is not copied",
         "r += 32) copy_unit(first + r, across);", "r += 32) {}", TILED),
        ("the covering units are copied beyond the matrix", "r < rows ? min(max(bytes, 0), 16) : 0",
         "r < rows ? 16 : 0", TILED),
        ("a row is shifted by what the row above needs", "(start + r * ld) % 8", "(start + (r - 1) * ld) % 8",
         TILED),
    ),
    *faults(
        "39_bf16x6_tiles",
        {"BLOCKS": 2, "SPLIT": 2},
        {"M": 60, "N": 70, "K": 700},  # two tiles, two clusters of two blocks each
        ("no proxy fence between parts and products", "fence_proxy_async();  //", "//"),
        ("products begin before all warps have written their parts",
         "__syncthreads();      // for all", "// for all"),
        ("the products of the last chunk are not waited for", "add();                // the", "// the"),
        ("parts overwrite those that are multiplied", "stages[chunk % STAGES]", "stages[0]"),
        ("no wgmma.fence", "wgmma_fence();"),
        ("each block takes the first chunks", "b_quads, share.begin * BK)", "b_quads, 0)"),
        ("the next chunk is loaded twice", "load(chunk + 1);", "load(chunk);"),
        ("half of A is split", "EACH = EXTENT * 4 / THREADS;", "EACH = EXTENT * 2 / THREADS;"),
        ("pieces have one counter", "workspace + tile * SPLIT + rank", "workspace + tile", TILED),
        ("no block waits for the sums of the cluster", "cluster_sync();  // all sums", "// all sums", TILED),
        ("blocks leave while others read their sums", "cluster_sync_relaxed();", "", TILED),
    ),
    *faults(
        "39_bf16x6_tiles",
        {"BM": 128, "BN": 64, "BLOCKS": 0},
        {"M": 120, "N": 60, "K": 90},
        ("sums go where a stage is still read", "__syncthreads();      // the last", "// the last"),
        ("sums are read before all warps have written theirs",
         "    __syncthreads();\n    staged->store", "    staged->store"),
    ),
    *faults(
        "28_3xtf32",
        {},
        {"M": 128, "N": 128, "K": 200},
        ("a tile is read before it has landed", "cp_async_wait_group<STAGES - 2>();",
         "cp_async_wait_group<STAGES - 1>();"),
    ),
]  # fmt: skip
# Their text stands twice in the file, and both are replaced.
TWICE = {
    "16: copies are not waited for",
    "19: copies arrive on top of what is expected",
    "23: no fence after the init",
    "23: releases in the own block only",
    "35: releases in the own block only",
}
FEW = {
    "22: no barrier before a stage is filled again",
    "22: half the bytes of A are expected",
    "15: the cluster's barrier is relaxed",
}
LEAST = 0.95


def target(fault: Fault) -> Path:
    """Return the file that the fault changes."""
    return INCLUDE / fault.header if fault.header else RUNGS[fault.rung].path


def planted(fault: Fault, folder: Path) -> Measurement:
    """Run a rung with the fault, in the other schedule if the first finds nothing.

    The edited header lies beside the kernel, where it is looked for first.
    """
    kernel, changed = RUNGS[fault.rung], target(fault)
    path = folder / kernel.path.name
    path.write_text(kernel.source, encoding="utf-8")
    text = changed.read_text(encoding="utf-8").replace(fault.old, fault.new)
    (folder / changed.name).write_text(text, encoding="utf-8")
    built = compiled(catalog.kernel(str(path)).variant(**fault.parameters))
    found = launched(built, fault.axes, Options())
    return found if found.status != OK else launched(built, fault.axes, Options(schedule="early"))


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_text_of_a_fault_stands_in_its_file(fault: Fault) -> None:
    text = target(fault).read_text(encoding="utf-8")
    assert text.count(fault.old) == (2 if str(fault) in TWICE else 1), f"{target(fault).name} has changed"
    included = f'#include "{fault.header}"' in RUNGS[fault.rung].source
    assert included or not fault.header, "the kernel would take the shipped header"
    assert RUNGS[fault.rung].variant(**fault.parameters)  # else its file refuses them


@pytest.mark.parametrize("fault", [f for f in FAULTS if str(f) in FEW], ids=str)
def test_a_planted_fault_is_found(fault: Fault, tmp_path: Path) -> None:
    assert planted(fault, tmp_path).status != OK


def missed(faults: Iterable[Fault], folder: Path) -> list[str]:
    found = []
    for number, fault in enumerate(faults):
        (folder / str(number)).mkdir()
        if planted(fault, folder / str(number)).status == OK:
            found.append(str(fault))
    return found


@pytest.mark.slow
def test_of_some_planted_faults_one_is_missed_at_most(tmp_path: Path) -> None:
    """CI takes other ones in each run."""
    drawn = random.SystemRandom().sample(FAULTS, 12)
    assert len(found := missed(drawn, tmp_path)) <= 1, found


@pytest.mark.exhaustive
def test_planted_faults_are_found(tmp_path: Path) -> None:
    assert len(FAULTS) >= 80
    found = missed(FAULTS, tmp_path)
    assert len(found) <= (1 - LEAST) * len(FAULTS), found
