"""Time on the host what a product that stays PyTorch's costs within `harness.torch.replace()`.

    PYTHONPATH=. python benchmarks/replace_cost.py [--device cuda]

A row of 16 elements times a 16 x 16 matrix: by PyTorch alone, within the block, and within it where the
library for such products (harness/torch/known.cpp) cannot be compiled, so that Python is asked at each call.
Microseconds a call, the best of rounds that take the three in turn. On a CPU, for which `replace` is not
meant, PyTorch's kernels for the CPU are the ones that are replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from harness.torch import known, replace, replacement

CALLS, ROUNDS = 200, 200  # no more calls of a round than the driver takes without blocking


def never(*product: Any, **more: Any) -> bool:
    """Leave every product to PyTorch."""
    return False


def products(device: str) -> dict[str, Callable[[], Any]]:
    """Return the calls to time."""
    a, b = torch.randn(1, 16, device=device), torch.randn(16, 16, device=device)
    x, y, out, bias = a[None], b[None], torch.empty_like(a), torch.randn(16, device=device)
    return {
        "mm": lambda: torch.mm(a, b),
        "mm, out=": lambda: torch.mm(a, b, out=out),
        "addmm": lambda: torch.addmm(bias, a, b),
        "bmm": lambda: torch.bmm(x, y),
        "baddbmm": lambda: torch.baddbmm(bias, x, y),
    }


def microseconds(call: Callable[[], Any], device: str, calls: int) -> float:
    """Return the time of a call, as a mean over some."""
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return 1e6 * (time.perf_counter() - start) / calls


def compare(device: str, calls: int = CALLS, rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Return the times of each product: by PyTorch alone, by the table, by Python."""
    table = known.loaded()
    given = products(device)
    found = {name: [float("inf")] * 3 for name in given}
    for _ in range(rounds):
        for i, way in enumerate([None, table, (None, "")]):
            with contextlib.ExitStack() as stack:
                if way is not None:
                    stack.enter_context(mock.patch.object(known, "loaded", return_value=way))
                    stack.enter_context(replace(worth=never))
                for name, call in given.items():
                    found[name][i] = min(found[name][i], microseconds(call, device, calls))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    device = parser.parse_args().device
    if device == "cpu":
        replacement.KEY = "CPU"
        torch.set_num_threads(1)
    table, why = known.loaded()
    print(f"PyTorch {torch.__version__} on {device}{'' if table else f': {why}'}")
    print(f"{'':10} {'PyTorch':>8} {'replace()':>15} {'asking Python':>15}")
    for name, (alone, known, asking) in compare(device).items():
        more = [f"{t:6.2f} (+{t - alone:.2f})" for t in (known, asking)]
        print(f"{name:10} {alone:8.2f} {more[0]:>15} {more[1]:>15}")


if __name__ == "__main__":
    main()
