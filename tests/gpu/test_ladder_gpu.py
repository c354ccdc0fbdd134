"""The ladder on a real GPU: numbers, faults, memory."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

from harness.bench import ceilings, measure, sampling
from harness.bench.nvml import Telemetry
from harness.bench.row import EXPECTED, OK, REGIMES
from harness.bench.session import Bench
from harness.bench.stats import SLOW, decide
from harness.bench.stopping import StopRule
from harness.bench.timing import EventTimer, Work
from harness.driver import Context, Module, Stream
from harness.errors import MissingDependency, OutOfMemory
from harness.kernels import catalog
from harness.kernels.arch import Arch
from harness.kernels.compiler import compile_kernel
from harness.kernels.spec import Kernel, Variant
from harness.launch import builds, cublas
from harness.launch import kernel as launch
from harness.launch.operands import Operands
from harness.problems.copy import Copy
from harness.problems.fma import Fma
from harness.problems.gemm import GEMMS, Gemm
from harness.problems.mma import Mma
from harness.problems.registry import resolve
from harness.results import record
from harness.support.cache import Cache
from shared.kernels import BODY, parameter_sets

pytestmark = pytest.mark.gpu

KERNELS = catalog.shipped()
CORRECT = [k for k in KERNELS if not k.broken and k.problem == "gemm"]

# Around every tile size, K shorter than a tile, single rows and columns, padding, alpha and beta.
SHAPES: list[dict[str, Any]] = [
    *({"M": m, "N": n, "K": k} for m in (31, 33, 64, 65) for n in (1, 63, 128) for k in (1, 15, 17, 40)),
    {"M": 127, "N": 129, "K": 255, "lda": 260, "ldb": 131, "ldc": 144, "alpha": 0.7, "beta": 0.3},
    {"M": 1, "N": 500, "K": 1000, "beta": -1.0},
    {"M": 500, "N": 1, "K": 7, "alpha": 0.0, "beta": 1.0},
    {"M": 200, "N": 100, "K": 50, "alpha": 0.0},
    {"N": 512, "alpha": -2.0, "beta": 2.0},
]


def sets(kernel: Kernel) -> list[Variant]:
    """Every GPU gives as many as the one of the records."""
    return list(parameter_sets(kernel, "sm_90a"))


def stored(shape: dict[str, Any], layout: tuple[int, int]) -> dict[str, Any]:
    """The shape with operands in the layout that a kernel is compiled for, padded as much as they were."""
    if layout == (0, 0):
        return shape
    padded = {"lda": 263, "ldb": 267} if "lda" in shape else {}
    return {**shape, **padded, "transa": layout[0], "transb": layout[1]}


def arch(gpu: Context) -> str:
    return str(Arch.of_capability(*gpu.device.capability))


@pytest.mark.parametrize("kernel", CORRECT, ids=lambda k: k.name)
def test_every_rung_on_every_shape(gpu: Context, cache: Cache, kernel: Kernel) -> None:
    built, _ = builds.build_all(sets(kernel), [arch(gpu)], cache, lambda _: None)
    layouts: dict[tuple[int, int], list[builds.Built]] = {}
    for one in built:
        params = one.variant.params
        layouts.setdefault((params.get("TRANSA", 0), params.get("TRANSB", 0)), []).append(one)
    rows = []
    with Bench(gpu, rule=None) as session:
        for layout, some in layouts.items():
            points = {resolve(kernel): [stored(shape, layout) for shape in SHAPES]}
            rows += session.rows(some, points, lambda _: None)
    assert len(rows) == len(built) * len(SHAPES)
    assert not [f"{r.label} {r.problem.label}: {r.detail}" for r in rows if r.status != OK]


def test_copy(gpu: Context, cache: Cache) -> None:
    kernel = catalog.kernel("copy")
    built, _ = builds.build_all(list(kernel.variants()), [arch(gpu)], cache, lambda _: None)
    points = [{"N": n} for n in (1, 3, 4, 4095, 4096, 4097, 1 << 20)]
    with Bench(gpu, rule=None) as session:
        rows = list(session.rows(built, {Copy: points}, lambda _: None))
    assert {r.status for r in rows} == {OK}


def test_the_race_is_seen(gpu: Context, cache: Cache) -> None:
    """The check's positive control: a kernel that is wrong on hardware does not pass, nor get a time."""
    built, _ = builds.build_all(
        [catalog.kernel("tiled_no_sync").variant()], [arch(gpu)], cache, lambda _: None
    )
    with Bench(gpu, rule=StopRule()) as session:
        (row,) = session.rows(built, {Gemm: [{"N": 1024}]}, lambda _: None)
    assert (row.status, row.samples) == (EXPECTED, None)
    assert row.before is not None and row.before.bad > 1000


