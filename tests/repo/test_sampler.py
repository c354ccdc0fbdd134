"""benchmarks/shapes.py on the fake driver: what it times, verifies, refuses and resumes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fakes.cublaslt import Algorithm
from harness.dispatch import choose
from harness.emulator import Buffer, emulate
from harness.errors import ContextLost, HarnessError, UsageError
from harness.kernels import spec
from harness.kernels.compiler import compile_kernel
from harness.kernels.dtypes import DTYPES
from harness.problems.gemm import Gemm
from harness.results import record
from shared.places import ROOT
from shared.sampler_rig import LAYOUTS, PADDED, SMALL, Rig, compare, rig, run, some  # noqa: F401  (fixture)

sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "scripts"))

import shapes

from sampler import contest, pool, sides, tables
from sampler.heuristics import Heuristics


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [("tf32", "TN")]
    + [
        pytest.param(dtype, layout, marks=pytest.mark.slow)
        for dtype in ("fp32", "bf16")
        for layout in LAYOUTS[1:]
    ],
)
def test_layouts(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: str, layout: str) -> None:
    """Read where they lie, or copied: fake kernels read what their own parameters say."""
    transa, transb = (int(x == "T") for x in layout)
    axes = {**SMALL, "transa": transa, "transb": transb, "ldc": 48}
    code, (row,) = run(monkeypatch, tmp_path, {dtype: some(dtype, axes)})
    assert code == 0 and layout in row["classes"], row
    assert (row["transa"], row["transb"]) == (transa, transb)
    chosen = {launch.function for launch in rig.driver.launches} & set(LAYOUTS)
    assert chosen == {layout} or "transpose" in {launch.function for launch in rig.driver.launches}


@pytest.mark.parametrize(
    "dtype", ["bf16", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fp32", "tf32", "fp16"))]
)
def test_a_row_has_the_ratio(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours takes 1.5 ms, cuBLAS 2 and cuBLASLt 1.8, which is the faster one and counts."""
    code, rows = run(monkeypatch, tmp_path, {dtype: some(dtype, SMALL, PADDED)}, "--seed", "5")
    assert code == 0, rows
    for row in rows:
        assert row["status"] == "ok" and row["failures"] == {}
        assert row["seconds"] == pytest.approx({"matmul": 1.5e-3, "cuBLAS": 2e-3, "cuBLASLt": 1.8e-3})
        assert row["ratio"] == pytest.approx(1.2)
        assert row["algorithm"].startswith("algorithm 66") and "event_ratio" not in row
        assert row["launches"] % row["sets"] == 0 and row["sets"] > 1
    assert {axis: rows[1][axis] for axis in PADDED} == PADDED and "odd" in rows[1]["classes"]
    out = capsys.readouterr().out
    assert "seed 5, 2 of 2 draws, Fake GPU" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "geomean >= 1.12: yes" in out if dtype in ("fp32", "tf32") else "geomean >= 1.04: yes" in out


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("one_wrong", "elements differ from cuBLAS's, one at [19,16]"),
        ("imprecise", "differs from cuBLAS by"),
        ("into_padding", "of C's padding were written"),
        ("nothing", "elements differ from cuBLAS's, one at [0,0], by up to inf times"),
    ],
)
def test_a_wrong_kernel_has_no_ratio(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str, said: str
) -> None:
    rig.product = getattr(rig, fault)
    code, (row,) = run(monkeypatch, tmp_path, {"fp32": some("fp32", PADDED)})
    assert code == 1 and row["status"] == "error" and "ratio" not in row
    assert said in row["error"] and row["failures"] == {"matmul": row["error"]}


