"""``matmul`` as a kernel of ``harness bench`` and ``harness verify``: on a fake GPU, and without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes import driver as fake_driver
from fakes import gemm as fake_gemm
from harness.bench.row import FAILED, OK
from harness.bench.session import Bench
from harness.dispatch import choose
from harness.dispatch.chosen import build_chosen
from harness.driver import Context, Device
from harness.kernels.dtypes import DTYPES
from harness.launch import builds
from harness.problems.gemm import GEMMS, Gemm
from harness.results import record
from harness.results.encode import static_record
from harness.support.cache import Cache
from shared.command import FAST, fake, harness, no_gpu  # noqa: F401  (fixtures)
from shared.sweeps import sweep

SHAPES = [{"M": 2, "N": 300, "K": 40}, {"N": 300}, {"M": 3, "N": 300, "K": 40}, {"M": 300, "N": 1, "K": 300}]


@pytest.fixture(autouse=True)
def large_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake kernel has no workspace among its parameters, as those of small tiles have."""
    fake_gemm.without_small_tiles(monkeypatch)


def choices(cache: Cache) -> list[builds.Built]:
    problems = [Gemm.from_axes(axes) for axes in SHAPES]
    return build_chosen(problems, "sm_90a", cache, lambda _: None, sms=132, gpu="Fake GPU")[0]


@pytest.mark.slow
def test_each_size_is_run_by_what_is_chosen_for_it(fake: Any, cache: Cache) -> None:
    found = choices(cache)
    assert len({b.label for b in found}) == len(found) >= 3
    assert all(b.label.startswith(("matmul -> 1", "matmul -> 40_skinny_dots")) for b in found)
    with Context(Device.open()) as context, Bench(context, rule=None) as session:
        rows = list(session.rows(found, {Gemm: SHAPES}, lambda _: None))
    assert [r.status for r in rows] == [OK] * 4
    for row, launched in zip(rows, fake.launches, strict=True):
        problem = row.problem
        assert isinstance(problem, Gemm)
        shape, about = (problem.M, problem.N, problem.K), choose.about(problem)
        chosen = choose.choose(*shape, sms=132, arch="sm_90a", gpu="Fake GPU", **about)
        assert row.built is not None and row.built.variant.label == chosen.label
        assert row.label == f"matmul -> {chosen.brief}"
        assert launched.block == chosen.block


def test_a_wrong_choice_is_seen(fake: Any, cache: Cache) -> None:
    fake.execute = fake_gemm.zeros
    with Context(Device.open()) as context, Bench(context, rule=None) as session:
        rows = list(session.rows(choices(cache), {Gemm: SHAPES}, lambda _: None))
    assert [r.status for r in rows] == [FAILED] * 4


def test_a_kernel_of_fp32_that_serves_bf16x6_is_of_that_type(cache: Cache) -> None:
    """Both types take the same kernel here; a record tells which of them was asked for."""
    problems = [GEMMS[dtype](M=1, N=4096, K=4096) for dtype in ("fp32", "bf16x6")]
    found, _ = build_chosen(problems, "sm_90a", cache, lambda _: None, sms=132, gpu="Fake GPU")
    assert {b.variant.kernel.dtype for b in found} == {"fp32"}
    assert [static_record(b)["dtype"] for b in found] == ["fp32", "bf16x6"]
    assert [b.serves(problem) for b in found for problem in problems] == [True, False, False, True]


