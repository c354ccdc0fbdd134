"""Claims that are about time, races or a size of their own, and what ncu counts in place of the emulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness.cli import main
from harness.errors import DriverError, UsageError
from harness.instruments import counters
from harness.kernels import catalog, spec
from harness.problems import checks
from harness.problems.gemm import Gemm
from harness.problems.registry import resolve
from harness.results import claims, explanation, record
from harness.results.html import rung_cards
from shared.places import record_file

LADDER = "h200/bench/ladder"


def harness(*args: str) -> Result:
    return CliRunner().invoke(main, args, env={"COLUMNS": "200"})


def shipped(name: str) -> str:
    """A kernel's source, which compiles anywhere."""
    return catalog.kernel(name).source


def row(kernel: str, seconds: float | None, *, n: int = 64, **changes: Any) -> dict[str, Any]:
    """Return a row of harness bench without samples."""
    ours = None if kernel == "cuBLAS" else catalog.kernel(kernel)
    problem = (resolve(ours) if ours else Gemm).from_axes({"N": n})
    params = ours.variant().stated if ours else {}
    axes = checks.axes(problem)
    about = {"kernel": kernel, "params": params, "shape": problem.label, "axes": axes}
    return {**about, "status": "ok", "seconds": seconds, "times": [], **changes}


def run(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "bench", "meta": {"gpu": {"name": "a GPU"}}, "rows": list(rows)}


def judged(
    kernel_file: Any, prediction: str, *runs: dict[str, Any], body: str = "03_tiled"
) -> claims.Outcome:
    """One prediction in the file of a shipped kernel, by result files."""
    kernel = catalog.kernel(body)
    source = "\n".join(s for s in kernel.source.splitlines() if not s.startswith("// predict"))
    path = kernel_file(kernel.path.name)
    path.write_text(source.replace("// claim", f'// predict = ["{prediction}"]\n// claim', 1))
    named = {f"{i}.json": content for i, content in enumerate(runs)}
    (found,) = claims.outcomes(spec.load(path).with_dtype(kernel.dtype).variant(), lambda *_: {}, named)
    return found


# Times


AT = "seconds < 0.9 of 02_coalesced at N=64"


@pytest.mark.parametrize(("seconds", "holds"), [(0.8, True), (0.9, False), (1.8, False)])
def test_a_time_is_held_against_anothers(kernel_file: Any, seconds: float, holds: bool) -> None:
    found = judged(kernel_file, AT, run(row("02_coalesced", 1.0), row("03_tiled", seconds)))
    assert (found.value, found.limit, found.holds) == (seconds, 0.9, holds)
    assert (found.record, found.reason) == ("0.json", "")


def test_a_time_of_another_size_says_nothing(kernel_file: Any) -> None:
    rows = row("02_coalesced", 1.0), row("03_tiled", 0.5, n=128)
    found = judged(kernel_file, AT, run(*rows))
    assert (found.holds, found.value) == (None, None)
    assert found.reason == "no record of bench has 03_tiled and 02_coalesced at 64"
    assert judged(kernel_file, AT, run(*rows, row("03_tiled", 0.5))).holds is True


def test_a_size_is_all_its_axes(kernel_file: Any) -> None:
    """A product that adds to C is another problem, though M, N and K are the same."""
    added = row("03_tiled", 0.5)
    added["axes"] = {**added["axes"], "beta": 1.0}
    assert judged(kernel_file, AT, run(row("02_coalesced", 1.0), added)).holds is None


