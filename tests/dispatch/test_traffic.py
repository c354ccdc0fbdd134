"""Operands that cannot have a tensor map: which of them are copied first."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

import harness
from harness.dispatch import choose
from harness.dispatch.model import traffic
from harness.dispatch.model.traffic import Pitches
from harness.driver import Device
from harness.kernels import catalog, spec
from harness.problems.gemm import GEMMS
from harness.results import record
from shared import tma_gemm
from shared.places import record_file


def copied(dtype: str, *shape: int, unmapped: str = "AB", chosen_for: str = "") -> str:
    """Return what is copied for the kernel that is chosen where the operands `chosen_for` have no map."""
    pitches = Pitches(unmapped=chosen_for)
    variant = harness.choose(*shape, sms=132, arch="sm_90a", dtype=dtype, pitches=pitches)
    return traffic.copied(variant, *shape, sms=132, unmapped=unmapped)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "tf32"])
def test_operands_without_a_map_are_copied_where_that_pays(dtype: str) -> None:
    assert copied(dtype, 2049, 2047, 2049) == "AB"  # 5 times as long where it is not: measured
    assert copied(dtype, 2049, 2047, 2049, unmapped="A") == "A"
    assert copied(dtype, 2049, 2047, 2049, unmapped="B") == "B"
    assert copied(dtype, 2049, 2047, 2049, unmapped="") == ""
    assert copied(dtype, 50, 50, 50) == ""  # over before a copy has begun
    assert copied(dtype, 8191, 8191, 9) == ""  # nothing to load: all of it is writing
    assert "B" not in copied(dtype, 1, 8191, 8191, chosen_for="AB")  # each element of B is used once
    assert "A" in copied(dtype, 301, 16383, 4001)  # small, and read for each column of tiles


def test_a_kernel_whose_blocks_share_tiles_loads_less_each() -> None:
    """16 tiles on 132 SMs: eight blocks load a tile's operands, not one."""
    shape, where = (512, 512, 512), {"sms": 132, "unmapped": "AB"}
    sharing = catalog.kernel("29_wgmma_grid_split").variant()
    alone = catalog.kernel("26_wgmma_split").variant(BM=128, BN=128, STAGES=4, SPLIT=1)
    split = catalog.kernel("26_wgmma_split").variant(BM=128, BN=128, STAGES=4, SPLIT=8)
    assert traffic.copied(alone, *shape, **where) == "AB"
    assert traffic.copied(sharing, *shape, **where) == traffic.copied(split, *shape, **where) == ""


def test_what_a_kernel_takes_no_map_of_is_not_copied(tmp_path: Path) -> None:
    assert copied("fp32", 2049, 2047, 2049) == copied("3xtf32", 2049, 2047, 2049) == ""
    of_a = spec.load(tma_gemm.write(tmp_path)).variant()
    assert traffic.copied(of_a, 2049, 2047, 2049, sms=132, unmapped="AB") == "A"


def test_a_copy_by_hand() -> None:
    """One block of 128 x 256 on one SM, a third of its loads of A."""
    variant = harness.kernel("23_wgmma_pipeline").variant()
    assert variant.tile == (128, 256)

    def copied(N: int, unmapped: str) -> str:
        return traffic.copied(variant, 128, N, 4096, sms=1, unmapped=unmapped)

    # Cycles at N = 256: 131,072 for the loads of A, 262,144 for those of B, 65,536 for the products, 207,000
    # for all traffic; 147,000 to copy A and 291,000 to copy B: on one SM copying is no gain.
    assert copied(256, "A") == copied(256, "B") == copied(256, "AB") == ""
    # On 132 of them, with a tile each, every copy serves many.
    assert traffic.copied(variant, 128 * 11, 256 * 12, 4096, sms=132, unmapped="AB") == "AB"


def test_a_copy_pays_from_some_size_on() -> None:
    """The rule has one threshold along the squares, where a launch takes about as long as two copies."""
    variant = catalog.kernel("23_wgmma_pipeline").variant(BM=64, BN=64, STAGES=8)
    kinds = [traffic.copied(variant, n, n, n, sms=132, unmapped="AB") for n in range(50, 1200, 50)]
    first = kinds.index("AB")
    assert set(kinds[first:]) == {"AB"} and 150 <= 50 * (first + 1) <= 600, kinds


# -- other GPUs' DRAM


@functools.cache
def drawn(card: str) -> record.Document:
    """The record of sampled shapes of a card."""
    return record.load(record_file(f"{card}/benchmarks/shapes"))


def card(name: str) -> Device:
    """The GPU of a record of this repository."""
    found = Device.of_record(drawn(name)["meta"]["gpu"])
    assert found is not None
    return found


def test_a_copy_reaches_the_same_share_of_any_bandwidth() -> None:
    h200, h100 = card("h200"), card("h100")
    assert traffic.dram_bytes(h200) == traffic.DRAM_BYTES  # the choice is that of the tables' card
    assert traffic.dram_bytes(h100) == pytest.approx(traffic.DRAM_BYTES * 3.35 / 4.81, abs=0.05)
    assert traffic.dram_bytes(replace(h100, clock_hz=h100.clock_hz // 2)) == pytest.approx(21.6, abs=0.1)
    assert traffic.dram_bytes(replace(h100, memory_clock_hz=0)) == traffic.DRAM_BYTES  # not reported
    assert traffic.dram_bytes(replace(h100, clock_hz=0)) == traffic.dram_bytes(None) == traffic.DRAM_BYTES
    gpu = dataclasses.asdict(h100)
    assert Device.of_record(gpu) == h100
    del gpu["bus_bits"]
    assert Device.of_record(gpu) is None


def errors(name: str, dram: float) -> list[float]:
    """By what factor the model is wrong for what a card ran of products that mostly wait for DRAM."""
    found = []
    for row in drawn(name)["rows"]:
        if row["status"] != "ok" or " + " in row["chosen"]:
            continue
        axes = ("M", "N", "K", "lda", "ldb", "ldc", "transa", "transb")
        problem = GEMMS[row["dtype"]](**{axis: row[axis] for axis in axes})
        shape = problem.M, problem.N, problem.K
        about = choose.about(problem)
        pitches = about.pop("pitches")
        able = choose.able(*shape, 132, "sm_90a", **about, dram=dram)
        one = next((c for c in able if c.variant.brief == row["chosen"]), None)
        cycles = one.cycles(*shape, 132, problem.layout, pitches) if one else math.inf
        if traffic.compulsory(*shape, problem.dtype, 132) > 0.45 * cycles:
            found.append(math.log(row["seconds"]["matmul"] * 1.98e9 / cycles))
    assert len(found) > 60
    return found


@pytest.mark.slow
def test_what_waits_for_the_dram_of_an_h100_is_as_slow_as_foretold() -> None:
    """The constants are an H200's; nothing of an H100 was fitted. The control is the H200's rate."""
    own, other = (statistics.fmean(errors("h100", dram)) for dram in (10.8, traffic.DRAM_BYTES))
    assert abs(own) < 0.06 and other > 0.15
    assert abs(statistics.fmean(errors("h200", traffic.DRAM_BYTES))) < 0.06
