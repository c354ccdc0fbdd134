"""Time models of transformers with PyTorch's own products and with harness's, and compare their training.

    python scripts/models.py FILE.json [--seconds 200] [--models gpt2 llama vit]
        [--works train prefill decode losses] [--types fp32 tf32 bf16 fp16x3 bf16x6]
        [--modes eager graph compile]
        [--everything | --measure]

Run on a machine with a GPU, PyTorch and transformers. Weights are random and nothing is downloaded. GPT-2
small, a Llama of 1.2 billion parameters and ViT-B/16 run a training step (forward, backward, AdamW), a
prefill (for ViT: inference) and the decode of one token, stock and within `harness.torch.replace()`, in turn:
stock, harness, harness, stock, each leg several calls between two CUDA events. `graph` replays a CUDA graph
(not of training), `compile` runs what torch.compile made. The ratio is stock over harness, a median over
such fours with its quartiles. ``losses`` trains GPT-2 small for 200 steps on the same tokens: stock twice,
stock with weights changed in the last bit, stock with each batch in the reverse order (which is the same
mathematics, summed otherwise), stock in float64, and harness. Learning rates rise over 20 steps and gradients
are clipped: without that one step of a spike made noise a hundred times as large, and was nearly all of the
difference (models-losses.json of the H200). In fp16x3 and bf16x6 stock is true float32.

The time is shared among what is chosen; what no time is left for is recorded as skipped. The file is written
anew after each part, so that a run that is cut off leaves what it has.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from networks import turns, works
from networks.losses import losses
from networks.works import MODELS, PRECISIONS, TYPES, WORKS, Row, Work
from tabulate import tabulate

from harness.bench.nvml import Telemetry
from harness.driver import Device, driver_version
from harness.errors import HarnessError
from harness.results import record

MODES = ("eager", "graph", "compile")
LOSSES = "losses"


@dataclass(frozen=True)
class Part:
    """One comparison; `weight` is its share of the time."""

    model: str
    kind: str
    work: str
    mode: str
    weight: float = 1

    def row(self) -> Row:
        return {"model": self.model, "type": self.kind, "work": self.work, "mode": self.mode}


def parts(models: list[str], works: list[str], kinds: list[str], modes: list[str]) -> Iterator[Part]:
    """List what was chosen: losses, then a model and a type at a time."""
    if LOSSES in works and "gpt2" in models:
        for kind in kinds:
            yield Part("gpt2", kind, LOSSES, "eager", 4)
    for model in models:
        for kind in kinds:
            for work in [w for w in WORKS if w in works and not (model == "vit" and w == "decode")]:
                for mode in [m for m in modes if not (work == "train" and m == "graph")]:
                    yield Part(model, kind, work, mode, 6 if mode == "compile" else 1)


class Runner:
    """Runs parts, and keeps the model of the last one for the next."""

    def __init__(self, sensor: Telemetry | None) -> None:
        self._sensor = sensor
        self._made: tuple[str, str] | None = None
        self._model: Any = None

    def run(self, part: Part, until: float) -> Row:
        """Return a row with what was measured, or with the error that ended it."""
        try:
            torch.backends.cuda.matmul.allow_tf32 = part.kind == "tf32"
            turns.OPTIONS["fp32"] = part.kind if part.kind in PRECISIONS else None
            if part.work == LOSSES:
                self._model = self._made = None
                return {**part.row(), **losses(part.kind, until)}
            return {**part.row(), **turns.compare(self._work(part), part.mode, until, self._sensor)}
        except Exception as e:  # what one model or mode cannot do must not cost the others their time
            self._model = self._made = None
            return {**part.row(), "error": f"{type(e).__name__}: {e}".splitlines()[0][:300]}
        finally:
            gc.collect()

    def _work(self, part: Part) -> Work:
        weights = "bf16" if part.kind == "bf16" and part.work != "train" else "fp32"
        if self._made != (part.model, weights):
            self._model = None
            gc.collect()
            self._model = works.build(part.model)
            if weights == "bf16":
                self._model.bfloat16()
            self._made = (part.model, weights)
        forward = torch.compile(self._model) if part.mode == "compile" else self._model
        if part.work == "train":
            return works.training(part.model, self._model, forward, part.kind)
        return works.inference(part.model, self._model, forward, part.work)


def described(row: Row) -> tuple[str, ...]:
    """Return a row of the printed table."""
    name = (row["model"], row["type"], row["work"], row["mode"])
    if "ratio" in row:
        low, high = row["quartiles"]
        times = (f"{row['stock_ms']:.3f}", f"{row['harness_ms']:.3f}")
        return (*name, *times, f"{row['ratio']:.3f} ({low:.2f} to {high:.2f})", f"{row['by_harness']:.0%}")
    if "steps" in row:
        said = f"rms {row['rms_from_stock']['harness']:.0e}, noise {row['noise']:.0e}"
        return (*name, f"{row['last']['stock']:.4f}", f"{row['last']['harness']:.4f}", said, "")
    return (*name, "", "", (row.get("error") or row["skipped"])[:28], "")


def finite(value: Any) -> Any:
    """Return a value of a row with words for NaN and infinity, which are not numbers of JSON."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


