"""The emulator's output beside the card's: equal bits where PTX fixes them, and of Hopper's tensor cores."""

from __future__ import annotations

import pytest

from harness.driver import Context, Stream
from harness.kernels.spec import Kernel
from shared import card_bits

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("axes", card_bits.SHAPES, ids=["maps", "no maps"])
@pytest.mark.parametrize("kernel", card_bits.rungs(), ids=lambda k: k.name)
def test_a_rung_gives_the_bits_of_the_card(gpu: Context, kernel: Kernel, axes: dict[str, float]) -> None:
    with Stream(gpu) as stream:
        found = card_bits.row(gpu, stream, kernel, axes, gpu.device.sms)
    if found["fixed"] or gpu.device.capability == (9, 0):
        assert found["differ"] == 0, found
    assert found["distance"] <= 1, found
