"""Paths of the checkout that tests read."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "records"
DATA = ROOT / "tests" / "data"


def record_file(name: str) -> Path:
    """Return the record of this name, as ``h200/bench/ladder``; skip the test in a source distribution,
    which has the tests and no records.
    """
    if not RECORDS.is_dir():
        pytest.skip("records/ is not in the source distribution: run this test in a checkout")
    plain = RECORDS / f"{name}.json"
    return plain if plain.exists() else plain.with_suffix(".json.xz")
