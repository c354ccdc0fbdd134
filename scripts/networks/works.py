"""Models with random weights, and what there is to time of them: training, prefill, decode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers

DEVICE = "cuda"
SEED = 1
MODELS, TYPES = ("gpt2", "llama", "vit"), ("fp32", "tf32", "bf16")
PRECISIONS = ("fp16x3", "bf16x6")  # of harness's float32 only
WORKS = ("train", "prefill", "decode")
CONTEXT = 512  # tokens before the one that is decoded
ROOM = 512  # and behind it: a leg decodes no more
Row = dict[str, Any]


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
