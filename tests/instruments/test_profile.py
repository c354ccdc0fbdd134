"""`harness profile`: ncu's reports are read, shown and diagnosed.

Those in tests/data were recorded on an H200 at N = 2048 (split_k: N = 512) with ncu 2025.3.1, and cut down to
the metrics that harness uses.
"""

from __future__ import annotations

import csv
import json
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fakes import driver as fake_driver
from harness.cli import main, options
from harness.errors import CountersDenied, HarnessError, MissingDependency, UnknownMetrics, UsageError
from harness.instruments import counters, diagnosis, ncu, ncu_reports
from harness.kernels import catalog
from harness.results import record
from harness.support import tools
from shared.places import DATA, record_file

KINDS = {
    "naive": {"memory-bound", "LSU-queue-bound", "uncoalesced"},
    "coalesced": {"memory-bound", "LSU-queue-bound"},
    "tiled": {"MIO-queue-bound"},
    "tiled_coarse": {"MIO-queue-bound"},
    "bank_conflict": {"MIO-queue-bound", "bank conflicts"},
    "tiled_v4": {"MIO-queue-bound"},
    "prefetch": {"compute-bound", "tail-quantised"},
    "warp_tiles": {"compute-bound"},
    "pipeline": {"compute-bound"},
    "split_k": {"latency-bound", "tail-quantised"},
}
NOT_RECORDED = {"synchronisation-bound", "occupancy-limited", "tensor-bound"}  # no fp32 rung is, on an H200


def harness(*args: str) -> Result:
    return CliRunner().invoke(main, args, env={"COLUMNS": "200"})


def recorded(name: str) -> dict[str, float]:
    (profile,) = ncu_reports.load(DATA / f"ncu-{name}.csv")
    return dict(profile.counters)


def kinds(values: dict[str, float]) -> set[str]:
    return {d.kind for d in diagnosis.diagnose(values)}


# Diagnosis, on what the H200 recorded


@pytest.mark.parametrize("name", KINDS)
def test_the_ladder_is_diagnosed(name: str) -> None:
    values = recorded(name)
    assert diagnosis.unjudged(values) == ()
    assert kinds(values) == KINDS[name]


def test_every_rule_has_a_positive_and_a_negative() -> None:
    """Recorded, or below made from a recorded one."""
    rules = {rule.kind for rule in diagnosis.RULES}
    seen = set().union(*KINDS.values())
    assert rules == seen | NOT_RECORDED and not seen & NOT_RECORDED
    assert not any(kind in found for kind in seen for found in [set.intersection(*KINDS.values())])


def test_evidence_is_what_was_measured() -> None:
    values = recorded("tiled")
    (found,) = diagnosis.diagnose(values)
    assert "34%" in found.says and "81%" in found.says  # ncu: 12.76 of 37.45 cycles; 80.59% of wavefronts
    assert found.evidence[counters.stall("mio_throttle")] == pytest.approx(12.76, abs=0.01)
    assert found.cure


def changed(name: str, **new: float) -> set[str]:
    values = recorded(name)
    names = {
        "barrier": counters.stall("barrier"),
        "wait": counters.stall("long_scoreboard"),
        "lg": counters.stall("lg_throttle"),
        "issued": counters.ISSUED,
        "l1": counters.L1,
        "l2": counters.L2,
        "dram": counters.DRAM,
        "fma": counters.PIPES["fma"],
        "achieved": counters.ACHIEVED,
        "theoretical": counters.THEORETICAL,
        "busy": counters.SMS_BUSY,
        "conflicts": counters.CONFLICTS,
        "sectors": counters.SECTORS,
    }
    return kinds(values | {names[key]: value for key, value in new.items()})


