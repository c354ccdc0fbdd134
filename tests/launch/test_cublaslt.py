"""cuBLASLt's best heuristic on a fake library and a fake GPU (fake_cublaslt.py): what it is asked, that the
fastest is taken, and that nothing leaks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fakes import cublaslt as fake_cublaslt
from fakes import gemm as fake_gemm
from fakes.cublaslt import Algorithm, FakeCublas, FakeCublasLt, Refused, TimedDriver
from harness.bench import measure
from harness.cli import main
from harness.cli.children import isolation
from harness.driver import Context, Device, Stream
from harness.errors import ContextLost, HarnessError, MissingDependency
from harness.launch import cublas_bindings, cublaslt
from harness.launch.cublas_bindings import Status
from harness.launch.operands import Operands
from harness.problems.gemm import GEMMS, Gemm
from harness.results import comparison, fastest, record

NAMED = (
    ("ID", 66), ("TILE_ID", 23), ("STAGES_ID", 35), ("CLUSTER_SHAPE_ID", 3), ("SPLITK_NUM", 4),
    ("REDUCTION_SCHEME", 2), ("CUSTOM_OPTION", 5),
)  # fmt: skip
SLOW_FIRST = (Algorithm(3.0), Algorithm(2.0), Algorithm(1.5, configuration=NAMED), Algorithm(2.5))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> TimedDriver:
    driver = fake_cublaslt.install(monkeypatch)
    fake_cublaslt.provide(monkeypatch, blas=FakeCublas(driver))
    return driver


@pytest.fixture
def library(driver: TimedDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCublasLt]:
    """With four algorithms of which the first is not the fastest; whatever a test makes must have ended."""
    library = FakeCublasLt(driver, SLOW_FIRST)
    fake_cublaslt.provide(monkeypatch, blas=FakeCublas(driver), lt=library)
    yield library
    assert not library.live, "descriptors or a handle were not destroyed"
    assert not [kind for kind, _ in driver.live if kind != "context"]


@pytest.fixture
def context(driver: TimedDriver) -> Iterator[Context]:
    with Context(Device.open()) as context:
        yield context


def prepared(context: Context, problem: Gemm, sets: int = 3) -> tuple[str, Any]:
    """The algorithm's description, and the verdict on every set."""
    with (
        cublaslt.CuBlasLt(context) as baseline,
        Stream(context) as stream,
        Operands(context, problem, stream, seed=1, sets=sets) as operands,
        baseline.prepare(operands) as run,
    ):
        assert (run.label, run.sets) == ("cuBLASLt", sets)
        return run.algorithm, measure.check(run, stream, sets=sets)


def test_the_fastest_is_taken_not_the_first(context: Context, library: FakeCublasLt) -> None:
    text, verdict = prepared(context, Gemm(M=5, N=7, K=3))
    assert verdict.ok
    assert [place for place, _, _ in library.runs[-3:]] == [2, 2, 2], "what is bound"
    assert text == (
        "fastest of 4 that the heuristic names, 2.00x the first: algorithm 66, tile 128x256, stages 64xAUTO, "
        "cluster 2x1x1, split k 4, reduction COMPUTE_TYPE, option 5"
    )
    library.algorithms = [Algorithm(1.0), Algorithm(1.5)]
    library.runs.clear()
    text, _ = prepared(context, Gemm(M=5, N=7, K=3))
    assert {place for place, _, _ in library.runs[-3:]} == {0} and "1.00x the first" in text


def test_all_take_turns_on_sets_in_turn_behind_a_gate(context: Context, library: FakeCublasLt) -> None:
    """Each is run once before, unheld: what loads code may not stand behind a gate."""
    prepared(context, Gemm(M=5, N=7, K=3))
    first, rest = library.runs[:4], library.runs[4:-3]
    assert [(place, held) for place, _, held in first] == [(i, False) for i in range(4)]
    assert len(rest) >= 5 * 4 and all(held for _, _, held in rest)
    assert [place for place, _, _ in rest] == [i % 4 for i in range(len(rest))]
    outputs = [output for _, output, _ in rest]
    assert len(set(outputs)) == 3 and outputs[3:] == outputs[:-3], "one set after another"


