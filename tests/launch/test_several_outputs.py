"""Several outputs, constants and structs on a fake GPU, whose kernel is NumPy: prepared, verified, timed."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import driver as fake_driver
from fakes import gemm as fake_gemm
from harness.bench.row import FAILED, OK, Measurement
from harness.bench.session import Bench
from harness.bench.stopping import StopRule
from harness.driver import Context, Device, Stream
from harness.errors import DriverError, UsageError
from harness.kernels import spec
from harness.launch import builds
from harness.launch.operands import Operands
from harness.problems.registry import resolve
from harness.support.cache import Cache

RULE = StopRule(min_samples=3, min_time=0.0, timeout=0.05, warmup=0.001)
SOURCE = """\
// Two outputs, one updated in place
//
// /// kernel
// entry = "many"
// problem = "many.py:many"
// block = 64
// tile = 64
// ///
__constant__ float coeff[2];
struct Out { float* total; float* low; int n; };
extern "C" __global__ void many(const float* x, Out out, float factor)
{
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < out.n) out.total[i] += factor * x[i], out.low[i] = coeff[0] + coeff[1] * x[i];
}
"""
PROBLEM = """\
from harness.problems import problem

@problem(x="float32[N]", total="inout float32[N]", low="out float32[N]", coeff="const float32[2]",
         N=60, factor=2.5, arguments=["x", ("total", "low", "N"), "factor"])
def many(x, total, coeff, factor):
    return total + factor * x, coeff[0] + coeff[1] * x