def test_tensor_cores_are_busy_by_the_sms_throughput() -> None:
    """Recorded on an H200: wgmma issues few instructions and keeps the SM's busiest unit at 70% or more."""
    content = record.load(record_file("h200/profile/tensor"))
    said = {r["kernel"]: diagnosis.diagnose(r["counters"])[0] for r in content["rows"]}
    peak = {r["kernel"]: r["counters"][counters.SM] for r in content["rows"]}
    busy, idle = (said[name] for name in ("23_wgmma_pipeline", "21_mma_sync"))
    of_busy, of_idle = (f"{peak[name]:.0f}%" for name in ("23_wgmma_pipeline", "21_mma_sync"))
    assert busy.kind == "tensor-bound" and f"the tensor cores are at {of_busy} of their peak," in busy.says
    assert idle.kind == "latency-bound" and f"the tensor cores {of_idle}" in idle.says
    assert peak["23_wgmma_pipeline"] >= 70 and peak["21_mma_sync"] <= 60
    for row in content["rows"]:
        values, per_cycle = row["counters"], {"21_mma_sync": 4096 * 2 / 3, "25_wgmma_tf32": 4096 / 2}
        cycles = values[counters.TIME] * 1e-9 * values[counters.CLOCK]
        of_peak = 2 * 2048**3 / (132 * cycles) / per_cycle.get(row["kernel"], 4096)
        assert values[counters.SM] / 100 == pytest.approx(of_peak, rel=1e-3)
    (split,) = (r["counters"] for r in content["rows"] if r["kernel"] == "26_wgmma_split")
    for values, products in ((split, True), (recorded("pipeline"), False)):
        waiting = {**values, counters.stall("barrier"): values[counters.stall("long_scoreboard")] * 10}
        told = str(diagnosis.diagnose(waiting))
        assert "wait at barriers" in told and ("a warpgroup for its products among them" in told) == products
    without = {**content["rows"][2]["counters"], counters.PIPES["tensor_op_hmma"]: 0.0}
    assert diagnosis.diagnose(without)[0].kind == "latency-bound", "no tensor instruction"


def test_synchronisation_bound_planted() -> None:
    total = sum(cycles for cycles, _ in counters.stalls(recorded("pipeline")).values())
    assert "synchronisation-bound" not in changed("pipeline", barrier=0.25 * total)  # 20% of the new total
    assert "synchronisation-bound" in changed("pipeline", barrier=0.5 * total)  # a third of it


def test_occupancy_limited_planted() -> None:
    """warp_tiles fills 12.5% of the warp slots and is not limited by it: it issues 83% of the time."""
    idle = {"issued": 40.0, "fma": 30.0, "l1": 30.0}
    assert {"occupancy-limited", "latency-bound"} <= changed("warp_tiles", **idle)
    assert "occupancy-limited" not in changed("warp_tiles")
    assert "occupancy-limited" not in changed("warp_tiles", **idle, achieved=5.0), "the grid is too small"
    assert "occupancy-limited" not in changed("warp_tiles", **idle, theoretical=75.0, achieved=75.0)


def test_bounds_exclude_each_other() -> None:
    first = {"memory-bound", "compute-bound", "tensor-bound", "latency-bound"}
    for name in KINDS:
        for new in ({}, {"dram": 95.0}, {"l2": 70.0}, {"l1": 10.0}, {"issued": 10.0, "fma": 5.0}):
            assert len(changed(name, **new) & first) <= 1, (name, new)
    assert "memory-bound" in changed("pipeline", dram=95.0)
    assert "memory-bound" not in changed("pipeline", dram=59.0)
    assert "memory-bound" in changed("split_k", l2=70.0) and "latency-bound" not in changed(
        "split_k", l2=70.0
    )


def test_thresholds_are_those_that_are_documented() -> None:
    elapsed = recorded("prefetch")[counters.ELAPSED]
    assert "tail-quantised" in changed("prefetch", busy=0.89 * elapsed)
    assert "tail-quantised" not in changed("prefetch", busy=0.91 * elapsed)
    ideal = recorded("coalesced")[counters.SECTORS_IDEAL]
    assert "uncoalesced" in changed("coalesced", sectors=1.6 * ideal)
    assert "uncoalesced" not in changed("coalesced", sectors=1.4 * ideal)
    assert "LSU-queue-bound" not in changed("coalesced", lg=5.0)
    assert "bank conflicts" not in changed("bank_conflict", conflicts=1.0)


def test_a_rule_without_its_metrics_does_not_speak() -> None:
    values = recorded("naive")
    del values[counters.SECTORS]
    assert kinds(values) == KINDS["naive"] - {"uncoalesced"}
    assert [rule.kind for rule in diagnosis.unjudged(values)] == ["uncoalesced"]
    assert diagnosis.diagnose({}) == () and len(diagnosis.unjudged({})) == len(diagnosis.RULES)


