"""Time a call of `harness.matmul` on the host, beside what is installed of PyTorch and CuPy, in one run.

The product is small, so that nothing waits for the GPU; microseconds a call, the best of five rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import harness
from harness.driver import Buffer, Context, Device, Stream

N, CALLS, ROUNDS = 64, 500, 5


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

    a, b, c = (torch.randn(N, N, device="cuda") for _ in range(3))
    from harness import torch_ops

    calls: dict[str, Callable[[], Any]] = {
        "harness.matmul, PyTorch, out=": lambda: harness.matmul(a, b, c),
        "harness.matmul, PyTorch": lambda: harness.matmul(a, b),
        "torch.ops.harness.matmul": lambda: torch_ops.matmul(a, b),
        "torch.mm, out=": lambda: torch.mm(a, b, out=c),
    }
    for name, call in calls.items():
        call()
        yield name, microseconds(call, torch.cuda.synchronize)


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
                print(f"{name:32} {cost:6.2f} us")
        except ImportError as e:
            print(f"({e})")


if __name__ == "__main__":
    main()
