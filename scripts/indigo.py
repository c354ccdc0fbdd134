"""The emulator on Indigo's kernels: planted bugs that it finds, and false alarms on the sound ones.

    python scripts/indigo.py FOLDER [--seed N] [--jobs N] [--only TEXT] [--json FILE]

FOLDER has the CUDA sources of Indigo (Liu et al., "The Indigo Program-Verification Microbenchmark Suite of
Irregular Parallel Code Patterns", ISPASS 2022), as HiRace's artifact (SC 2024) ships them: one kernel
``test_kernel`` a file, whose name tells the bugs that were planted. They are not part of harness.

Whether a bug comes to pass depends on the graph, so graphs are drawn until all that was planted is found,
`GRAPHS` at most; a sound kernel gets them all. They are the same for every kernel, whatever is planted.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.emulator import Buffer, emulate
from harness.errors import HarnessError
from harness.kernels import spec
from harness.kernels.compiler import compile_kernel
from harness.results import record
from harness.results.tables import plain_table

RACES, BOUNDS = ("atomicBug", "guardBug", "raceBug", "syncBug"), "boundsBug"
KINDS = {
    "race": {"global race", "RAW hazard", "WAR hazard", "WAW hazard"},
    "bounds": {"out of bounds", "uninitialised read"},
}
GRAPHS = 12
_BUDGET = 100_000
_HEAD = """// A kernel of Indigo
//
// /// kernel
// entry = "test_kernel"
// problem = "none"
// block = 64
// tile = ["1"]
// ///
extern "C" { __global__ void test_kernel(int*, int*, int*, int*, int); }
"""


def graph(rng: np.random.Generator) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Draw a graph in compressed rows: the first edge of each node and the end, and the edges' targets.

    Edges lead up, down or both ways; some graphs are sparse, and in some the last nodes have no neighbours.
    """
    nodes = int(rng.integers(3, 40))
    linked = nodes - int(rng.integers(0, nodes // 2 + 1)) * int(rng.integers(2))
    edges = 1 + nodes * int(rng.integers(1, 7)) // 2
    ends = np.sort(rng.integers(0, linked, (edges, 2)), axis=1)
    way = rng.integers(3)
    if way == 1:
        ends = ends[:, ::-1]  # neighbours below their node
    both = np.unique(np.concatenate([ends, ends[:, ::-1]]) if way == 2 else ends, axis=0)
    starts = np.searchsorted(both[:, 0], np.arange(nodes + 1)).astype(np.int32)
    return starts, both[:, 1].astype(np.int32)


def launch(stem: str, ptx: str, seed: int, turn: int) -> set[str]:
    """Run a kernel on the graph number `turn`, and return the kinds of the findings."""
    rng = np.random.default_rng([seed, turn])
    starts, neighbours = graph(rng)
    nodes = len(starts) - 1
    size = max(nodes, len(neighbours)) + 1
    data1, data2 = (rng.integers(0, high, size).astype(np.int32) for high in (nodes, size))
    data1[0] = data2[0] = 0
    arrays = {"nindex": starts, "nlist": neighbours, "data1": data1, "data2": data2}
    block = (64, 128, 32)[turn % 3]
    a_block = 1 if "_block" in stem else block // 32 if "_warp" in stem else block
    blocks = -(-nodes // a_block)
    if "_edge_" in stem and "block" not in stem:
        blocks = max(blocks, 2)
    if "persistent" in stem:
        blocks = max(2, blocks // 2)
    ran = emulate(
        ptx,
        "test_kernel",
        grid=(blocks,),
        block=(block,),
        arguments=[*(Buffer(array=a, name=n) for n, a in arrays.items()), np.int32(nodes)],
        budget=_BUDGET,
        count=False,
    )
    return {f.kind for f in ran.findings}


def judged(source: Path, seed: int) -> dict[str, Any]:
    """Return the record's row of one source."""
    text = source.read_text(encoding="utf-8")
    device = text[: text.index("void serial_code")].replace('#include "indigo_cuda.h"', "")
    planted = expected(source.stem)
    found: set[str] = set()
    error, slowest, turn = "", 0.0, 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{source.stem}.cu")
        path.write_text(_HEAD + device, encoding="utf-8")
        ptx = compile_kernel(spec.load(path).variant(), "sm_80").ptx
    for turn in range(GRAPHS):
        began = time.perf_counter()
        try:
            found |= launch(source.stem, ptx, seed, turn)
        except HarnessError as raised:
            found |= {f.kind for f in getattr(raised, "findings", ())}
            error = str(raised).splitlines()[0]
        slowest = max(slowest, time.perf_counter() - began)
        if planted and all(found & KINDS[what] for what in planted):
            break
    return {
        "kernel": source.stem,
        "pattern": source.parent.name,
        "planted": sorted(planted),
        "found": sorted(found),
        "graphs": turn + 1,
        "seconds": round(slowest, 3),
        "error": error,
    }


def expected(stem: str) -> set[str]:
    """Return what was planted in a source: ``race``, ``bounds``, both or nothing."""
    racy, outside = any(bug in stem for bug in RACES), BOUNDS in stem
    return ({"race"} if racy else set()) | ({"bounds"} if outside else set())


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return by pattern, and for ``all``, how many kernels there are, and of each kind of bug how many were
    planted, found, and found where none was planted. A kernel that ended with an error without a bug of its
    own is ``refused``.
    """
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        for group in (row["pattern"], "all"):
            tally = table[group]
            tally["kernels"] += 1
            tally["refused"] += bool(row["error"]) and "bounds" not in row["planted"]
            for what, kinds in KINDS.items():
                seen = bool(kinds & set(row["found"]))
                tally[f"{what} planted"] += what in row["planted"]
                tally[f"{what} found"] += what in row["planted"] and seen
                tally[f"{what} false"] += what not in row["planted"] and seen
    return {group: dict(tally) for group, tally in table.items()}


def results(sources: list[Path], seed: int, jobs: int) -> Iterator[dict[str, Any]]:
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(judged, sources, [seed] * len(sources), chunksize=4)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="only sources whose name contains this")
    parser.add_argument("--json", type=Path, help="write the record to this file")
    options = parser.parse_args()
    sources = sorted(p for p in options.folder.rglob("*.cu") if options.only in p.stem)
    rows = []
    for row in results(sources, options.seed, options.jobs):
        rows.append(row)
        print(f"{len(rows)} of {len(sources)}", end="\r", file=sys.stderr, flush=True)
        seen = {what for what, kinds in KINDS.items() if kinds & set(row["found"])}
        if seen != set(row["planted"]) or (row["error"] and "bounds" not in row["planted"]):
            print(
                f"{row['kernel']}: planted {row['planted']}, found {row['found']} {row['error']}", flush=True
            )
    if not rows:
        parser.error(f"no source below {options.folder}")
    names = ["kernels", "refused", *(f"{what} {n}" for what in KINDS for n in ("planted", "found", "false"))]
    cells = [[group, *(str(tally[n]) for n in names)] for group, tally in sorted(summary(rows).items())]
    print(plain_table(cells, ["pattern", *names]))
    print(f"seed {options.seed}, the slowest launch {max(r['seconds'] for r in rows):.1f} s")
    if options.json:
        meta = {**record.provenance(seed=options.seed), "graphs": GRAPHS}
        record.write_json(options.json, record.document("indigo", rows, meta))
    return 0


if __name__ == "__main__":
    sys.exit(main())