def test_a_drifting_clock_hits_all_alike(
    context: Context, library: FakeCublasLt, driver: TimedDriver
) -> None:
    """Every launch is slower than the one before: timed one after the other, the first would win."""
    library.algorithms = [Algorithm(1.05), Algorithm(1.0)]
    original = library.cublasLtMatmul

    def drifting(*args: int) -> None:
        original(*args)
        driver.clock += 0.001 * len(library.runs)

    library.cublasLtMatmul = drifting  # type: ignore[method-assign]
    text, _ = prepared(context, Gemm(M=5, N=7, K=3))
    assert library.runs[-1][0] == 1, text


def test_one_slow_launch_decides_nothing(
    context: Context, library: FakeCublasLt, driver: TimedDriver
) -> None:
    """The faster one is held up in its last round, by more than all its other launches take."""
    library.algorithms = [Algorithm(100.0), Algorithm(90.0)]
    original = library.cublasLtMatmul

    def held_up(*args: int) -> None:
        original(*args)
        if len(library.runs) in (4, 12):  # of two trials and five rounds
            driver.clock += 10_000

    library.cublasLtMatmul = held_up  # type: ignore[method-assign]
    prepared(context, Gemm(M=5, N=7, K=3), sets=1)
    assert len(library.runs) == 2 + 2 * 5 + 1 and library.runs[-1][0] == 1


@pytest.mark.parametrize("name", list(GEMMS))
@pytest.mark.parametrize(
    "axes",
    [
        {"M": 5, "N": 7, "K": 3},
        {"M": 6, "N": 4, "K": 9, "lda": 11, "ldb": 6, "ldc": 5, "alpha": -1.5},
        {"M": 2, "N": 9, "K": 4, "alpha": 0.5, "beta": 2.0},
        {"M": 5, "N": 7, "K": 3, "transb": 1},
        {"M": 6, "N": 4, "K": 9, "lda": 11, "transa": 1},
        {"M": 3, "N": 8, "K": 5, "transa": 1, "transb": 1, "ldb": 6},
    ],
)
def test_row_major_products_of_every_type(
    context: Context, library: FakeCublasLt, name: str, axes: dict[str, Any]
) -> None:
    """The fake multiplies column-major matrices as their layouts say, and checks that these fit."""
    problem = GEMMS[name](**axes)
    _, verdict = prepared(context, problem, sets=2)
    assert verdict.ok, str(verdict)
    made = [about for kind, about in library.created if kind == "layout"]
    matrix = {"bf16": 14, "fp16": 2}.get(name, 0)
    assert made == [
        (matrix, *((problem.K, problem.N) if problem.transb else (problem.N, problem.K)), problem.ldb),
        (matrix, *((problem.M, problem.K) if problem.transa else (problem.K, problem.M)), problem.lda),
        (matrix, problem.N, problem.M, problem.ldc),
    ]
    ((compute, scale),) = [about for kind, about in library.created if kind == "matmul"]
    assert (compute, scale) == ({"tf32": 77, "bf16": 68, "fp16": 68}.get(name, 69), 0)
    in_fp32 = 2 if name in ("bf16", "fp16") else 7
    assert library.preferences == {"MAX_WORKSPACE_BYTES": 32 << 20, "REDUCTION_SCHEME_MASK": in_fp32}
    assert library.asked == [cublaslt.ALGORITHMS]


def test_a_wrong_algorithm_is_seen(context: Context, library: FakeCublasLt) -> None:
    library.algorithms = [Algorithm(2.0), Algorithm(1.0, wrong=True)]
    _, verdict = prepared(context, Gemm(M=5, N=7, K=3))
    assert not verdict.ok and verdict.bad == 1


def test_what_fails_is_skipped(context: Context, library: FakeCublasLt) -> None:
    library.algorithms = [
        Algorithm(1.0, fails=True),
        Algorithm(0.5, state=15),
        Algorithm(3.0),
        Algorithm(2.0),
    ]
    text, verdict = prepared(context, Gemm(M=5, N=7, K=3))
    assert verdict.ok and library.runs[-1][0] == 3
    assert text.startswith("fastest of 2 that run of 4 that the heuristic names, 1.50x the first:")


@pytest.mark.parametrize(
    ("algorithms", "said"),
    [
        ([], "names no algorithm for 5x7x3"),
        (
            [Algorithm(fails=True)] * 3,
            "none of the 3 algorithms .* 5x7x3 runs; the last: cublasLtMatmul failed: .*EXECUTION_FAILED",
        ),
        ([Algorithm(state=15)], r"the last: CUBLAS_STATUS_NOT_SUPPORTED \(15\), says the heuristic"),
    ],
)
def test_none_usable_is_an_error(
    context: Context, library: FakeCublasLt, algorithms: list[Algorithm], said: str
) -> None:
    library.algorithms = algorithms
    with pytest.raises(HarnessError, match=said):
        prepared(context, Gemm(M=5, N=7, K=3))


