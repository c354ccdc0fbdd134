"""The emulator gives the bits that a card gave: checksums of `scripts/card_bits.py`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.results import record
from shared import card_bits
from shared.places import record_file

FEW = 4
ASKED_NEXT = {"41_turned_tiles", "42_single_floats"}  # rungs that are newer than the record


def rows() -> list[dict[str, Any]]:
    file = record_file(card_bits.RECORD)
    if not file.exists():
        pytest.skip(
            f"no card has been asked yet: python scripts/card_bits.py records/{card_bits.RECORD}.json"
        )
    return kept(file)


def kept(file: Path) -> list[dict[str, Any]]:
    """Return the comparisons of a record, which need not have every rung: the time of its script ends, and a
    rung that failed has an error in place of one.
    """
    return [row for row in record.load(file)["rows"] if "error" not in row]


def check(row: dict[str, Any]) -> None:
    """Hold the emulator to the card's bits; the record tells how it differed when the card was asked."""
    kernel = next(k for k in card_bits.rungs() if k.name == row["kernel"])
    sms = record.load(record_file(card_bits.RECORD))["meta"]["sms"]
    ours = card_bits.emulated(card_bits.built(kernel), row["axes"], sms)
    assert card_bits.digest(ours) == row["card"], row


def test_what_ptx_fixes_is_equal_on_the_card() -> None:
    assert not [row for row in rows() if row["fixed"] and row["differ"]]
    assert not [row for row in rows() if row["distance"] > 1]


def test_the_record_has_every_rung_and_no_bit_differs() -> None:
    """Sums of tensor cores are the card's, too, though PTX does not fix them."""
    found = rows()
    assert {kernel.name for kernel in card_bits.rungs()} - {row["kernel"] for row in found} == ASKED_NEXT
    assert not [row["step"] for row in found if row["differ"]]


@pytest.mark.slow
def test_rungs_of_mma_sync_give_the_bits_of_the_record() -> None:
    found = [row for row in rows() if row["kernel"].startswith(("21", "28"))]
    assert len(found) == 4
    for row in found:
        check(row)


@pytest.mark.slow
def test_some_rungs_give_the_bits_of_the_record() -> None:
    found = rows()
    for row in random.SystemRandom().sample(found, min(FEW, len(found))):
        check(row)


@pytest.mark.slow
def test_blocks_that_wait_long_for_others_do_not_hang() -> None:
    """A thread spins some seconds at the barrier of the grid while other blocks multiply."""
    check(next(row for row in rows() if row["step"] == "32_bf16x6_panels, shape 1"))


@pytest.mark.exhaustive
def test_every_rung_gives_the_bits_of_the_record() -> None:
    for row in rows():
        check(row)


def test_one_other_bit_changes_the_checksum_and_the_distance() -> None:
    one = card_bits.built(next(k for k in card_bits.rungs() if k.name.startswith("02")))
    axes = {"M": 5, "N": 33, "K": 9}
    ours = np.ascontiguousarray(card_bits.emulated(one, axes, 4))
    theirs = ours.copy()
    assert card_bits.distance(one, axes, ours, theirs) == 0
    theirs.view(np.uint32)[2, 3] ^= 1
    assert card_bits.digest(ours) != card_bits.digest(theirs)
    theirs[2, 3] *= 1.001
    assert card_bits.distance(one, axes, ours, theirs) > 1
