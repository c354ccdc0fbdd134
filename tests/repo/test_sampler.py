"""benchmarks/shapes.py on the fake driver, with a cuBLAS and a cuBLASLt that can be captured in graphs."""

from __future__ import annotations

import ctypes
import importlib.util
import math
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fakes import gemm as fake_gemm
from fakes.cublaslt import TYPES, Algorithm, FakeCublas, FakeCublasLt, TimedDriver, install, multiply, provide
from fakes.driver import image
from harness.dispatch import choose
from harness.emulator import Buffer, emulate
from harness.errors import ContextLost, UsageError
from harness.kernels import spec
from harness.kernels.compiler import compile_kernel
from harness.kernels.dtypes import DTYPES
from harness.kernels.spec import LAYOUT
from harness.problems.gemm import GEMMS, Gemm
from harness.results import record

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import shapes

from sampler import contest, pool, sides, tables
from sampler.draws import MODELS, MOST_BYTES, MOST_WORK, Draw, draws
from sampler.heuristics import Heuristics

LAYOUTS = ("NN", "NT", "TN", "TT")  # and the names of our kernels on the fake GPU, by what they read


class Cublas(FakeCublas):
    """With GemmEx, and products that wait for the graph that they are captured in. Each takes 2 ms."""

    stream = 0

    def cublasSetStream_v2(self, _: int, stream: int) -> None:
        self.stream = stream

    def cublasSgemm_v2(self, *args: int) -> None:
        self.driver._queue(self.stream, lambda: FakeCublas.cublasSgemm_v2(self, *args))

    def cublasGemmEx(self, *args: int) -> None:
        _, of_a, of_b, m, n, k, alpha, a, kind, lda, b, _, ldb, beta, c, _, ldc, _, _ = args
        scalars = [ctypes.c_float.from_address(at).value for at in (alpha, beta)]
        left, right = (k, m) if of_a else (m, k), (n, k) if of_b else (k, n)

        def run() -> None:
            given = (a, (kind, *left, lda)), (b, (kind, *right, ldb)), (c, (kind, m, n, ldc))
            multiply(scalars, *given, transposed=(of_a, of_b))
            self.driver.clock += 2

        self.driver._queue(self.stream, run)


class CublasLt(FakeCublasLt):
    def cublasLtMatmul(self, *args: int) -> None:
        held = self.live.copy()  # a graph outlives the descriptors of its launches

        def run() -> None:
            now, self.live = self.live, held
            try:
                FakeCublasLt.cublasLtMatmul(self, *args)
            finally:
                self.live = now

        self.driver._queue(args[-1], run)


class Rig:
    """The fake GPU and libraries; `product` computes what our launches do, and `draw` is the one at hand."""

    def __init__(self, driver: TimedDriver) -> None:
        self.driver, self.draw = driver, draws("fp32", 1, 1)[0]
        self.lt = CublasLt(driver, [Algorithm(1.8, configuration=(("ID", 66), ("TILE_ID", 23)))])
        self.product = self.right
        names = ("compare", "transpose", *LAYOUTS)
        driver.functions = dict.fromkeys(names)
        driver.device_attributes["CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE"] = 1 << 14
        driver.execute = self.execute

    def execute(self, launch: SimpleNamespace) -> None:
        if launch.function == "compare":
            compare(launch)
        elif launch.function == "transpose":
            launch.dtype = self.draw.problem.dtype.name
            transpose(launch)
        else:
            self.product(launch)

    def operands(self, launch: SimpleNamespace) -> tuple[Any, Any, Any]:
        """Return op(A) and op(B), and C with its padding."""
        a, b, c, m, n, k, lda, ldb, ldc, _, _ = fake_gemm.plain(launch)
        dtype = self.draw.problem.dtype
        of_a, of_b = (x == "T" for x in launch.function)
        left = strided(a, dtype, *((k, m) if of_a else (m, k)), lda)
        right = strided(b, dtype, *((n, k) if of_b else (k, n)), ldb)
        out = strided(c, dtype, m, n, ldc)
        padded = np.lib.stride_tricks.as_strided(out, (m, ldc), out.strides)
        return left.T if of_a else left, right.T if of_b else right, padded

    def right(self, launch: SimpleNamespace) -> None:
        a, b, c = self.operands(launch)
        dtype, n = self.draw.problem.dtype, b.shape[1]
        c[:, :n] = dtype.encode((dtype.decode(a) @ dtype.decode(b)).astype(np.float32))

    def one_wrong(self, launch: SimpleNamespace) -> None:
        self.right(launch)
        self.operands(launch)[2][-1, self.draw.problem.N - 1] = 7

    def imprecise(self, launch: SimpleNamespace) -> None:
        """Write a sum of lower precision: each element is within its own bound."""
        self.right(launch)
        self.operands(launch)[2][:, : self.draw.problem.N] += np.float32(1e-4)

    def into_padding(self, launch: SimpleNamespace) -> None:
        self.right(launch)
        self.operands(launch)[2][0, -1] = 0

    def nothing(self, launch: SimpleNamespace) -> None:
        pass


