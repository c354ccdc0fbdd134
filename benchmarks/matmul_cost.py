"""Time a call of `harness.matmul` on the host, beside what is installed of PyTorch and CuPy, in one run.

    python benchmarks/matmul_cost.py [--json FILE]

The product is small, so that nothing waits for the GPU; microseconds a call, the best of ten rounds that take
the calls of a library in turn. Those of harness's operators "by Python" are without the library for known
products (harness/torch/known.cpp).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import harness
from harness.driver import Buffer, Context, Device, Stream, driver_version
from harness.results import record

N, CALLS, ROUNDS = 64, 200, 10
Costs = dict[str, list[float]]  # microseconds a call, of each round


def timed(calls: dict[str, Callable[[], object]], synchronize: Callable[[], object]) -> Costs:
    """Time calls in turn, with no more queued than the driver takes without blocking."""
    costs: Costs = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(3):  # a product is known after two
            call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            costs[name].append(1e6 * (time.perf_counter() - start) / CALLS)
    return costs


def ours() -> Iterator[Costs]:
    with Context(Device.open()) as gpu, Stream(gpu) as stream:
        a, b, c = (Buffer(gpu, 4 * N * N).array("float32", (N, N)) for _ in range(3))
        call = {"harness.matmul, Buffers": lambda: harness.matmul(a, b, c, stream=stream)}
        yield timed(call, stream.synchronize)


def torchs() -> Iterator[Costs]:
    import torch

    import harness.torch
    from harness.torch import standing

    a, b, c = (torch.randn(N, N, device="cuda") for _ in range(3))
    w = torch.randn(N, N, device="cuda", requires_grad=True)
    double, bias, linear = a.double(), torch.randn(N, device="cuda"), torch.nn.functional.linear

    def step(function: Callable[..., Any]) -> None:
        torch.autograd.grad(function(a, w), w, c)

    own: dict[str, Callable[[], Any]] = {
        "torch.mm": lambda: torch.mm(a, b),
        "torch.mm, out=": lambda: torch.mm(a, b, out=c),
        "torch.addmm": lambda: torch.addmm(bias, a, b),
        "x @ w.T": lambda: a @ b.t(),
        "F.linear": lambda: linear(a, b, bias),
        "F.linear, a gradient asked for": lambda: linear(a, w, bias),
        "F.linear, with its gradient": lambda: step(linear),
        "torch.mm of float64": lambda: torch.mm(double, double),
    }
    operators: dict[str, Callable[[], Any]] = {
        "harness.torch.mm": lambda: harness.torch.mm(a, b),
        "torch.ops.harness.mm": lambda: torch.ops.harness.mm(a, b),
        "harness.torch.addmm": lambda: harness.torch.addmm(bias, a, b),
        "harness.torch.linear": lambda: harness.torch.linear(a, b, bias),
        "harness.torch.linear, no bias": lambda: harness.torch.linear(a, b),
        "harness.torch.linear, relu": lambda: harness.torch.linear(a, b, bias, activation="relu"),
        "harness.torch.linear, a gradient asked for": lambda: harness.torch.linear(a, w, bias),
        "harness.torch.linear, with its gradient": lambda: step(harness.torch.linear),
    }
    with mock.patch.multiple(standing, table=lambda: None, _kept={}):
        by_python = {f"{name}, by Python": call for name, call in operators.items()}
        yield timed(by_python, torch.cuda.synchronize)
    matmul: dict[str, Callable[[], Any]] = {
        "harness.matmul, PyTorch, out=": lambda: harness.matmul(a, b, c),
        "harness.matmul, PyTorch": lambda: harness.matmul(a, b),
    }
    yield timed({**own, **matmul, **operators}, torch.cuda.synchronize)
    with harness.torch.replace():
        replaced = {f"{name}, replaced": call for name, call in own.items()}
        yield timed(replaced, torch.cuda.synchronize)


def cupys() -> Iterator[Costs]:
    import cupy

    a, b, c = (cupy.ones((N, N), dtype=cupy.float32) for _ in range(3))
    calls: dict[str, Callable[[], Any]] = {
        "harness.matmul, CuPy, out=": lambda: harness.matmul(a, b, c),
        "cupy.matmul, out=": lambda: cupy.matmul(a, b, out=c),
    }
    yield timed(calls, cupy.cuda.Device().synchronize)


def measured() -> tuple[Costs, list[str]]:
    """Return what was timed, and why a library was left out."""
    found: Costs = {}
    absent = []
    for library in (ours, torchs, cupys):
        try:
            for costs in library():
                for name, rounds in costs.items():
                    print(f"{name:52} {min(rounds):6.2f} us")
                found.update(costs)
        except ImportError as e:
            absent.append(str(e))
            print(f"({e})")
    return found, absent


def versions() -> dict[str, Any]:
    """Return what was measured: PyTorch's and CuPy's versions, and why known products are Python's."""
    found: dict[str, Any] = {}
    try:
        import torch

        from harness.torch import known

        found |= {"torch": torch.__version__, "known": known.loaded()[1] or "compiled"}
    except ImportError:
        pass
    try:
        import cupy

        found["cupy"] = cupy.__version__
    except ImportError:
        pass
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    costs, absent = measured()
    if given.json:
        gpu = Device.open()
        meta = {**record.provenance(), **versions(), "gpu": gpu.name, "absent": absent}
        meta |= {"driver": "{}.{}".format(*driver_version()), "calls": CALLS, "n": N}
        rows = [
            {"call": name, "microseconds": min(rounds), "rounds": [float(f"{c:.4g}") for c in rounds]}
            for name, rounds in costs.items()
        ]
        record.write_json(given.json, record.document("matmul-cost", rows, meta))


if __name__ == "__main__":
    main()