def test_wrong_only_while_timed(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Results that were right before they were timed are verified again."""
    original = sides.Clock.graphs

    def graphs(self: Any, *args: Any) -> Any:
        found = original(self, *args)
        rig.product = rig.one_wrong
        return found

    monkeypatch.setattr(sides.Clock, "graphs", graphs)
    _, (row,) = run(monkeypatch, tmp_path, {"fp32": some("fp32", PADDED)})
    assert row["status"] == "error" and "differ from cuBLAS's" in row["error"]
    assert "seconds" not in row and row["failures"] == {}, "no side was left out"


def test_without_one_of_the_libraries(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """cuBLASLt may refuse a draw, or be wrong; cuBLAS alone is then the baseline."""
    rig.lt.algorithms = []
    code, (row,) = run(monkeypatch, tmp_path, {"fp32": some("fp32", SMALL)})
    assert code == 0 and row["ratio"] == pytest.approx(2 / 1.5)
    assert "names no algorithm" in row["failures"]["cuBLASLt"]
    rig.lt.algorithms = [Algorithm(0.1, wrong=True)]
    _, (row,) = run(monkeypatch, tmp_path, {"fp32": some("fp32", SMALL)})
    assert row["ratio"] == pytest.approx(2 / 1.5) and "differ" in row["failures"]["cuBLASLt"]
    assert "cuBLASLt" in tables.failures([row])


def test_one_draw_that_fails_is_a_row(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever is raised: an error of the driver, one of Python, a draw that does not fit the pool."""
    big = {"M": 2000, "N": 2000, "K": 2000}
    three = some("fp32", SMALL, PADDED, big)
    original = contest.prepared.prepare

    def failing(parts: Any, operands: Any) -> Any:
        if operands.problem.M == SMALL["M"]:
            raise ValueError("a surprise")
        return original(parts, operands)

    monkeypatch.setattr(contest.prepared, "prepare", failing)
    code, rows = run(monkeypatch, tmp_path, {"fp32": three})
    assert code == 1 and [row["status"] for row in rows] == ["error", "ok", "left out"]
    assert rows[0]["error"] == "ValueError: a surprise" and "does not fit" in rows[2]["error"]
    assert tables.failures(rows).count("\n") == 1 and "; 1 draws FAILED" in tables.summary(rows)


def test_single_launches_too(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, (row,) = run(monkeypatch, tmp_path, {"fp32": some("fp32", SMALL)}, "--events")
    assert row["event_seconds"] == pytest.approx(row["seconds"])
    assert row["event_ratio"] == pytest.approx(1.2)
    assert "an event each" in capsys.readouterr().out


@pytest.mark.slow
def test_the_price_of_a_choice(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model's best are timed in turn with its choice; here the third of them is the fastest."""
    draw = some("bf16", {"M": 48, "N": 40, "K": 64}, SMALL)
    seen: list[str] = []
    original = contest.prepared.prepare

    def prepare(parts: Any, operands: Any) -> Any:
        label = parts[0][1].variant.label
        if label not in seen:
            seen.append(label)
        launch = original(parts, operands)
        milliseconds = 1.0 if seen.index(label) == 2 else 1.5

        def timed(run: Any) -> Any:
            def call(stream: Any) -> None:
                rig.driver._queue(
                    int(stream.handle), lambda: setattr(rig.driver, "milliseconds", milliseconds)
                )
                run(stream)

            return call

        launch.calls = [timed(call) for call in launch.calls]
        launch.rewind()
        return launch

    monkeypatch.setattr(contest.prepared, "prepare", prepare)
    nearest = Heuristics.nearest
    monkeypatch.setattr(Heuristics, "nearest", lambda self, problem, variants: variants[2])
    code, (row, other) = run(monkeypatch, tmp_path, {"bf16": draw}, "--regret", "1", "--candidates", "4")
    assert code == 0 and "candidates" not in other
    assert len(row["candidates"]) == len(seen) == 4
    times = [one["seconds"] for one in row["candidates"]]
    assert times == pytest.approx([1.5e-3, 1.5e-3, 1e-3, 1.5e-3])
    assert row["regret"] == pytest.approx(0.5) and row["named_regret"] == pytest.approx(0)
    assert nearest(Heuristics("no GPU"), draw[0].problem, ()) is None
    out = capsys.readouterr().out
    assert "harness.matmul" in out and "50.0%" in out and "NVIDIA's heuristics" in out


@pytest.fixture
def many_trials(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The shipped table may have few trials: take some of its candidates for them."""
    known = choose.candidates()
    lists = {"candidates": tuple(c for n, c in enumerate(known) if n % 10), "trials": known[::10]}
    with monkeypatch.context() as patch:
        patch.setattr(choose, "candidates", lambda listed="candidates": lists[listed])
        choose._laid_out.cache_clear()
        yield
    choose._laid_out.cache_clear()


@pytest.mark.usefixtures("many_trials")
def test_trials_are_timed_beside_what_the_model_knows(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those that the model takes for the fastest, in the draw's layout; a draw beyond --regret has none."""
    draw = some("bf16", {"M": 48, "N": 40, "K": 64}, SMALL)
    asked = ("--regret", "1", "--candidates", "2", "--trials", "3")
    code, (row, other) = run(monkeypatch, tmp_path, {"bf16": draw}, *asked)
    assert code == 0 and "candidates" not in other
    known = {c.variant.kernel.name: c.variant.kernel for c in choose.candidates("trials")}
    best = shapes.trials(draw[0].problem, arch="sm_90a", sms=132)
    labels = [known[c["kernel"]].variant(**c["params"]).label for c in row["candidates"][2:]]
    assert labels == [variant.label for variant in best[:3]] and len(best) >= 3
    assert not {v.label for v in best} & {c.variant.label for c in choose.candidates()}
    turned = replace(draw[0].problem, transb=1, ldb=64)
    assert all(v.params["TRANSB"] for v in shapes.trials(turned, arch="sm_90a", sms=132))


@pytest.mark.usefixtures("many_trials")
def test_trials_within_reach_of_the_best(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`--within` leaves out the trials that are predicted to be slower by more, and draws without any."""
    small, tall = some("bf16", {"M": 48, "N": 40, "K": 64}, {"M": 168, "N": 8448, "K": 4096})
    limits = (-99.0, 0.0, 10.0, 30.0, 100.0, 1e6, None)
    found = [shapes.trials(tall.problem, limit, arch="sm_90a", sms=132) for limit in limits]
    sizes = [len(one) for one in found]
    assert sizes == sorted(sizes) and sizes[0] == 0 and len(set(sizes)) > 2 and found[-2] == found[-1]
    assert all(one == found[-1][: len(one)] for one in found)
    asked = ("--regret", "2", "--candidates", "1", "--trials", "1")
    _, rows = run(monkeypatch, tmp_path, {"bf16": [small]}, *asked, "--within", "-99")
    assert rows == [] and record.load(tmp_path / "r.json")["meta"]["within"] == -99
    with pytest.raises(UsageError, match="begun with --within -99"):
        run(monkeypatch, tmp_path, {"bf16": [small]}, "--resume")
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path, {"bf16": [small]}, "--within", "10")


@pytest.mark.slow
def test_many_draws_are_chosen_for_in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    given = shapes.parsed(["--dtype", "bf16", "--draws", "24", "--regret", "4", "--seed", "7"])
    card: Any = {"gpu": "NVIDIA H200", "sms": 132, "arch": "sm_90a"}
    alone = list(shapes.entries(given, Heuristics(""), set(), **card))
    monkeypatch.setattr(shapes, "_FEW", 8)
    shared = list(shapes.entries(given, Heuristics(""), set(), **card))
    assert [one.row for one in shared] == [one.row for one in alone] and len(shared) == 24
    labels = [[[v.label for v in one.others] for one in found] for found in (shared, alone)]
    assert labels[0] == labels[1]
    assert len(alone[3].others) > len(alone[4].others) == 0
    left = list(shapes.entries(given, Heuristics(""), {("bf16", n) for n in range(23)}, **card))
    assert [one.draw.index for one in left] == [23]

    class Killed:
        def map(self, *_: Any, **__: Any) -> Any:
            raise BrokenProcessPool

    monkeypatch.setattr(shapes, "processes", lambda _: nullcontext(Killed()))
    with pytest.raises(HarnessError, match="was killed"):
        list(shapes.entries(given, Heuristics(""), set(), **card))


@pytest.mark.slow
def test_the_price_of_invariant_rows(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is of the variant that `harness.matmul` takes then; on a fake GPU all launches take as long."""
    drawn = some("fp32", {"M": 48, "N": 300, "K": 300}, {"M": 1, "N": 300, "K": 300})
    code, rows = run(monkeypatch, tmp_path, {"fp32": drawn}, "--invariant")
    assert code == 0
    for row in rows:
        about = choose.about(Gemm(M=row["M"], N=300, K=300), choose.ROWS)
        same = choose.choose(row["M"], 300, 300, sms=132, arch="sm_90a", gpu="Fake GPU", **about)
        assert row["invariant"]["chosen"] == same.brief and "candidates" not in row
        assert row["invariant"]["price"] == pytest.approx(0) and row["invariant"]["seconds"] > 0
    assert "invariant rows" in capsys.readouterr().out


def test_time_is_up(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chosen = {"fp32": some("fp32", SMALL, PADDED), "bf16": some("bf16", SMALL, PADDED)}
    code, rows = run(monkeypatch, tmp_path, chosen, "--seconds", "0")
    assert (code, rows) == (0, [])


@pytest.mark.slow
def test_it_goes_on_after_a_fault(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A new process resumes the record: with the same seed, without the draws that have rows."""
    chosen = {"fp32": some("fp32", SMALL, PADDED, {**SMALL, "M": 8})}

    def fault(launch: SimpleNamespace) -> None:
        rig.right(launch)
        if rig.draw.index == 1:
            rig.driver.sticky = 700

    rig.product = fault
    begun: list[list[str]] = []

    def execv(program: str, arguments: list[str]) -> None:
        begun.append(arguments)
        raise SystemExit(0)

    monkeypatch.setattr(shapes.os, "execv", execv)
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path, chosen, "--seed", "9")
    rows = record.load(tmp_path / "r.json")["rows"]
    assert [row["status"] for row in rows] == ["ok", "error"] and "ILLEGAL_ADDRESS" in rows[1]["error"]
    assert begun[0][-3:-1] == ["--resume", "--seconds"] and 0 < float(begun[0][-1]) <= 300
    rig.driver.sticky, rig.product = 0, rig.right
    rig.driver.live.clear()  # as the end of a process does
    rig.lt.live.clear()
    code, rows = run(monkeypatch, tmp_path, chosen, "--resume")
    assert [(row["index"], row["status"]) for row in rows] == [(0, "ok"), (1, "error"), (2, "ok")]
    assert code == 1 and record.load(tmp_path / "r.json")["meta"]["seed"] == 9
    rig.product = fault
    monkeypatch.setattr(shapes, "go_on", lambda until: None)
    with pytest.raises(ContextLost):  # where no new process begins
        run(monkeypatch, tmp_path, {"fp32": chosen["fp32"][1:]})
    rig.driver.live.clear()
    rig.lt.live.clear()


@pytest.mark.slow
def test_compiling_needs_no_gpu(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.driver.devices = 0
    assert shapes.main(["--dtype", "bf16", "--draws", "3", "--seed", "4", "--compile", "sm_90a"]) == 0
    assert "seed 4" in capsys.readouterr().out
    assert shapes.main(["--dtype", "fp16", "--draws", "1", "--compile", "sm_80"]) == 1
    assert "no kernel for" in capsys.readouterr().out
    with pytest.raises(UsageError):
        shapes.main(["--compile", "x"])


@pytest.mark.slow
def test_limits_of_the_draws_are_resumed(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Other limits would be other draws under the same numbers."""
    chosen = {"fp32": some("fp32", SMALL)}
    limits = ["--most", "64", "--over", "5000", "--madds", "1000000", "--only", "odd"]
    run(monkeypatch, tmp_path, chosen, *limits)
    run(monkeypatch, tmp_path, chosen, "--resume")
    meta = record.load(tmp_path / "r.json")["meta"]
    kept = [meta[name] for name in ("most", "over", "madds", "only")]
    assert kept == [64, 5000, 1_000_000, ["odd"]]


def test_only_its_own_record_is_resumed(rig: Rig, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    record.write_json(path, record.document("verify", [], {"seed": 1}))
    with pytest.raises(UsageError, match="not a record of this script"):
        shapes.main(["--resume", "--json", str(path)])
    with pytest.raises(SystemExit):
        shapes.main(["--resume"])


# -- the kernel that compares


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_the_kernel_that_compares_is_what_the_fake_computes(name: str) -> None:
    """In the emulator, on two sets with an element too far off, a NaN, and padding that was written."""
    dtype, rng = DTYPES[name], np.random.default_rng(1)
    M, N, ld, sets = 9, 37, 40, 2
    size = M * ld * dtype.itemsize
    stride = -(-size // 256) * 256
    theirs = np.zeros(sets * stride, np.uint8)
    mine = np.full(sets * stride, 0xFF, np.uint8)
    for number in range(sets):
        y, x = (
            whole[number * stride : number * stride + size].view(dtype.storage).reshape(M, ld)
            for whole in (theirs, mine)
        )
        values = rng.standard_normal((M, N)).astype(np.float32)
        y[:, :N] = dtype.encode(values)
        x[:, :N] = dtype.encode(values + rng.uniform(-1e-3, 1e-3, (M, N)).astype(np.float32))
    x[3, 5], x[7, N - 1] = dtype.encode(np.array([9.0, np.nan], np.float32))
    x[8, N] = dtype.encode(np.array([1.0], np.float32))[0]
    narrow = dtype.itemsize < 4
    numbers: list[Any] = [np.uint64(v) for v in (M, N, ld)] + [np.float64(2e-3)]
    numbers += [np.int32(dtype.precision if narrow else 0), np.int32(dtype.emin)]
    numbers += [np.uint32(pool.KINDS[dtype.storage])]
    expected = np.zeros(1, pool._FOUND)
    addresses = [np.uint64(v) for v in (mine.ctypes.data, theirs.ctypes.data, stride, expected.ctypes.data)]
    compare(SimpleNamespace(args=[v.tobytes() for v in (*addresses, *numbers)], grid=(1, sets, 1)))
    found = np.zeros(1, pool._FOUND)
    ptx = compile_kernel(spec.load(pool.SOURCE).variant(), "sm_90a").ptx
    given = [Buffer(array=mine, name="mine"), Buffer(array=theirs, name="theirs"), np.uint64(stride)]
    given += [Buffer(array=found.view(np.uint8), name="found"), *numbers]
    ran = emulate(ptx, "compare", grid=(2, sets), block=(256,), arguments=given, count=False)
    assert ran.findings == ()
    assert (found["bad"][0], found["stray"][0]) == (2, 1)
    for key in ("bad", "first", "stray", "worst"):
        assert found[key] == expected[key]
    assert ~int(found["first"][0]) & (2**64 - 1) == 3 * ld + 5
    for key in ("differences", "outputs", "halves"):
        np.testing.assert_allclose(found[key], expected[key], rtol=1e-12)
