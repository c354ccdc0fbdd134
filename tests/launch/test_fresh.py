"""New data for timed launches, on a fake GPU whose kernels are NumPy: what each kind of cheating comes to."""

from __future__ import annotations

import copy
import ctypes
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fakes import driver as fake_driver
from fakes import gemm as fake_gemm
from harness.bench.row import COLD, FAILED, GRAPH, HOT, OK, Measurement
from harness.bench.session import Bench
from harness.bench.stopping import StopRule
from harness.driver import Context, Device, Stream
from harness.kernels import catalog, spec
from harness.launch import builds
from harness.launch import kernel as launch
from harness.launch.fresh import freivalds, normal
from harness.launch.fresh.freivalds import Products
from harness.launch.fresh.visits import Visits, WrongWhileTimed
from harness.launch.operands import Operands
from harness.problems.gemm import Gemm, GemmFp16
from harness.problems.registry import resolve
from harness.support.cache import Cache

RULE = StopRule(min_time=0.01, warmup=0.01, settle=0.01, max_samples=40, min_blocks=2)
REGIMES = [COLD, HOT, GRAPH]
SIZE = {"M": 12, "N": 20, "K": 9, "ldc": 22}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> fake_driver.FakeDriver:
    return fake_gemm.gpu(monkeypatch)


@pytest.fixture
def context(fake: Any) -> Iterator[Context]:
    with Context(Device.open()) as context:
        yield context


def measured(
    context: Context, cache: Cache, regime: str = COLD, *, ref: str = "", **axes: Any
) -> Measurement:
    names = [*([ref] if ref else []), "tiled"]
    variants = [catalog.kernel(name).variant() for name in names]
    kernels, _ = builds.build_all(variants, ["sm_90a"], cache, lambda _: None)
    baseline = kernels[0] if ref else None
    with Bench(context, rule=RULE, regime=regime, baseline=baseline) as session:
        *_, row = session.rows(kernels[-1:], {Gemm: [{**SIZE, **axes}]}, lambda _: None)
    assert not context.lost
    return row


# Right kernels


@pytest.mark.slow
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_a_right_kernel_gets_its_time(context: Context, cache: Cache, regime: str, beta: float) -> None:
    row = measured(context, cache, regime, beta=beta, ref="coalesced")
    assert row.status == OK and row.samples is not None and row.ratio is not None, row.detail
    assert row.protections[0].startswith("new random data for each launch") and len(row.data_key or "") == 16
    assert row.after is not None and row.after.ok and row.after.elements == 12 * 20


