"""`harness verify --repeat`: launches on the same inputs write the same bits, and it is seen where one does
not; on a fake GPU, in the emulator, and on a GPU.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fakes import gemm as fake_gemm
from harness.bench import emulation
from harness.bench.emulation import Options
from harness.bench.row import ERROR, EXPECTED, FAILED, OK
from harness.bench.session import Bench
from harness.bench.stopping import StopRule
from harness.driver import Context, Device
from harness.errors import ContextLost
from harness.kernels import catalog, spec
from harness.kernels.arch import Arch
from harness.launch import builds
from harness.problems.gemm import Gemm
from harness.problems.protocol import Reference
from harness.problems.verify import Repeats, compare
from harness.results import record
from harness.support.cache import Cache
from shared.command import fake, harness  # noqa: F401  (a fixture)

# With padding, and with a C that beta multiplies: no single word fills that.
POINTS: list[dict[str, Any]] = [{"N": 32}, {"M": 7, "N": 19, "K": 5, "ldc": 24, "beta": 0.5}]


class Flips:
    """Right, but for a bit of one byte of the output buffer in launch `number` (0 is the verified one)."""

    def __init__(self, number: int, byte: int = 0) -> None:
        self.left, self.byte = number, byte

    def __call__(self, launch: SimpleNamespace) -> None:
        fake_gemm.gemm(launch)
        if self.left == 0:
            at = int.from_bytes(launch.args[2], "little") + self.byte
            ctypes.c_uint8.from_address(at).value ^= 1
        self.left -= 1


def built(cache: Cache, name: str = "tiled") -> builds.Built:
    variants = [catalog.find(name)[0].variant()]
    return builds.build_all(variants, ["sm_90a"], cache, lambda _: None)[0][0]


def rows(cache: Cache, *points: dict[str, Any], repeats: int = 5, kernel: str = "tiled") -> list[Any]:
    with Context(Device.open()) as context, Bench(context, rule=None, repeats=repeats) as session:
        return list(session.rows([built(cache, kernel)], {Gemm: points or POINTS}, lambda _: None))


def test_equal_launches(fake: Any, cache: Cache) -> None:
    found = rows(cache, repeats=300)  # more than are asked for at once
    assert [r.status for r in found] == [OK] * 2
    assert [r.repeats for r in found] == [Repeats(launches=300, equal=300, first=None)] * 2
    assert len(fake.launches) == 2 * (1 + 300)


def test_repeats_after_timing_begin_from_a_verified_output(fake: Any, cache: Cache) -> None:
    """The padding is that of a fresh output again, not of the one that was spoilt before timing."""
    padded = {"M": 8, "N": 8, "K": 8, "ldc": 11}
    rule = StopRule(min_time=0.001, timeout=0.01, min_samples=2, warmup=0.001, settle=0.001)
    with Context(Device.open()) as context, Bench(context, rule=rule, regime="hot", repeats=3) as session:
        (row,) = session.rows([built(cache)], {Gemm: [padded]}, lambda _: None)
    assert (row.status, row.repeats) == (OK, Repeats(launches=3, equal=3, first=None)), row.error
    assert row.samples is not None


def test_a_difference_far_behind_is_counted_right(fake: Any, cache: Cache) -> None:
    for number in (255, 256, 257, 600):  # 256 fingerprints come at once, the verified one's first
        fake.execute = Flips(number)
        (row,) = rows(cache, {"N": 16}, repeats=600)
        assert row.repeats == Repeats(launches=600, equal=599, first=number)


def test_outputs_are_filled_anew_before_each_launch(fake: Any, cache: Cache) -> None:
    """So that one which writes nothing leaves nothing that was right."""
    seen = []

    def watch(launch: SimpleNamespace) -> None:
        seen.append(np.array(fake_gemm.parameters(launch)[2]).tobytes())
        if len(seen) != 3:
            fake_gemm.gemm(launch)

    for point in POINTS:
        seen.clear()
        fake.execute = watch
        (row,) = rows(cache, point)
        assert len(seen) == 6 and len(set(seen)) == 1, "all find what the first has found"
        assert row.repeats == Repeats(launches=5, equal=4, first=2) and row.status == FAILED


@pytest.mark.parametrize("point", POINTS, ids=["plain", "padded"])
@pytest.mark.parametrize("number", [1, 3, 5])
def test_a_launch_that_differs_is_named(fake: Any, cache: Cache, point: Any, number: int) -> None:
    problem = Gemm.from_axes(point)
    last = 4 * ((problem.M - 1) * problem.ldc + problem.N) - 1
    for byte in (0, last):
        fake.execute = Flips(number, byte)
        (row,) = rows(cache, point)
        assert row.before.ok and row.repeats == Repeats(launches=5, equal=4, first=number)
        assert row.status == FAILED and f"launch {number} after the verified one" in row.detail
        assert "not deterministic" in row.detail


def test_the_last_byte_of_the_padding_counts(fake: Any, cache: Cache) -> None:
    fake.execute = Flips(2, 4 * 7 * 24 - 1)
    (row,) = rows(cache, POINTS[1])
    assert row.before.ok and row.repeats.first == 2 and row.status == FAILED


def test_an_input_overwritten_by_a_repeat(fake: Any, cache: Cache) -> None:
    """The output has the same bits all the same: it was computed before."""
    launches = []

    def late(launch: SimpleNamespace) -> None:
        launches.append(launch)
        fake_gemm.gemm(launch)
        if len(launches) == 6:
            fake_gemm.parameters(launch)[0].flags.writeable = True
            fake_gemm.parameters(launch)[0][0, 0] += 1

    fake.execute = late
    (row,) = rows(cache, {"N": 32})
    assert row.repeats.ok and row.status == FAILED
    assert row.detail == "FAILED: a repeat overwrote its input A"


def test_what_is_wrong_is_not_repeated_and_broken_kernels_stay_expected(fake: Any, cache: Cache) -> None:
    fake.execute = fake_gemm.zeros
    (row,) = rows(cache, {"N": 32})
    assert row.status == FAILED and row.repeats is None and len(fake.launches) == 1
    fake.execute = Flips(3)
    (row,) = rows(cache, {"N": 32}, kernel="tiled_no_sync")
    assert row.status == EXPECTED and not row.failed and row.repeats.first == 3


def test_a_fault_in_a_repeat_ends_the_run(fake: Any, cache: Cache) -> None:
    def fault(launch: SimpleNamespace) -> None:
        fake_gemm.gemm(launch)
        if len(fake.launches) == 4:
            fake.sticky = 700

    fake.execute = fault
    with pytest.raises(ContextLost, match="ILLEGAL_ADDRESS"):
        rows(cache, {"N": 32})


# The command


def test_the_command_and_its_record(fake: Any, tmp_path: Path) -> None:
    out = tmp_path / "v.json"
    size = ["-a", "N=[16,40]"]
    result = harness("verify", "tiled", *size, "--repeat", "1200", "--json", str(out))
    assert result.exit_code == 0, result.output
    (line,) = [s for s in result.stdout.splitlines() if s.startswith("03_tiled")]
    assert [s.strip() for s in line.split("  ") if s][-2:] == ["1,200 equal", "ok"]
    content = record.load(out)
    assert content["kind"] == "verify" and content["meta"]["gpu"]["name"] == "Fake GPU"
    assert content["meta"]["repeats"] == 1200 and content["meta"]["ended"] == "complete"
    for row, n in zip(content["rows"], (16, 40), strict=True):
        assert (row["kernel"], row["params"], row["dtype"]) == ("03_tiled", {"TILE": 16}, "fp32")
        assert (row["axes"]["M"], row["status"], row["tensor_instructions"]) == (n, "ok", 0)
        assert row["repeats"] == {"launches": 1200, "equal": 1200, "first": None}
        worst = row["verdict"]["worst"]
        assert 0 < worst["error"] < worst["bound"] and row["verdict"]["max_error"] >= worst["error"]
        assert worst["error_over_bound"] == pytest.approx(worst["error"] / worst["bound"])


def test_a_difference_fails_the_command(fake: Any, tmp_path: Path) -> None:
    fake.execute = Flips(3)
    out = tmp_path / "v.json"
    result = harness("verify", "tiled", "-a", "N=16", "--repeat", "5", "--json", str(out))
    assert result.exit_code == 1 and "4 of 5 equal" in result.stdout
    assert "not deterministic: launch 3 after" in " ".join(result.output.split())
    (row,) = json.loads(out.read_text())["rows"]
    assert row["status"] == "FAILED" and row["repeats"] == {"launches": 5, "equal": 4, "first": 3}
    fake.execute = Flips(3)
    result = harness("verify", "tiled_no_sync", "-a", "N=16", "--repeat", "5")
    assert result.exit_code == 0 and "FAILED as marked" in result.stdout


def test_the_dispatcher_is_repeated(fake: Any, tmp_path: Path) -> None:
    out = tmp_path / "v.json"
    result = harness("verify", "matmul", "-a", "N=300", "--repeat", "4", "--json", str(out))
    assert result.exit_code == 0 and "4 equal" in result.stdout, result.output
    (row,) = record.load(out)["rows"]
    assert row["kernel"] == "matmul" and row["chosen"]["label"] and row["repeats"]["equal"] == 4
    assert len(fake.launches) == 5


@pytest.mark.slow
def test_tensor_instructions_are_counted(cache: Cache) -> None:
    for name, least in (("21", 1), ("22", 4), ("13", 0)):
        one = built(cache, name)
        assert one.tally is not None and one.sass is not None
        assert (one.tally.tensor_instructions > 0) == (least > 0)
        assert one.tally.tensor_instructions == one.sass.count("HMMA") + one.sass.count("HGMMA") >= least


def test_the_bound_is_of_the_worst_element() -> None:
    reference = Reference(expected=np.array([[1.0, 2.0, 3.0]]), bound=np.array([[1.0, 0.5, 8.0]]))
    verdict = compare(np.array([[1.5, 2.4, 6.0]], np.float32), reference)
    assert verdict.worst == pytest.approx(0.8) and verdict.bound == 0.5 and verdict.max_error == 3.0


# In the emulator


def test_emulated_launches(cache: Cache) -> None:
    for name, equal, status in (("tiled", 3, OK), ("tiled_no_sync", 1, EXPECTED)):
        wanted = Options(repeats=3, count=False)
        (row,) = emulation.rows([built(cache, name)], {Gemm: [{"N": 32}]}, wanted, lambda _: None)
        assert row.status == status and row.repeats is not None
        assert (row.repeats.launches, row.repeats.equal) == (3, equal)
        assert row.repeats.ok or row.repeats.first == 1, "warp after warp, the race shows"


def test_an_emulated_difference_in_the_last_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, launches = emulation.launch, []

    def planted(one: Any, problem: Any, *rest: Any) -> Any:
        run, arrays = whole(one, problem, *rest)
        launches.append(one)
        if len(launches) == 4:
            arrays[problem.output].view(np.uint8)[-1, -1] ^= 1
        return run, arrays

    monkeypatch.setattr(emulation, "launch", planted)
    result = harness("verify", "tiled", "-a", "N=16", "-d", "emulator", "--repeat", "5")
    assert result.exit_code == 1 and "4 of 5 equal" in result.stdout
    assert "launch 3 after the verified one" in " ".join(result.output.split())


def test_an_exception_in_one_row_leaves_the_others(monkeypatch: pytest.MonkeyPatch, cache: Cache) -> None:
    whole = emulation.launch

    def planted(one: Any, problem: Any, *rest: Any) -> Any:
        if problem.M == 20:
            raise TypeError("data type 's4' not understood")
        return whole(one, problem, *rest)

    monkeypatch.setattr(emulation, "launch", planted)
    points = {Gemm: [{"N": n} for n in (16, 20, 24)]}
    rows = list(emulation.rows([built(cache, "tiled")], points, Options(), lambda _: None))
    assert [row.status for row in rows] == [OK, ERROR, OK]
    assert "TypeError: data type 's4' not understood" in rows[1].error


def test_bad_requests(tmp_path: Path) -> None:
    assert harness("verify", "tiled", "--repeat", "-1").exit_code == 2
    assert harness("verify", "tiled", "--json", str(tmp_path / "mine.cu")).exit_code == 2


# On a GPU

# Each launch adds one to a counter. The third, the second after the verified one, changes a bit of the last
# element.
CHANGES = """\
extern "C" __global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K,
                                  int lda, int ldb, int ldc, float alpha, float beta, unsigned* count)
{
    int col = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE + threadIdx.y;
    if (row >= M || col >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += A[row * lda + k] * B[k * ldb + col];
    float value = beta == 0 ? alpha * sum : alpha * sum + beta * C[row * ldc + col];
    if (row == M - 1 && col == N - 1 && ++*count == 3) value = __uint_as_float(__float_as_uint(value) ^ 1);
    C[row * ldc + col] = value;
}
"""


@pytest.mark.gpu
def test_on_a_gpu(gpu: Context, cache: Cache, kernel_file: Any) -> None:
    changing = spec.load(kernel_file(extra='workspace = "4"', body=CHANGES))
    steady = catalog.kernel("tiled")
    arch = str(Arch.of_capability(*gpu.device.capability))
    points = [{"N": 512}, {"M": 300, "N": 500, "K": 260, "ldc": 512, "beta": 0.5}]
    made, _ = builds.build_all([steady.variant(), changing.variant()], [arch], cache, lambda _: None)
    with Bench(gpu, rule=None, repeats=1000) as session:
        found = list(session.rows(made, {Gemm: points}, lambda _: None))
    assert len(found) == 4
    for row in found:
        if row.built is not None and row.built.variant.kernel is steady:
            assert row.status == OK and row.repeats == Repeats(launches=1000, equal=1000, first=None)
        else:
            assert row.before is not None and row.before.ok, "one bit is far within the bound"
            assert row.status == FAILED and row.repeats == Repeats(launches=1000, equal=999, first=2)