@pytest.mark.parametrize("rule", diagnosis.RULES, ids=lambda rule: rule.kind)
def test_a_rule_reads_no_more_than_it_says(rule: diagnosis.Rule) -> None:
    """A report made elsewhere may have just these: stalls without the throughput of memory, say."""
    for name in KINDS:
        values = recorded(name)
        stalls = {m: v for m, v in values.items() if m in map(counters.stall, counters.STALLS)}
        assert rule.judge({m: values[m] for m in rule.needs} | stalls) == rule.judge(values), name


def test_derived_values() -> None:
    conflict, tiled = recorded("bank_conflict"), recorded("tiled")
    assert counters.ways(conflict) == pytest.approx(21.4, abs=0.1)
    assert counters.sectors_a_request(tiled) == 4
    assert sum(share for _, share in counters.stalls(tiled).values()) == pytest.approx(1)
    assert counters.limiters(recorded("tiled_coarse")) == "registers, shared memory"
    assert counters.limiters(tiled) == "warps"


# Reports


def test_side_by_side_with_ncus_own_names() -> None:
    result = harness("profile", *(f"--from={DATA / f'ncu-{n}.csv'}" for n in ("naive", "tiled")))
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].split() == ["GPU", "speed", "of", "light", "naive", "tiled"]
    (cells,) = [s.split()[-2:] for s in lines if "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum" in s]
    assert cells == ["536,870,912", "33,554,432"]
    (cells,) = [s.split()[-4:] for s in lines if counters.stall("mio_throttle") in s]
    assert cells == ["0.40", "(0%)", "12.76", "(34%)"]
    assert "  MIO-queue-bound: " in result.output and "not judged" not in result.output


def test_a_record_of_it_reads_the_same(tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    csv_file = DATA / "ncu-prefetch.csv"
    first = harness("profile", f"--from={csv_file}", "--json", str(out))
    again = harness("profile", f"--from={out}")
    assert first.exit_code == again.exit_code == 0, again.output
    assert first.output == again.output
    content = record.load(out)
    assert content["kind"] == "profile"
    (row,) = content["rows"]
    assert {d["kind"] for d in row["diagnoses"]} == KINDS["prefetch"]
    assert json.loads(out.read_text())["rows"][0]["counters"][counters.TIME] == 619488


def rewritten(tmp_path: Path, change: Any, name: str = "tiled") -> Path:
    rows = list(csv.reader((DATA / f"ncu-{name}.csv").read_text().splitlines()))
    path = tmp_path / "r.csv"
    with path.open("w") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(change(rows))
    return path


def test_several_launches_and_what_was_not_measured(tmp_path: Path) -> None:
    path = rewritten(tmp_path, lambda rows: [*rows, ["n/a" if "__" in n else "" for n in rows[0]]])
    first, second = ncu_reports.load(path)
    assert first.counters and not second.counters
    result = harness("profile", f"--from={path}")
    assert result.exit_code == 0 and "not judged, for want of counters: memory-bound" in result.output


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows[:2], "no launch in it"),
        (lambda rows: [["a__b.sum"], ["ns"], ["1"]], "not a raw page"),
        (lambda rows: [rows[0], rows[1], rows[2][:-3]], "cut off"),
        (
            lambda rows: [rows[0], [u.replace("ns", "us") for u in rows[1]], rows[2]],
            "not in base units: it has us",
        ),
        (lambda rows: [], "no launch in it"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, change: Any, said: str) -> None:
    path = rewritten(tmp_path, change)
    with pytest.raises(UsageError, match=said):
        ncu_reports.load(path)
    result = harness("profile", f"--from={path}")
    assert result.exit_code == 2 and "error: " in result.output and "Traceback" not in result.output


def test_a_size_is_chosen_where_none_is_given() -> None:
    sizes = [{"N": n} for n in (512, 1024, 2048, 4096)]
    assert options.typical(sizes) == {"N": 2048} and options.typical(sizes[:1]) == {"N": 512}


def test_bad_requests() -> None:
    assert harness("profile", "--from", "nowhere.csv").exit_code == 2
    assert harness("profile", "tiled", f"--from={DATA / 'ncu-tiled.csv'}").exit_code == 2
    assert harness("profile", "tiled", "-a", "N=[64,128]").exit_code == 2
    assert harness("profile", "--from", str(record_file("h200/bench/tiles"))).exit_code == 2


# ncu itself, by a script in its place