@pytest.mark.parametrize(
    "name",
    [
        "Create", "MatmulDescCreate", "MatrixLayoutCreate", "MatmulPreferenceCreate",
        "MatmulPreferenceSetAttribute", "MatmulAlgoGetHeuristic", "MatmulAlgoConfigGetAttribute",
    ],
)  # fmt: skip
def test_a_failing_call_is_named_and_leaks_nothing(
    context: Context, library: FakeCublasLt, name: str
) -> None:
    def refuse(*_: int) -> None:
        raise Refused(Status.NOT_SUPPORTED)

    setattr(library, f"cublasLt{name}", refuse)
    with pytest.raises(HarnessError, match=rf"cublasLt{name} failed: .*NOT_SUPPORTED"):
        prepared(context, Gemm(M=5, N=7, K=3))


def test_a_fault_ends_it(context: Context, library: FakeCublasLt, driver: TimedDriver) -> None:
    """It is the driver's to name, and no reason to try the next algorithm."""

    def fault(*_: int) -> None:
        driver.sticky = 700
        raise Refused(Status.EXECUTION_FAILED)

    library.cublasLtMatmul = fault  # type: ignore[method-assign]
    try:
        with pytest.raises(ContextLost, match="ILLEGAL_ADDRESS"):
            prepared(context, Gemm(M=5, N=7, K=3))
    finally:
        driver.sticky = 0
    kinds = [kind for kind, _ in library.live.values()]
    assert kinds == ["handle"], "of a lost context that is not given back; descriptors are the host's"
    library.live.clear()
    driver.live.clear()


def test_without_the_library(context: Context, driver: TimedDriver) -> None:
    with pytest.raises(MissingDependency, match="cublasLt cannot be loaded: none here") as caught:
        cublaslt.CuBlasLt(context)
    assert caught.value.hint == cublas_bindings.INSTALL
    assert not any(kind == "memory" for kind, _ in driver.live)


# -- the command


def harness(*args: str) -> Result:
    result = CliRunner().invoke(main, list(args), env={"COLUMNS": None})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def gpu(driver: TimedDriver, monkeypatch: pytest.MonkeyPatch) -> TimedDriver:
    driver.functions = {"matmul": fake_gemm.SIZES, "copy": (8, 8, 8)}
    driver.execute = fake_gemm.gemm
    fake_gemm.without_small_tiles(monkeypatch)  # which have one more parameter
    none = HarnessError("a fake GPU has none")
    monkeypatch.setattr("harness.bench.ceilings.measured", lambda *_: (_ for _ in ()).throw(none))
    return driver


FAST = ("--min-time", "0.005", "--timeout", "0.05")


@pytest.mark.parametrize("kernel", ["tiled", "matmul"])
@pytest.mark.slow
def test_a_row_beside_cublas(gpu: TimedDriver, library: FakeCublasLt, tmp_path: Path, kernel: str) -> None:
    path = tmp_path / "r.json"
    chosen = ("--dtype", "fp32") if kernel == "matmul" else ()
    library.algorithms = library.algorithms[:3]
    result = harness("bench", kernel, *chosen, "--cublaslt", "-a", "N=16", "--json", str(path), *FAST)
    assert result.exit_code == 0, result.output
    content = record.load(path)
    theirs, best, mine = content["rows"]
    assert [r["kernel"] for r in (theirs, best)] == ["cuBLAS", "cuBLASLt"]
    assert [r["baseline"] for r in content["rows"]] == [True, False, False]
    assert best["status"] == "ok" and best["seconds"] == pytest.approx(1.5e-3)
    assert best["against"] == mine["against"] == "cuBLAS"
    assert best["speedup"]["estimate"] == pytest.approx(2 / 1.5)
    assert (
        best["algorithm"].startswith("fastest of 3 that") and theirs["algorithm"] is mine["algorithm"] is None
    )
    assert content["meta"]["gpu"]["cublaslt"] == "13.1.2"
    said = " ".join(result.stdout.split())
    assert "cuBLASLt: fastest of 3 that the heuristic names, 2.00x the first: algorithm 66" in said
    assert re.search(r"^cuBLASLt +1\.50 ms", result.stdout, re.MULTILINE)


