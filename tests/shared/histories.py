"""Result files of many days, made of one record: times with noise, and a change that is planted."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np

from harness.results import record
from shared.places import record_file

CHANGED, STILL = "03_tiled", "02_coalesced"


def write(folder: Path, count: int = 16, at: int = 10, factor: float = 1.05) -> list[Path]:
    """Write `count` files, a day apart; from file `at` on `CHANGED` takes `factor` times as long."""
    source = record.load(record_file("h200/bench/ladder"))
    rows = [r for r in source["rows"] if r["kernel"] in (CHANGED, STILL) and r["shape"] == "2048"]
    draw = np.random.default_rng(5)
    written = []
    for day in range(count):
        content: dict[str, Any] = {"schema": 2, "kind": "bench", "meta": copy.deepcopy(source["meta"])}
        content["meta"] |= {"utc": f"2026-03-{day + 1:02}T12:00:00+00:00", "commit": f"{day:02}" * 20}
        content["rows"] = []
        for row in copy.deepcopy(rows):
            planted = factor if day >= at and row["kernel"] == CHANGED else 1.0
            row["seconds"] *= planted * float(np.exp(0.005 * draw.standard_normal()))
            content["rows"].append(row)
        path = folder / f"day{day:02}.json"
        path.write_text(json.dumps(content))
        written.append(path)
    return written