def test_each_kernel_has_its_own_type(kernel_file: Any) -> None:
    """fp16 against bf16; and no cuBLAS but that of the kernel's own type."""
    text = "seconds <= 1.05 of 23_wgmma_pipeline at N=64"
    rows = row("23_wgmma_pipeline", 1.0), row("23_wgmma_pipeline_fp16", 1.04)
    assert [r["shape"] for r in rows] == ["64 bf16", "64 fp16"]
    assert judged(kernel_file, text, run(*rows), body="24_wgmma_fp16").holds is True
    text = "seconds < 1.05 of cuBLAS at N=64"
    cublas = row("cuBLAS", 1.0)
    assert judged(kernel_file, text, run(cublas, rows[1]), body="24_wgmma_fp16").holds is None
    cublas |= {"shape": "64 fp16"}
    assert judged(kernel_file, text, run(cublas, rows[1]), body="24_wgmma_fp16").holds is True


def test_times_of_two_runs_are_not_compared(kernel_file: Any) -> None:
    slow, fast = row("02_coalesced", 1.0), row("03_tiled", 0.5)
    assert judged(kernel_file, AT, run(slow), run(fast)).holds is None
    found = judged(kernel_file, AT, run(slow), run(fast), run(slow, fast))
    assert (found.holds, found.record) == (True, "2.json")


def test_a_wrong_kernel_has_no_time(kernel_file: Any) -> None:
    slow, wrong = row("02_coalesced", 1.0), row("03_tiled", 0.5, status="FAILED")
    found = judged(kernel_file, AT, run(slow, wrong))
    assert (found.holds, found.reason) == (None, "03_tiled at 64 in 0.json: FAILED")
    assert judged(kernel_file, AT, run(slow, wrong), run(slow, row("03_tiled", 0.5))).holds is True
    untimed = judged(kernel_file, AT, run(slow, row("03_tiled", None)))
    assert (untimed.holds, untimed.reason) == (None, "03_tiled at 64 in 0.json: not timed")


def test_parameters_are_the_defaults_unless_named(kernel_file: Any) -> None:
    wide = row("03_tiled", 0.5, params={"TILE": 32})
    slow = row("02_coalesced", 1.0)
    assert judged(kernel_file, AT, run(slow, wide)).holds is None
    assert judged(kernel_file, AT.replace("seconds", "seconds with TILE=32"), run(slow, wide)).holds is True
    other = "seconds < 0.9 of 03_tiled with TILE=32 at N=64"
    found = judged(kernel_file, other, run(row("02_coalesced", 0.4), wide), body="02_coalesced")
    assert (found.value, found.holds) == (0.8, True)


def test_what_the_dispatcher_chose_is_that_kernel(kernel_file: Any) -> None:
    chosen = {"kernel": "03_tiled", "params": {"TILE": 16}, "label": "03_tiled"}
    dispatched = {**row("cuBLAS", 0.5), "kernel": "matmul", "chosen": chosen}
    text = "seconds < 0.9 of cuBLAS at N=64"
    assert judged(kernel_file, text, run(row("cuBLAS", 1.0), dispatched)).holds is True
    dispatched["chosen"] = {**chosen, "params": {"TILE": 8}}
    assert judged(kernel_file, text, run(row("cuBLAS", 1.0), dispatched)).holds is None


def test_a_ratio_is_as_sure_as_its_samples(kernel_file: Any) -> None:
    """Medians of 0.85 and 1: below 0.9 by themselves, but not if either wanders by a quarter."""
    even, wide = [1.0, 1.001] * 200, [0.65, 1.05] * 200
    slow = row("02_coalesced", 1.0, times=even)
    sure = judged(kernel_file, AT, run(slow, row("03_tiled", 0.85, times=[t * 0.85 for t in even])))
    assert sure.holds is True and sure.value == pytest.approx(0.85, rel=1e-3)
    assert sure.interval is not None and sure.interval.low <= 0.85 <= sure.interval.high < 0.9
    blurred = [wide[i] for i in range(0, 400, 67)]
    unsure = judged(kernel_file, AT, run(row("02_coalesced", 1.0), row("03_tiled", 0.85, times=blurred)))
    assert unsure.holds is True, "without samples of the other the medians decide"
    unsure = judged(
        kernel_file, AT, run(row("02_coalesced", 1.0, times=even[:6]), row("03_tiled", 0.85, times=blurred))
    )
    assert unsure.holds is None and "lies across 0.9" in unsure.reason and unsure.value is not None


