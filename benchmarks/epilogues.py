"""Time what may follow a product of `harness.matmul`, beside PyTorch's own ways to it.

A bias, an activation, a float32 result, and a gradient that goes back through an activation.

    python benchmarks/epilogues.py

Needs a GPU and PyTorch. Prints microseconds a product, of graphs of 20 back to back, taken in turn.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

import torch
from tabulate import tabulate

import harness
from harness.kernels.epilogue import ACTIVATIONS
from harness.torch.products import activated

BACKWARDS = {
    "relu": lambda grad, x: torch.ops.aten.threshold_backward(grad, x, 0),
    "gelu": torch.ops.aten.gelu_backward,
    "gelu_tanh": functools.partial(torch.ops.aten.gelu_backward, approximate="tanh"),
    "silu": torch.ops.aten.silu_backward,
}

SHAPES = [(4096, 4096, 4096), (8192, 3072, 768), (2048, 8192, 2048), (128, 4096, 4096), (16, 4096, 4096)]
LAUNCHES, TURNS = 20, 10


def contenders(dtype: Any, m: int, n: int, k: int) -> dict[str, Callable[[], Any]]:
    """Return the ways to compute a layer of these sizes, by name."""
    x, w, bias = (torch.randn(shape, device="cuda", dtype=dtype) for shape in ((m, k), (n, k), (n,)))
    out, wide = torch.empty(m, n, device="cuda", dtype=dtype), torch.empty(m, n, device="cuda")
    product = functools.partial(harness.matmul, x, w.t())
    found = {
        "plain": functools.partial(product, out),
        "float32 result": functools.partial(product, wide),
        "torch, plain": functools.partial(torch.mm, x, w.t(), out=out),
    }
    for name in ACTIVATIONS:
        label = f"bias {name}".rstrip()
        found[label] = functools.partial(product, out, bias=bias, activation=name)
        found[f"torch, {label}"] = lambda name=name: activated(torch.nn.functional.linear(x, w, bias), name)
    at = torch.randn_like(out)
    for name, backward in BACKWARDS.items():
        label = f"gradient of {name}"
        found[label] = functools.partial(product, out, activation=name, derivative_at=at)
        found[f"torch, {label}"] = lambda backward=backward: backward(torch.mm(x, w.t()), at)
    return found


def captured(call: Callable[[], Any]) -> Any:
    """Return a graph of so many calls."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            call()
    return graph


def microseconds(graph: Any) -> float:
    """Return what a call of the graph takes."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1000 / LAUNCHES


def main() -> None:
    """Time every shape in bf16 and float32."""
    for dtype in (torch.bfloat16, torch.float32):
        rows = []
        for shape in SHAPES:
            graphs = {name: captured(call) for name, call in contenders(dtype, *shape).items()}
            times: dict[str, list[float]] = {name: [] for name in graphs}
            for turn in range(TURNS):
                for name in list(graphs) if turn % 2 else list(reversed(graphs)):
                    times[name].append(microseconds(graphs[name]))
            rows.append(["x".join(map(str, shape)), *(statistics.median(t) for t in times.values())])
        print(f"{torch.cuda.get_device_name()}, {dtype}, us")
        print(tabulate(zip(["", *times], *rows, strict=True), floatfmt=".1f"), flush=True)


if __name__ == "__main__":
    main()
