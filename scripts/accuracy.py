"""Errors of float32 products on a card: fp32, bf16x6, fp16x3, 3xtf32 and tf32 by harness, and cuBLAS's fp32.

    python scripts/accuracy.py FILE.json

Run on a machine with a GPU and PyTorch. Each error is divided by the bound of a float32 product
(harness/problems/bounds.py); the reference is PyTorch's product in float64.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import torch

import harness
from harness.errors import HarnessError
from harness.kernels.dtypes import FP32
from harness.problems import bounds
from harness.results import record

SEED = 1
SIZES = ((1000, 1000, 1000), (512, 512, 4096), (128, 128, 2**20))
PRECISIONS = {"fp32": "ieee", "bf16x6": "bf16x6", "fp16x3": "fp16x3", "3xtf32": "3xtf32", "tf32": "tf32"}


def uniform_exponents(x: torch.Tensor, octaves: int) -> torch.Tensor:
    """Return `x` times powers of two from 2^-octaves to 2^octaves."""
    return torch.ldexp(x, torch.randint(-octaves, octaves + 1, x.shape, device=x.device))


def inputs(kind: str, m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A and B of one kind, in float32."""
    a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    if kind == "positive":
        return a.abs(), b.abs()
    if kind == "cancelling":  # each pair of products nearly so; every K is even
        a[:, 1::2] = a[:, ::2]
        b[1::2] = -b[::2] * (1 + 2.0**-22)
    if kind == "graded":
        return uniform_exponents(a, 30), uniform_exponents(b, 30)
    if kind == "subnormal":
        return a * 2.0**-100, b * 2.0**-28
    if kind == "near overflow":
        return a * 2.0**70, b * 2.0 ** (50 - math.ceil(math.log2(k) / 2))
    if kind == "not finite":  # in a row of A each, and a column of B
        a[3, k // 2], a[5, k // 3], b[k // 4, 7] = math.inf, math.nan, -math.inf
    return a, b


KINDS = ("normal", "positive", "cancelling", "graded", "subnormal", "near overflow", "not finite")


def errors(found: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> dict[str, float]:
    """Return the largest and the mean error in units of the fp32 bound, and the mean of signed errors.

    They are of the elements that are finite; `same` is the share of the others that is what float64 gives.
    """
    k = a.shape[1]
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    finite, wild = exact.isfinite(), ~exact.isfinite()
    bound = bounds.summing(FP32, k) * size + bounds.smallest(k)
    part = ((found.double() - exact) / bound)[finite]
    alike = (found == exact) | (found.isnan() & exact.isnan())
    return {
        "largest": float(part.abs().max()),
        "mean": float(part.abs().mean()),
        "bias": float(part.mean()),
        "same": float(alike[wild].double().mean()) if wild.any() else 1.0,
    }


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    file = Path(sys.argv[1])
    record.check_writable(file)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(SEED)
    rows: list[dict[str, Any]] = []
    for m, n, k in SIZES:
        for kind in KINDS:
            a, b = inputs(kind, m, n, k)
            row: dict[str, Any] = {"kind": kind, "M": m, "N": n, "K": k, "cuBLAS": errors(a @ b, a, b)}
            for name, precision in PRECISIONS.items():
                row[name] = errors(harness.matmul(a, b, precision=precision), a, b)
            rows.append(row)
            figures = {x: f"{row[x]['largest']:.3g} {row[x]['same']:.0%}" for x in ("cuBLAS", *PRECISIONS)}
            print(f"{m}x{n}x{k} {kind}: {figures}", flush=True)
    meta = {**record.provenance(seed=SEED), "torch": torch.__version__}
    meta["gpu"] = {"name": torch.cuda.get_device_name()}
    record.write_json(file, record.document("accuracy", rows, meta))


if __name__ == "__main__":
    try:
        main()
    except HarnessError as e:
        sys.exit(f"error: {e}")