def test_turns_come_before_samples(kernel_file: Any) -> None:
    """The ratio to what a row was timed in turn with; not to anything else."""
    ratio = {"low": 0.79, "estimate": 0.8, "high": 0.81}
    paired = row("03_tiled", 2.0, ratio=ratio, against="cuBLAS")
    text = "seconds < 0.9 of cuBLAS at N=64"
    found = judged(kernel_file, text, run(row("cuBLAS", 1.0), paired))
    assert (found.value, found.holds) == (0.8, True)
    assert judged(kernel_file, AT, run(row("02_coalesced", 1.0), paired)).value == 2.0


@pytest.mark.parametrize(
    ("prediction", "said"),
    [
        ("seconds < 1 of 99_nothing at N=64", "no kernel '99_nothing'"),
        ("seconds < 1 of 03_tiled with BM=1 at N=64", "BM"),
        ("seconds with BM=1 < 1 of cuBLAS at N=64", "BM"),
        ("seconds < 1 of cuBLAS at X=64", "no axis 'X'"),
        ("seconds < 1 of cuBLAS at N=0", "N=0"),
        ("sectors < 1 of cuBLAS", "nothing counts sectors of cuBLAS"),
        ("seconds < 1 of cuBLAS with BM=1 at N=64", "cuBLAS has no parameters"),
    ],
)
def test_a_prediction_about_nothing_is_refused(kernel_file: Any, prediction: str, said: str) -> None:
    with pytest.raises(UsageError) as e:
        judged(kernel_file, prediction, run(row("02_coalesced", 1.0)))
    assert prediction in str(e.value) and said in str(e.value) and "03_tiled.cu" in str(e.value)


def test_what_could_not_be_counted_says_why(kernel_file: Any) -> None:
    """And leaves what could be."""
    path = kernel_file("x.cu", extra='predict = ["sectors < 1 of 03_tiled"]')
    variant = spec.load(path).variant()

    def count(asked: Any, _: Any) -> dict[str, float]:
        if asked.kernel.name == "03_tiled":
            raise DriverError("out of luck", call="x", code=1, name="X")
        return {"sectors": 7}

    (found,) = claims.outcomes(variant, count, {})
    assert (found.value, found.limit, found.holds) == (7, None, None)
    assert found.reason.startswith("03_tiled: ") and "out of luck" in found.reason


@pytest.mark.slow
def test_result_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """The first of two knows, the second does not."""
    content = record.load(record_file(LADDER))
    rows = [r for r in content["rows"] if r["kernel"] in ("11_conflict_free", "13_cp_async")]
    for folder, kept in (("a", rows), ("b", rows[:1])):
        file = tmp_path / folder / "run.json"
        file.parent.mkdir()
        plain = {"schema": 2, "kind": "bench", "meta": content["meta"], "rows": kept}
        file.write_text(json.dumps(plain))
    files = [part for folder in "ab" for part in ("--record", str(tmp_path / folder / "run.json"))]
    result = harness("explain", "--claims", "13", "-a", "N=64", *files)
    line = next(s for s in result.output.splitlines() if "seconds < 1" in s)
    assert line.endswith("held"), result.output