def strided(address: int, dtype: Any, rows: int, columns: int, ld: int) -> Any:
    size = dtype.itemsize
    data = (ctypes.c_char * (size * rows * ld)).from_address(address)
    flat = np.frombuffer(data, dtype.storage)
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (ld * size, size))


def transpose(launch: SimpleNamespace) -> None:
    """The kernel of transpose.cu in NumPy; elements of 2 bytes or of 4 are only moved."""
    forms = ("Q", "Q", "i", "i", "q", "q")
    source, target, rows, columns, pitch, wide = (
        int(np.frombuffer(x, np.dtype(f))[0]) for f, x in zip(forms, launch.args, strict=True)
    )
    dtype = DTYPES[launch.dtype]
    strided(target, dtype, columns, rows, wide)[:] = strided(source, dtype, rows, columns, pitch).T


def compare(launch: SimpleNamespace) -> None:
    """The kernel of compare.cu in NumPy."""
    forms = ("Q", "Q", "Q", "Q", "Q", "Q", "Q", "d", "i", "i", "I")
    values = [np.frombuffer(x, np.dtype(f))[0] for f, x in zip(forms, launch.args, strict=True)]
    mine, theirs, stride, found, M, N, ld = map(int, values[:7])
    bound, precision, emin, kind = values[7:]
    dtype = TYPES[{0: 0, 1: 14, 2: 2}[int(kind)]]
    out = np.frombuffer((ctypes.c_char * pool._FOUND.itemsize).from_address(found), pool._FOUND)

    def matrix(at: int) -> Any:
        memory = (ctypes.c_char * (M * ld * dtype.itemsize)).from_address(at)
        return np.frombuffer(memory, dtype.storage).reshape(M, ld)

    for number in range(launch.grid[1]):
        x, y = matrix(mine + number * stride), matrix(theirs + number * stride)
        blank = np.frombuffer(b"\xff" * dtype.itemsize, x.dtype)[0]
        word = f"u{dtype.itemsize}"
        out["stray"] += np.uint64(np.count_nonzero(x[:, N:].view(word) != blank.view(word)))
        x, y = (dtype.decode(z[:, :N]) for z in (x, y))
        apart, half = np.abs(x - y), np.zeros_like(x)
        if precision:
            _, exponent = np.frexp(np.maximum(np.fmax(abs(x), abs(y)), 2.0**emin))
            half = np.ldexp(1.0, exponent - 1 - precision)
        share = apart / (bound + 2 * half)
        wrong = ~(share <= 1)
        out["bad"] += np.uint64(np.count_nonzero(wrong))
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            out["first"] = max(int(out["first"][0]), ~int(row * ld + column) & (2**64 - 1))
        worst = np.float64(np.max(np.where(np.isnan(share), np.inf, share)))
        out["worst"] = max(int(out["worst"][0]), int(worst.view("u8")))
        out["differences"] += np.sum(apart**2)
        out["outputs"] += np.sum(y**2)
        out["halves"] += np.sum(half**2)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    driver = install(monkeypatch)
    rig = Rig(driver)
    provide(monkeypatch, blas=Cublas(driver), lt=rig.lt)

    def compile_kernel(variant: Any, arch: str) -> Any:
        layout = "".join("NT"[variant.params.get(name, 0)] for name in LAYOUT)
        return SimpleNamespace(code=image(fake_gemm.sizes(variant)), entry=layout, variant=variant, arch=arch)

    monkeypatch.setattr(shapes, "compile_kernel", compile_kernel)
    measured = contest.Arena.measured

    def noted(self: Any, entry: Any, cubins: Any) -> Any:
        rig.draw = entry.draw
        return measured(self, entry, cubins)

    monkeypatch.setattr(contest.Arena, "measured", noted)
    yield rig
    if not driver.sticky:
        assert not [kind for kind, _ in driver.live if kind != "context"], "nothing is left behind"
        assert not rig.lt.live


