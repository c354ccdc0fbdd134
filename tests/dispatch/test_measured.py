"""``HARNESS_MATMUL=measure`` on a fake GPU whose kernels take as long as they are told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import harness
from fakes import gemm as fake_gemm
from fakes.cublaslt import TimedDriver, install
from fakes.driver import image
from harness.dispatch import choose, measured, split, user_table
from harness.dispatch.call import gpus
from harness.driver import Context, Graph, Stream
from harness.errors import BuildError, ContextLost, HarnessError, UsageError
from harness.problems.gemm import Gemm
from shared.arrays import Array, gpu, operands  # noqa: F401  (fixtures)

SHAPE = (300, 512, 256)  # rows begin at multiples of 32 bytes


class Timed:
    """The fake GPU. `seconds` is what a launch takes, by the variants' labels; others take 2 ms."""

    def __init__(self, driver: TimedDriver) -> None:
        self.driver = driver
        self.seconds: dict[str, float] = {}
        self.compiled: list[str] = []
        self.refused: set[str] = set()
        self.held: list[bool] = []
        driver.functions = {}
        driver.function_attributes["CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES"] = 0
        driver.execute = self.execute

    def execute(self, launch: SimpleNamespace) -> None:
        fake_gemm.gemm(launch)
        self.driver.milliseconds = 1e3 * self.seconds.get(launch.function, 0.002)
        gate = any(kind == "pinned" for kind, _ in self.driver.live)  # else its word is gone
        self.held.append(gate and bool(self.driver.waits) and self.driver.held())

    def compile_kernel(self, variant: Any, arch: str) -> Any:
        if variant.label in self.refused:
            raise BuildError("refused by plan")
        self.compiled.append(variant.label)
        self.driver.functions[variant.label] = None
        return SimpleNamespace(code=image(fake_gemm.sizes(variant)), entry=variant.label)

    @property
    def ran(self) -> list[str]:
        """The labels of all launches, in order."""
        return [launch.function for launch in self.driver.launches]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the path of the user's table, in a folder that is not there yet."""
    path = tmp_path / "own" / "matmul.json"
    monkeypatch.setenv("HARNESS_TABLE", str(path))
    monkeypatch.setenv("HARNESS_MATMUL", "measure")
    choose.reread()
    yield path
    choose.reread()


@pytest.fixture
def timed(table: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Timed]:
    timed = Timed(install(monkeypatch))
    fake_gemm.without_small_tiles(monkeypatch)
    monkeypatch.setattr(gpus, "compile_kernel", timed.compile_kernel)
    monkeypatch.setattr(gpus, "_gpus", {})
    yield timed
    for one in gpus._gpus.values():
        one.context.close()


@pytest.fixture
def fake(timed: Timed) -> TimedDriver:
    """Return the driver that `gpu` needs."""
    return timed.driver


def best(*shape: int) -> list[str]:
    """The model's candidates, the best first."""
    found = choose.ranked(*shape, sms=132, arch="sm_90a")
    return [variant.label for variant, _ in found[: measured.CANDIDATES]]


