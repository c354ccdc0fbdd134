"""Train GPT-2 small several times on the same tokens, and say how far its losses are apart."""

from __future__ import annotations

import copy
import time

import torch

from networks import turns, works
from networks.works import Row

NOISE = ("again", "last_bit", "reordered", "ieee")  # runs that differ from stock by noise alone
STEPS = 200  # of training
RATE, WARM_UP = 3e-4, 20  # the learning rate, and the steps over which it rises to that


def stream(generator: torch.Generator, size: tuple[int, int], vocabulary: int) -> torch.Tensor:
    """Return tokens that can be learned: each follows from the one before it, one in ten at random."""
    batch, tokens = size
    kinds = min(1000, vocabulary)
    found = torch.randint(kinds, (batch, tokens), generator=generator)
    chance = torch.rand(batch, tokens, generator=generator) < 0.1
    for i in range(1, tokens):
        found[:, i] = torch.where(chance[:, i], found[:, i], (found[:, i - 1] * 31 + 7) % kinds)
    return found.to(works.DEVICE)


def losses(kind: str, until: float) -> Row:
    """Train GPT-2 small several times in lockstep, until a time or for `STEPS`, and compare the losses.

    In fp16x3 and bf16x6 harness's true float32 is trained, too: how far two kernels of float32 are apart is
    noise. transformers computes the loss itself in float32 from logits in float64.
    """
    base = works.build("gpt2").train()
    names = ["stock", *NOISE[:3], "float64", "harness", *(NOISE[3:] if kind in works.PRECISIONS else ())]
    runs = {name: copy.deepcopy(base) for name in names}
    runs["float64"].double()
    with torch.no_grad():
        for p in runs["last_bit"].parameters():
            p.mul_(1 + (torch.randint(0, 2, p.shape, device=works.DEVICE) * 2 - 1) * 2.0**-23)
    optimizers = {n: torch.optim.AdamW(m.parameters(), lr=RATE, fused=True) for n, m in runs.items()}
    generator = torch.Generator().manual_seed(works.SEED)
    seen: dict[str, list[torch.Tensor]] = {name: [] for name in runs}
    while len(seen["stock"]) < STEPS and (len(seen["stock"]) < 5 or time.perf_counter() < until):
        tokens = stream(generator, works.SIZES["gpt2"].losses, base.config.vocab_size)
        for name, model in runs.items():
            own = {"fp32": "ieee"} if name == "ieee" else {}
            given = tokens.flip(0) if name == "reordered" else tokens
            with turns.replacing(name in ("harness", "ieee"), **own):
                with torch.autocast(
                    works.DEVICE, torch.bfloat16, enabled=kind == "bf16" and name != "float64"
                ):
                    loss = model(input_ids=given, labels=given).loss
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizers[name].param_groups[0]["lr"] = RATE * min(1, (len(seen[name]) + 1) / WARM_UP)
                optimizers[name].step()
                optimizers[name].zero_grad(set_to_none=True)
            seen[name].append(loss.detach())
        if len(seen["stock"]) % 10 == 0:
            turns.synchronize()  # so that the time is that of the GPU
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