PAGES = {
    "raw": DATA / "ncu-tiled.csv",
    "source --print-source sass": DATA / "tiled-512-sass.csv",
    "source --print-source cuda,sass": DATA / "tiled-512-lines.csv",
}


def fake_ncu(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    measure: str = ': > "$EXPORT"',
    pages: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """A tool that keeps the arguments of a measurement in ``args`` and then does `measure`, $LOG being its
    --log-file and $EXPORT its report; its reports have the `pages` (a page's name -> a shell command). No
    ncu-report.
    """
    path = tmp_path / "ncu"
    shown = {page: pages.get(page, f"cat {PAGES[page]}") for page in PAGES}
    find = """ALL="$*"
while [ $# -gt 0 ]; do
  [ "$1" = --log-file ] && LOG="$2"; [ "$1" = --export ] && EXPORT="$2"; shift
done"""
    cases = "".join(f'*"--page {page}"*) {command};;\n' for page, command in shown.items())
    path.write_text(
        f'#!/bin/sh\ncase "$*" in *--export*) printf "%s\\n" "$@" > {tmp_path}/args;; esac\n{find}\n'
        f'case "$ALL" in\n{cases}*) {measure};;\nesac\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setattr(tools, "find", lambda name: path if name == "ncu" else None)
    monkeypatch.setattr(ncu_reports, "_package", lambda: None)
    return tmp_path / "args"


def test_one_launch_of_exactly_this_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    args = fake_ncu(monkeypatch, tmp_path, 'echo "==PROF== Connected" > "$LOG"; : > "$EXPORT"')
    variant = catalog.kernel("tiled").variant(TILE=8)
    found = ncu.profile(variant, {"N": 2048}, sections="full", metrics=["my__metric.sum"])
    assert found.label == "03_tiled TILE=8" and found.function == "matmul" and found.grid == "(128, 128, 1)"
    assert found.counters[counters.TIME] == 2105152
    given = args.read_text().splitlines()
    assert {"--launch-count", "--kernel-name", "matmul", "verify", "-pTILE=8", "-aN=2048"} <= set(given)
    assert given[given.index("--clock-control") + 1] == "none" and given[given.index("--set") + 1] == "full"
    assert given[given.index("--section") + 1] == "SourceCounters"
    assert given[given.index("--import-source") + 1] == "yes"
    wanted = given[given.index("--metrics") + 1].split(",")
    assert set(counters.METRICS) | {"my__metric.sum"} == set(wanted)
    assert ncu.counters(variant, {"N": 64}, [counters.TIME, "no__such"]) == {counters.TIME: 2105152.0}


def test_no_permission_is_said_with_the_way_to_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_ncu(
        monkeypatch, tmp_path, 'echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have" > "$LOG"; exit 1'
    )
    with pytest.raises(CountersDenied, match="NVreg_RestrictProfilingToAdminUsers=0"):
        ncu.profile(catalog.kernel("tiled").variant(), {"N": 64})


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            'echo "==WARNING== No kernels were profiled." > "$LOG"',
            "saw no launch of it: WARNING== No kernels",
        ),
        ('echo "==ERROR== Chip XY is not supported" > "$LOG"', "a newer Nsight Compute knows this GPU"),
        ("exit 3", "saw no launch"),
    ],
)
def test_a_kernel_that_ncu_did_not_see(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, said: str
) -> None:
    fake_ncu(monkeypatch, tmp_path, script)
    with pytest.raises(HarnessError, match=said):
        ncu.profile(catalog.kernel("tiled").variant(), {"N": 64})


def test_a_metric_that_ncu_does_not_know_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = r"==ERROR== Failed to find metric regex:^lts__no_such(\.(sum|avg))?$"
    fake_ncu(
        monkeypatch, tmp_path, f"echo '{found}' > \"$LOG\"; echo '==ERROR== Failed to profile' >> \"$LOG\""
    )
    with pytest.raises(UnknownMetrics, match="knows no metric lts__no_such.sum") as caught:
        ncu.counters(catalog.kernel("tiled").variant(), {"N": 64}, [counters.TIME, "lts__no_such.sum"])
    assert caught.value.names == ("lts__no_such.sum",) and "--query-metrics" in str(caught.value)


