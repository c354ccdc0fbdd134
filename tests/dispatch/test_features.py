"""Tests of the numbers by which the corrections know a candidate and a product."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from harness.dispatch import choose
from harness.dispatch.model import cost, traffic
from harness.dispatch.model.cost import Candidate
from harness.dispatch.model.features import FEATURES, described
from harness.dispatch.model.traffic import ALIGNED, Pitches
from harness.kernels.dtypes import FP32


def candidate(**params: int) -> Candidate:
    """Return the candidate of rung 42 with these parameters."""
    (found,) = [
        one
        for one in choose.candidates()
        if one.variant.kernel.name == "42_single_floats" and one.variant.params.items() >= params.items()
    ]
    return found


def numbers(
    one: Candidate, shape: tuple[int, int, int], layout: str = "NN", pitches: Pitches = ALIGNED
) -> Mapping[str, float]:
    """Return the features by name, for 132 multiprocessors and 2^16 modelled cycles."""
    row = described(one, (*shape, 132), layout=layout, pitches=pitches, cycles=2**16)
    return dict(zip(FEATURES, row, strict=True))


def test_names_are_told_apart() -> None:
    assert len(set(FEATURES)) == len(FEATURES) < 255  # which is a leaf


def test_blocks_and_waves() -> None:
    """Count 16 x 50 tiles of 64 x 64, five blocks an SM: 800 of 660 at once are two waves, one not full."""
    found = numbers(candidate(BM=64, BN=64, BLOCKS=0, SPLIT=1), (1000, 3200, 203))
    assert found["rung"] == 42 and found["tile rows"] == found["tile columns"] == 64
    assert found["tiles / SMs"] == 800 / 132 and found["log2 blocks"] == math.log2(800)
    assert found["waves"] == 800 / 660 and found["last wave"] == pytest.approx(2 / (800 / 660))
    assert found["last block"] == pytest.approx(7 / (800 / 132)) and found["blocks at once"] == 5
    assert found["filled rows"] == 1000 / 1024 and found["filled columns"] == 1
    assert (found["k of a step"], found["rest of a step"], found["rest of K"]) == (8, 3, 203 % 64)
    sizes = [found[name] for name in ("log2 M", "log2 N", "log2 K", "log2 M / N")]
    assert sizes == [math.log2(1000), math.log2(3200), math.log2(203), math.log2(1000 / 3200)]
    assert found["A MiB"] == 1000 * 203 / 2**18 and found["B MiB"] == 203 * 3200 / 2**18
    assert found["C MiB"] == 1000 * 3200 / 2**18 and found["tiles of an SM"] == 10
    assert found["log2 multiply-adds"] == math.log2(1000 * 3200 * 203)
    assert found["log2 multiply-adds / cycle"] == pytest.approx(math.log2(1000 * 3200 * 203 / 132) - 16)
    waiting = traffic.compulsory(1000, 3200, 203, dtype=FP32, sms=132)
    assert found["log2 cycles"] == 16 and found["log2 cycles / waiting"] == pytest.approx(
        16 - math.log2(waiting)
    )
    assert found["DRAM bytes / cycle"] == traffic.DRAM_BYTES
    # 50 columns of tiles read A, 16 rows of them B; clusters would read them together.
    assert found["log2 L2 bytes"] == math.log2((50 * 1000 + 16 * 3200) * 203 * 4)
    assert found["log2 L2 bytes / cycle"] == pytest.approx(found["log2 L2 bytes"] - math.log2(132) - 16)
    assert found["C bytes / cycle"] == 1000 * 3200 * 4 / 132 / 2**16


def test_shared_tiles() -> None:
    """Two tiles have room for 528 blocks: a cluster of 4 takes a k of 512 or more, 8 of them at most."""
    one = candidate(BM=64, BN=64, BLOCKS=4, SPLIT=4)
    assert one.parts(64, 128, 8192, 132) == 8 and one.parts(64, 128, 1024, 132) == 2
    assert one.parts(4096, 4096, 8192, 132) == 1  # no room
    found = numbers(one, (64, 128, 8192))
    assert found["parts"] == 8 and found["log2 blocks"] == 6 and found["log2 steps of a tile"] == 5
    assert found["blocks at once"] == 64 / 132 and found["sharing"] == 1


def test_layout_and_pitches() -> None:
    one = candidate(BM=64, BN=64, BLOCKS=0, SPLIT=1)
    found = numbers(one, (100, 200, 300), "TN", Pitches(straddled="A", unmapped="B", uneven=True))
    assert (found["A transposed"], found["B transposed"]) == (1, 0)
    assert (found["A unmapped"], found["B unmapped"], found["uneven"]) == (0, 1, 1)
    assert (found["A straddled"], found["B straddled"]) == (1, 0)
    assert found["straddled"] == pytest.approx(
        100 * 4 / (100 * 4 + 200 * 2)
    )  # four tiles side by side, two down
    assert found["copies transposed"] == 1 and found["copies"] == 0  # compiled for NN, it would need A turned
    made = replace(one, variant=choose.laid_out(one.variant, "TN", "A"))
    assert numbers(made, (100, 200, 300), "TN")["copies transposed"] == 0


def test_the_least_product() -> None:
    for one in choose.candidates():
        if one.serves(1, 1, "sm_90a"):
            row = described(one, (1, 1, 1, cost.H200_SMS), layout="NN", pitches=ALIGNED, cycles=1000)
            assert all(map(math.isfinite, row)), one.variant.label