@pytest.mark.parametrize("regime", REGIMES)
def test_no_two_launches_see_the_same_data(
    context: Context, cache: Cache, fake: Any, regime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in one batch nor later, nor do a kernel and its baseline."""
    seen: list[bytes] = []

    def look(run: Any) -> None:
        seen.append(fake_gemm.parameters(run)[0].tobytes())
        fake_gemm.gemm(run)

    fake.execute = look
    row = measured(context, cache, regime, ref="coalesced")
    assert row.status == OK
    known = max(set(seen), key=seen.count)
    timed = [one for one in seen if one != known]
    # An untimed graph runs on what the launches before it have left.
    graphs = len(timed) - len(set(timed))
    assert len(set(timed)) > 30 and (graphs == 0 or regime == GRAPH)


# Wrong kernels


class Replay:
    """Computes its product once and keeps it, for each address of its output if `per`."""

    def __init__(self, *, per: bool) -> None:
        self.per, self.kept = per, {}

    def __call__(self, run: Any) -> None:
        out = fake_gemm.parameters(run)[2]
        key = out.ctypes.data if self.per else 0
        if key not in self.kept:
            fake_gemm.gemm(run)
            self.kept[key] = out.copy()
        out[:] = self.kept[key]


class Sentinel:
    """Leaves when the first element of its output is what it wrote there before."""

    def __init__(self) -> None:
        self.wrote: dict[int, float] = {}

    def __call__(self, run: Any) -> None:
        out = fake_gemm.parameters(run)[2]
        if self.wrote.get(out.ctypes.data) == out[0, 0]:
            return
        fake_gemm.gemm(run)
        self.wrote[out.ctypes.data] = float(out[0, 0])


class Later:
    """Right for as many launches as verify it, and then does `harm` after its work."""

    def __init__(self, harm: Any, good: int = 1) -> None:
        self.harm, self.left = harm, good

    def __call__(self, run: Any) -> None:
        fake_gemm.gemm(run)
        self.left -= 1
        if self.left < 0:
            self.harm(run)


def skips_a_row(run: Any) -> None:
    fake_gemm.parameters(run)[2][5] = 0


def half_of_k(run: Any) -> None:
    a, b, c, _, _ = fake_gemm.parameters(run)
    c[:] = a[:, ::2] @ b[::2]


def nan(run: Any) -> None:
    fake_gemm.parameters(run)[2][3, 4] = np.nan


def writes_b(run: Any) -> None:
    fake_gemm.parameters(run)[1][2, 3] += 1


def pads(run: Any) -> None:
    c, ldc = int.from_bytes(run.args[2], "little"), 22
    ctypes.c_float.from_address(c + 4 * (3 * ldc + 20)).value = 0.0


def behind(run: Any) -> None:
    c = int.from_bytes(run.args[2], "little")
    ctypes.memset(c + 4 * 12 * 22 + 5, 0, 4)


WRONG = [
    (Replay(per=False), r"on new data \d+ of \d+ rows of C are wrong"),
    (Replay(per=True), r"on new data \d+ of \d+ rows of C are wrong"),
    (Later(skips_a_row), r"one of them row 5: the error is .* times its bound"),
    (Later(half_of_k), r"rows of C are wrong"),
    (Later(nan), r"one of them row 3: the error is inf times its bound"),
    (Later(writes_b), r"overwrote its input B: \d+ elements, one of them \[2,3\]"),
    (Later(pads), r"\d+ elements of C's padding were written"),
    (Later(behind), r"outside of its buffers: byte 106\d of C \(set \d\), behind its 1056 bytes"),
]


@pytest.mark.slow
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("which", range(len(WRONG)))
def test_what_is_wrong_while_it_is_timed_has_no_time(
    context: Context, cache: Cache, fake: Any, regime: str, which: int
) -> None:
    execute, said = WRONG[which]
    fake.execute = copy.deepcopy(execute)
    row = measured(context, cache, regime)
    assert (row.status, row.samples) == (FAILED, None) and row.before is not None and row.before.ok
    assert re.search(said, row.detail), row.detail


def test_a_sentinel_never_sees_what_it_wrote(context: Context, cache: Cache, fake: Any) -> None:
    """Outputs are filled with new numbers before each launch, so it works every time."""
    fake.execute = Sentinel()
    assert measured(context, cache).status == OK


def test_the_next_kernel_is_not_blamed_for_a_stray_write(context: Context, cache: Cache, fake: Any) -> None:
    def stray(run: Any) -> None:
        fake_gemm.gemm(run)
        if run.block == (32, 32, 1):  # 02_coalesced
            behind(run)

    fake.execute = stray
    variants = [catalog.kernel(name).variant() for name in ("coalesced", "tiled")]
    kernels, _ = builds.build_all(variants, ["sm_90a"], cache, lambda _: None)
    with Bench(context, rule=RULE) as session:
        first, second = session.rows(kernels, {Gemm: [SIZE]}, lambda _: None)
    assert (
        first.status == FAILED
        and "of C (set 0), behind its 1056 bytes" in first.detail
        and second.status == OK
    )


def test_a_baseline_that_is_wrong_while_timed_gives_no_ratio(
    context: Context, cache: Cache, fake: Any
) -> None:
    launches = []

    def execute(run: Any) -> None:
        fake_gemm.gemm(run)
        launches.append(run.block)
        timed_together = (16, 16, 1) in launches
        if run.block == (32, 32, 1) and timed_together:
            skips_a_row(run)

    fake.execute = execute
    row = measured(context, cache, ref="coalesced")
    assert row.status == OK and row.ratio is None and row.pair is None and row.samples is not None
    assert any("was wrong while it was timed in turn with it: on new data" in note for note in row.notes)


# Problems of other kinds


OTHER = """\
from __future__ import annotations
from harness.problems.gemm import Gemm
class Mine(Gemm):
    def inputs(self, seed):
        found = super().inputs(seed)
        found["A"] *= 2
        return found
"""


@pytest.fixture
def other(tmp_path: Any, kernel_file: Any, cache: Cache) -> Any:
    """Return a kernel of a user's problem, whose data is its own, and the problem."""
    (tmp_path / "mine.py").write_text(OTHER)
    variant = spec.load(kernel_file(extra='problem = "mine.py:Mine"')).variant()
    (kernel,), _ = builds.build_all([variant], ["sm_90a"], cache, lambda _: None)
    return kernel, resolve(variant.kernel)


def timed(context: Context, other: Any, regime: str = COLD, **axes: Any) -> Measurement:
    kernel, cls = other
    with Bench(context, rule=RULE, regime=regime) as session:
        (row,) = session.rows([kernel], {cls: [{**SIZE, **axes}]}, lambda _: None)
    return row


@pytest.mark.slow
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_other_problems_have_several_data_sets(
    context: Context, fake: Any, other: Any, monkeypatch: pytest.MonkeyPatch, regime: str, beta: float
) -> None:
    """The order is drawn anew for each kernel; this one's reaches all four in the 18 launches of `hot`."""
    monkeypatch.setattr("harness.bench.measure.derive", lambda *_: 1)
    seen: set[bytes] = set()

    def look(run: Any) -> None:
        seen.add(fake_gemm.parameters(run)[0].tobytes())
        fake_gemm.gemm(run)

    fake.execute = look
    row = timed(context, other, regime, beta=beta)
    assert row.status == OK, row.detail
    assert row.protections[0] == "4 data sets in random order" and len(seen) == 4
    assert row.after is not None and row.after.ok


@pytest.mark.slow
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(
    ("execute", "said"),
    [
        (lambda: Replay(per=False), "elements wrong, first at"),
        (lambda: Later(skips_a_row), r"20 of 240 elements wrong, first at [5,0]"),
        (lambda: Later(writes_b), "overwrote its input B"),
        (lambda: Later(pads), "1 elements of the padding were written"),
    ],
)
def test_wrong_results_of_other_problems_are_found(
    context: Context, fake: Any, other: Any, regime: str, execute: Any, said: str
) -> None:
    fake.execute = execute()
    row = timed(context, other, regime)
    assert row.status == FAILED and said in row.detail, row.detail


def test_a_large_problem_of_another_kind_says_that_its_data_is_the_same(
    context: Context, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.launch.fresh.source._MOST", 100)
    row = timed(context, other)
    assert row.status == OK and row.protections[0] == "the same data for each launch"


def test_bits_that_differ_each_time_are_verified_by_element(context: Context, fake: Any, other: Any) -> None:
    rng = np.random.default_rng(1)

    def atomics(run: Any) -> None:
        fake_gemm.gemm(run)
        fake_gemm.parameters(run)[2].view(np.uint32)[0, 0] ^= int(rng.integers(4))

    fake.execute = atomics
    assert timed(context, other).status == OK


# Pieces


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (Gemm(M=3, N=3, K=3), True),
        (GemmFp16(M=3, N=3, K=3), True),
        (GemmFp16(M=3, N=3, K=3, alpha=1e4), False),
        (Gemm(M=3, N=3, K=3, alpha=1e37), False),
    ],
)
def test_what_may_overflow_is_not_verified_by_sums(problem: Gemm, expected: bool) -> None:
    assert freivalds.applies(problem) is expected


