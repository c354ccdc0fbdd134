"""Products that are more than one launch: what they are divided into, and that all of it is computed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import harness
from fakes import gemm as fake_gemm
from fakes.driver import FakeDriver
from harness.dispatch import choose, prepared, split, user_table
from harness.dispatch.call import side_streams
from harness.dispatch.split import Part, divided
from harness.driver import Context, Graph, Stream
from harness.errors import UsageError
from harness.problems.gemm import GEMMS
from harness.results import fastest
from shared.arrays import Array, fake, gpu  # noqa: F401  (fixtures)
from shared.command import FAST
from shared.command import fake as cli_fake  # noqa: F401  (fixture)
from shared.command import harness as command

H200: dict[str, Any] = {"sms": 132, "arch": "sm_90a"}
ORDERING = ["cuEventRecord", "cuStreamWaitEvent", "cuLaunchKernelEx"]
BOTH = 1025, 2049, 512  # a row and a column beyond whole tiles


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels with large tiles only: with small ones it rarely pays to divide a product."""
    fake_gemm.without_small_tiles(monkeypatch)


def counted(made: Sequence[Part], M: int, N: int) -> np.ndarray:
    """How often each output is computed."""
    times = np.zeros((M, N), np.int8)
    for part in made:
        assert part.row + part.rows <= M and part.column + part.columns <= N
        times[part.row : part.row + part.rows, part.column : part.column + part.columns] += 1
    return times


@given(st.integers(1, 2100), st.integers(1, 2100), st.sampled_from([1, 64, 777, 4096]))
@settings(max_examples=60, deadline=None)
@pytest.mark.slow
def test_every_output_is_computed_once(M: int, N: int, K: int) -> None:
    made = divided(M, N, K, **H200)
    assert (counted(made, M, N) == 1).all()
    assert made[0].rows * made[0].columns == max(p.rows * p.columns for p in made)


@pytest.mark.usefixtures("large")
def test_a_row_beyond_the_tiles_is_a_launch_of_its_own() -> None:
    first, last = divided(2049, 2047, 2049, **H200, gpu="NVIDIA H200")
    assert (first.row, first.rows, first.columns) == (0, 2048, 2047)
    assert (last.row, last.rows, last.columns) == (2048, 1, 2047)
    assert last.variant.kernel.name == "17_skinny_rows"
    assert len(counted(divided(*BOTH, **H200), *BOTH[:2])) and len(divided(*BOTH, **H200)) == 3


@pytest.mark.parametrize(
    "shape",
    [(2048, 2048, 2048), (65, 300, 40), (2049 + 16, 2048, 2048), (1, 4096, 4096), (60, 60, 2048)],
    ids=str,
)
def test_what_costs_no_more_as_a_whole_stays_whole(shape: tuple[int, int, int]) -> None:
    """Whole tiles, small products, 17 rows beyond the tiles."""
    assert len(divided(*shape, **H200)) == 1


def test_only_fp32_is_divided() -> None:
    assert len(divided(2049, 2047, 2049, **H200, dtype="bf16")) == 1


@pytest.mark.usefixtures("large")
def test_what_was_measured_runs_as_it_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = 2049, 2047, 2049
    assert len(divided(*shape, **H200, gpu="mine")) == 2
    entry = {"gpu": "mine", "sms": 132, **user_table.ranges(*shape, (128, 256)), "kernel": "16_pipeline"}
    monkeypatch.setattr(user_table, "entries", lambda: [entry | {"params": {}}])
    choose._choose.cache_clear()
    try:
        (part,) = divided(*shape, **H200, gpu="mine")
        assert part.variant.kernel.name == "16_pipeline"
    finally:
        choose._choose.cache_clear()


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("extra", [0, 3], ids=["tight", "padded"])
def test_the_product_is_whole(fake: FakeDriver, gpu: Context, extra: int) -> None:
    M, N, K = BOTH
    a, b = Array(gpu, M, K, ld=K + extra, seed=1), Array(gpu, K, N, ld=N + extra, seed=2)
    c = Array(gpu, M, N, ld=N + extra, seed=3)
    before = c.whole.copy()
    fake.log.clear()
    harness.matmul(a, b, c, alpha=0.5, beta=-2)
    assert fake.names().count("cuLaunchKernelEx") == 3
    np.testing.assert_allclose(c.host, 0.5 * (a.host @ b.host) - 2 * before[:, :N], atol=1e-3)
    assert np.array_equal(c.whole[:, N:], before[:, N:])


