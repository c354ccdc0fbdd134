"""Which tests a run takes: slow ones, those that need the GPU alone, and which variants are enough."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from harness.kernels import catalog
from harness.kernels.spec import Variant
from shared import alone, selection
from shared.on_card import covering
from shared.sweeps import FAST_BUILDS, sweep

TESTS = """
import pytest

def test_quick(): pass

@pytest.mark.slow
def test_slow(): pass

@pytest.mark.exhaustive
def test_exhaustive(): pass

@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_sizes(size): pass

@pytest.mark.slow
@pytest.mark.card
def test_slow_card(): pass
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the plugin on TESTS with these arguments; return the names of those that ran, and the output."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makepyfile(test_it=TESTS)
    pytester.makeini("[pytest]\nmarkers = card")

    def run(*arguments: str) -> tuple[set[str], str]:
        result = pytester.runpytest_inprocess("-p", "shared.selection", "-v", "--strict-markers", *arguments)
        names = {
            line.split("::")[1].split()[0] for line in result.outlines if "::" in line and "PASSED" in line
        }
        return names, result.stdout.str()

    return run


EVERYTHING = {
    "test_quick", "test_slow", "test_exhaustive", "test_sizes[1]", "test_sizes[2]", "test_slow_card"
}  # fmt: skip


def test_a_plain_run_leaves_slow_tests_out_and_says_how_to_run_them(run: Any) -> None:
    names, output = run()
    assert names == {"test_quick", "test_sizes[1]"}
    assert output.splitlines()[-2] == f"4 slow tests left out: {selection.RUN_SLOW}"
    assert "2 passed, 4 deselected" in output


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["-m", "slow"], {"test_slow", "test_sizes[2]", "test_slow_card"}),
        (["-m", "card"], {"test_slow_card"}),
        (["-m", ""], EVERYTHING),
        (["-m", "not slow"], {"test_quick", "test_exhaustive", "test_sizes[1]"}),
        (["-m", "exhaustive"], {"test_exhaustive"}),
        (["-k", "sizes"], {"test_sizes[1]", "test_sizes[2]"}),
        (["test_it.py::test_slow"], {"test_slow"}),
        (["./test_it.py::test_sizes"], {"test_sizes[1]", "test_sizes[2]"}),
        (["test_it.py::test_sizes[2]"], {"test_sizes[2]"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_named_runs(run: Any, arguments: list[str], names: set[str]) -> None:
    found, output = run(*arguments)
    assert found == names
    assert "left out" not in output


def test_a_file_is_no_name_of_its_slow_tests(run: Any) -> None:
    names, output = run("test_it.py")
    assert names == {"test_quick", "test_sizes[1]"} and "4 slow tests left out" in output


def test_a_node_id_names_no_other_test(run: Any) -> None:
    names, output = run("test_it.py::test_slow", "test_it.py")
    assert names == {"test_slow", "test_quick", "test_sizes[1]"}
    assert "3 slow tests left out" in output


def test_a_run_without_slow_tests_says_nothing(run: Any) -> None:
    assert "left out" not in run("test_it.py::test_quick")[1]


CASES = """
import pytest

@pytest.mark.parametrize("size", range(200))
def test_many(size): pass

@pytest.mark.parametrize("size", [1, 2])
def test_few(size): pass

def test_one(): pass
"""


@pytest.mark.slow
def test_a_share_of_the_cases_is_drawn_and_each_test_runs(run: Any, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=CASES)
    seen: set[str] = set()
    for seed in range(12):
        names, output = run("--share", "0.25", "--share-seed", str(seed))
        assert run("--share", "0.25", "--share-seed", str(seed))[0] == names
        assert "test_one" in names and any(name.startswith("test_few") for name in names)
        many = {name for name in names if name.startswith("test_many")}
        assert 25 <= len(many) <= 75
        assert f"{203 - len(names)} cases left out by --share 0.25 --share-seed {seed}" in output
        seen |= many
    once = [run("--share", "0", "--share-tests", "0.5", "--share-seed", str(seed))[0] for seed in range(12)]
    assert {len(names) for names in once} >= {1, 2} and max(map(len, once)) <= 3
    assert len(seen) > 180  # in turns: 200 (1 - 0.75 ** 12) = 194
    assert len(run()[0]) == 203


@pytest.mark.slow
@pytest.mark.usefixtures("run")
def test_workers_leave_the_same_out(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of their own: xdist gives its workers the import path with which the process began."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    arguments = ("-p", "xdist", "-p", "shared.selection", "-n", "2")
    plain = pytester.runpytest_subprocess(*arguments)
    plain.assert_outcomes(passed=2)
    assert f"4 slow tests left out: {selection.RUN_SLOW}" in plain.outlines
    pytester.runpytest_subprocess(*arguments, "-m", "").assert_outcomes(passed=6)
    pytester.makepyfile(test_it=CASES)
    drawn = pytester.runpytest_subprocess(*arguments, "--share", "0.25")
    left = next(int(line.split()[0]) for line in drawn.outlines if "cases left out by --share 0.25" in line)
    drawn.assert_outcomes(passed=203 - left)


# Tests that need the GPU alone


ALONE = """
import pytest

@pytest.mark.alone
def test_times(): pass

def test_numbers(): pass
"""


def on(monkeypatch: pytest.MonkeyPatch, listed: str, *, active: int = 0, workers: int | None = None) -> None:
    """A GPU on which nvidia-smi lists these process ids."""
    from harness.driver import Device, api

    if workers is None:
        monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)
    else:
        monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", str(workers))
    monkeypatch.setattr(Device, "open", lambda: SimpleNamespace(uuid="GPU-1", ordinal=0))
    monkeypatch.setattr(api, "call", lambda name, *_: (0, active) if "State" in name else 0)
    monkeypatch.setattr(alone.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=listed))


@pytest.mark.parametrize(
    ("listed", "active", "workers", "says"),
    [
        ("", 0, None, ""),
        ("OWN\n", 1, 1, ""),
        ("77\n", 1, None, ""),  # our own process by its number in another namespace
        ("77\n", 0, None, "1 other process"),
        ("OWN\n77\n78\n", 1, None, "2 other processes"),
        ("", 0, 6, "6 workers of pytest"),
        ("[Not Supported]\n", 0, None, ""),
    ],
)
def test_who_shares_the_gpu(
    monkeypatch: pytest.MonkeyPatch, listed: str, active: int, workers: int | None, says: str
) -> None:
    on(monkeypatch, listed.replace("OWN", str(alone.os.getpid())), active=active, workers=workers)
    assert alone.gpu_shared_by() == says


def test_without_nvidia_smi_nobody_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: Any, **__: Any) -> None:
        raise FileNotFoundError("nvidia-smi")

    on(monkeypatch, "")
    monkeypatch.setattr(alone.subprocess, "run", absent)
    assert alone.gpu_shared_by() == ""


