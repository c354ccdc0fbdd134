"""Which of some candidate sums a card's mma.sync forms: see tests/shared/mma_bits.py.

    python scripts/mma_bits.py FILE.json [OPCODE ...] [--seconds 540] [--resume]

Run on a machine with a GPU. Of each form that the emulator knows, products are computed on the card and by
every candidate; the record has how many elements differ. The emulator's sums are the tables of
harness/emulator/instructions/matrix/sums.py.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import growing
from harness.driver import Context, Device, Stream, driver_version
from harness.errors import HarnessError
from harness.results import record
from shared import mma_bits


def main() -> int:
    given = growing.parser(__doc__).parse_args()
    forms = {form.opcode: form for form in mma_bits.FORMS}
    chosen = growing.selected(given.kernels, list(forms))
    device = Device.open()
    meta = {**record.provenance(seed=mma_bits.SEED), "arch": device.arch}
    meta["gpu"] = {"name": device.name, "driver": "{}.{}".format(*driver_version())}
    with Context(device) as gpu, Stream(gpu) as stream:
        steps = {name: partial(mma_bits.row, gpu, stream, device.arch, forms[name]) for name in chosen}
        return growing.fill(given, "mma-bits", meta, steps, said)


def said(row: dict[str, Any]) -> str:
    """Return which candidates gave the card's bits, and whether the emulator's is one."""
    if not row["right"]:
        nearest = min(row["differ"], key=row["differ"].get)
        return f"no candidate; nearest: {nearest}, {row['differ'][nearest]} of {row['elements']} differ"
    agrees = "as the emulator" if row["emulator"] in row["right"] else f"NOT the emulator's {row['emulator']}"
    return f"{' or '.join(row['right'])}: {agrees}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HarnessError as e:
        sys.exit(f"error: {e}")
