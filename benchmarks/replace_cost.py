"""Time on the host what a product costs within `harness.torch.replace()`.

    PYTHONPATH=. python benchmarks/replace_cost.py [--device cuda] [--json FILE]

A row of 16 elements times a 16 x 16 matrix: by PyTorch alone, and within the block where it stays PyTorch's,
with the library for known products (harness/torch/known.cpp), and where that cannot be compiled, so that
Python is asked at each call. On a GPU also where it is harness's, both ways. Microseconds a call, the best of
rounds that take these in turn. On a CPU, for which `replace` is not meant, PyTorch's kernels for the CPU are
the ones that are replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from harness.results import record
from harness.torch import known, replace, replacement

WAYS = ("PyTorch's", "PyTorch's, asking Python", "harness's", "harness's, asking Python")
CALLS, ROUNDS = 200, 200  # no more calls of a round than the driver takes without blocking


def never(*product: Any, **more: Any) -> bool:
    """Leave every product to PyTorch."""
    return False


def always(*product: Any, **more: Any) -> bool:
    """Give every product to harness."""
    return True


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
    """Return the times of each product: by PyTorch alone, by the table, by Python; harness's in both ways."""
    tables = known.loaded(), (None, "")
    rules = (never, always) if device == "cuda" else (never,)
    ways = [None, *((table, worth) for worth in rules for table in tables)]
    given = products(device)
    found = {name: [float("inf")] * len(ways) for name in given}
    for _ in range(rounds):
        for i, way in enumerate(ways):
            with contextlib.ExitStack() as stack:
                if way is not None:
                    table, worth = way
                    stack.enter_context(mock.patch.object(known, "loaded", return_value=table))
                    stack.enter_context(replace(worth=worth))
                for name, call in given.items():
                    found[name][i] = min(found[name][i], microseconds(call, device, calls))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.device == "cpu":
        replacement.KEY = "CPU"
        torch.set_num_threads(1)
    table, why = known.loaded()
    print(f"PyTorch {torch.__version__} on {given.device}{'' if table else f': {why}'}")
    found = compare(given.device)
    for number, (name, (alone, *others)) in enumerate(found.items()):
        if number == 0:
            print(f"{'':10} {'PyTorch':>8}" + "".join(f" {header:>25}" for header in WAYS[: len(others)]))
        more = [f"{t:6.2f} ({t - alone:+.2f})" for t in others]
        print(f"{name:10} {alone:8.2f}" + "".join(f" {text:>25}" for text in more))
    if given.json:
        gpu = torch.cuda.get_device_name() if given.device == "cuda" else None
        meta = {**record.provenance(), "torch": torch.__version__, "known": why or "compiled", "gpu": gpu}
        rows = [
            {"product": name, "way": way, "microseconds": float(f"{cost:.4g}")}
            for name, costs in found.items()
            for way, cost in zip(("PyTorch", *WAYS), costs, strict=False)
        ]
        record.write_json(given.json, record.document("replace-cost", rows, meta))


if __name__ == "__main__":
    main()
