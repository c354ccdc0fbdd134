"""Result files for tests: written by `harness bench` on a fake GPU, or made up."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.command import FAST, harness


def benched(path: Path, *args: str) -> dict[str, Any]:
    """Run `harness bench` for a short time, and return the result file that it wrote."""
    argv = ["bench", *args, *FAST, "--json", str(path)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["harness", *argv])
        result = harness(*argv)
    assert result.exit_code in (0, 1, 3), result.output
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def run_file(path: Path, seconds: float, *, noise: float = 0.01, sass: str = "a", **changes: Any) -> Path:
    """Write a result file of one kernel; `changes` replace keys of its row, or of its GPU."""
    rng = np.random.default_rng(int(seconds * 1e9))
    times = [float(t) for t in seconds * np.exp(noise * rng.normal(size=200))]
    row = {
        "kernel": "k", "params": {"T": 1}, "problem": "gemm", "shape": "64", "status": "ok", "detail": "",
        "regime": "cold", "seconds": seconds, "noise": noise, "times": times, "sm_hz": 1.98e9,
        "sass_sha256": sass, "block": [1], "tile": [1], "shared": 0,
    }  # fmt: skip
    gpu = {"uuid": "GPU-1", "math_mode": "pedantic", "cublas": "13"}
    meta = {"gpu": {k: changes.pop(k, v) for k, v in gpu.items()}, "seed": changes.pop("seed", 1)}
    content = {"schema": 1, "kind": "bench", "meta": meta, "rows": [{**row, **changes}]}
    path.write_text(json.dumps(content))
    return path
