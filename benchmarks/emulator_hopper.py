"""The Hopper rungs in the emulator at ragged shapes: right numbers, findings, seconds and peak memory.

    python benchmarks/emulator_hopper.py [--json FILE] [--seed N] [--shapes N] [RUNG ...]

All checks and counts are on. Each rung runs in a process of its own, which gives its peak memory; seconds are
those of one core, with the reference product. Compiling is left out. The shapes are drawn by `seed`, which is
a new one unless it is given, with at least two tiles for each block.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import secrets
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.errors import HarnessError
from harness.results import record
from harness.results.rows import params_text
from harness.results.tables import plain_table
from shared.hopper_rungs import VARIANTS, drawn, emulated, faults

HEADINGS = ("rung", "parameters", "right", "findings", "slowest (s)", "largest shape", "peak (MiB)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rungs", nargs="*", metavar="RUNG", help=", ".join(VARIANTS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--shapes", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1, help="rungs at a time")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.rungs if name not in VARIANTS]
    if unknown:
        parser.error(f"no rung {unknown[0]!r}; there are {', '.join(VARIANTS)}")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when a process starts
    apart = multiprocessing.get_context("spawn")
    rows: list[dict[str, Any]] = []
    jobs = [(which, arguments.seed, arguments.shapes) for which in arguments.rungs or VARIANTS]
    with apart.Pool(arguments.jobs, maxtasksperchild=1) as pool:
        for found in pool.imap(measured, jobs, chunksize=1):
            rows += found
            print("  ".join(line(found)), flush=True)
            if arguments.json:  # after each rung: a run that is ended leaves what it has
                meta = {**record.provenance(seed=arguments.seed), "shapes": arguments.shapes}
                record.write_json(arguments.json, record.document("emulator-hopper", rows, meta))
    print(plain_table([line(of(rows, which)) for which in dict.fromkeys(r["rung"] for r in rows)], HEADINGS))
    print(f"seed {arguments.seed}")


def measured(job: tuple[str, int, int]) -> list[dict[str, Any]]:
    """Return a row for each shape of one rung: (rung, seed, shapes)."""
    which, seed, shapes = job
    draw = random.Random(f"{seed} {which}")
    name, parameters = VARIANTS[which]
    rows = []
    for _ in range(shapes):
        axes = drawn(which, draw)
        began = time.process_time()
        found = emulated(which, axes)
        rows.append(
            {
                "rung": which,
                "kernel": name,
                "params": parameters,
                "axes": axes,
                "status": found.status,
                "findings": faults(found),
                "seconds": time.process_time() - began,
                "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )
    return rows


def of(rows: list[dict[str, Any]], which: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["rung"] == which]


def line(rows: list[dict[str, Any]]) -> list[str]:
    """Return the line of one rung in the table."""
    largest = max(rows, key=lambda row: row["axes"]["M"] * row["axes"]["N"] * row["axes"]["K"])["axes"]
    right = sum(row["status"] == "ok" for row in rows)
    return [
        rows[0]["kernel"],
        params_text(rows[0]["params"]),
        f"{right}/{len(rows)}",
        str(sum(len(row["findings"]) for row in rows)),
        f"{max(row['seconds'] for row in rows):.1f}",
        "x".join(str(largest[axis]) for axis in "MNK"),
        f"{max(row['peak_bytes'] for row in rows) / 2**20:.0f}",
    ]


if __name__ == "__main__":
    try:
        main()
    except HarnessError as e:
        sys.exit(f"error: {e}")