HEADERS = ("", "", "", "", "stock ms", "harness", "ratio", "ours")  # ratio: stock over harness, its quartiles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--works", nargs="+", choices=(*WORKS, LOSSES), default=[*WORKS, LOSSES])
    parser.add_argument("--types", nargs="+", choices=TYPES + PRECISIONS, default=list(TYPES))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["eager", "graph"])
    rule = parser.add_mutually_exclusive_group()
    rule.add_argument("--everything", action="store_true", help="also what harness is slower at")
    rule.add_argument("--measure", action="store_true", help="what harness is faster at when timed")
    asked = parser.parse_args()
    if asked.everything:
        turns.OPTIONS["worth"] = turns.everything
    turns.OPTIONS["measure"] = asked.measure
    end = time.perf_counter() + asked.seconds
    record.check_writable(asked.file)
    meta = {**record.provenance(seed=works.SEED), "torch": torch.__version__}
    meta |= {
        "measure": asked.measure,
        "transformers": transformers.__version__,
        "sizes": {k: vars(v) for k, v in works.SIZES.items()},
    }
    sensor = None
    if works.DEVICE == "cuda":
        if not torch.cuda.is_available():
            sys.exit("error: PyTorch finds no GPU")
        device = Device.open(torch.cuda.current_device())
        meta["gpu"] = {**asdict(device), "driver": "{}.{}".format(*driver_version())}
        sensor = Telemetry(device.uuid)
        meta["telemetry"] = sensor.unavailable or "NVML"
    runner, rows = Runner(sensor), []
    left = list(parts(asked.models, asked.works, asked.types, asked.modes))
    while left:
        part, remaining = left[0], end - time.perf_counter()
        until = time.perf_counter() + remaining * part.weight / sum(p.weight for p in left)
        row = runner.run(part, until) if remaining > 1 else {**part.row(), "skipped": "no time left"}
        row = finite(row)
        left.pop(0)
        rows.append(row)
        print(" | ".join(described(row)), flush=True)
        record.write_json(asked.file, record.document("models", rows, meta))
    print(tabulate([described(row) for row in rows], HEADERS, disable_numparse=True))
    timed = [row["ratio"] for row in rows if "ratio" in row]
    if timed:
        mean = math.exp(statistics.fmean(math.log(r) for r in timed))
        print(f"geometric mean of {len(timed)} ratios: {mean:.3f}, least {min(timed):.3f}")
    if any("error" in row for row in rows):
        sys.exit("some parts ended with an error; the record has them")


if __name__ == "__main__":
    try:
        main()
    except HarnessError as e:
        sys.exit(f"error: {e}")