def entries(table: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(table.read_text())["tuned"]
    return found


def test_the_fastest_runs_and_is_remembered(timed: Timed, gpu: Context, table: Path) -> None:
    second = (labels := best(*SHAPE))[1]
    timed.seconds = {second: 0.0015}
    a, b, c = operands(gpu, *SHAPE)
    before = timed.driver._used()
    harness.matmul(a, b, c)
    np.testing.assert_allclose(c.host, a.host @ b.host, rtol=1e-4, atol=1e-4)
    assert timed.ran[-1] == second and set(timed.ran) == set(labels)
    kept = [m for (kind, _), m in timed.driver.live.items() if kind == "memory" and m is not None]
    assert timed.driver._used() == before and len(kept) == 3, "the scratch output is freed"
    assert not any(kind in ("pinned", "stream", "event") for kind, _ in timed.driver.live)
    (entry,) = entries(table)
    assert (entry["M"], entry["N"], entry["K"]) == ([300] * 2, [512] * 2, [256] * 2)
    assert (entry["gpu"], entry["sms"], entry["layout"]) == ("Fake GPU", 132, "NN")
    timed.driver.launches.clear()
    harness.matmul(*operands(gpu, *SHAPE))
    assert timed.ran == [second], "it is timed once"
    process = gpus._gpus.pop(0)  # another one begins
    harness.matmul(*operands(gpu, *SHAPE))
    assert timed.ran == [second, second] and len(entries(table)) == 1
    process.context.close()
    chosen = harness.choose(*SHAPE, sms=132, arch="sm_90a", gpu="Fake GPU")
    assert chosen.label == second
    assert (
        harness.choose(301, 512, 256, sms=132, arch="sm_90a", gpu="Fake GPU").label == best(301, 512, 256)[0]
    )


def test_of_an_invariant_product_variants_with_its_order_are_timed(
    timed: Timed, gpu: Context, table: Path
) -> None:
    """What is the fastest of them is not remembered: a free choice may be faster."""
    ranked = choose.ranked(*SHAPE, sms=132, arch="sm_90a", invariant=choose.ROWS)
    labels = [variant.label for variant, _ in ranked[: measured.CANDIDATES]]
    assert len({choose.order(variant, SHAPE[2]) for variant, _ in ranked}) == 1
    timed.seconds = {labels[1]: 0.001}
    harness.matmul(*operands(gpu, *SHAPE), invariant=True)
    assert set(timed.ran) == set(labels) and timed.ran[-1] == labels[1]
    assert not table.exists()
    timed.driver.launches.clear()
    harness.matmul(*operands(gpu, *SHAPE), invariant=True)
    assert timed.ran == [labels[1]]
    timed.seconds = dict.fromkeys(best(*SHAPE), 0.001)
    harness.matmul(*operands(gpu, *SHAPE))
    assert len(entries(table)) == 1 and timed.ran[-1] in best(*SHAPE)
    again = choose.choose(*SHAPE, sms=132, arch="sm_90a", gpu="Fake GPU", invariant=choose.ROWS)
    assert choose.order(again, SHAPE[2]) == choose.order(ranked[0][0], SHAPE[2])


def test_outputs_are_not_touched_by_timing(timed: Timed, gpu: Context) -> None:
    """With a beta the product reads what `out` held: timing must not have changed it."""
    a, b, c = operands(gpu, 64, 64, 64)
    old = c.host.copy()
    harness.matmul(a, b, c, beta=2.0)
    np.testing.assert_allclose(c.host, a.host @ b.host + 2 * old, rtol=1e-4, atol=1e-4)
    assert len(timed.ran) > 3


def test_they_take_turns_behind_a_gate(timed: Timed, gpu: Context) -> None:
    """Each is run once before, unheld, which loads it; then in an order and in the opposite one."""
    labels = best(*SHAPE)
    harness.matmul(*operands(gpu, *SHAPE))
    assert timed.ran[:3] == labels and timed.held[:3] == [False] * 3
    assert timed.ran[3:6] == labels and all(timed.held[3:-1]) and not timed.held[-1]
    assert timed.ran[6:12] == labels + labels[::-1]


@pytest.mark.slow
def test_one_slow_launch_decides_nothing(timed: Timed, gpu: Context) -> None:
    """A drifting clock neither: the median of several turns counts."""
    first, second, _ = best(*SHAPE)
    timed.seconds = {first: 0.001, second: 0.0011}
    original, count = timed.driver.execute, [0]

    def execute(launch: SimpleNamespace) -> None:
        original(launch)
        count[0] += launch.function == first
        if launch.function == first and count[0] == 4:
            timed.driver.milliseconds = 500.0

    timed.driver.execute = execute
    harness.matmul(*operands(gpu, *SHAPE))
    assert timed.ran[-1] == first


def test_without_being_asked_nothing_is_timed(
    timed: Timed, gpu: Context, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HARNESS_MATMUL")
    timed.seconds = {best(*SHAPE)[1]: 0.0001}
    harness.matmul(*operands(gpu, *SHAPE))
    assert timed.ran == best(*SHAPE)[:1] and not table.exists()
    monkeypatch.setenv("HARNESS_MATMUL", "fast")
    with pytest.raises(UsageError, match="HARNESS_MATMUL=fast means nothing"):
        harness.matmul(*operands(gpu, 64, 64, 64))


def test_what_is_known_is_not_timed(timed: Timed, gpu: Context, table: Path) -> None:
    """A table's entry for the shape, and products that are divided."""
    known = choose.ranked(*SHAPE, sms=132, arch="sm_90a")[2][0]
    about = {"gpu": "Fake GPU", "sms": 132, "kernel": known.kernel.name, "params": dict(known.params)}
    user_table.keep([{**about, "M": [300, 300], "N": [1, 999], "K": [1, 999]}])
    choose.reread()
    harness.matmul(*operands(gpu, *SHAPE))
    assert timed.ran == [known.label] and len(entries(table)) == 1
    timed.driver.launches.clear()
    harness.matmul(*operands(gpu, 2049, 2049, 1024))
    odd = choose.about(Gemm(M=2049, N=2049, K=1024))  # rows of B and C begin anywhere
    parts = split.divided(2049, 2049, 1024, sms=132, arch="sm_90a", gpu="Fake GPU", **odd)
    assert timed.ran == [part.variant.label for part in parts] and len(parts) > 1
    assert len(entries(table)) == 1


def test_a_captured_stream_is_not_waited_for(timed: Timed, gpu: Context, table: Path) -> None:
    a, b, c = operands(gpu, *SHAPE)
    with Stream(gpu) as stream, Graph(stream, lambda s: harness.matmul(a, b, c, stream=s)) as graph:
        assert timed.ran == []
        graph(stream)
    assert timed.ran == best(*SHAPE)[:1] and not table.exists()


def test_while_another_stream_is_captured(timed: Timed, gpu: Context, table: Path) -> None:
    """Allocating is refused to a thread that has not said that it is not part of the capture."""
    a, b, c = operands(gpu, *SHAPE)
    with Stream(gpu) as other, Stream(gpu) as stream:
        Graph(other, lambda _: harness.matmul(a, b, c, stream=stream)).close()
    assert len(entries(table)) == 1


def test_candidates_that_fail_are_passed_over(timed: Timed, gpu: Context, table: Path) -> None:
    first, second, third = best(*SHAPE)
    timed.refused = {first, third}
    harness.matmul(*operands(gpu, *SHAPE))
    assert timed.ran[-1] == second
    (entry,) = entries(table)
    assert second.startswith(entry["kernel"])


def test_a_fault_is_raised(timed: Timed, gpu: Context) -> None:
    second = best(*SHAPE)[1]
    original = timed.driver.execute

    def fault(launch: SimpleNamespace) -> None:
        original(launch)
        if launch.function == second:
            timed.driver.sticky = 700

    timed.driver.execute = fault
    try:
        with pytest.raises(ContextLost):
            harness.matmul(*operands(gpu, *SHAPE))
    finally:
        timed.driver.sticky = 0


@pytest.mark.parametrize(
    ("call", "code"), [("cuMemAlloc", 2), ("cuMemHostAlloc", 2), ("cuStreamCreate", 801)]
)
def test_what_cannot_be_timed_runs_all_the_same(
    timed: Timed, gpu: Context, table: Path, call: str, code: int
) -> None:
    """Without room for another output, or for the gate: the model's choice, which is not remembered."""
    a, b, c = operands(gpu, *SHAPE)
    before = len(timed.driver.live)
    timed.driver.fail(call, code)
    harness.matmul(a, b, c)
    np.testing.assert_allclose(c.host, a.host @ b.host, rtol=1e-4, atol=1e-4)
    assert {kind for kind, _ in list(timed.driver.live)[before:]} <= {"context", "module"}, "nothing leaks"
    assert timed.ran[-1] == best(*SHAPE)[0] and not table.exists()


def test_a_table_that_cannot_be_written(timed: Timed, gpu: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """The product is right all the same, and runs the fastest."""

    def full(path: Path, data: bytes) -> None:
        raise HarnessError("cannot write: No space left on device", where=str(path))

    monkeypatch.setattr(user_table.files, "write_file", full)
    second = best(*SHAPE)[1]
    timed.seconds = {second: 0.0001}
    with pytest.warns(UserWarning, match="is not remembered"):
        harness.matmul(*operands(gpu, *SHAPE))
    assert timed.ran[-1] == second


@pytest.mark.slow
def test_operands_without_tensor_maps_are_not_remembered(timed: Timed, gpu: Context, table: Path) -> None:
    a, b, c = Array(gpu, 300, 261), Array(gpu, 261, 500), Array(gpu, 300, 500)
    harness.matmul(a, b, c)
    assert len(set(timed.ran)) > 1 and not table.exists()


def test_entries_of_a_layout_are_for_that(table: Path) -> None:
    """One without a layout holds for all."""
    variant = choose.ranked(*SHAPE, sms=132, arch="sm_90a", layout="NT")[1][0]
    params = {name: value for name, value in variant.params.items() if name not in ("TRANSA", "TRANSB")}
    about = {"gpu": "Fake GPU", "sms": 132, "kernel": variant.kernel.name, "params": params}
    exact = {axis: [size, size] for axis, size in zip("MNK", SHAPE, strict=True)}
    user_table.keep([{**about, **exact, "layout": "NT"}])
    choose.reread()
    where: dict[str, Any] = {"sms": 132, "arch": "sm_90a", "gpu": "Fake GPU"}
    assert choose.choose(*SHAPE, **where, layout="NT").label == variant.label
    assert choose.choose(*SHAPE, **where).label == best(*SHAPE)[0]
    user_table.keep([{**about, **exact}])
    choose.reread()
    assert choose.choose(*SHAPE, **where).params["BM"] == variant.params["BM"]
    assert len(entries(table)) == 2, "one replaces only what is for the same"
    user_table.keep([{**about, **exact, "layout": "NT"}])
    assert len(entries(table)) == 2