def some(dtype: str, *axes: dict[str, int]) -> list[Draw]:
    return [Draw(index=i, problem=GEMMS[dtype](**one)) for i, one in enumerate(axes)]


SMALL = {"M": 24, "N": 40, "K": 32}
PADDED = {"M": 20, "N": 17, "K": 33, "lda": 40, "ldb": 21, "ldc": 19}


def run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chosen: dict[str, list[Draw]], *options: str
) -> tuple[int, list[dict[str, Any]]]:
    monkeypatch.setattr(shapes, "draws", lambda dtype, count, seed, most: chosen[dtype])
    path = tmp_path / "r.json"
    count = str(max(map(len, chosen.values())))
    memory = ("--memory", str(2**20 / 2**30))
    code = shapes.main(["--dtype", *chosen, "--draws", count, "--json", str(path), *memory, *options])
    return code, record.load(path)["rows"]


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


@pytest.mark.slow
def test_the_price_of_invariant_rows(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is of the variant that `harness.matmul` takes then; on a fake GPU all take as long."""
    drawn = some("fp32", {"M": 48, "N": 40, "K": 640}, {"M": 1, "N": 40, "K": 640})
    code, rows = run(monkeypatch, tmp_path, {"fp32": drawn}, "--invariant")
    assert code == 0
    for row in rows:
        about = choose.about(Gemm(M=row["M"], N=40, K=640), choose.ROWS)
        same = choose.choose(row["M"], 40, 640, sms=132, arch="sm_90a", gpu="Fake GPU", **about)
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


# -- draws


@pytest.mark.parametrize("dtype", list(GEMMS))
def test_draws_are_what_was_asked_for(dtype: str) -> None:
    found = draws(dtype, 400, 3)
    assert [draw.index for draw in found] == list(range(400))
    sizes = [(p.M, p.N, p.K) for p in (draw.problem for draw in found)]
    assert all(math.prod(size) <= MOST_WORK for size in sizes)
    for draw in found:
        a, b, c = (x.rows * x.ld * x.dtype.itemsize for x in draw.problem.layouts().values())
        assert max(a + b, c) <= MOST_BYTES
        assert draw.origin or (16 <= min(sizes[draw.index]) and max(sizes[draw.index]) <= 16384)
    counts = Counter(name for draw in found for name in draw.classes)
    assert 70 < counts["model"] < 130 and 50 < counts["ragged"] < 105
    assert min(counts[name] for name in ("NN", "NT", "TN", "TT", "packed", "padded", "odd")) > 40
    assert min(counts[name] for name in ("square", "oblong", "flat", "deep", "skinny", "thin")) >= 10
    assert {draw.origin.split(" ")[0] for draw in found if draw.origin} == {n.split(" ")[0] for n in MODELS}


def test_a_seed_repeats_its_draws() -> None:
    assert draws("bf16", 30, 1) == draws("bf16", 30, 1) == draws("bf16", 60, 1)[:30]


def test_only_thin_draws() -> None:
    """Those of the same seed that are thin, and no others."""
    thin = [d.problem for d in draws("fp32", 400, 3) if min(d.problem.M, d.problem.N) <= 8]
    found = draws("fp32", len(thin), 3, most=8)
    assert [d.problem for d in found] == thin and [d.index for d in found] == list(range(len(thin)))
    assert draws("bf16", 30, 1) != draws("bf16", 30, 2)
    assert [d.problem.M for d in draws("bf16", 30, 1)] != [d.problem.M for d in draws("fp16", 30, 1)]


def test_types_take_turns() -> None:
    taken = [draw.problem.dtype.name for draw in shapes.in_turn(["fp32", "bf16"], 50, 1)]
    assert taken == (["fp32"] * 20 + ["bf16"] * 20) * 2 + ["fp32"] * 10 + ["bf16"] * 10


@pytest.mark.parametrize(
    ("axes", "form"),
    [
        ({"M": 64, "N": 4096, "K": 4096}, "skinny"),
        ({"M": 100000, "N": 32, "K": 128}, "thin"),
        ({"M": 512, "N": 512, "K": 16384}, "deep"),
        ({"M": 4096, "N": 4096, "K": 64}, "flat"),
        ({"M": 1024, "N": 3072, "K": 768}, "square"),
        ({"M": 128, "N": 4096, "K": 11008}, "oblong"),
    ],
)
def test_forms(axes: dict[str, int], form: str) -> None:
    assert Draw(index=0, problem=Gemm(**axes)).form == form


# -- tables


def row_of(draw: Draw, ratio: float, **more: Any) -> dict[str, Any]:
    ours = 1e-5
    return {
        **contest.Entry(draw=draw).row,
        "chosen": "20_stream_k BM=64 BK=16 WM=32 STAGES=8",
        "algorithm": "algorithm 66, tile 128x256, stages 64xAUTO, cluster 2x1x1, split k 4",
        "seconds": {"matmul": ours, "cuBLAS": ours * ratio, "cuBLASLt": ours * ratio * 1.1},
        "ratio": ratio,
        **more,
    }


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers by hand, in 80 columns."""
    drawn = draws("bf16", 200, 2)
    rows = [row_of(draw, 0.9 if draw.index < 20 else 1.1) for draw in drawn]
    text = tables.summary(rows)
    print(text)
    mean = math.exp((20 * math.log(0.9) + 180 * math.log(1.1)) / 200)
    (line,) = [line for line in text.splitlines() if line.startswith("all ")]
    assert line.split() == ["all", "200", f"{mean:.3f}", "0.900", "0.900", "10%"]
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert "long" not in lines, "10 us are not long"
    slow = row_of(Draw(index=0, problem=Gemm(**SMALL)), 2.0)
    assert tables.counts(slow, "long") and not tables.counts({**slow, "classes": ["padded"]}, "long")
    assert "geomean >= 1.04: yes, 5th percentile >= 0.98: no, least >= 0.92: no" in text
    assert text.count("0.900  bf16") == tables.WORST
    assert max(map(len, text.splitlines())) <= 80
    for row, price in zip(rows, (0.0, 0.5), strict=False):
        row["invariant"] = {"price": price, "seconds": 1e-5, "chosen": ""}
    line = tables.invariant(rows).splitlines()[-1]
    ratio = math.sqrt(rows[0]["ratio"] * rows[1]["ratio"] / 1.5)
    assert line.split() == ["bf16", "2", "25.0%", "47.5%", "50.0%", f"{ratio:.3f}"]
    assert tables.invariant(rows[2:]) == ""
    assert "nothing was timed" in tables.summary([contest.Entry(draw=drawn[0], failure="no").row])


def test_the_table_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the record, and empty where there is none."""
    place = Path(__file__).parents[2] / "scripts" / "update_readme.py"
    found = importlib.util.spec_from_file_location("update_readme", place)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    monkeypatch.setattr("readme.records.RECORDS", tmp_path)
    assert module.products.shapes() == ""
    rows = [row_of(draw, 0.9 if draw.index < 20 else 1.1) for draw in draws("bf16", 200, 2)]
    rows.append({**rows[0], "status": "error"})
    meta = {"gpu": {"name": "NVIDIA H200"}, "argv": ["shapes.py"], "seed": 2, "utc": "2026-11-23T03:00:00"}
    record.write_json(tmp_path / "h200/benchmarks/shapes.json", record.document("shapes", rows, meta))
    table = [line.split("|") for line in module.products.shapes().splitlines() if line.startswith("| bf16")]
    mean = math.exp((20 * math.log(0.9) + 180 * math.log(1.1)) / 200)
    assert [cell.strip() for cell in table[0][2:6]] == ["200", f"{mean:.3f}", "0.900", "0.900"]
    assert table[0][7].strip() == "-" and "seed 2." in module.products.shapes(), "10 us are not long"


def test_a_type_without_targets() -> None:
    assert "yes" not in tables.summary([row_of(draw, 1.2) for draw in draws("bf16x6", 5, 1)])
