"""Checksums of what every rung computes on a card, and in the emulator.

    python scripts/card_bits.py FILE.json [KERNEL ...] [--seconds 540] [--resume]

Run on a machine with a GPU. tests/emulator/test_card_bits.py holds the emulator to the record
records/h200/scripts/card_bits.json, without one. The file is written after each row, so that what a run that
is cut off has found is there; `--resume` goes on with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import growing
from harness.driver import Context, Device, Stream, driver_version
from harness.errors import HarnessError
from harness.results import record
from shared import card_bits


def main() -> int:
    given = growing.parser(__doc__).parse_args()
    rungs = {kernel.name: kernel for kernel in card_bits.rungs()}
    chosen = [rungs[name] for name in growing.selected(given.kernels, list(rungs))]
    device = Device.open()
    meta = {**record.provenance(seed=card_bits.SEED), "sms": device.sms}
    meta["gpu"] = {"name": device.name, "driver": "{}.{}".format(*driver_version())}
    steps: dict[str, Callable[[], dict[str, Any]]] = {}
    with Context(device) as gpu, Stream(gpu) as stream:
        for kernel in chosen:
            for number, axes in enumerate(card_bits.SHAPES, 1):
                step = partial(card_bits.row, gpu, stream, kernel, axes, device.sms)
                steps[f"{kernel.name}, shape {number}"] = step
        return growing.fill(given, "card-bits", meta, steps, said)


def said(row: dict[str, Any]) -> str:
    return f"{row['differ']} of {row['elements']} differ"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HarnessError as e:
        sys.exit(f"error: {e}")