def test_no_row_without_the_option(gpu: TimedDriver, library: FakeCublasLt, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    assert harness("bench", "tiled", "-a", "N=16", "--json", str(path), *FAST).exit_code == 0
    assert [r["kernel"] for r in record.load(path)["rows"]] == ["cuBLAS", "03_tiled"]
    assert not library.created


@pytest.mark.slow
def test_what_reads_records_knows_the_row(gpu: TimedDriver, library: FakeCublasLt, tmp_path: Path) -> None:
    """It is no kernel to choose; of two runs it is the same code only where the algorithm is."""
    files = [tmp_path / name for name in ("a.json", "b.json", "c.json")]
    for path in files:
        if path.name == "c.json":
            library.algorithms = [Algorithm(1.0, configuration=NAMED[1:])]
        command = ("bench", "tiled", "--cublaslt", "-a", "N=16", "--json", str(path), *FAST)
        assert harness(*command).exit_code == 0
    (rows,) = fastest.measured(files).values()
    assert [r["kernel"] for r in rows] == ["03_tiled"]
    first, second, third = map(record.load, files)

    def identical(a: record.Record, b: record.Record) -> dict[str, bool]:
        return {d.label: d.identical for d in comparison.compare(a, b, threshold=0.01)}

    assert identical(first, second)["cuBLASLt"] and not identical(first, third)["cuBLASLt"]
    assert identical(first, third)["cuBLAS"]


def test_a_failing_row_costs_itself_only(gpu: TimedDriver, library: FakeCublasLt, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    library.algorithms = []
    result = harness("bench", "tiled", "--cublaslt", "-a", "N=16", "--json", str(path), *FAST)
    assert result.exit_code == 1 and "names no algorithm for 16" in result.stdout
    assert [r["status"] for r in record.load(path)["rows"]] == ["ok", "error", "ok"]


@pytest.mark.slow
def test_isolated_kernels_share_one_row(
    gpu: TimedDriver, library: FakeCublasLt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kernel's process is told of the option, and measures cuBLASLt as it does cuBLAS."""
    told = []

    def run_child(command: list[str], timeout: float) -> isolation.Outcome:
        told.append("--cublaslt" in command)
        lines = tmp_path / f"rows{len(told)}"
        assert harness(*command[3:], "--rows", str(lines)).exit_code == 0
        about, *rows = map(json.loads, lines.read_text().splitlines())
        return isolation.Outcome(rows=tuple(rows), about=about, error="")

    monkeypatch.setattr(isolation, "run_child", run_child)
    path = tmp_path / "r.json"
    command = ("bench", "tiled", "coalesced", "-a", "N=16", "--isolate", "--json", str(path), *FAST)
    assert harness(*command, "--cublaslt").exit_code == 0 and told == [True, True]
    names = [r["kernel"] for r in record.load(path)["rows"]]
    assert sorted(names) == ["02_coalesced", "03_tiled", "cuBLAS", "cuBLASLt"]
    assert harness(*command).exit_code == 0 and told[2:] == [False, False]


def test_with_ref_or_without_the_library(gpu: TimedDriver) -> None:
    result = harness("bench", "tiled", "--cublaslt", "--ref", "coalesced", "-a", "N=16")
    assert result.exit_code == 2 and "--cublaslt" in result.stderr and "one of the two" in result.stderr
    result = harness("bench", "tiled", "--cublaslt", "-a", "N=16", *FAST)
    assert result.exit_code == 1 and "cublasLt cannot be loaded" in result.stderr
    assert cublas_bindings.INSTALL in result.stderr


def test_in_the_emulator_it_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.driver import api
    from harness.errors import NoDriver

    monkeypatch.setattr(api, "init", lambda: (_ for _ in ()).throw(NoDriver("libcuda was not found")))
    result = harness("bench", "tiled", "--cublaslt", "-a", "N=16")
    assert result.exit_code == 0 and "nothing is timed here: --cublaslt had no effect\n" in result.stdout
    assert "without" not in harness("bench", "tiled", "-a", "N=16").stdout
    result = harness("bench", "tiled", "--ref", "naive", "-a", "N=16", "--isolate", "--rounds", "5")
    assert result.exit_code == 3, "which is the faster cannot be told"
    assert "nothing is timed here: --ref, --isolate, --rounds had no effect\n" in result.stdout