def test_on_a_shared_gpu_the_reason_tells_the_command(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(ALONE)
    on(monkeypatch, "", workers=6)
    result = pytester.runpytest_inprocess("-p", "shared.alone", "--strict-markers", "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines([f"*6 workers of pytest share the GPU; run it alone: {alone.RUN_ALONE}*"])
    on(monkeypatch, "")
    pytester.runpytest_inprocess("-p", "shared.alone").assert_outcomes(passed=2)


# Sweeps


def test_a_sweep_keeps_its_representatives() -> None:
    rows = sweep([1, 2, 3], lambda n: n == 2)
    assert [(row.values, [m.name for m in row.marks]) for row in rows] == [
        ((1,), ["slow"]),
        ((2,), []),
        ((3,), ["slow"]),
    ]
    pairs = sweep([(1, "a"), (2, "b")], lambda n, text: text == "a")
    assert [row.values for row in pairs if not row.marks] == [(1, "a")]


def test_a_sweep_without_representatives_is_refused() -> None:
    with pytest.raises(LookupError, match="every one of these is slow"):
        sweep(["16_pipeline"], lambda name: name == "16_pipelined")


def test_every_representative_is_a_shipped_kernel() -> None:
    assert all(catalog.kernel(name).fits(arch) for name, arch in FAST_BUILDS)
    archs = {arch for _, arch in FAST_BUILDS}
    assert {"sm_75", "sm_80", "sm_90a", "sm_100", "sm_120"} <= archs


def test_covering_variants() -> None:
    """Few of 48 sets have each height and each pair of switches; with one less something is missing."""
    (kernel,) = catalog.find("23_wgmma_pipeline")
    heights, switches = range(64, 192, 16), [(p, c) for p in (0, 1) for c in (1, 2, 4)]
    sets = [
        {"BM": m, "BN": 128, "STAGES": 0, "PINGPONG": p, "CLUSTER": c} for m in heights for p, c in switches
    ]
    few = covering([kernel.variant(**params) for params in sets])

    def shown(variants: list[Variant]) -> set[tuple[int, ...]]:
        pairs = {(v.params["PINGPONG"], v.params["CLUSTER"]) for v in variants}
        return {(v.params["BM"],) for v in variants} | pairs

    wanted = {(m,) for m in heights} | set(switches)
    assert len(few) <= 10 and shown(few) == wanted and shown(few[:-1]) != wanted