@pytest.mark.slow
def test_bench_and_its_record(fake: fake_driver.FakeDriver, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    fake.functions["matmul"] = None  # what its cubin says: some choices take tensor maps
    result = harness("bench", "matmul", "tiled", "-a", "N=[40,300]", *FAST, "--json", str(out))
    assert result.exit_code == 0, result.output
    shown = [s for s in result.stdout.splitlines() if s.startswith("matmul -> ")]
    assert len(shown) == len({s.split("  ")[0] for s in shown}) + 2  # in the first table, and in each size's
    content = json.loads(out.read_text())
    rows = [s["harness"] for b in content["benchmarks"] for s in b["states"]]
    mine = {r["shape"]: r for r in rows if r["kernel"] == "matmul"}
    assert set(mine) == {"40", "300"} and len(rows) == 4
    for n, row in mine.items():
        chosen = choose.choose(int(n), int(n), int(n), sms=132, arch="sm_90a", gpu="Fake GPU")
        assert row["params"] == {} and row["status"] == "ok"
        assert row["chosen"]["label"] == chosen.brief and row["chosen"]["params"] == chosen.stated
        assert row["tile"] == list(chosen.tile)


@pytest.mark.slow
def test_verify(fake: fake_driver.FakeDriver) -> None:
    fake.functions["matmul"] = None
    result = harness("verify", "matmul")
    assert result.exit_code == 0, result.output
    lines = [s for s in result.stdout.splitlines() if s.startswith("matmul -> ")]
    shown = [s.split("  ")[0] for s in lines]
    assert len(set(shown)) == len(shown) >= 2
    assert sum(int(s.split("/")[1].split()[0]) for s in lines) == len(Gemm.verify_axes)
    fake.execute = fake_gemm.zeros
    assert harness("verify", "matmul").exit_code == 1


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu() -> None:
    result = harness("bench", "matmul", "--arch", "sm_80", "-a", "M=4", "-a", "N=40", "-a", "K=24")
    assert result.exit_code == 0, result.output
    assert "matmul -> 17_skinny_rows" in result.stdout and " ok" in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["bench", "matmul", "--isolate"], "--isolate takes a kernel"),
        (["bench", "matmul", "-p", "TILE=16"], "-p takes a kernel"),
        (["verify", "matmul", "-p", "TILE=16"], "-p takes a kernel"),
        (["sass", "matmul"], "no kernel 'matmul'"),
    ],
)
def test_what_the_dispatcher_cannot_be_asked(args: list[str], message: str) -> None:
    result = harness(*args)
    assert result.exit_code == 2 and message in result.output


@pytest.mark.slow
@pytest.mark.parametrize("dtype", sweep(["bf16", "fp16", "tf32"], lambda dtype: dtype == "fp16"))
def test_a_type_of_its_own(fake: fake_driver.FakeDriver, tmp_path: Path, dtype: str) -> None:
    about = choose.about(GEMMS[dtype](M=300, N=300, K=300))
    chosen = choose.choose(300, 300, 300, sms=132, arch="sm_90a", gpu="Fake GPU", **about)
    kernel = fake_gemm.TypedGemm()
    fake.functions = {"matmul": kernel.becomes(chosen)}
    fake.execute = kernel
    out = tmp_path / "out.json"
    command = ["bench", "matmul", "--dtype", dtype, "-a", "N=300", *FAST, "--json", str(out)]
    result = harness(*command)
    assert result.exit_code == 0, result.output
    assert f"gemm 300 {dtype}" in result.stdout and f"matmul -> {chosen.brief}" in result.stdout
    (row,) = record.load(out)["rows"]
    assert (row["kernel"], row["dtype"], row["chosen"]["label"]) == ("matmul", dtype, chosen.brief)
    kernel.dtype = DTYPES["bf16" if dtype != "bf16" else "fp16"]  # it takes the bits for another type's
    assert harness(*command).exit_code == 1


@pytest.mark.slow
@pytest.mark.usefixtures("no_gpu")
def test_several_types_without_a_gpu() -> None:
    """The emulator runs the kernels of both."""
    result = harness(
        "bench", "matmul", "--dtype", "bf16", "--dtype", "fp32", "--arch", "sm_90a", "-a", "N=40"
    )
    assert result.exit_code == 0, result.output
    assert "matmul -> 2" in result.stdout and "needs a GPU" not in result.stdout
    assert "40 bf16" in result.stdout


def test_a_type_is_not_asked_of_a_kernel() -> None:
    result = harness("bench", "tiled", "--dtype", "bf16", "-d", "emulator")
    assert result.exit_code == 2 and "03_tiled is not written for bf16" in result.output
    assert "its element type is fp32" in result.output
