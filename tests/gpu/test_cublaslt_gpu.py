"""cuBLASLt's best heuristic on a real GPU: its numbers in every type, and what choosing is worth."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.bench import measure, sampling
from harness.bench.nvml import Telemetry
from harness.bench.stopping import StopRule
from harness.bench.timing import EventTimer, Work
from harness.driver import Context, Stream
from harness.errors import MissingDependency
from harness.launch import cublaslt
from harness.launch.operands import Operands, rotation_sets
from harness.problems.gemm import GEMMS
from harness.results import record

pytestmark = pytest.mark.gpu

RAGGED: list[dict[str, Any]] = [
    {"M": 1, "N": 1, "K": 1},
    {"M": 1, "N": 500, "K": 1000, "alpha": -1.5},
    {"M": 31, "N": 65, "K": 1000, "lda": 1003, "ldb": 67, "ldc": 66},
    {"M": 300, "N": 500, "K": 2048, "lda": 2050, "ldb": 512, "ldc": 504, "alpha": 0.7},
    {"M": 127, "N": 129, "K": 16384, "alpha": 2.0},
    {"N": 1024},
]
SCALED: list[dict[str, Any]] = [
    {"M": 300, "N": 500, "K": 2048, "lda": 2050, "ldb": 512, "ldc": 504, "alpha": 0.7, "beta": 0.3},
    {"M": 65, "N": 33, "K": 17, "alpha": 0.0, "beta": 1.0},
    {"N": 512, "alpha": -2.0, "beta": 2.0},
]


@pytest.fixture
def library(gpu: Context) -> Iterator[cublaslt.CuBlasLt]:
    try:
        library = cublaslt.CuBlasLt(gpu)
    except MissingDependency as e:
        pytest.skip(e.what)
    with library:
        yield library


@pytest.mark.parametrize("name", list(GEMMS))
def test_every_type_keeps_its_bounds(gpu: Context, library: cublaslt.CuBlasLt, name: str) -> None:
    """16-bit types without beta: the library rounds twice there, as cuBLAS does (test_typed_gpu.py)."""
    cls = GEMMS[name]
    wrong = []
    with Stream(gpu) as stream:
        for axes in RAGGED + (SCALED if cls.dtype.itemsize == 4 else []):
            problem = cls.from_axes(axes)
            with (
                Operands(gpu, problem, stream, seed=1, sets=2) as operands,
                library.prepare(operands) as run,
            ):
                verdict = measure.check(run, stream, sets=2)
                damaged = operands.damaged_inputs(stream)
            assert run.algorithm.startswith("fastest of ") and "algorithm " in run.algorithm
            if not verdict.ok or damaged:
                wrong.append(f"{problem.label}: {verdict} {damaged} ({run.algorithm})")
    assert not wrong


@pytest.mark.alone
@pytest.mark.parametrize("name", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("axes", [{"N": 1024}, {"M": 64, "N": 2048, "K": 8192}], ids=["square", "deep"])
def test_the_chosen_is_no_slower_than_the_first(
    gpu: Context, library: cublaslt.CuBlasLt, name: str, axes: dict[str, Any]
) -> None:
    problem = GEMMS[name].from_axes(axes)
    rule = StopRule()
    with (
        cublaslt.CuBlasLt(gpu, algorithms=1) as asked_once,
        Stream(gpu) as stream,
        EventTimer(gpu, stream, Telemetry(gpu.device.uuid)) as timer,
        Operands(gpu, problem, stream, seed=1, sets=rotation_sets(gpu, problem, most=50)) as operands,
        operands.twin(stream) as twin,
        library.prepare(operands) as best,
        asked_once.prepare(twin) as first,
    ):
        assert first.algorithm.startswith("fastest of 1 ")
        typical = tuple(sampling.warm_up(Work(run), timer, rule).typical for run in (best, first))
        pair = sampling.interleave(
            Work(best), Work(first), timer, rule, typical=(typical[0], typical[1]), seed=1
        )
    ratio = pair.ratio(1)
    assert ratio is not None and ratio.estimate <= 1.1, f"{best.algorithm}\n{first.algorithm}"


@pytest.mark.alone
def test_nothing_leaks(gpu: Context) -> None:
    problem = GEMMS["bf16"].from_axes({"N": 512})

    def once() -> None:
        with (
            cublaslt.CuBlasLt(gpu) as library,
            Stream(gpu) as stream,
            Operands(gpu, problem, stream, seed=1, sets=1) as operands,
            library.prepare(operands),
        ):
            pass

    def lost() -> int:
        gpu.synchronize()
        free, _ = gpu.memory_info()
        for _ in range(5):
            once()
        gpu.synchronize()
        return free - gpu.memory_info()[0]

    try:
        once()
    except MissingDependency as e:
        pytest.skip(e.what)
    assert min(lost(), lost(), lost()) < 1 << 20


@pytest.mark.alone
@pytest.mark.parametrize("regime", ["cold", "graph"])
def test_a_row_beside_cublas(library: cublaslt.CuBlasLt, tmp_path: Path, regime: str) -> None:
    """The whole command, in a process of its own; in a graph the bound algorithm is captured."""
    path = tmp_path / "r.json"
    command = [
        *(sys.executable, "-m", "harness", "bench", "matmul", "--dtype", "bf16", "--cublaslt"),
        *("-a", "N=1024", "--regime", regime, "--min-time", "0.05", "--json", str(path)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    theirs, best, mine = record.load(path)["rows"]
    assert [r["kernel"] for r in (theirs, best, mine)] == ["cuBLAS", "cuBLASLt", "matmul"]
    assert best["status"] == "ok" and best["against"] == "cuBLAS" and best["speedup"]["estimate"] > 0.85
    assert "cuBLASLt: fastest of" in done.stdout