def test_the_launch_that_is_verified_by_element_is_as_it_was(
    context: Context, fake: Any, cache: Cache
) -> None:
    """With the C that beta multiplied, made anew on the host; one wrong element shows."""
    (kernel,), _ = builds.build_all([catalog.kernel("tiled").variant()], ["sm_90a"], cache, lambda _: None)
    problem = Gemm(**SIZE, beta=0.5, lda=11)
    for harm, right in ((lambda _: None, True), (skips_a_row, False)):
        fake.execute = Later(harm, good=0)
        with (
            Stream(context) as stream,
            Operands(context, problem, stream, seed=1, sets=3) as operands,
            launch.prepare(kernel.cubin, operands) as run,
        ):
            data = Products(operands.code, problem, operands.buffers, stream, seed=7)
            data.refresh(stream, 3)
            host = np.empty((12, 11), np.float32)
            operands.buffers[1]["A"].download(host, stream)
            key = normal.key_of(data._key, 1, 0)
            assert host.tobytes() == normal.matrix(problem.dtype, key, rows=12, columns=9, ld=11).tobytes()
            for _ in range(3):
                run(stream)
            data.keep(stream, np.random.default_rng(1), 3)
            verdict = data.verdict()
            assert verdict is not None and verdict.ok is right
            data.close()


def test_what_an_opponent_does_wrong_is_kept_and_ends_nothing() -> None:
    class Wrong:
        rounds = 1

        def wrong(self, stream: Any) -> str:
            return "all wrong"

    class Run:
        label, sets = "mine", 1

    for opponent in (True, False):
        visits = Visits(Run(), Wrong(), hot=False, seed=1, by_element=False, opponent=opponent)  # type: ignore[arg-type]
        if opponent:
            visits.collect(None)  # type: ignore[arg-type]
            assert visits.said == "all wrong"
        else:
            with pytest.raises(WrongWhileTimed, match="mine: all wrong"):
                visits.collect(None)  # type: ignore[arg-type]