@pytest.mark.slow
def test_times_in_the_table_and_on_the_card(tmp_path: Path) -> None:
    """A result file in which rung 13 is as recorded, and one in which it is slower than rung 11."""
    content = record.load(record_file(LADDER))
    names = ("11_conflict_free", "13_cp_async")
    rows = [r for r in content["rows"] if r["kernel"] in names and r["shape"] == "4096"]
    files = [tmp_path / "true.json", tmp_path / "false.json"]
    for file, factor in zip(files, (1, 1.2), strict=True):
        changed = [{**r, "times": [t * factor for t in r["times"]]} for r in rows[1:]]
        meta = {**content["meta"], "gpu": {"name": "a GPU"}}
        plain = {"schema": 2, "kind": "bench", "meta": meta, "rows": [rows[0], *changed]}
        file.write_text(json.dumps(plain))
    out = tmp_path / "c.json"
    args = ["explain", "--claims", "13", "-a", "N=64", "--json", str(out)]
    none = harness(*args)
    assert none.exit_code == 0 and "times are in result files: --record" in none.output
    assert "not known" in next(s for s in none.output.splitlines() if "seconds < 1" in s)
    result = harness(*args, "--record", str(files[0]))
    assert result.exit_code == 0, result.output
    line = next(s for s in result.output.splitlines() if "seconds < 1" in s)
    assert line.split()[-3:] == ["0.963", "1", "held"]
    assert "times are ratios, from true.json (a GPU)" in result.output
    (claim,) = record.load(out)["rows"]
    assert record.load(out)["meta"]["timed"] == {"true.json": "a GPU"}
    timed = claim["outcomes"][1]
    assert (timed["holds"], timed["limit"], timed["record"]) == (True, 1, "true.json")
    assert timed["interval"]["low"] < timed["value"] == timed["interval"]["estimate"] < 1
    (found,) = explanation.cards(rows, [], [claim])
    page = rung_cards.card(found)
    assert "2 of 2 predictions held" in page
    assert "a ratio of times, 0.9618 to 0.9634, from true.json" in page
    result = harness(*args, "--record", str(files[1]))
    assert result.exit_code == 1 and "1 of 2 predictions do not hold" in result.output
    assert next(s for s in result.output.splitlines() if "seconds < 1" in s).split()[-4:] == [
        *("1.16", "1", "NOT", "HELD")
    ]
    assert harness(*args, "--record", str(files[1]), "--record", str(files[0])).exit_code == 1
    result = harness("explain", "conflict_free", "cp_async", "-a", "N=64", "--record", str(files[0]))
    assert next(s for s in result.output.splitlines() if "seconds < 1" in s).endswith("held")


def test_the_recorded_ladder_holds() -> None:
    """Every prediction of a time that the record of the ladder can tell of: by itself, in no emulator."""
    content = record.load(record_file(LADDER))
    found = [
        o
        for kernel in catalog.ladder()
        for o in claims.outcomes(kernel.variant(), lambda *_: {}, {Path(LADDER).name: content})
        if o.prediction.figure == "seconds"
    ]
    wrong = [(o.kernel, o.prediction.text, o.value, o.reason) for o in found if o.holds is False]
    assert not wrong and sum(o.holds is True for o in found) >= 5
    assert all(o.reason for o in found if o.holds is None)


# Counts


@pytest.mark.slow
def test_races_are_looked_for_where_they_are_predicted(tmp_path: Path) -> None:
    """A prediction of races does not hold for the kernel with its barriers."""
    args = ("explain", "--claims", "-a", "N=48")
    result = harness(*args, "05")
    assert result.exit_code == 0 and "races >= 2" in result.output, result.output
    path = tmp_path / "mine.cu"
    path.write_text(shipped("03_tiled").replace('"conflicts == 0"', '"races >= 2"'))
    result = harness(*args, str(path))
    line = next(s for s in result.output.splitlines() if "races >= 2" in s)
    assert result.exit_code == 1 and line.split()[-4:] == ["0", "2", "NOT", "HELD"]


@pytest.mark.slow
def test_barriers_are_counted(tmp_path: Path) -> None:
    """Rung 12 has one a tile and one before; the same bound about rung 11, which has two, does not hold."""
    result = harness("explain", "--claims", "12", "--json", str(tmp_path / "c.json"))
    assert result.exit_code == 0, result.output
    (claim,) = record.load(tmp_path / "c.json")["rows"]
    # At n = 256: 2 x 4 blocks of 128 threads, 256 / 16 tiles each.
    assert claim["figures"]["barriers"] == 8 * 128 * (16 + 1)
    path = tmp_path / "mine.cu"
    path.write_text(
        shipped("11_conflict_free").replace('"conflicts == 0"', '"barriers <= 0.55 of 11_conflict_free"')
    )
    assert "1 of 2 predictions do not hold" in harness("explain", "--claims", str(path)).output


