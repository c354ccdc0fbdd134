"""Kernels on a real GPU, held to the reference of their problem."""

from __future__ import annotations

from harness.bench import measure
from harness.driver import Context, Stream
from harness.kernels.compiler import Cubin
from harness.launch import kernel as launch
from harness.launch.operands import Operands
from harness.problems.protocol import Problem


def verified(gpu: Context, cubin: Cubin, problem: Problem) -> None:
    """Fail unless two data sets are computed within bounds, and the inputs stay as they were."""
    with (
        Stream(gpu) as stream,
        Operands(gpu, problem, stream, seed=1, sets=2) as operands,
        launch.prepare(cubin, operands) as run,
    ):
        verdict = measure.check(run, stream, sets=2)
        assert verdict.ok, f"{cubin.variant.label} {problem.label}: {verdict}"
        assert not operands.damaged_inputs(stream)
