"""The emulator on Indigo's kernels: planted bugs that it finds, and false alarms on the sound ones.

    python scripts/indigo.py FOLDER [--seed N] [--jobs N] [--only TEXT]

FOLDER has the CUDA sources of Indigo (Liu et al., "The Indigo Program-Verification Microbenchmark Suite of
Irregular Parallel Code Patterns", ISPASS 2022), as HiRace's artifact (SC 2024) ships them: one kernel
``test_kernel`` a file, whose name tells the bugs that were planted. They are not part of harness. Each runs
on graphs drawn anew, small enough that some threads have nothing to do and some nodes no neighbours.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.emulator import Buffer, emulate
from harness.errors import HarnessError
from harness.kernels import spec
from harness.kernels.compiler import compile_kernel

RACES, BOUNDS = ("atomicBug", "guardBug", "raceBug", "syncBug"), "boundsBug"
RACE_KINDS = ("global race", "RAW hazard", "WAR hazard", "WAW hazard")
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
_GRAPHS = 3


def graph(rng: np.random.Generator, nodes: int, edges: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Draw a graph in compressed rows: the first edge of each node and the end, and the edges' targets."""
    ends = np.sort(rng.integers(0, nodes, (edges, 2)), axis=1)
    if rng.integers(2):
        ends = ends[:, ::-1]  # neighbours below their node
    both = np.unique(np.concatenate([ends, ends[:, ::-1]]) if rng.integers(2) else ends, axis=0)
    starts = np.searchsorted(both[:, 0], np.arange(nodes + 1)).astype(np.int32)
    return starts, both[:, 1].astype(np.int32)


def kinds(source: Path, seed: int) -> list[str]:
    """Return the kinds of all findings on one source; ``error: ...`` where it could not be run."""
    text = source.read_text(encoding="utf-8")
    device = text[: text.index("void serial_code")].replace('#include "indigo_cuda.h"', "")
    found: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{source.stem}.cu")
        path.write_text(_HEAD + device, encoding="utf-8")
        rng = np.random.default_rng(seed)
        try:
            ptx = compile_kernel(spec.load(path).variant(), "sm_80").ptx
            for turn in range(_GRAPHS):
                nodes = int(rng.integers(12, 40))
                starts, neighbours = graph(rng, nodes, 4 * nodes)
                size = max(nodes, len(neighbours)) + 1
                data1, data2 = (rng.integers(0, high, size).astype(np.int32) for high in (nodes, size))
                data1[0] = data2[0] = 0
                arrays = {"nindex": starts, "nlist": neighbours, "data1": data1, "data2": data2}
                block = (64, 128, 32)[turn]
                a_block = 1 if "_block" in source.stem else block // 32 if "_warp" in source.stem else block
                blocks = -(-nodes // a_block)
                if "_edge_" in source.stem and "block" not in source.stem:
                    blocks = max(blocks, 2)
                if "persistent" in source.stem:
                    blocks = max(2, blocks // 2)
                ran = emulate(
                    ptx,
                    "test_kernel",
                    grid=(blocks,),
                    block=(block,),
                    arguments=[*(Buffer(array=a.copy(), name=n) for n, a in arrays.items()), np.int32(nodes)],
                    budget=500_000,
                    count=False,
                )
                found |= {f.kind for f in ran.findings}
        except HarnessError as error:
            found |= {f.kind for f in getattr(error, "findings", ())}
            found.add(f"error: {str(error).splitlines()[0]}")
    return sorted(found)


def expected(stem: str) -> set[str]:
    """Return what was planted in a source: ``race``, ``bounds``, both or nothing."""
    racy, outside = any(bug in stem for bug in RACES), BOUNDS in stem
    return ({"race"} if racy else set()) | ({"bounds"} if outside else set())


def results(sources: list[Path], seed: int, jobs: int) -> Iterator[tuple[Path, list[str]]]:
    with ProcessPoolExecutor(jobs) as pool:
        yield from zip(sources, pool.map(kinds, sources, [seed] * len(sources), chunksize=4), strict=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="only sources whose name contains this")
    parser.add_argument("--skip", default="\0", help="no sources whose name contains this")
    options = parser.parse_args()
    sources = sorted(
        p for p in options.folder.rglob("*.cu") if options.only in p.stem and options.skip not in p.stem
    )
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for source, found in results(sources, options.seed, options.jobs):
        planted = expected(source.stem)
        racy = any("race" in kind or "hazard" in kind for kind in found)
        outside = any("bounds" in kind or "uninitialised" in kind for kind in found)
        row = table[source.parent.name]
        row["kernels"] += 1
        broken = next((kind for kind in found if kind.startswith("error")), "")
        row["refused"] += bool(broken)
        for what, seen in (("race", racy), ("bounds", outside)):
            if what in planted:
                row[f"{what} planted"] += 1
                row[f"{what} found"] += seen
        if "race" not in planted:
            row["race-free"] += 1
            row["false race"] += racy
        if ("race" in planted) != racy or ("bounds" in planted) != outside or broken:
            print(f"{source.stem}: planted {sorted(planted)}, found {found}")
    names = ["kernels", "refused", "race planted", "race found", "race-free", "false race"]
    names += ["bounds planted", "bounds found"]
    print(f"seed {options.seed}")
    print("".ljust(36), *(n.rjust(14) for n in names))
    for group, row in [*table.items(), ("all", sum(table.values(), Counter()))]:
        print(group.ljust(36), *(str(row[n]).rjust(14) for n in names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
