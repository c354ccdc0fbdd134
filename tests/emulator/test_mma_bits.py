"""scripts/mma_bits.py tells which sums a card forms: with the emulator in place of the card."""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import mma_bits as script

from fakes import driver as fake_driver
from harness.emulator.instructions.matrix import sums
from harness.results import record
from shared import mma_bits
from shared.places import record_file
from shared.sweeps import sweep

RECORD = "h200/scripts/mma_bits"
FEW = ("m16n8k8.row.col.f32.tf32.tf32.f32", "m16n8k32.row.col.f32.e4m3.e4m3.f32")
forms = pytest.mark.parametrize(
    "form", sweep(mma_bits.FORMS, lambda form: form.opcode.endswith(FEW)), ids=lambda form: form.opcode
)


@forms
def test_only_the_emulators_own_sums_give_its_bits(form: mma_bits.Form) -> None:
    found = mma_bits.differences(form, mma_bits.emulated)
    assert [name for name, count in found.items() if not count] == [mma_bits.chosen(form)]


@forms
def test_a_card_of_other_sums_is_told(form: mma_bits.Form, monkeypatch: pytest.MonkeyPatch) -> None:
    name, model = random.SystemRandom().choice(list(mma_bits.candidates(form).items()))
    monkeypatch.setitem(sums.MMA, form.left, model)
    found = mma_bits.differences(form, mma_bits.emulated)
    assert [n for n, count in found.items() if not count] == [name]


def test_a_sum_of_sixteen_terms_by_hand() -> None:
    """2^24 + 1/4 and more: what lies 25 bits below the largest term is kept, what lies below it is not."""
    a, b = np.zeros((1, 16)), np.ones((16, 1))
    a[0, :3] = 2.0**24, -(2.0**24), 0.5 + 0.25
    model = sums.Model(terms=16)
    assert sums.summed(a, b, np.zeros((1, 1)), ("bf16", "bf16"), "f32", model)[0, 0] == 0.5
    two = sums.Model(terms=2)
    assert sums.summed(a, b, np.zeros((1, 1)), ("bf16", "bf16"), "f32", two)[0, 0] == 0.75


def test_infinities_and_nan_are_those_of_any_order() -> None:
    a, b = np.ones((2, 16)), np.ones((16, 1))
    a[0, 3], a[1, :2] = np.inf, (np.inf, -np.inf)
    found = sums.summed(a, b, np.zeros((2, 1)), ("bf16", "bf16"), "f32", sums.MMA["bf16"])
    assert found[0, 0] == np.inf and np.isnan(found[1, 0])


@pytest.mark.parametrize("terms", [16, 8])
def test_the_script_on_a_fake_card(terms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator computes in place of the card; with other sums than its own, the script says so."""
    fake = fake_driver.install(monkeypatch)
    form = next(f for f in mma_bits.FORMS if (f.left, f.depth, f.sparse) == ("bf16", 16, False))

    def execute(launched: SimpleNamespace) -> None:
        found = [struct.unpack("=Q", argument)[0] for argument in launched.args]
        counts = (4, 2, 4, 4)  # registers of a lane
        words = [
            np.frombuffer((ctypes.c_char * (mma_bits.EXPERIMENTS * 32 * n * 4)).from_address(at), np.uint32)
            for at, n in zip(found, counts, strict=True)
        ]
        shaped = [w.reshape(-1, 32, n) for w, n in zip(words, counts, strict=True)]
        with monkeypatch.context() as other:
            other.setitem(sums.MMA, "bf16", sums.Model(terms=terms))
            shaped[3][:] = mma_bits.emulated(form, *(np.array(one) for one in shaped[:3]))

    fake.functions, fake.execute = {"k": (8, 8, 8, 8)}, execute
    file = tmp_path / "r.json"
    monkeypatch.setattr(sys, "argv", ["mma_bits", str(file), form.opcode])
    assert script.main() == 0
    (row,) = record.load(file)["rows"]
    assert row["right"] == [f"{terms} at once, 25 bits"] and row["elements"] == mma_bits.EXPERIMENTS * 128
    assert ("NOT" in script.said(row)) == (terms != 16)


def test_what_the_script_says() -> None:
    row = {"differ": {"x": 3, "y": 0}, "right": ["y"], "elements": 8, "emulator": "y"}
    assert script.said(row) == "y: as the emulator"
    assert "NOT the emulator's x" in script.said({**row, "emulator": "x"})
    assert "nearest: x, 3 of 8" in script.said({**row, "differ": {"x": 3, "y": 9}, "right": []})


def test_the_emulator_has_the_sums_of_the_record() -> None:
    file = record_file(RECORD)
    if not file.exists():
        pytest.skip(f"no card has been asked yet: python scripts/mma_bits.py records/{RECORD}.json")
    forms = {form.opcode: form for form in mma_bits.FORMS}
    rows = [row for row in record.load(file)["rows"] if "error" not in row]
    assert rows
    for row in rows:
        assert mma_bits.chosen(forms[row["form"]]) in row["right"], row["form"]
