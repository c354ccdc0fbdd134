"""Counts of memory requests: recounted in plain Python, and equal to what ncu measured on an H200."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from harness.emulator import Source
from harness.emulator.watch.patterns import sectors, wavefronts
from shared.emulator_kernels import MATMULS, NAIVE, SIGNATURE, TILED16, launch, line_of, matmul

Lanes = dict[int, int]  # lane -> byte address


def plain_sectors(lanes: Lanes, size: int) -> int:
    return len({byte // 32 for address in lanes.values() for byte in range(address, address + size)})


def plain_wavefronts(lanes: Lanes, size: int) -> int:
    """The rule as the design note words it, lane by lane."""
    parts = max(1, size // 4)
    if parts > 1:
        for apart in (1, 2):
            if all(lanes[t] == lanes[t ^ apart] for t in lanes if t ^ apart in lanes):
                parts //= 2
                break
    total = 0
    for part in range(parts):
        banks = defaultdict(set)
        for lane, address in lanes.items():
            if lane * parts // 32 == part:
                for word in range(address // 4, (address + size + 3) // 4):
                    banks[word % 32].add(word)
        total += max((len(words) for words in banks.values()), default=0)
    return total


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("seed", range(6))
def test_patterns_of_random_addresses(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    threads, blocks = 72, 3
    addresses = rng.integers(0, [2, 16, 80][seed % 3], (threads, blocks)) * size
    if seed % 2:
        addresses = addresses // (2 * size) * size + np.arange(threads)[:, None] // 2 * size  # pairs agree
        addresses[1::2] = addresses[::2]
    active = rng.random((threads, blocks)) < [1.1, 0.7, 0.05][seed // 2]
    wanted = np.zeros(3, int)
    for block in range(blocks):
        for warp in range(0, threads, 32):
            lanes = {
                t - warp: int(addresses[t, block])
                for t in range(warp, min(warp + 32, threads))
                if active[t, block]
            }
            if lanes:
                wanted += [1, plain_sectors(lanes, size), plain_wavefronts(lanes, size)]
    assert sectors(addresses, active, size) == tuple(wanted[:2])
    assert wavefronts(addresses, active, size)[:2] == (wanted[0], wanted[2])


def loads(run: object) -> tuple[int, int]:
    """(requests, sectors) of global loads; cp.async is one, as ncu has it."""
    found = [c for c in run.instructions if c.opcode.startswith(("ld.", "cp."))]  # type: ignore[attr-defined]
    return sum(c.global_requests for c in found), sum(c.sectors for c in found)


@pytest.mark.parametrize("n", [32, 37])
def test_the_naive_kernel_recounted(n: int) -> None:
    run, _, _ = matmul(NAIVE, (16, 16), 16, n)
    side = -(-n // 16)
    requests = total = flops = 0
    for by in range(side):
        for bx in range(side):
            for warp in range(0, 256, 32):
                threads = [(by * 16 + t // 16, bx * 16 + t % 16) for t in range(warp, warp + 32)]
                lanes = {i: (r, q) for i, (r, q) in enumerate(threads) if r < n and q < n}
                if not lanes:
                    continue
                flops += len(lanes) * (2 * n + 3)
                for k in range(n):
                    a = {i: 4 * (r * n + k) for i, (r, _) in lanes.items()}
                    b = {i: 4 * (k * n + q) for i, (_, q) in lanes.items()}
                    requests += 2
                    total += plain_sectors(a, 4) + plain_sectors(b, 4)
                requests += 1
                total += plain_sectors({i: 4 * (r * n + q) for i, (r, q) in lanes.items()}, 4)
    assert loads(run) == (requests, total)
    assert run.total.flops == flops
    product = next(c for c in run.lines if c.source == Source(line_of(NAIVE, "s+=a[r*n+k]")))
    assert product.flops == 2 * n**3
    assert product.global_bytes == 8 * n**3


CONFLICTS = f"""{SIGNATURE} {{
  __shared__ float s[32][PAD]; int x=threadIdx.x,y=threadIdx.y;
  s[y][x]=a[y*n+x];
  __syncthreads();
  c[y*n+x]=s[x][y];
}}
"""


@pytest.mark.parametrize(("pad", "degree"), [(32, 32), (33, 1), (34, 2), (36, 4)])
def test_bank_conflicts_of_a_transposed_tile(pad: int, degree: int) -> None:
    source = CONFLICTS.replace("PAD", str(pad))
    run, _, _ = matmul(source, (32, 32), 32, 32)
    read = next(c for c in run.lines if c.source == Source(line_of(source, "s[x][y]")))
    write = next(c for c in run.lines if c.source == Source(line_of(source, "s[y][x]=")))
    assert (read.shared_requests, read.wavefronts, read.conflicts) == (32, 32 * degree, 32 * (degree - 1))
    assert (write.shared_requests, write.wavefronts, write.conflicts) == (32, 32, 0)
    brute = plain_wavefronts({x: 4 * (x * pad) for x in range(32)}, 4)
    assert brute == degree


# Of the design note: (global load requests, sectors) by ncu; (shared requests, wavefronts) as written in PTX,
# which for the two register-blocked kernels is as compiled too.
MEASURED = {
    "naive16": ((1_050_624, 2_105_344), (0, 0)),
    "tiled16": ((67_584, 270_336), (1_114_112, 1_114_112)),
    "tiled32": ((34_816, 139_264), (1_081_344, 1_081_344)),
    "reg64": ((4_608, 81_920), (43_008, 188_416)),
    "reg128": ((2_560, 49_152), (37_888, 176_128)),
    "async32": ((34_816, 139_264), (1_048_576, 1_048_576)),
}


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.parametrize("arch", ["compute_90", pytest.param("compute_100", marks=pytest.mark.slow)])
def test_counts_are_those_measured_on_an_h200(name: str, arch: str) -> None:
    run, c, expected = matmul(*MATMULS[name], 256, arch)
    assert loads(run) == MEASURED[name][0]
    assert (run.total.shared_requests, run.total.wavefronts) == MEASURED[name][1]
    fused = sum(i.executions for i in run.instructions if i.opcode.startswith("fma"))
    assert fused == 256**3 + 256**2  # smsp__sass_thread_inst_executed_op_ffma_pred_on
    assert np.abs(c - expected).max() < 1e-3
    assert run.findings == ()


def test_widths_count_what_the_compiler_merged() -> None:
    """tiled16 on the H200: of 16 reads of As, 4 LDS.128 remain; 786,432 + 65,536 wavefronts."""
    plain, _, _ = matmul(TILED16, (16, 16), 16, 256)
    reads = [c for c in plain.instructions if c.opcode == "ld.shared.f32"]
    rows = [c for c in reads if c.opcode][1::2]  # As and Bs take turns
    widths = {c.ptx_line: 16 if i % 4 == 0 else 0 for i, c in enumerate(rows)}
    run, _, _ = matmul(TILED16, (16, 16), 16, 256, widths=widths)
    assert (run.total.shared_requests, run.total.wavefronts) == (720_896, 851_968)


def test_a_block_that_ends_within_a_warp_and_counts_off() -> None:
    source = 'extern "C" __global__ void k(float* a) { a[threadIdx.x] = 1; }'
    run = launch(source, "k", (2,), (40,), np.zeros(40, np.float32), check=False)
    assert (run.total.global_requests, run.total.sectors, run.total.global_bytes) == (4, 10, 320)
    assert (
        launch(source, "k", (2,), (40,), np.zeros(40, np.float32), check=False, count=False).instructions
        == ()
    )