def test_cublas_agrees_and_is_not_tf32(gpu: Context) -> None:
    problem = Gemm(M=300, N=500, K=2048, lda=2050, ldb=512, ldc=504, alpha=0.7, beta=0.3)
    try:
        baseline = cublas.CuBlas(gpu)
    except MissingDependency as e:
        pytest.skip(e.what)
    with baseline, Stream(gpu) as stream, Operands(gpu, problem, stream, seed=1, sets=2) as operands:
        verdict = measure.check(baseline.prepare(operands), stream, sets=2)
    assert verdict.ok and verdict.worst < 0.5


@pytest.mark.alone
def test_a_timed_row(gpu: Context, cache: Cache) -> None:
    built, _ = builds.build_all([catalog.kernel("tiled").variant()], [arch(gpu)], cache, lambda _: None)
    with Bench(gpu, rule=StopRule()) as session:
        small, large = session.rows(built, {Gemm: [{"N": 512}, {"N": 1024}]}, lambda _: None)
    assert small.status == large.status == OK
    assert small.cold and small.sets > 2
    assert 6 < large.seconds / small.seconds < 10  # eight times the work
    assert small.occupancy == 1.0


def test_the_calculated_occupancy_is_the_drivers(gpu: Context, cache: Cache) -> None:
    variants = [v for k in KERNELS for v in sets(k)]
    built, _ = builds.build_all(variants, [arch(gpu)], cache, lambda _: None)
    assert len(built) > 40
    for one in built:
        module = Module(gpu, one.cubin.code)
        function = module.function(one.variant.kernel.entry)
        assert one.occupancy.fraction == function.occupancy(one.variant.threads, one.variant.shared), one
        module.close()


@pytest.mark.alone
def test_absurd_size_fails_before_any_allocation(gpu: Context, cache: Cache) -> None:
    free, _ = gpu.memory_info()
    with Stream(gpu) as stream, pytest.raises(OutOfMemory, match="GiB of device memory"):
        Operands(gpu, Gemm(M=10**6, N=10**6, K=10**6), stream, seed=1, sets=1)
    assert gpu.memory_info()[0] >= free - (4 << 20)


@pytest.mark.alone
def test_nothing_leaks(gpu: Context, cache: Cache) -> None:
    """Free memory is that of all processes of the GPU: another's memory comes and goes, a leak grows."""
    built, _ = builds.build_all([k.variant() for k in CORRECT], [arch(gpu)], cache, lambda _: None)

    def once() -> None:
        with Bench(gpu, rule=None) as session:
            points = {resolve(k): [{"N": 600}] for k in CORRECT}
            assert list(session.rows(built, points, lambda _: None))

    def lost(rounds: int) -> int:
        gpu.synchronize()
        free, _ = gpu.memory_info()
        for _ in range(rounds):
            once()
        gpu.synchronize()
        return free - gpu.memory_info()[0]

    once()
    assert min(lost(10), lost(10), lost(10)) < 1 << 20


