"""Batches of `harness.matmul` against ``torch.bmm``, on shapes that nobody chose.

    python benchmarks/batches.py [--dtype bf16]... [--seconds 35] [--regret 6] [--json FILE]

Shapes are drawn anew at each run: heads of attention, small matrices, thin k, any, in layouts of NN, NT, TN
and TT, with matrices packed or some elements apart. Ours and PyTorch's, which is cuBLAS's batched product,
take turns in graphs of launches back to back, first in this order and then in the other. Both read the same
operands, which lie in the L2 cache if they are small. The ratio is PyTorch's time over ours. Results are
verified before and after: integers, whose sums are exact.

`--regret N` also times the N launches that the cost model takes for the fastest: what the choice loses, and
the rows from which scripts/fit_model.py fits the model.

Needs a GPU and PyTorch. Kernels of the first draws are compiled before the time begins. Draws are of all
types in turn; none begins after ``--seconds``.
"""

from __future__ import annotations

import argparse
import itertools
import math
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import harness
from harness.bench.nvml import Telemetry
from harness.cli.options import about
from harness.dispatch.call import gpus
from harness.dispatch.model import cost
from harness.driver import BorrowedStream, Device
from harness.errors import HarnessError
from harness.kernels.compiler import compile_kernel
from harness.kernels.spec import Variant
from harness.results import record
from harness.results.tables import plain_table
from harness.support.processes import cores
from sampler.batches import KINDS, Draw, draws

DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # PyTorch's
BUSY = 2e-3  # seconds of a graph, about
ROUNDS = 5
AHEAD = 160  # draws whose kernels are compiled before the time begins
DEVICE = "cuda"


def operand(size: int, rows: int, columns: int, transposed: bool, gap: int, dtype: Any) -> Any:
    """Return matrices of small integers, `gap` elements from the end of each to the next."""
    stored = (columns, rows) if transposed else (rows, columns)
    step = rows * columns + gap
    flat = torch.randint(-2, 3, (size * step,), device=DEVICE, dtype=torch.int8).to(dtype)
    found = flat.as_strided((size, *stored), (step, stored[1], 1))
    return found.mT if transposed else found


class Contest:
    """One batch: the two ways to compute it, as graphs on memory of their own."""

    def __init__(self, draw: Draw, others: Sequence[Variant] = ()) -> None:
        dtype = getattr(torch, DTYPES[draw.dtype])
        left, right = (letter == "T" for letter in draw.layout)
        self.a = operand(draw.size, draw.M, draw.K, left, draw.gaps[0], dtype)
        self.b = operand(draw.size, draw.K, draw.N, right, draw.gaps[1], dtype)
        self.ours, self.theirs = (self.a.new_empty(draw.size, draw.M, draw.N) for _ in range(2))
        precision = "tf32" if draw.dtype == "tf32" else "ieee"
        torch.backends.cuda.matmul.allow_tf32 = draw.dtype == "tf32"
        self.calls: dict[str, Callable[[], Any]] = {
            "harness": lambda: harness.matmul(self.a, self.b, self.ours, precision=precision),
            "torch": lambda: torch.bmm(self.a, self.b, out=self.theirs),
        }
        for variant in others:
            self.calls[variant.label] = self._alone(draw, variant)

    def _alone(self, draw: Draw, variant: Variant) -> Callable[[], Any]:
        """Return a call that launches a variant, with the result of harness."""
        gpu = gpus.gpu(torch.cuda.current_device())
        launch = gpu.one_launch(variant, draw.problem, draw.batch)
        addresses = [x.data_ptr() for x in (self.a, self.b, self.ours)]

        def call() -> None:
            with gpu.context.current():
                launch(
                    addresses,
                    (1.0, 0.0),
                    BorrowedStream(gpu.context, torch.cuda.current_stream().cuda_stream),
                )

        return call

    def right(self) -> bool:
        """Return True if ours are PyTorch's results, which are exact but for one rounding."""
        return torch.equal(self.ours, self.theirs)

    def seconds(self, during: Callable[[], None]) -> dict[str, float]:
        """Return the median seconds of a call of each; `during` is called while the GPU is busy."""
        graphs = {name: self._captured(call) for name, call in self.calls.items()}
        for name, (graph, _) in graphs.items():
            if name != "torch":
                self.ours.fill_(math.nan)
                graph.replay()
                if not self.right():
                    raise HarnessError(f"{name} is wrong in a graph")
        self.ours.fill_(math.nan)  # what is verified afterwards is of the graphs
        times: dict[str, list[float]] = {name: [] for name in graphs}
        order = [*graphs, *reversed(graphs)]
        for left in reversed(range(ROUNDS)):
            events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in order]
            for name, (start, end) in zip(order, events, strict=True):
                start.record()
                graphs[name][0].replay()
                end.record()
            if not left:
                during()
            torch.cuda.synchronize()
            for name, (start, end) in zip(order, events, strict=True):
                times[name].append(start.elapsed_time(end) / 1e3 / graphs[name][1])
        return {name: statistics.median(found) for name, found in times.items()}

    def _captured(self, call: Callable[[], Any]) -> tuple[Any, int]:
        """Return a graph of calls back to back, replayed once, and their number."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        count = max(3, min(50, round(BUSY * 1e3 / max(start.elapsed_time(end), 1e-3))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                call()
        graph.replay()
        torch.cuda.synchronize()
        return graph, count


def measured(
    draw: Draw, sensor: Telemetry, card: Mapping[str, Any], index: int = 0, regret: int = 0
) -> dict[str, Any]:
    """Return the row of a batch, verified before and after it was timed."""
    row: dict[str, Any] = {**vars(draw), **draw.axes, "gaps": list(draw.gaps), "index": index}
    try:
        variant, row["one_launch"] = draw.chosen(card)
        row["chosen"] = variant.label
        others = draw.best(regret, card) if regret else []
        contest, first = Contest(draw, others), True
        theirs = contest.calls["torch"]
        theirs()
        for call in contest.calls.values():
            if call is not theirs:
                contest.ours.fill_(math.nan)
                call()
                first &= contest.right()
        readings = []
        seconds = contest.seconds(lambda: readings.append(sensor.read()))
        verified = first and contest.right()
    except (HarnessError, torch.OutOfMemoryError) as e:
        return {**row, "status": "error", "error": str(e)}
    if not verified:
        return {**row, "status": "error", "error": "wrong, " + ("after" if first else "before") + " timing"}
    reading = readings[-1]
    if others:
        row["candidates"] = [
            {"kernel": v.kernel.name, "params": _own(v), "seconds": seconds.pop(v.label)} for v in others
        ]
    row |= {"status": "ok", "seconds": seconds, "ratio": seconds["torch"] / seconds["harness"]}
    row |= {"sm_mhz": reading.sm_mhz if reading else None, "watts": reading.power if reading else None}
    return row


def _own(variant: Variant) -> dict[str, int]:
    """Return the parameters that tell a variant from others of the cost model."""
    return {name: value for name, value in variant.params.items() if name != "BATCHED"}


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return ratios by type and kind, the ten least, and what failed."""
    cells = []
    good = [row for row in rows if row["status"] == "ok"]
    for dtype in dict.fromkeys(row["dtype"] for row in good):
        for kind in ("", *KINDS):
            chosen = [r for r in good if r["dtype"] == dtype and kind in ("", r["kind"])]
            if chosen:
                found = np.array([row["ratio"] for row in chosen])
                mean, fifth = np.exp(np.mean(np.log(found))), np.percentile(found, 5)
                numbers = (f"{x:.3f}" for x in (mean, fifth, found.min()))
                once = np.mean([row["one_launch"] for row in chosen])
                cells.append([dtype, kind or "all", str(len(chosen)), *numbers, f"{once:.0%}"])
    lines = [
        plain_table(cells, ["type", "kind", "draws", "geomean", "5th pct", "least", "one launch"], keys=2)
    ]
    for row in sorted(good, key=lambda r: float(r["ratio"]))[:10]:
        taken = " and ".join(f"{name} {s * 1e6:.1f}" for name, s in row["seconds"].items())
        lines.append(f"{row['ratio']:.3f}  {named(row)}: {taken} us")
    if lost := [regret_of(row) for row in good if row.get("candidates")]:
        numbers = np.mean(lost), np.percentile(lost, 95), np.max(lost)
        lines.append("the choice loses {:.1%}, one in twenty {:.1%}, at most {:.1%}".format(*numbers))
        fastest = [row["ratio"] * (1 + regret_of(row)) for row in good if row.get("candidates")]
        lines.append(f"the fastest of the candidates: {np.exp(np.mean(np.log(fastest))):.3f}")
    lines += [f"error: {named(row)}: {row['error']}" for row in rows if row["status"] != "ok"]
    return "\n".join(lines)


