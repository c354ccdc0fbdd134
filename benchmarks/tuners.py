"""Configurations a second: `harness tune` and Kernel Tuner on the same spaces and machine, with cold caches.

    python benchmarks/tuners.py [-a N=2048] [--json FILE] [KERNEL...]

Kernel Tuner (1.5, with CuPy, which compiles with NVRTC as we do) gets the same source, parameters,
restrictions, inputs and the same float64 answer to verify against, and its own defaults otherwise: brute
force, 7 iterations. harness runs in a process of its own with an empty cache, and is timed as a whole and
without its start-up: Python, the imports, CUDA, clocks and ceilings of the card, which it measures in a
cache that is empty, and cuBLAS, which loads its kernel when it is first called. Its compilers and the data
do not wait for that. Kernel Tuner is timed here, with everything imported, CUDA ready, its inputs and the
answer made. When the search is over, harness has what Kernel Tuner has then; with its finals it has
measured the best again, on other data: both times are given. Kernels with dynamic shared memory are left
out: a set would have to pass its own size on. Where the winners differ, `harness bench KERNEL -p
NAME=[a,b]` times both in turn with cuBLAS.
Exits with 0 and the reason where there is no GPU or no Kernel Tuner.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from harness.cli import axes
from harness.driver import Device
from harness.errors import HarnessError
from harness.kernels import catalog
from harness.kernels.spec import Kernel, Variant
from harness.launch import kernel as launch
from harness.problems.gemm import Gemm
from harness.results import record
from harness.results.tables import plain_table


def ours(kernel: Kernel, axis: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "r.json")
        command = [sys.executable, "-m", "harness", "tune", str(kernel.path), "-a", axis, "--json", str(out)]
        began = time.perf_counter()
        subprocess.run(command, env={**os.environ, "HARNESS_CACHE_DIR": folder}, check=False)
        wall = time.perf_counter() - began
        found = json.loads(out.read_text())
    (result,) = found["meta"]["results"]
    visited = {json.dumps(r["params"]) for r in found["rows"]}
    return {
        "tool": "harness tune",
        "visited": len(visited) + len(found["meta"]["skipped"]),
        "wall": wall,
        "search": result["searching"],
        "confirmed": result["seconds"],
        "measured": result["measured"],
        "winner": result["winners"][0] if result["winners"] else None,
    }


def theirs(kernel: Kernel, problem: Gemm) -> dict[str, Any]:
    """Kernel Tuner's grid comes from one divisor list a dimension; ours from the file's `tile`."""
    import cupy
    import kernel_tuner

    cupy.zeros(1).sum().item()  # CUDA and CuPy are ready
    sms = Device.open().sms
    inputs = problem.inputs(1)
    reference = problem.reference(inputs)
    arguments = [inputs[a] if isinstance(a, str) else a for a in problem.arguments()]
    answer = [None] * len(arguments)
    answer[problem.arguments().index(problem.output)] = reference.expected.astype(np.float32)
    allowed = {tuple(v.params.items()): v for v in kernel.variants()}
    some = next(iter(allowed.values()))
    if any(v.shared for v in allowed.values()):
        raise SystemExit(f"{kernel.name} has dynamic shared memory, which this comparison does not pass on")

    def of(params: Any) -> Variant:
        return kernel.variant(**{name: int(params[name]) for name in some.params})

    # Sizes of a block come out of expressions over the parameters: every block becomes three parameters.
    blocks = {key: v.block for key, v in allowed.items()}
    names = ("block_size_x", "block_size_y", "block_size_z")
    space = {name: list(values) for name, values in kernel.params.items()}
    space |= {name: sorted({b[i] for b in blocks.values()}) for i, name in enumerate(names)}

    def restrict(params: Any) -> bool:
        key = tuple((name, params[name]) for name in some.params)
        return blocks.get(key) == tuple(params[name] for name in names)

    # CuPy keeps what it has compiled: for other runs, not for this one.
    with tempfile.TemporaryDirectory() as cache:
        os.environ["CUPY_CACHE_DIR"] = cache
        began = time.perf_counter()
        results, _ = kernel_tuner.tune_kernel(
            kernel.entry,
            kernel.source,
            lambda p: launch.grid(of(p), problem, sms=sms),
            arguments,
            space,
            grid_div_x=[],
            grid_div_y=[],
            grid_div_z=[],
            restrictions=restrict,
            answer=answer,
            atol=float(reference.bound.max()),
            lang="cupy",
            compiler_options=["-lineinfo", "--std=c++17", f"-I{kernel.path.parent.resolve()}"],
            quiet=True,
        )
        wall = time.perf_counter() - began
    timed = [r for r in results if isinstance(r["time"], float)]
    best = min(timed, key=lambda r: r["time"]) if timed else None
    return {
        "tool": f"Kernel Tuner {kernel_tuner.__version__}",
        "visited": len(results),
        "wall": wall,
        "search": wall,
        "confirmed": None,
        "winner": best and {name: int(best[name]) for name in some.params},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernels", nargs="*", default=["03_tiled", "04_tiled_coarse", "10_vectorized"])
    parser.add_argument("-a", "--axis", default="N=2048")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    try:
        import cupy  # noqa: F401
        import kernel_tuner  # noqa: F401

        Device.open()
    except ImportError as e:
        print(f"skipped: {e.name} is not installed (pip install 'kernel_tuner==1.5.*' cupy-cuda13x)")
        return 0
    except HarnessError as e:
        print(f"skipped: {e}")
        return 0
    (point,) = axes.points([given.axis], Gemm.axes)
    rows = []
    for name in given.kernels:
        kernel = catalog.kernel(name)
        for one in (ours(kernel, given.axis), theirs(kernel, Gemm.from_axes(point))):
            rows.append({"kernel": kernel.name, **one, "per_second": one["visited"] / one["search"]})
    cells = [
        [
            r["kernel"], r["tool"], str(r["visited"]), f"{r['wall']:.2f} s", f"{r['search']:.2f} s",
            f"{r['per_second']:.2f}", f"{r['confirmed']:.2f} s" if r["confirmed"] else "-",
            " ".join(f"{k}={v}" for k, v in (r["winner"] or {}).items()) or "-",
        ]
        for r in rows
    ]  # fmt: skip
    headings = ["kernel", "tool", "sets", "all of it", "search", "sets a second", "with finals", "winner"]
    print(plain_table(cells, headings))
    if given.json:
        meta = {**record.provenance(seed=1), "axis": given.axis, "gpu": Device.open().name}
        record.write_json(given.json, record.document("tuners", rows, meta))
    return 0


if __name__ == "__main__":
    sys.exit(main())
