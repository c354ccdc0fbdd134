"""Time a call of `harness.matmul` on the host, beside what is installed of PyTorch and CuPy, in one run.

The product is small, so that nothing waits for the GPU; microseconds a call, the best of ten rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import harness
from harness.driver import Buffer, Context, Device, Stream

N, CALLS, ROUNDS = 64, 200, 10


def microseconds(call: Callable[[], object], synchronize: Callable[[], object]) -> float:
    """A call, with no more queued than the driver takes without blocking."""
    best = float("inf")
    for _ in range(ROUNDS):
        synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter() - start) / CALLS)
    return best * 1e6


def ours() -> Iterator[tuple[str, float]]:
    with Context(Device.open()) as gpu, Stream(gpu) as stream:
        a, b, c = (Buffer(gpu, 4 * N * N).array("float32", (N, N)) for _ in range(3))
        harness.matmul(a, b, c, stream=stream)
        call = microseconds(lambda: harness.matmul(a, b, c, stream=stream), stream.synchronize)
        yield "harness.matmul, Buffers", call


def torchs() -> Iterator[tuple[str, float]]:
    import torch

    import harness.torch

    a, b, c = (torch.randn(N, N, device="cuda") for _ in range(3))
    w = torch.randn(N, N, device="cuda", requires_grad=True)
    double, bias, linear = a.double(), torch.randn(N, device="cuda"), torch.nn.functional.linear

    def step(function: Callable[..., Any]) -> None:
        torch.autograd.grad(function(a, w), w, c)

    own: dict[str, Callable[[], Any]] = {
        "torch.mm": lambda: torch.mm(a, b),
        "torch.mm, out=": lambda: torch.mm(a, b, out=c),
        "x @ w.T": lambda: a @ b.t(),
        "F.linear": lambda: linear(a, b, bias),
        "F.linear, a gradient asked for": lambda: linear(a, w, bias),
        "F.linear, with its gradient": lambda: step(linear),
        "torch.mm of float64": lambda: torch.mm(double, double),
    }
    ours: dict[str, Callable[[], Any]] = {
        "harness.matmul, PyTorch, out=": lambda: harness.matmul(a, b, c),
        "harness.matmul, PyTorch": lambda: harness.matmul(a, b),
        "harness.torch.mm": lambda: harness.torch.mm(a, b),
        "torch.ops.harness.mm": lambda: torch.ops.harness.mm(a, b),
        "harness.torch.linear": lambda: harness.torch.linear(a, b, bias),
        "harness.torch.linear, no bias": lambda: harness.torch.linear(a, b),
        "harness.torch.linear, a gradient asked for": lambda: harness.torch.linear(a, w, bias),
        "harness.torch.linear, with its gradient": lambda: step(harness.torch.linear),
    }
    for name, call in {**own, **ours}.items():
        call()
        yield name, microseconds(call, torch.cuda.synchronize)
    with harness.torch.replace():
        for name, call in own.items():
            call()
            yield f"{name}, replaced", microseconds(call, torch.cuda.synchronize)


def cupys() -> Iterator[tuple[str, float]]:
    import cupy

    a, b, c = (cupy.ones((N, N), dtype=cupy.float32) for _ in range(3))
    calls: dict[str, Callable[[], Any]] = {
        "harness.matmul, CuPy, out=": lambda: harness.matmul(a, b, c),
        "cupy.matmul, out=": lambda: cupy.matmul(a, b, out=c),
    }
    for name, call in calls.items():
        call()
        yield name, microseconds(call, cupy.cuda.Device().synchronize)


def main() -> None:
    for library in (ours, torchs, cupys):
        try:
            for name, cost in library():
                print(f"{name:44} {cost:6.2f} us")
        except ImportError as e:
            print(f"({e})")


if __name__ == "__main__":
    main()