@pytest.mark.usefixtures("large")
def test_others_run_beside_the_largest(fake: FakeDriver, gpu: Context) -> None:
    """In a stream of their own, after what was queued before and before what comes later; the same again."""
    M, N, K = BOTH
    a, b, c = Array(gpu, M, K), Array(gpu, K, N), Array(gpu, M, N)
    with Stream(gpu) as stream, Stream(gpu) as another:
        for queue in (stream, stream, another):
            fake.log.clear()
            harness.matmul(a, b, c, stream=queue)
            names = [name for name in fake.names() if name in ORDERING]
            fork, launch, join = ORDERING[:2], ORDERING[2:], ORDERING[:2]
            assert names == [*fork, *launch * 3, *join]
        streams = [int(one.stream) for one in fake.launches]
        mains, sides = streams[::3], {streams[i + 1] for i in (0, 3, 6)}
        assert streams[1::3] == streams[2::3]
        assert mains == [int(stream.handle)] * 2 + [int(another.handle)]
        assert streams[1] == streams[4] != streams[7] and not sides & set(mains)


@pytest.mark.usefixtures("large")
def test_in_a_capture_they_follow_each_other(fake: FakeDriver, gpu: Context) -> None:
    """The driver names no stream that is being captured, and would keep one at the side until the end."""
    M, N, K = BOTH
    a, b, c = Array(gpu, M, K), Array(gpu, K, N), Array(gpu, M, N)
    with Stream(gpu) as stream:
        harness.matmul(a, b, c, stream=stream)  # compiled before
        fake.log.clear()
        with Graph(stream, lambda queue: harness.matmul(a, b, c, stream=queue) and None):
            names = fake.names()
        assert "cuStreamGetId" not in names
        assert [name for name in names if name in ORDERING] == ["cuLaunchKernelEx"] * 3


def test_streams_at_the_side_are_bounded(
    fake: FakeDriver,
    gpu: Context,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(side_streams, "_MOST_KEPT", 2)
    with side_streams.Forks(gpu) as made, Stream(gpu) as one, Stream(gpu) as two, Stream(gpu) as three:
        for stream in (one, two, one, three):
            with made.beside(stream):
                pass
        assert list(made._kept) == [one.id, three.id], "the one used the longest ago has gone"
    assert not made._kept


def test_one_that_goes_while_it_is_used_still_joins(
    fake: FakeDriver,
    gpu: Context,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This happens when another thread makes room for its own."""
    monkeypatch.setattr(side_streams, "_MOST_KEPT", 1)
    with side_streams.Forks(gpu) as made, Stream(gpu) as one, Stream(gpu) as two:
        with made.beside(one) as side:
            with made.beside(two):
                pass
            assert list(made._kept) == [two.id]
            fake.log.clear()
            assert not side.closed
        assert [name for name in fake.names() if name in ORDERING] == ORDERING[:2]


@pytest.mark.parametrize("operand", range(3))
def test_a_part_in_the_wrong_place_is_seen(
    fake: FakeDriver,
    gpu: Context,
    monkeypatch: pytest.MonkeyPatch,
    operand: int,
) -> None:
    """The negative control of the test before: parts that begin where the operand does."""
    made = prepared._Launch.__init__

    def misplaced(self: Any, *args: Any) -> None:
        made(self, *args)
        self._offsets = tuple(0 if i == operand else x for i, x in enumerate(self._offsets))

    monkeypatch.setattr(prepared._Launch, "__init__", misplaced)
    with pytest.raises(AssertionError):
        test_the_product_is_whole(fake, gpu, 3)


@pytest.mark.exhaustive
def test_bench_launches_all_of_it(cli_fake: FakeDriver, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    M, N, K = BOTH
    cli_fake.functions["matmul"] = None
    result = command(
        "bench", "matmul", "-a", f"M={M}", "-a", f"N={N}", "-a", f"K={K}", *FAST, "--json", str(out)
    )
    assert result.exit_code == 0, result.output
    pitches = choose.about(GEMMS["fp32"](M=M, N=N, K=K))  # rows of 2049 floats begin anywhere
    made = divided(M, N, K, **H200, gpu="Fake GPU", **pitches)
    assert f"matmul -> {split.brief(part.variant for part in made)}" in result.stdout and len(made) == 3
    (row,) = [r for r in rows(out) if r["kernel"] == "matmul"]
    assert row["status"] == "ok"
    assert row["chosen"]["others"] == [part.variant.brief for part in made[1:]]
    with pytest.raises(UsageError, match="nothing to choose from"):  # it is no time of one kernel
        fastest.measured([out])
    alone = json.loads(out.read_text())
    for state in (s for b in alone["benchmarks"] for s in b["states"]):
        (state["harness"].get("chosen") or {}).pop("others", None)
    out.write_text(json.dumps(alone))
    assert len(fastest.measured([out])) == 1


def rows(file: Path) -> list[dict[str, Any]]:
    return [s["harness"] for b in json.loads(file.read_text())["benchmarks"] for s in b["states"]]