@pytest.mark.alone
@pytest.mark.parametrize("cls", list(GEMMS.values()), ids=list(GEMMS))
def test_more_than_2_31_elements(gpu: Context, cache: Cache, cls: type[Gemm]) -> None:
    """A and C of 2^31 elements and more: an index that is an int anywhere wraps."""
    if gpu.memory_info()[0] < 40 << 30:
        pytest.skip("needs 40 GiB of free device memory")
    problem = cls(M=66_000, N=8, K=4, lda=33_000, ldc=33_000)
    assert problem.M * problem.lda > 2**31
    with Stream(gpu) as stream, Operands(gpu, problem, stream, seed=1, sets=1) as operands:
        for kernel in [k for k in CORRECT if resolve(k) is cls]:
            built, _ = builds.build_all([kernel.variant()], [arch(gpu)], cache, lambda _: None)
            with launch.prepare(built[0].cubin, operands) as run:
                operands.fill_output(stream)
                run(stream)
                (output,) = operands.outputs(stream)
            got = operands.reference.decode(output[:, :8])
            assert np.all(np.abs(got - operands.reference.expected) <= operands.reference.bound), kernel.name


def measured(row: Any) -> bool:
    """Return whether a row was measured, well or while other tests used this GPU."""
    return row["status"] == "ok" or "other programs use this GPU" in row["detail"]


