"""Time models of transformers with PyTorch's own products and with harness's, and compare their training.

    python scripts/models.py FILE.json [--seconds 200] [--models gpt2 llama vit]
        [--works train prefill decode losses] [--types fp32 tf32 bf16 fp16x3 bf16x6]
        [--modes eager graph compile]
        [--everything]

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
import contextlib
import copy
import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tabulate import tabulate

import harness.torch
from harness.bench.nvml import Telemetry, summarize
from harness.driver import Device, driver_version
from harness.errors import HarnessError
from harness.results import record

DEVICE = "cuda"
SEED = 1
MODELS, TYPES, MODES = ("gpt2", "llama", "vit"), ("fp32", "tf32", "bf16"), ("eager", "graph", "compile")
PRECISIONS = ("fp16x3", "bf16x6")  # of harness's float32 only
WORKS = ("train", "prefill", "decode", "losses")
LEG = 0.05  # seconds of one leg, about
CONTEXT = 512  # tokens before the one that is decoded
ROOM = 512  # and behind it: a leg decodes no more
Row = dict[str, Any]
NOISE = ("again", "last_bit", "reordered", "ieee")  # runs that differ from stock by noise alone
STEPS, LEAST, MOST = 200, 3, 100  # steps of training; fours of a comparison
RATE, WARM_UP = 3e-4, 20  # the learning rate, and the steps over which it rises to that
OPTIONS: Row = {}  # of `harness.torch.replace`


@dataclass(frozen=True)
class Size:
    """The work of one model: `batch` sequences of `tokens` (or images) to train on, and to prefill."""

    train: tuple[int, int]
    prefill: tuple[int, int]
    losses: tuple[int, int] = (4, 256)


SIZES = {
    "gpt2": Size(train=(8, 1024), prefill=(4, 1024)),
    "llama": Size(train=(2, 1024), prefill=(1, 2048)),
    "vit": Size(train=(64, 1), prefill=(64, 1)),
}


def config(name: str) -> Any:
    """Return a model's configuration, without dropout."""
    if name == "gpt2":
        return transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    if name == "llama":  # the sizes of Llama 3.2 1B
        return transformers.LlamaConfig(
            vocab_size=128256,
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=16,
            num_attention_heads=32,
            num_key_value_heads=8,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            use_cache=False,
        )
    return transformers.ViTConfig(num_labels=1000)


def build(name: str) -> Any:
    """Return a model with random weights on the device."""
    kinds = {
        "gpt2": transformers.GPT2LMHeadModel,
        "llama": transformers.LlamaForCausalLM,
        "vit": transformers.ViTForImageClassification,
    }
    torch.manual_seed(SEED)
    with torch.device(DEVICE):
        return kinds[name](config(name))


def inputs(name: str, model: Any, size: tuple[int, int], dtype: Any = torch.float32) -> Row:
    """Return the arguments of a forward pass."""
    batch, tokens = size
    if name == "vit":
        side = model.config.image_size
        return {"pixel_values": torch.randn(batch, 3, side, side, device=DEVICE, dtype=dtype)}
    return {"input_ids": torch.randint(model.config.vocab_size, (batch, tokens), device=DEVICE)}


@dataclass
class Work:
    """Something to time: `call` does it once, `prepare` goes before a leg of at most `most` calls."""

    call: Callable[[], Any]
    prepare: Callable[[], None] = lambda: None
    most: int = 10_000