"""


def views(launch: Any) -> tuple[Any, ...]:
    """Return x, total and low as views of their memory, and the factor."""
    (x,), (total, low, n), (factor,) = (
        struct.unpack(form, data) for form, data in zip(["<Q", "<QQi4x", "<f"], launch.args, strict=True)
    )
    arrays = ((ctypes.c_float * n).from_address(address) for address in (x, total, low))
    return (*(np.frombuffer(a, np.float32) for a in arrays), np.float32(factor))


class Kernel:
    """The kernel, with a fault if one is planted."""

    def __init__(self, fake: fake_driver.FakeDriver, fault: Callable[..., None] = lambda *_: None) -> None:
        self.fake, self.fault, self.calls = fake, fault, 0

    def __call__(self, launch: Any) -> None:
        x, total, low, factor = views(launch)
        a, b = struct.unpack("<2f", self.fake.variables["coeff"].raw)
        total[:] = total + factor * x
        low[:] = np.float32(a) + np.float32(b) * x
        self.calls += 1
        self.fault(self.calls, x, total, low)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> fake_driver.FakeDriver:
    fake = fake_gemm.gpu(monkeypatch)
    fake.functions = {"many": (8, 24, 4)}
    fake.variables = {"coeff": ctypes.create_string_buffer(8)}
    fake.execute = Kernel(fake)
    return fake


@pytest.fixture
def built(fake: Any, tmp_path: Path, cache: Cache) -> Any:
    (tmp_path / "many.py").write_text(PROBLEM)
    path = tmp_path / "many.cu"
    path.write_text(SOURCE)
    (found,), _ = builds.build_all([spec.load(path).variant()], ["sm_90a"], cache, lambda _: None)
    return found


@pytest.fixture
def context(fake: Any) -> Iterator[Context]:
    with Context(Device.open()) as context:
        yield context


def row(context: Context, built: Any, rule: StopRule | None = RULE, repeats: int = 0) -> Measurement:
    with Bench(context, rule=rule, repeats=repeats) as session:
        cls = resolve(built.variant.kernel)
        (found,) = session.rows([built], {cls: [{}]}, lambda _: None)
    return found


def test_it_is_verified_timed_and_repeated(context: Context, built: Any, fake: Any) -> None:
    found = row(context, built, repeats=3)
    assert found.status == OK, found.detail
    assert found.samples is not None and found.after is not None and found.after.ok
    assert found.repeats is not None and found.repeats.ok
    assert found.protections[0] == "4 data sets in random order"


def spoils(name: str, since: int) -> Callable[..., None]:
    def fault(calls: int, x: Any, total: Any, low: Any) -> None:
        if calls >= since:
            {"x": x, "total": total, "low": low}[name][7] += 1

    return fault


@pytest.mark.slow
@pytest.mark.parametrize("since", [1, 5], ids=["at once", "while it is timed"])
@pytest.mark.parametrize(
    ("name", "said"),
    [("total", "total: 1 of 60"), ("low", "low: 1 of 60"), ("x", "overwrote its input x")],
)
def test_a_fault_in_any_operand_is_found(
    context: Context, built: Any, fake: Any, name: str, said: str, since: int
) -> None:
    fake.execute = Kernel(fake, spoils(name, since))
    found = row(context, built)
    assert found.status == FAILED and said in found.detail, found.detail


def test_repeats_compare_all_outputs(context: Context, built: Any, fake: Any) -> None:
    def drifts(calls: int, x: Any, total: Any, low: Any) -> None:
        if calls == 3:  # within the bound, in other bits
            low.view(np.uint32)[5] ^= 1

    fake.execute = Kernel(fake, drifts)
    found = row(context, built, rule=None, repeats=4)
    assert found.repeats is not None and (found.repeats.equal, found.repeats.first) == (3, 2)


def test_a_variable_of_another_size_or_name(context: Context, built: Any, fake: Any) -> None:
    fake.variables = {"coeff": ctypes.create_string_buffer(4)}
    assert "the variable coeff has 4 bytes, not 8" in row(context, built).error
    fake.variables = {}
    assert "cuModuleGetGlobal" in row(context, built).error


def test_operands_keep_constants_apart_and_set_outputs_back(context: Context, built: Any) -> None:
    cls = resolve(built.variant.kernel)
    problem = cls.from_axes({})
    with Stream(context) as stream, Operands(context, problem, stream, seed=1, sets=2) as operands:
        assert set(operands.buffers[0]) == {"x", "total", "low"} and set(operands.constants) == {"coeff"}
        (first, second) = operands.data_sets(2)
        assert np.array_equal(first.host["coeff"], second.host["coeff"])
        assert not np.array_equal(first.host["x"], second.host["x"])
        with built.prepare(operands) as launch:
            for _ in range(2):
                launch(stream)
            assert not operands.damaged_inputs(stream)
            assert all(v.ok for v in operands.verdicts(stream, sets=2))
            for _ in range(2):
                launch(stream)  # on what it has updated
            assert not any(v.ok for v in operands.verdicts(stream, sets=2))
            operands.fill_output(stream)
            launch(stream)
            assert next(iter(operands.verdicts(stream, sets=1))).ok


def test_guessed_arguments_are_not_verified_on_a_gpu(
    context: Context, fake: Any, tmp_path: Path, cache: Cache
) -> None:
    from harness.kernels import catalog

    path = tmp_path / "plain.cu"
    path.write_text("__global__ void k(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 1; }\n")
    (built,), _ = builds.build_all([catalog.kernel(str(path)).variant()], ["sm_90a"], cache, lambda _: None)
    cls = resolve(built.variant.kernel)
    with Stream(context) as stream, pytest.raises(UsageError, match="no reference to verify"):
        Operands(context, cls.from_axes({}), stream, seed=1, sets=1)


def test_a_module_has_no_such_variable(context: Context, fake: Any, built: Any) -> None:
    from harness.driver import Module

    with Module(context, built.cubin.code) as module, Stream(context) as stream:
        with pytest.raises(DriverError):
            module.write("nothing", np.zeros(2, np.float32), stream)
        module.write("coeff", np.array([1, 2], np.float32), stream)
        assert struct.unpack("<2f", fake.variables["coeff"].raw) == (1, 2)
