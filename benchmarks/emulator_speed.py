"""How long the emulator takes, all checks and counts on: seconds, the best of three, and peak memory.

    python benchmarks/emulator_speed.py [--json FILE] [KERNEL ...]

Compiling and the reference product are left out. One process, one thread.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

from harness import Gemm, kernel
from harness.bench import emulation
from harness.errors import HarnessError
from harness.launch import builds
from harness.results import record
from harness.results.tables import plain_table
from harness.support.cache import default as default_cache

KERNELS = ("naive", "tiled", "tiled_coarse", "blocked_2d", "vectorized", "cp_async", "warp_tiles")
SIZES = (64, 128, 256, 512, 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kernels", nargs="*", default=KERNELS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    variants = [kernel(name).variant() for name in arguments.kernels]
    built, _ = builds.build_all(variants, ["sm_90a"], default_cache(), lambda _: None)
    rows = []
    for b in built:
        for n in SIZES:
            problem = Gemm(M=n, N=n, K=n)
            inputs = problem.inputs(1)
            times = []
            for _ in range(3 if n < 1024 else 1):
                began = time.perf_counter()
                emulation.launch(b, problem, inputs, emulation.Options())
                times.append(time.perf_counter() - began)
            rows.append({"kernel": b.variant.kernel.name, "n": n, "seconds": min(times)})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    by_kernel = {r["kernel"]: [] for r in rows}
    for r in rows:
        by_kernel[r["kernel"]].append(f"{r['seconds']:.3g}")
    print(plain_table([[k, *v] for k, v in by_kernel.items()], ["seconds at n =", *map(str, SIZES)]))
    print(f"peak memory {peak / 2**20:.0f} MiB")
    if arguments.json:
        meta = {**record.provenance(seed=1), "peak_bytes": peak}
        record.write_json(arguments.json, record.document("emulator-speed", rows, meta))


if __name__ == "__main__":
    try:
        main()
    except HarnessError as e:
        sys.exit(f"error: {e}")