@pytest.mark.slow
def test_counts_at_a_size_of_their_own(tmp_path: Path) -> None:
    """With M = 1 a block for one row reads B once; one for four reads the row of A four times."""
    result = harness("explain", "--claims", "17", "18", "-a", "N=64")  # which is for the others
    assert result.exit_code == 0 and "emulated at 1x256x256, 256x1x256, in" in result.output, result.output
    path = tmp_path / "mine.cu"
    path.write_text(shipped("17_skinny_rows").replace("with ROWS=1", "with ROWS=4"))
    assert "NOT HELD" in harness("explain", "--claims", str(path)).output


# ncu's counters


def test_what_ncu_counts_of_a_launch() -> None:
    """Made-up counters, no two alike; a figure is known where all that it is made of are."""
    values = {
        counters.SECTORS: 120.0,
        counters.LOADS: 20.0,
        counters.STORES: 10.0,
        counters.SHARED_LOADS: 100.0,
        counters.SHARED_STORES: 7.0,
        counters.SHARED_MATRICES: 5.0,
        counters.PASSES: 60.0,
        counters.PASSES_IDEAL: 0.0,
    }
    assert claims.measured({"counters": values}) == {
        "global_requests": 30,
        "sectors": 120,
        "sectors_per_request": 4,
        "shared_requests": 112,
        "wavefronts": 60,
        "conflicts": 60,
    }
    of_copies = claims.measured({"counters": values}).keys() - {"wavefronts", "conflicts"}
    assert claims.measured({"counters": values}, copies=True).keys() == of_copies, "lines, not conflicts"
    needed = {
        counters.STORES: {"global_requests", "sectors_per_request"},
        counters.SHARED_STORES: {"shared_requests"},
        counters.SHARED_MATRICES: {"shared_requests"},
    }
    everything = set(claims.measured({"counters": values}))
    for name, figures in needed.items():
        less = {k: v for k, v in values.items() if k != name}
        assert everything - set(claims.measured({"counters": less})) == figures, name
        assert name in counters.METRICS, "what ncu is asked for"


def test_ncus_loads_of_shared_memory_are_the_emulators() -> None:
    """Recorded on an H200: of the counters with a similar name it is the one without copies (cp.async)."""
    rows = record.load(record_file("h200/scripts/calibrate_emulator"))["rows"]
    emulated = {r["label"]: r for r in rows if r.get("shape") == "256"}
    name = "smsp__inst_executed_op_shared_ld.sum"
    compared = []
    for profile in record.load(record_file("h200/profile/ladder"))["rows"]:
        counted = emulated.get(profile["label"])
        if counted and "warp_tiles" not in profile["label"]:  # which reads one fragment more at either end
            scale = (2048 // 256) ** 3
            assert profile["counters"][counters.SHARED_LOADS] == scale * counted["compiled"][name]
            compared.append((profile["kernel"], counted["measured"][name] == counted["compiled"][name]))
    assert len(compared) >= 10 and ("13_cp_async", False) in compared


def test_ncu_is_asked_about_the_size_of_a_prediction() -> None:
    variant = catalog.kernel("03_tiled").variant()
    profile = {
        "kernel": "03_tiled",
        "params": {"TILE": 16},
        "shape": "64",
        "counters": {counters.SECTORS: 1.0},
    }
    assert claims.profiled(variant, {}, [profile]) == {"sectors": 1}
    assert claims.profiled(variant, {"N": 64}, [profile]) == {"sectors": 1}
    assert claims.profiled(variant, {"N": 65}, [profile]) == {}
    assert claims.profiled(variant, {}, [{**profile, "params": {"TILE": 8}}]) == {}