def training(name: str, model: Any, forward: Callable[..., Any], kind: str) -> Work:
    """Return a training step of a model with weights in float32, in bf16 under autocast."""
    given = inputs(name, model, SIZES[name].train)
    count = SIZES[name].train[0]
    labels = torch.randint(1000, (count,), device=DEVICE) if name == "vit" else given["input_ids"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=kind == "bf16"):
            loss = forward(**given, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    model.train()
    return Work(step)


def inference(name: str, model: Any, forward: Callable[..., Any], work: str) -> Work:
    """Return the prefill or the decode of a model."""
    model.eval()
    dtype = next(model.parameters()).dtype
    if work == "prefill":
        given = inputs(name, model, SIZES[name].prefill, dtype)

        def prefill() -> Any:
            new = {}  # with a cache transformers does not look for packed sequences, which waits for the GPU
            if name != "vit":
                new = {"past_key_values": transformers.DynamicCache(config=model.config), "use_cache": True}
            with torch.no_grad():
                return forward(**given, **new)

        return Work(prefill)
    cache = transformers.StaticCache(config=model.config, max_cache_len=CONTEXT + ROOM)
    context = inputs(name, model, (1, CONTEXT))["input_ids"]
    with torch.no_grad():
        model(input_ids=context, past_key_values=cache, use_cache=True)
    token, position = context[:, -1:], torch.tensor([[CONTEXT]], device=DEVICE)

    def decode() -> Any:
        with torch.no_grad():
            return forward(input_ids=token, position_ids=position, past_key_values=cache, use_cache=True)

    def rewind() -> None:
        for layer in cache.layers:
            layer.cumulative_length.fill_(CONTEXT)

    return Work(decode, rewind, ROOM // 2)


class Clock:
    """The time between two points of the current stream."""

    def __init__(self) -> None:
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._begin.record()

    def stop(self) -> None:
        self._end.record()

    def seconds(self) -> float:
        """Return the time, after waiting for it."""
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) / 1e3


def synchronize() -> None:
    torch.cuda.synchronize()


def everything(*product: Any, **more: Any) -> bool:
    """Give harness all it takes: small batches, and operands that it copies."""
    return True


def replacing(ours: bool, **options: str) -> contextlib.AbstractContextManager[None]:
    return harness.torch.replace(**OPTIONS | options) if ours else contextlib.nullcontext()


def leg(work: Work, count: int) -> float:
    """Return the seconds of a call, as a mean over some that are queued one behind the other."""
    work.prepare()
    synchronize()
    clock = Clock()
    for _ in range(count):
        work.call()
    clock.stop()
    return clock.seconds() / count


def captured(work: Work) -> Work:
    """Return the replay of a graph of one call, as it is computed here."""
    work.prepare()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work.call()
    return Work(graph.replay, work.prepare, work.most)


def split(report: harness.torch.Report) -> Row:
    """Return the part of the multiply-adds that harness computed, and the largest that it did not."""
    total = sum(call.work for call in report.records) or 1
    left = [call for call in report.records if call.why][:6]
    return {
        "by_harness": sum(call.work for call in report.records if not call.why) / total,
        "calls": sum(call.calls for call in report.records),
        "left": [f"{c.calls} {c.op} {c.size} {c.layout} {c.dtype}: {c.why}" for c in left],
    }


def compare(work: Work, mode: str, until: float, sensor: Telemetry | None) -> Row:
    """Time a work in turn until a time of `time.perf_counter`, but `LEAST` fours."""
    start = time.perf_counter()
    pair = [work, work]
    for ours in (False, True):
        with replacing(ours):
            leg(work, min(2, work.most))  # compiles kernels
            if mode == "graph":
                pair[ours] = captured(work)
    found = split(harness.torch.report())
    count = max(1, min(work.most, round(LEG / max(leg(one, 1) for one in pair))))
    warm = time.perf_counter() - start
    stock, ours, ratios, readings = [], [], [], []
    while len(ratios) < LEAST or (time.perf_counter() < until and len(ratios) < MOST):
        first = leg(pair[0], count)
        with replacing(mode != "graph"):
            leg(pair[1], 1)  # decides where each product runs
            pairs = [leg(pair[1], count), leg(pair[1], count)]
        readings += [reading] if sensor is not None and (reading := sensor.read()) is not None else []
        last = leg(pair[0], count)
        stock += [first, last]
        ours += pairs
        ratios.append((first + last) / sum(pairs))
    low, middle, high = statistics.quantiles(ratios, n=4)
    state = summarize(readings)
    return {
        "stock_ms": 1e3 * statistics.median(stock),
        "harness_ms": 1e3 * statistics.median(ours),
        "ratio": middle,
        "quartiles": [low, high],
        "fours": len(ratios),
        "calls_a_leg": count,
        "warm_s": warm,
        **found,
        "sm_mhz": state and state.sm_mhz,
        "power": state and state.power,
        "throttle": list(state.throttle) if state else [],
    }


def stream(generator: torch.Generator, size: tuple[int, int], vocabulary: int) -> torch.Tensor:
    """Return tokens that can be learned: each follows from the one before it, one in ten at random."""
    batch, tokens = size
    kinds = min(1000, vocabulary)
    found = torch.randint(kinds, (batch, tokens), generator=generator)
    chance = torch.rand(batch, tokens, generator=generator) < 0.1
    for i in range(1, tokens):
        found[:, i] = torch.where(chance[:, i], found[:, i], (found[:, i - 1] * 31 + 7) % kinds)
    return found.to(DEVICE)


def losses(kind: str, until: float) -> Row:
    """Train GPT-2 small several times in lockstep, until a time or for `STEPS`, and compare the losses.

    In `PRECISIONS` harness's true float32 is trained, too: how far two kernels of float32 are apart is noise.
    transformers computes the loss itself in float32 from logits in float64.
    """
    base = build("gpt2").train()
    names = ["stock", *NOISE[:3], "float64", "harness", *(NOISE[3:] if kind in PRECISIONS else ())]
    runs = {name: copy.deepcopy(base) for name in names}
    runs["float64"].double()
    with torch.no_grad():
        for p in runs["last_bit"].parameters():
            p.mul_(1 + (torch.randint(0, 2, p.shape, device=DEVICE) * 2 - 1) * 2.0**-23)
    optimizers = {n: torch.optim.AdamW(m.parameters(), lr=RATE, fused=True) for n, m in runs.items()}
    generator = torch.Generator().manual_seed(SEED)
    seen: dict[str, list[torch.Tensor]] = {name: [] for name in runs}
    while len(seen["stock"]) < STEPS and (len(seen["stock"]) < 5 or time.perf_counter() < until):
        tokens = stream(generator, SIZES["gpt2"].losses, base.config.vocab_size)
        for name, model in runs.items():
            own = {"fp32": "ieee"} if name == "ieee" else {}
            given = tokens.flip(0) if name == "reordered" else tokens
            with replacing(name in ("harness", "ieee"), **own):
                with torch.autocast(DEVICE, torch.bfloat16, enabled=kind == "bf16" and name != "float64"):
                    loss = model(input_ids=given, labels=given).loss
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizers[name].param_groups[0]["lr"] = RATE * min(1, (len(seen[name]) + 1) / WARM_UP)
                optimizers[name].step()
                optimizers[name].zero_grad(set_to_none=True)
            seen[name].append(loss.detach())
        if len(seen["stock"]) % 10 == 0:
            synchronize()  # so that the time is that of the GPU
    curves = {name: torch.stack(values).double().cpu() for name, values in seen.items()}
    apart, wrong = (
        {name: float((curve - curves[other]).square().mean().sqrt()) for name, curve in curves.items()}
        for other in ("stock", "float64")
    )
    rounding = 2.0**-23 * float(curves["stock"].abs().max())
    noise = max(rounding, *(apart[name] for name in NOISE if name in apart))
    last = slice(-min(20, len(seen["stock"])), None)
    return {
        "steps": len(seen["stock"]),
        "first": float(curves["stock"][0]),
        "last": {name: float(curve[last].mean()) for name, curve in curves.items()},
        "rms_from_stock": {name: value for name, value in apart.items() if name != "stock"},
        "rms_from_float64": {name: value for name, value in wrong.items() if name != "float64"},
        "noise": noise,
        "within_noise": apart["harness"] <= 3 * noise,
        "curves": {name: [round(float(x), 5) for x in curve] for name, curve in curves.items()},
    }


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
    if "losses" in works and "gpt2" in models:
        for kind in kinds:
            yield Part("gpt2", kind, "losses", "eager", 4)
    for model in models:
        for kind in kinds:
            for work in [w for w in WORKS[:3] if w in works and not (model == "vit" and w == "decode")]:
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
            OPTIONS["fp32"] = part.kind if part.kind in PRECISIONS else None
            if part.work == "losses":
                self._model = self._made = None
                return {**part.row(), **losses(part.kind, until)}
            return {**part.row(), **compare(self._work(part), part.mode, until, self._sensor)}
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
            self._model = build(part.model)
            if weights == "bf16":
                self._model.bfloat16()
            self._made = (part.model, weights)
        forward = torch.compile(self._model) if part.mode == "compile" else self._model
        if part.work == "train":
            return training(part.model, self._model, forward, part.kind)
        return inference(part.model, self._model, forward, part.work)


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
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--types", nargs="+", choices=TYPES + PRECISIONS, default=list(TYPES))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["eager", "graph"])
    parser.add_argument("--everything", action="store_true", help="also what harness is slower at")
    asked = parser.parse_args()
    if asked.everything:
        OPTIONS["worth"] = everything
    end = time.perf_counter() + asked.seconds
    record.check_writable(asked.file)
    meta = {**record.provenance(seed=SEED), "torch": torch.__version__}
    meta |= {"transformers": transformers.__version__, "sizes": {k: vars(v) for k, v in SIZES.items()}}
    sensor = None
    if DEVICE == "cuda":
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
