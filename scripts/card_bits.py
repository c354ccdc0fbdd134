"""Checksums of what every rung computes on a card, and in the emulator.

    python scripts/card_bits.py FILE.json [KERNEL ...]

Run on a machine with a GPU. tests/emulator/test_card_bits.py holds the emulator to the record
records/h200/scripts/card_bits.json, without one.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.driver import Context, Device, Stream, driver_version
from harness.errors import HarnessError
from harness.results import record
from shared import card_bits


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    file, *named = sys.argv[1:]
    record.check_writable(Path(file))
    device = Device.open()
    rows = []
    with Context(device) as gpu, Stream(gpu) as stream:
        for kernel in card_bits.rungs():
            if named and kernel.name not in named:
                continue
            for axes in card_bits.SHAPES:
                rows.append(card_bits.row(gpu, stream, kernel, axes, device.sms))
                found = rows[-1]
                print(f"{kernel.name}: {found['differ']} of {found['elements']} differ", flush=True)
    meta = {**record.provenance(seed=card_bits.SEED), "sms": device.sms}
    meta["gpu"] = {"name": device.name, "driver": "{}.{}".format(*driver_version())}
    record.write_json(Path(file), record.document("card-bits", rows, meta))


if __name__ == "__main__":
    try:
        main()
    except HarnessError as e:
        sys.exit(f"error: {e}")