def test_an_illegal_address_costs_its_row_only(tmp_path: Any, kernel_file: Any) -> None:
    """After a fault nothing on this GPU works any more in the process: the rest is measured in others."""
    bad = kernel_file(
        "wild.cu",
        body="""
extern "C" __global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K,
                                  int lda, int ldb, int ldc, float alpha, float beta)
{ C[1LL << 40] = 1; }
""",
    )
    out = tmp_path / "r.json"
    command = [sys.executable, "-m", "harness", "bench", "tiled", str(bad), "coalesced", "-a", "N=256"]
    done = subprocess.run([*command, "--json", str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr and "has a process of its own" in done.stderr
    rows = {row["kernel"]: row for row in record.load(out)["rows"]}
    assert "ILLEGAL_ADDRESS" in rows["wild"]["detail"] and "Traceback" not in done.stdout
    assert measured(rows["03_tiled"]) and measured(rows["02_coalesced"])


def test_the_readme_example_runs(tmp_path: Any) -> None:
    from shared.readme import python_blocks

    code = textwrap.dedent("\n".join(python_blocks()))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ok: worst error" in done.stdout


def test_resolve_is_total() -> None:
    assert {resolve(k) for k in KERNELS} == {*GEMMS.values(), Copy, Fma, Mma}


@pytest.mark.alone
def test_the_clock_agrees_with_nvml(gpu: Context) -> None:
    """Two counters of the same clock, under load."""
    with Stream(gpu) as stream, EventTimer(gpu, stream, Telemetry(gpu.device.uuid)) as timer:
        problem = Fma(N=gpu.device.sms * gpu.device.max_threads_per_sm, K=2**15)
        cubin = compile_kernel(catalog.kernel("ffma").variant(), arch(gpu))
        with (
            Operands(gpu, problem, stream, seed=1, sets=1) as operands,
            launch.prepare(cubin, operands) as run,
        ):
            sampling.warm_up(Work(run), timer, StopRule())
            batch = timer.batch(Work(run), 20)
    assert batch.sm_hz is not None and 0.3 < batch.sm_hz / gpu.device.clock_hz < 1.1
    if batch.reading is not None:
        assert batch.sm_hz == pytest.approx(batch.reading.sm_mhz * 1e6, rel=0.05)


@pytest.mark.alone
def test_ceilings_are_near_the_rated_peaks(gpu: Context, tmp_path: Any) -> None:
    with Stream(gpu) as stream, EventTimer(gpu, stream, Telemetry(gpu.device.uuid)) as timer:
        found = ceilings.measured(gpu, stream, timer, Cache(tmp_path))
    assert 0.5 < found.flops.rate / gpu.device.peak_fp32 < 1.2
    assert 0.5 < found.bandwidth.rate / gpu.device.peak_bandwidth < 1.1
    for name, rated in (("fp16", 16), ("bf16", 16), ("tf32", 8)):
        if gpu.device.capability[0] == 9:
            assert 0.6 < found.matrix[name].rate / (rated * gpu.device.peak_fp32) < 1.1, name


@pytest.mark.alone
def test_regimes(gpu: Context, cache: Cache) -> None:
    """A launch of tens of microseconds: without the events' cost in a graph, in the L2 cache when hot."""
    built, _ = builds.build_all([catalog.kernel("tiled").variant()], [arch(gpu)], cache, lambda _: None)
    seconds = {}
    for regime in REGIMES:
        with Bench(gpu, rule=StopRule(), regime=regime) as session:
            (row,) = session.rows(built, {Gemm: [{"N": 512}]}, lambda _: None)
        assert row.status == OK and row.regime == regime
        seconds[regime] = row.seconds
    assert seconds["graph"] < seconds["cold"] and seconds["hot"] < 1.02 * seconds["cold"]


@pytest.mark.alone
def test_a_kernel_against_itself_and_slowed(gpu: Context, cache: Cache) -> None:
    variants = [catalog.kernel("slowed").variant(SLOW=slow) for slow in (0, 30)]
    same, slower = builds.build_all(variants, [arch(gpu)], cache, lambda _: None)[0]
    with Bench(gpu, rule=StopRule(), baseline=same) as session:
        rows = list(session.rows([same, slower], {Gemm: [{"N": 1024}]}, lambda _: None))
    itself, slowed = rows[1].ratio, rows[2].ratio
    assert rows[1].identical and itself is not None and itself.estimate == pytest.approx(1, abs=0.01)
    assert slowed is not None and decide(slowed, 0.005) == SLOW
    assert slowed.estimate == pytest.approx(1.03, abs=0.015)


HANG = """
extern "C" __global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K,
                                  int lda, int ldb, int ldc, float alpha, float beta)
{ while (true) __nanosleep(1000); }
"""


@pytest.mark.parametrize("verb", ["bench", "verify"])
def test_a_fault_costs_its_row(tmp_path: Any, kernel_file: Any, verb: str) -> None:
    """At one of three sizes, and without --isolate: other processes go on."""
    out = tmp_path / "r.json"
    wild = kernel_file("wild.cu", body=BODY.replace("{", "{ if (N == 512) *(float*)8 = 1;", 1))
    command = [sys.executable, "-m", "harness", verb, str(wild), "tiled", "-a", "N=[256,512,1024]"]
    done = subprocess.run([*command, "--json", str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert " ".join(done.stderr.split()).count("each row that is left has a process of its own") == 1
    rows = {(r["kernel"], r["shape"]): r for r in record.load(out)["rows"]}
    bad = rows.pop(("wild", "512"))
    assert bad["status"] == "error" and "ILLEGAL_ADDRESS" in bad["detail"]
    assert all(measured(row) for row in rows.values())
    assert {(k, n) for k in ("wild", "03_tiled") for n in ("256", "512", "1024")} <= {*rows, ("wild", "512")}


def test_a_hang_and_a_fault_stay_in_their_processes(tmp_path: Any, kernel_file: Any) -> None:
    out = tmp_path / "r.json"
    wild = kernel_file("wild.cu", body=HANG.replace("while (true) __nanosleep(1000)", "C[1LL << 40] = 1"))
    hang = kernel_file("hang.cu", body=HANG)
    kernels = [str(wild), str(hang), "tiled"]
    options = ["-a", "N=256", "--isolate", "--kernel-timeout", "30", "--json", str(out)]
    command = [sys.executable, "-m", "harness", "bench", *kernels, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    rows = {r["kernel"]: r for r in record.load(out)["rows"]}
    assert rows["03_tiled"]["status"] == "ok" and rows["03_tiled"]["seconds"] > 0
    assert "ILLEGAL_ADDRESS" in rows["wild"]["detail"]
    assert "not done after 30 s, and killed" in rows["hang"]["detail"]
