"""Tuning on a fake GPU whose kernels have planted speeds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from click.testing import CliRunner, Result

from fakes import gemm as fake_gemm
from harness.bench.session import Bench
from harness.bench.stopping import StopRule
from harness.cli import main
from harness.driver import Context
from harness.problems.gemm import Gemm
from harness.tune.journal import Journal
from harness.tune.plan import Plan
from harness.tune.prefetch import Ahead
from harness.tune.search import Result as Tuned
from harness.tune.search import Tuner

RULE = StopRule(min_time=0.01, warmup=0.01, settle=0.01, max_samples=100, min_blocks=12)
TILES = (2, 3, 4, 5, 6, 7, 8, 9)
N = Gemm(M=24, N=24, K=24)
SPACE = "TILE=[2,3,4,5,6,7,8,9]"


class Speeds:
    """Speeds: `milliseconds` by TILE (blockDim.x), each batch off by `noise`; `execute` computes."""

    def __init__(self, fake: Any, milliseconds: dict[int, float], *, noise: float = 0.003) -> None:
        self.fake, self.milliseconds, self.noise = fake, milliseconds, noise
        self.rng = np.random.default_rng(7)
        self.runs: dict[int, int] = {}
        self.execute: dict[int, Any] = {}

    def __call__(self, launch: Any) -> None:
        tile = launch.block[0]
        self.runs[tile] = self.runs.get(tile, 0) + 1
        self.fake.milliseconds = self.milliseconds[tile] * float(np.exp(self.rng.normal(0, self.noise)))
        self.execute.get(tile, fake_gemm.gemm)(launch)


def tune(
    context: Context,
    space: Sequence[Any],
    journal: Journal | None = None,
    *,
    problems: Sequence[Gemm] = (N,),
    clock: Any = None,
    **plan: Any,
) -> tuple[list[Tuned], Tuner]:
    with Bench(context, rule=RULE, regime="hot") as session, Ahead() as ahead:
        extra = {"clock": clock} if clock else {}
        tuner = Tuner(session, Plan(**plan), journal or Journal(None), ahead, **extra)
        return list(tuner.run(problems, iter(space))), tuner


def tiles(rows: Sequence[Any]) -> list[int]:
    return [row["params"]["TILE"] for row in rows]


def harness(*args: str) -> Result:
    result = CliRunner().invoke(main, list(args))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def t4_faults(content: Any) -> list[str]:
    """List what breaks the published results schema (T4 1.0.0), whose rules are copied here by hand."""
    faults = []
    if not re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", content["schema_version"]):
        faults.append("schema_version")
    known = {"timeout", "compile", "runtime", "correctness", "constraints", "correct"}
    for r in content["results"]:
        faults += [k for k in ("configuration", "times", "invalidity", "correctness") if k not in r]
        if r.get("invalidity") not in known:
            faults.append(f"invalidity {r.get('invalidity')}")
        if not isinstance(r["timestamp"], str) or not isinstance(r["objectives"], list):
            faults.append("timestamp, objectives")
        if not isinstance(r["times"].get("compilation_time", 0.0), int | float):
            faults.append("compilation_time")
        if not isinstance(r["times"].get("runtimes", []), list):
            faults.append("runtimes")
        for m in r["measurements"]:
            fits = isinstance(m["value"], int | float | str | list) and isinstance(m["unit"], str)
            faults += [] if fits and isinstance(m["name"], str) else [f"measurement {m}"]
    return faults