def test_the_command_on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One kernel that ncu sees, and one that it does not: the first is kept, the second told."""
    fake_driver.install(monkeypatch)
    fake_ncu(monkeypatch, tmp_path, 'case "$ALL" in *03_tiled*) : > "$EXPORT";; esac')
    out = tmp_path / "p.json"
    result = harness("profile", "tiled", "-a", "N=2048", "--json", str(out))
    assert result.exit_code == 0 and "MIO-queue-bound" in result.output, result.output
    content = record.load(out)
    assert content["meta"]["gpu"]["uuid"].startswith("GPU-")
    (row,) = content["rows"]
    assert (row["kernel"], row["shape"], row["params"]) == ("03_tiled", "2048", {"TILE": 16})
    assert row["hotspots"]["samples"] == 5116
    result = harness("profile", "naive", "tiled", "-a", "N=2048", "--json", str(out))
    assert result.exit_code == 1 and "ncu saw no launch" in result.output
    assert [r["kernel"] for r in record.load(out)["rows"]] == ["03_tiled"]


def test_the_command_without_permission(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_driver.install(monkeypatch)
    fake_ncu(monkeypatch, tmp_path, 'echo "==ERROR== ERR_NVGPUCTRPERM" > "$LOG"; exit 1')
    result = harness("profile", "tiled", "-a", "N=32")
    assert result.exit_code == 0 and "ERR_NVGPUCTRPERM" in result.output and "sect" in result.output
    assert harness("profile", "tiled", "-a", "N=32", "--require-gpu").exit_code == 1


def test_races_are_told_without_counters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tools, "find", lambda name: None)
    marked = harness("profile", "tiled_no_sync", "-a", "N=32")
    assert marked.exit_code == 0 and "FAILED as marked" in marked.output, marked.output
    source = catalog.kernel("tiled_no_sync").path.read_text().splitlines(keepends=True)
    path = tmp_path / "racy.cu"
    path.write_text("".join(line for line in source if not line.startswith("// broken")))
    result = harness("profile", str(path), "-a", "N=32")
    assert result.exit_code == 1 and "hazard" in result.output and "FAILED" in result.output, result.output


def test_a_gpu_without_ncu(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver.install(monkeypatch)
    monkeypatch.setattr(tools, "find", lambda name: None)
    result = harness("profile", "tiled", "-a", "N=32")
    assert result.exit_code == 0 and "no counters: ncu is not installed" in result.output, result.output
    assert "ncu comes with the CUDA toolkit" in result.output and "sect" in result.output
    assert harness("profile", "tiled", "-a", "N=32", "--require-gpu").exit_code == 1


def test_without_ncu_report_an_ncu_rep_is_read_by_ncu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "naive.ncu-rep"
    path.touch()
    fake_ncu(monkeypatch, tmp_path, pages={"raw": f"cat {DATA}/ncu-naive.csv"})
    (found,) = ncu_reports.load(path)
    assert found.counters[counters.TIME] == 35313824 and found.label == "naive"
    assert found.hotspots is not None and found.hotspots.samples == 5116
    assert found.hotspots.lines[0].place.startswith("03_tiled.cu:")
    fake_ncu(
        monkeypatch, tmp_path, pages={"source --print-source sass": "exit 1"}
    )  # an old ncu has no such page
    (found,) = ncu_reports.load(path)
    assert found.counters and found.hotspots is None
    fake_ncu(
        monkeypatch,
        tmp_path,
        pages={"raw": 'echo "==ERROR== Failed to load report file. newer version"; exit 1'},
    )
    with pytest.raises(UsageError, match="newer version"):
        ncu_reports.load(path)
    monkeypatch.setattr(tools, "find", lambda name: None)
    with pytest.raises(MissingDependency, match="ncu is not installed"):
        ncu_reports.load(path)


def test_without_a_gpu_it_says_how_and_gives_what_is_known() -> None:
    result = harness("profile", "naive", "tiled", "-a", "N=64")
    if "GPU speed of light" in result.output:
        pytest.skip("this machine can count")
    assert result.exit_code == 0, result.output
    assert (
        result.output.startswith("no counters: ") and "NVreg_RestrictProfilingToAdminUsers=0" in result.output
    )
    assert "LDS" in result.output and "limited by" in result.output and "sect" in result.output
    (row,) = [s for s in result.output.splitlines() if s.startswith("01_naive") and s.endswith("ok")]
    assert "16.6" in row
    assert harness("profile", "naive", "--require-gpu").exit_code == 1
