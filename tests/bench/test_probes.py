"""Probes of the machine, on a fake one: graphs, the clock, ceilings, other instruments."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
import json
import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fakes import driver as fake_driver
from fakes import gemm as fake_gemm
from harness.bench import ceilings, measure
from harness.bench.ceilings import Ceiling, Ceilings
from harness.bench.nvml import Telemetry
from harness.bench.row import IMPOSSIBLE, OK
from harness.bench.session import Bench
from harness.bench.stopping import StopRule
from harness.bench.timing import ClockProbe, EventTimer, Work
from harness.cli import main
from harness.driver import BorrowedStream, Context, Device, Event, Gate, Graph, Module, Stream
from harness.errors import DriverError, HarnessError, UsageError
from harness.instruments import calibration
from harness.kernels import catalog
from harness.kernels.arch import Arch
from harness.kernels.compiler import compile_kernel
from harness.kernels.dtypes import DTYPES
from harness.launch.builds import build_all
from harness.launch.kernel import Launch
from harness.launch.operands import Operands
from harness.problems.copy import Copy
from harness.problems.fma import CHAINS, Fma
from harness.problems.gemm import GEMMS, Gemm
from harness.problems.mma import COLUMNS, DEPTH, ROWS
from harness.results import record
from harness.support.cache import Cache
from shared.places import ROOT

MATRIX = {
    name: Ceiling(rate=rate, sm_hz=1.98e9) for name, rate in (("fp16", 12e9), ("bf16", 11e9), ("tf32", 5e9))
}
FEW = StopRule(min_time=0, warmup=1e-6, settle=1e-6, max_samples=100, min_blocks=3)


def kernels(launch: Any) -> None:
    """The kernels that measure ceilings, in NumPy, and GEMM."""
    if launch.function == "matmul":
        fake_gemm.gemm(launch)
    elif launch.function == "copy":
        source, target, n = (int.from_bytes(a, "little") for a in launch.args)
        ctypes.memmove(target, source, 4 * n)
    elif launch.function == "chains":
        a, b, y, steps = struct.unpack("=QQQi", b"".join(launch.args))
        tiles = launch.grid[1]

        def array(address: int, *shape: int) -> Any:
            count = math.prod(shape)
            return np.frombuffer((ctypes.c_float * count).from_address(address), np.float32).reshape(shape)

        product = array(a, tiles, ROWS, DEPTH) @ array(b, tiles, DEPTH, COLUMNS)
        array(y, tiles, ROWS, COLUMNS)[:] = steps * product
    else:
        x, y, a, b, n, steps = struct.unpack("=QQffii", b"".join(launch.args))
        s = np.frombuffer((ctypes.c_float * n).from_address(x), np.float32) + np.arange(CHAINS)[:, None]
        out = np.frombuffer((ctypes.c_float * n).from_address(y), np.float32)
        out[:] = (a**steps * s + (1 - a**steps) * b / (1 - a)).sum(axis=0)


def limits(matrix: dict[str, Ceiling] | None = None) -> Ceilings:
    """Return ceilings of 1 GFLOP/s and 1 TB/s."""
    flops, bandwidth = Ceiling(rate=1e9, sm_hz=1.98e9), Ceiling(rate=1e12, sm_hz=None)
    return Ceilings(flops=flops, bandwidth=bandwidth, matrix=matrix or {})


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> fake_driver.FakeDriver:
    fake = fake_driver.install(monkeypatch)
    fake.functions = {
        "matmul": fake_gemm.SIZES,
        "copy": (8, 8, 8),
        "ffma": (8, 8, 4, 4, 4, 4),
        "chains": (8, 8, 8, 4),
    }
    fake.execute = kernels
    fake.device_attributes["CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE"] = 1 << 20
    return fake


@pytest.fixture
def context(fake: fake_driver.FakeDriver) -> Iterator[Context]:
    with Context(Device.open()) as context:
        yield context


# ---- graphs ----------------------------------------------------------------------------------------


def test_a_graph_runs_what_was_captured_and_only_when_launched(context: Context, fake: Any) -> None:
    run = prepared(context)
    with Stream(context) as stream:
        with Graph(stream, lambda s: [run(s) for _ in range(3)]) as graph:
            assert not fake.launches
            graph(stream)
            graph(stream)
            assert len(fake.launches) == 6
            with pytest.raises(UsageError, match="a Stream is needed"):
                graph(None)  # type: ignore[arg-type]
        assert [kind for kind, _ in fake.live if kind in ("graph", "executable")] == []


def prepared(context: Context) -> Any:
    from harness.driver import Module

    fake_function = Module(context, b"cubin").function("copy")
    return fake_function.prepare(1, 1, [np.uint64(0), np.uint64(0), np.int64(0)])


def test_a_capture_that_fails_is_ended(context: Context, fake: Any) -> None:
    with Stream(context) as stream:

        def wrong(_stream: Stream) -> None:
            raise ValueError("mine")

        with pytest.raises(ValueError, match="mine"):
            Graph(stream, wrong)
        assert fake.names()[-2:] == ["cuStreamEndCapture", "cuGraphDestroy"]
        fake.fail("cuGraphInstantiate", 2)
        with pytest.raises(DriverError):
            Graph(stream, lambda _: None)
        assert not [kind for kind, _ in fake.live if kind in ("graph", "executable")]


def test_nothing_is_captured_behind_a_closed_gate(context: Context) -> None:
    with (
        Stream(context) as stream,
        Gate(context) as gate,
        gate.holding(stream),
        pytest.raises(UsageError, match="closed Gate"),
    ):
        Graph(stream, lambda _: None)


def test_a_borrowed_stream_is_not_destroyed(context: Context, fake: Any) -> None:
    fake_stream = BorrowedStream(context, 77)
    Event(context).record(fake_stream)
    fake_stream.close()
    assert "cuStreamDestroy" not in fake.names()


# ---- clock and timer -------------------------------------------------------------------------------


def test_the_clock_is_cycles_over_nanoseconds(context: Context, fake: Any) -> None:
    fake.sm_ghz = 1.755
    with Stream(context) as stream, ClockProbe(context) as probe:
        assert probe.hertz() is None  # nothing yet
        probe.start(stream)
        probe.end(stream)
        assert probe.hertz() == pytest.approx(1.755e9)
        probe.reset()
        probe.end(stream)  # no SM was seen at both ends
        assert probe.hertz() is None


def test_a_span_of_few_steps_of_the_timer_is_no_measurement(context: Context, fake: Any) -> None:
    with Stream(context) as stream, ClockProbe(context) as probe:
        probe.start(stream)
        probe.end(stream)
        probe._entries[1, 0, 1] = probe._entries[0, 0, 1] + 5_000
        assert probe.hertz() is None


def test_the_event_timer(context: Context, fake: Any) -> None:
    run = prepared(context)
    with Stream(context) as stream, EventTimer(context, stream, Telemetry(context.device.uuid)) as timer:
        batch = timer.batch(Work(run), 5)
        assert batch.times == pytest.approx([1.5e-3] * 5) and len(fake.launches) == 5
        assert batch.sm_hz == pytest.approx(1.98e9) and batch.clock_share == pytest.approx(1.0)
        assert batch.wall is None and batch.reading is None  # it was done before NVML had answered
        batch = timer.batch(Work(run), 1)
        assert batch.wall is not None and 0 < batch.wall < 1
        fake.launches.pop()
        assert timer.overhead() == pytest.approx(1.5e-3) and len(fake.launches) == 5
        with Graph(stream, lambda s: [run(s) for _ in range(4)]) as graph:
            waits = len(fake.waits)
            batch = timer.batch(Work(graph, 4), 3)
        assert batch.times == pytest.approx([1.5e-3 / 4] * 3)
        assert len(fake.launches) == 5 + 4 * 4 and len(fake.waits) == waits  # one untimed run, no gate


# ---- ceilings --------------------------------------------------------------------------------------


def test_the_fma_problem_is_what_the_kernel_does() -> None:
    problem = Fma(N=50, K=300)
    inputs = problem.inputs(1)
    _, _, a, b, _, _ = problem.arguments()
    chains = inputs["x"][:, None] + np.arange(CHAINS, dtype=np.float32)
    for _ in range(problem.K):
        chains = (a * chains + b).astype(np.float32)
    got, reference = chains.sum(axis=1), problem.reference(inputs)
    assert np.all(np.abs(got - reference.expected) <= reference.bound)
    skipped = Fma(N=50, K=290).reference(inputs).expected  # ten steps left out are seen
    assert np.mean(np.abs(skipped - reference.expected) > reference.bound) > 0.9
    assert problem.flops == 2 * CHAINS * 50 * 300
    with pytest.raises(UsageError):
        Fma(N=0, K=1)


@pytest.mark.slow
def test_ceilings_are_measured_once(
    context: Context, fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "_RULE", FEW)
    cache = Cache(tmp_path)
    with Stream(context) as stream, EventTimer(context, stream, Telemetry(context.device.uuid)) as timer:
        found = ceilings.measured(context, stream, timer, cache)
        launches = len(fake.launches)
        assert launches > 20 and ceilings.measured(context, stream, timer, cache) == found
        assert len(fake.launches) == launches
    assert found.flops.rate == pytest.approx(2 * CHAINS * 132 * 2048 * 2**15 / 1.5e-3)
    assert found.bandwidth.rate == pytest.approx(8 * 2**22 / 1.5e-3)
    assert found.flops.sm_hz == pytest.approx(1.98e9) and found.bandwidth.sm_hz is None
    assert list(found.matrix) == ["fp16", "bf16", "tf32"]
    products = 2 * ROWS * COLUMNS * DEPTH * (2 * 132) * 2**13
    assert all(m.rate == pytest.approx(products / 1.5e-3) for m in found.matrix.values())


@pytest.mark.slow
def test_a_wrong_ceiling_is_no_ceiling(
    context: Context, fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "_RULE", FEW)
    fake.execute = lambda _: None
    with (
        Stream(context) as stream,
        EventTimer(context, stream, Telemetry(context.device.uuid)) as timer,
        pytest.raises(HarnessError, match="ceiling's own kernel ffma .* is wrong"),
    ):
        ceilings.measured(context, stream, timer, Cache(tmp_path))


def test_a_ceiling_rises_with_the_clock_and_never_falls() -> None:
    ceiling = Ceiling(rate=60e12, sm_hz=1.8e9)
    assert ceiling.at(1.98e9) == pytest.approx(66e12) and ceiling.at(1e9) == ceiling.at(None) == 60e12


@pytest.mark.parametrize(("share", "status"), [(1.01, OK), (1.05, IMPOSSIBLE)])
def test_above_the_measured_ceiling_is_impossible(
    context: Context, cache: Cache, fake: Any, monkeypatch: pytest.MonkeyPatch, share: float, status: str
) -> None:
    monkeypatch.setattr(ceilings, "measured", lambda *_: limits())
    fake.milliseconds = 1e3 * 2 * 32**3 / (share * 1e9)
    built, _ = build_all([catalog.kernel("tiled").variant()], ["sm_90a"], cache, lambda _: None)
    with Bench(context, rule=FEW, limits=True) as session:
        (row,) = session.rows(built, {Gemm: [{"N": 32}]}, lambda _: None)
    assert row.status == status
    if status == OK:
        assert row.of_ceiling == pytest.approx(share)
    else:
        assert row.of_ceiling is None and "above this card's measured ceiling" in row.detail


@pytest.mark.parametrize(("share", "status"), [(1.01, OK), (1.05, IMPOSSIBLE)])
@pytest.mark.parametrize("matrix", [{}, MATRIX], ids=["multiples of FFMA", "measured"])
@pytest.mark.parametrize(("dtype", "peaks"), [("bf16", 16), ("tf32", 8), ("3xtf32", 8 / 3)])
def test_the_ceiling_of_a_type_is_that_of_its_units(
    context: Context,
    fake: Any,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    peaks: float,
    matrix: dict[str, Ceiling],
    share: float,
    status: str,
) -> None:
    """cuBLAS on tensor cores, of whose code nothing is known: not impossible till there, and not beyond."""
    monkeypatch.setattr(ceilings, "measured", lambda *_: limits(matrix))
    rate = {"bf16": 11e9, "tf32": 5e9, "3xtf32": 5e9 / 3}[dtype] if matrix else peaks * 1e9
    fake.milliseconds = 1e3 * 2 * 32**3 / (share * rate)
    kernel = fake_gemm.TypedGemm()
    kernel.dtype = DTYPES[dtype]
    problem = GEMMS[dtype](M=32, N=32, K=32)
    module = Module(context, b"cubin")
    with (
        Bench(context, rule=FEW, limits=True) as session,
        Operands(context, problem, session.stream, seed=1, sets=1) as operands,
    ):
        fake.functions, fake.execute = {"matmul": fake_gemm.SIZES}, kernel
        copy = operands.buffers[0]
        arguments = [copy[a] if isinstance(a, str) else a for a in problem.arguments()]
        run = Launch("cuBLAS", operands, [module.function("matmul").prepare(1, 32, arguments)])
        one = SimpleNamespace(label="cuBLAS", built=None, prepare=lambda _: run)
        row = measure.measure(one, operands, session.stream, session.timer, session.method)
    assert (row.status, row.peaks, row.dtype) == (status, peaks, dtype)
    if status == OK:
        assert row.of_ceiling == pytest.approx(share)


# ---- the slowed kernel, the self-test, other instruments -------------------------------------------


@pytest.mark.slow
def test_the_slowed_kernel_has_the_same_instructions(cache: Cache) -> None:
    from harness.sass.instructions import disassemble

    kernel, arch = catalog.kernel("slowed"), str(Arch.parse("sm_90a"))
    codes = [compile_kernel(kernel.variant(SLOW=slow), arch, cache) for slow in (0, 10, 30)]
    assert len({disassemble(code, cache).sha256 for code in codes}) == 1
    assert len({code.sha256 for code in codes}) == 3  # the constant differs


def test_the_extra_tiles_are_the_share_they_claim() -> None:
    """The kernel's own integer arithmetic, for every block of a 2048 x 2048 product."""
    tiles, blocks = 128, np.arange(128 * 128, dtype=np.uint64)
    mixed = (blocks * 2654435769 % 2**32) >> np.uint64(16)
    for slow in (0, 10, 30):
        extra = (tiles * slow + mixed.astype(np.int64) * 1000 // 65536) // 1000
        assert extra.mean() / tiles == pytest.approx(slow / 1000, rel=0.01)
        assert extra.max() - extra.min() <= 1


@pytest.mark.slow
def test_selftest(fake: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    args = ["selftest", "-a", "N=16", "--runs", "4", "--only", "noise", "--json", str(path)]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 1, result.output  # on a fake GPU the slowed kernel is not slower
    assert "a kernel slowed by 3% is called SLOW in 0% only" in result.stdout
    assert "an empty pair of events takes 1500.00 us" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 90
    (row,) = record.load(path)["rows"]
    assert [t["slowdown"] for t in row["trials"]] == [0, 0.01, 0.03] and row["trials"][0]["called"] == 0
    assert [len(t["intervals"]) for t in row["trials"]] == [4, 2, 2]


@pytest.mark.exhaustive
def test_selftest_without_the_other_instruments(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    args = ["selftest", "-a", "N=16", "--only", "calibration", "--json", str(tmp_path / "r.json")]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.output
    assert "cuda-bench: cuda-bench is not installed" in result.stdout and "ncu: ncu is not" in result.stdout
    (row,) = record.load(tmp_path / "r.json")["rows"]
    assert (row["kernel"], row["ncu"], row["cuda-bench"]) == ("tiled", None, None)
    assert row["cold"] == pytest.approx(1.5e-3) and row["graph"] < row["cold"]


def test_what_ncu_prints_is_read() -> None:
    head = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
    line = '"0","1","matmul","gpu__time_duration.sum","{}","1,234,000"\n'
    text = f"==PROF== Connected to process 1\n{head}{line.format('ns')}{line.format('nsecond')}"
    assert calibration.durations(text) == pytest.approx([1.234e-3, 1.234e-3])
    assert calibration.durations("==ERROR== ERR_NVGPUCTRPERM") == []
    with pytest.raises(HarnessError, match="in us, not in ns"):
        calibration.durations(head + line.format("us"))


def test_an_instrument_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, context: Context) -> None:
    case = calibration.Case(kernel="tiled", n=16)
    script = "import sys; print('no permission', file=sys.stderr); sys.exit(9)"
    monkeypatch.setattr("shutil.which", lambda _: "ncu")
    monkeypatch.setattr(calibration, "_entry", lambda *_: script)
    run = calibration._run
    monkeypatch.setattr(calibration, "_run", lambda command, device: run(command[-3:], device))
    with pytest.raises(HarnessError, match="ended with code 9: no permission"):
        calibration.ncu_seconds(case, context.device)
    seen = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    assert run([os.sys.executable, "-c", seen], context.device).strip() == context.device.uuid  # type: ignore


# ---- the cost of a launch --------------------------------------------------------------------------


def test_launch_cost(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a fake GPU only ours can work; the others are named with their reasons."""
    fake.functions["nothing"], fake.execute = (8, 8, 8, 4, 4, 4, 4, 4), None
    spec = importlib.util.spec_from_file_location("launch_cost", ROOT / "benchmarks" / "launch_cost.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(importlib.sys.modules, "launch_cost", script)  # type: ignore[attr-defined]
    spec.loader.exec_module(script)
    monkeypatch.setattr("sys.argv", ["launch_cost.py", "--rounds", "2", "--json", str(tmp_path / "r.json")])
    assert script.main() == 0
    printed = capsys.readouterr().out
    assert "harness " in printed and printed.count("left out: ") == 3
    content = json.loads((tmp_path / "r.json").read_text())
    assert [r["peer"] for r in content["rows"]] == ["harness"] and content["rows"][0]["median"] > 0
    assert len(fake.launches) == 1 + 2 * 300


@pytest.mark.parametrize(
    ("name", "matrix", "most", "measured"),
    [
        ("fp32", False, 1, 1), ("fp32", True, 16 / 3, 4), ("3xtf32", True, 16 / 3, 4), ("tf32", True, 16, 12),
        ("tf32", False, 8, 5), ("3xtf32", False, 8 / 3, 5 / 3), ("bf16", True, 16, 12),
        ("fp16", True, 16, 12),
        ("bf16", False, 16, 11),
    ],
)  # fmt: skip
def test_matrix_instructions_count_as_far_as_the_accuracy_allows(
    context: Context, name: str, matrix: bool, most: float, measured: float
) -> None:
    problem, device = GEMMS[name](M=8, N=8, K=8), context.device
    for known, expected in ((limits(), most), (limits(MATRIX), measured)):
        assert known.believable(problem, device, matrix=matrix).rate == pytest.approx(1e9 * expected)
    assert limits(MATRIX).of(Copy(N=8), device) == limits().bandwidth


@pytest.mark.parametrize(("share", "status"), [(1.01, OK), (1.05, IMPOSSIBLE)])
def test_matrix_instructions_are_no_excuse_for_any_rate(
    context: Context, cache: Cache, fake: Any, monkeypatch: pytest.MonkeyPatch, share: float, status: str
) -> None:
    """A float32 kernel that executes them cannot be faster than three products of fp16."""
    monkeypatch.setattr(ceilings, "measured", lambda *_: limits())
    monkeypatch.setattr(measure, "_multiplies_matrices", lambda *_: True)
    fake.milliseconds = 1e3 * 2 * 32**3 / (share * 16 / 3 * 1e9)
    built, _ = build_all([catalog.kernel("tiled").variant()], ["sm_90a"], cache, lambda _: None)
    with Bench(context, rule=FEW, limits=True) as session:
        (row,) = session.rows(built, {Gemm: [{"N": 32}]}, lambda _: None)
    assert row.status == status


MMA = """\
// Multiplies in float32, and has an mma.sync that it {what}
// /// kernel
// entry = "matmul"
// problem = "gemm"
// block = [16, 16]
// tile = [16, 16]
// ///
extern "C" __global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K,
                                  int lda, int ldb, int ldc, float alpha, float beta)
{{
    unsigned a = 0;
    float c[4] = {{}};
    if (K {when})
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                     "{{%0, %1, %2, %3}}, {{%4, %4}}, {{%4}}, {{%0, %1, %2, %3}};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a));
    int m = blockIdx.y * 16 + threadIdx.y, n = blockIdx.x * 16 + threadIdx.x;
    if (m >= M || n >= N) return;
    float sum = c[0];
    for (int k = 0; k < K; ++k) sum += A[m * lda + k] * B[k * ldb + n];
    C[m * ldc + n] = alpha * sum + (beta ? beta * C[m * ldc + n] : 0.f);
}}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "when", "executed"), [("executes", "> 0", True), ("never executes", "< 0", False)]
)
def test_matrix_instructions_count_if_they_are_executed(
    cache: Cache, tmp_path: Path, what: str, when: str, executed: bool
) -> None:
    path = tmp_path / "kernel.cu"
    path.write_text(MMA.format(what=what, when=when))
    (built,), _ = build_all([catalog.kernel(str(path)).variant()], ["sm_90a"], cache, lambda _: None)
    assert measure._multiplies_matrices(built, Gemm) is executed
    unknown = dataclasses.replace(built, sass=None, tally=None)
    assert measure._multiplies_matrices(unknown, Gemm) and not measure._multiplies_matrices(None, Gemm)