def regret_of(row: Mapping[str, Any]) -> float:
    """Return how much longer than the fastest candidate ours takes, 0 if it is faster than all."""
    best = min(one["seconds"] for one in row["candidates"])
    return max(0.0, float(row["seconds"]["harness"]) / best - 1)


def named(row: Mapping[str, Any]) -> str:
    """Return what was multiplied in a row, in a line."""
    shape = f"{row['size']} of {row['M']}x{row['N']}x{row['K']}"
    return f"{row['dtype']} {shape} {row['layout']}, gaps {row['gaps']}, {row['kind']}"


def main() -> int:
    """Run the command line; return 1 if a batch was wrong or failed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dtype", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="default: a new one")
    parser.add_argument("--seconds", type=float, default=35.0, help="after which no draw begins")
    parser.add_argument("--regret", type=int, default=0, metavar="N", help="time the model's N best, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the record")
    given = parser.parse_args()
    record.check_writable(given.json)
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    device = Device.open(torch.cuda.current_device())
    card = cost.card(device)
    first = list(itertools.islice(draws(given.seed, given.dtype), AHEAD))
    needed = [draw.chosen(card)[0] for draw in first]
    needed += [variant for draw in first for variant in draw.best(given.regret, card)]
    variants = {variant.label: variant for variant in needed}
    with ThreadPoolExecutor(cores(spared=1)) as threads:
        list(threads.map(lambda variant: compile_kernel(variant, card["arch"]), variants.values()))
    until, rows = time.monotonic() + given.seconds, list[dict[str, Any]]()
    with Telemetry(device.uuid) as sensor:
        if sensor.unavailable:
            print(sensor.unavailable, file=sys.stderr)
        for draw in draws(given.seed, given.dtype):
            if time.monotonic() > until:
                break
            rows.append(measured(draw, sensor, card, len(rows), given.regret))
    meta = {**record.provenance(seed=given.seed), "gpu": about(device), "torch": torch.__version__}
    if given.json:
        record.write_json(given.json, record.document("batches", rows, meta))
    print(summary(rows))
    print(f"\nseed {given.seed}, {len(rows)} draws, {device.name}")
    return int(any(row["status"] != "ok" for row in rows))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HarnessError as e:
        sys.exit(f"error: {e}")
