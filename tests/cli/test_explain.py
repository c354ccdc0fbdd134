"""`harness explain`: what differs between two kernels, and whether their claims hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fakes import driver as fake_driver
from fakes import gemm as fake_gemm
from harness.cli import main
from harness.errors import SpecError, UsageError
from harness.kernels import catalog, prediction, spec
from harness.results import claims, explanation, record, tables
from shared.places import DATA, record_file


def harness(*args: str) -> Result:
    return CliRunner().invoke(main, args, env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record of the recorded reports, labelled as the rungs."""
    out = tmp_path_factory.mktemp("explain") / "p.json"
    files = [f"--from={DATA / f'ncu-{n}.csv'}" for n in ("coalesced", "tiled")]
    assert harness("profile", *files, "--json", str(out)).exit_code == 0
    content = json.loads(out.read_text())
    for row, label in zip(content["rows"], ("02_coalesced BX=32 BY=32", "03_tiled TILE=16"), strict=True):
        row["label"] = label
    out.write_text(json.dumps(content))
    return out


# Predictions


@pytest.mark.parametrize(
    ("text", "said"), [("", "without a name"), ("  ", "without a name"), ("tiled '", "quotation")]
)
def test_words_that_name_no_kernel(text: str, said: str) -> None:
    for args in (["explain", text, "tiled"], ["explain", "tiled", text], ["sass", "tiled", "--diff", text]):
        result = CliRunner().invoke(main, args)
        assert result.exit_code == 2 and said in result.stderr and "such as 'tiled TILE=32'" in result.stderr


def test_a_path_with_blanks(tmp_path: Path) -> None:
    path = tmp_path / "my own.cu"
    path.write_text(catalog.kernel("tiled").source)
    result = CliRunner().invoke(main, ["sass", "tiled", "--arch", "sm_90a", "--diff", str(path)])
    assert result.exit_code == 0 and "identical code" in result.stdout


def test_a_prediction_is_read() -> None:
    p = prediction.parse(" sectors <= 0.16 of 01_naive ")
    assert (p.figure, p.comparison, p.bound, p.of) == ("sectors", "<=", 0.16, "01_naive")
    assert p.holds({"sectors": 16}, {"sectors": 100}) is True
    assert p.holds({"sectors": 16.1}, {"sectors": 100}) is False
    assert prediction.parse("conflicts == 0").holds({"conflicts": 0}) is True
    assert prediction.parse("conflicts == 0").holds({"conflicts": 1}) is False
    assert prediction.parse("ways >= 20").holds({"ways": 19.9}) is False


def test_what_was_not_counted_does_not_hold() -> None:
    assert prediction.parse("conflicts == 0").holds({}) is None
    p = prediction.parse("sectors <= 0.5 of 01_naive")
    assert p.holds({"sectors": 1}) is None and p.holds({"sectors": 1}, {}) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "sectors", "sectors < x", "sectors = 1", "conflicts == 0 of", "1 < sectors", "ways >= 2 at"),
        *("ways >= 2 at N", "ways >= 2 at N=x", "ways with >= 2", "ways >= 2 with TILE=8"),
    ],
)
def test_a_malformed_prediction_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cannot read the prediction"):
        prediction.parse(text)


def test_parameters_and_sizes_of_a_prediction_are_read() -> None:
    p = prediction.parse("seconds with BM=64 BN=128 < 0.9 of 03_tiled with TILE=32 at M=1 N=4096")
    assert (p.figure, p.comparison, p.bound, p.of) == ("seconds", "<", 0.9, "03_tiled")
    assert (p.params, p.of_params) == ({"BM": 64, "BN": 128}, {"TILE": 32})
    assert p.at == {"M": 1, "N": 4096}
    assert prediction.parse("conflicts == 0").at == {}
    with pytest.raises(UsageError, match="'N=1 N=2' names one of them twice"):
        prediction.parse("ways >= 2 at N=1 N=2")


@pytest.mark.parametrize(
    "text", ["seconds < 1", "seconds < 1 of cuBLAS", "seconds < 1 at N=64", "seconds == 1 of cuBLAS at N=64"]
)
def test_a_time_is_predicted_of_another_kernels_at_a_size(text: str) -> None:
    with pytest.raises(UsageError, match="is of no use: times differ from GPU to GPU") as e:
        prediction.parse(text)
    prediction.parse(e.value.hint.split("'")[1])


def test_races_are_not_compared() -> None:
    """They are looked for only in a kernel that predicts them."""
    assert prediction.parse("races >= 1").holds({"races": 2}) is True
    with pytest.raises(UsageError, match="not compared") as e:
        prediction.parse("races >= 1 of 05_tiled_no_sync")
    prediction.parse(e.value.hint.split("'")[1])


def test_the_nearest_figure_is_named(kernel_file: Any) -> None:
    with pytest.raises(UsageError, match="did you mean sectors"):
        prediction.parse("sector <= 1")
    path = kernel_file(extra='predict = ["conflict == 0"]')
    with pytest.raises(SpecError, match=r"(?s)mine\.cu:7.*predict.*did you mean conflicts") as e:
        spec.load(path)
    assert "Traceback" not in str(e.value)
    with pytest.raises(SpecError, match="must be a list of strings"):
        spec.load(kernel_file("b.cu", extra="predict = 3"))


def test_figures_are_those_of_the_emulator() -> None:
    from harness.emulator import Counts

    others = {"registers", "shared", "occupancy", "barriers", prediction.RACES, prediction.SECONDS}
    counted = set(prediction.FIGURES) - others
    assert all(hasattr(Counts(), name) for name in counted)


# Claims of the ladder


CLAIMS = {
    "0[1-8]*": 10,
    "[01]9*": 1,
    "1[0-8]*": 10,
    "2[0-5]*": 3,
    "2[6-9]*": 1,
    "3[0-4]*": 4,
    "3[5-9]*": 5,
    "4*": 6,
}


@pytest.mark.parametrize(
    ("kernels", "claims"),
    [("0[367]*", 5), *(pytest.param(*each, marks=pytest.mark.slow) for each in CLAIMS.items())],
)
def test_claims_of_the_rungs_hold(kernels: str, claims: int) -> None:
    """Those of times are not known without a record of times."""
    result = harness("explain", "--claims", kernels)
    assert result.exit_code == 0, result.output
    held = [s.split()[0] for s in result.output.splitlines() if s.endswith("held")]
    assert len(held) == claims and "NOT HELD" not in result.output
    prose = any(one.claim and not one.predict for one in catalog.select([kernels]))
    assert ("claims in prose only" in result.output) == prose
    assert not prose or kernels in ("3[5-9]*", "4*")


def test_a_false_claim_is_told(tmp_path: Path) -> None:
    """The conflicts of rung 06 under the claim of rung 07."""
    source = catalog.kernel("06_bank_conflict").source
    path = tmp_path / "mine.cu"
    path.write_text(source.replace('"ways >= 20"', '"conflicts == 0"'))
    result = harness("explain", "--claims", str(path))
    assert result.exit_code == 1 and "NOT HELD" in result.output
    assert "1 of 1 predictions do not hold" in result.output


@pytest.mark.slow
def test_a_prediction_needs_no_sentence_beside_it(kernel_file: Any) -> None:
    path = kernel_file(extra='predict = ["registers <= 1"]')
    result = harness("explain", "--claims", str(path), "-a", "N=32")
    assert result.exit_code == 1 and "1 of 1 predictions do not hold" in result.output


def test_nothing_to_check_is_no_pass(kernel_file: Any) -> None:
    result = harness("explain", "--claims", str(kernel_file()))
    assert result.exit_code == 2 and "nothing to check" in result.output


def test_a_claim_about_time_alone_is_not_said_to_be_emulated() -> None:
    result = harness("explain", "--claims", "16", "--record", str(record_file("h200/bench/ladder")))
    assert result.exit_code == 0 and "held" in result.output and "emulated at" not in result.output


def test_a_claim_about_no_kernel_is_refused(kernel_file: Any) -> None:
    path = kernel_file(extra='claim = "x"\npredict = ["sectors <= 1 of 99_nothing"]')
    result = harness("explain", "--claims", str(path), "-a", "N=32")
    assert result.exit_code == 2 and "no kernel '99_nothing'" in result.output


@pytest.mark.slow
def test_claims_are_held_against_what_ncu_counted(tmp_path: Path) -> None:
    """With counters that are made up, so that one of three does not hold."""
    from harness.instruments import counters

    rows = []
    for kernel, passes, ideal in (("06_bank_conflict", 2200, 100), ("07_bank_padded", 110, 109)):
        variant = catalog.kernel(kernel).variant()
        values = {counters.PASSES: passes, counters.PASSES_IDEAL: ideal}
        rows.append({"kernel": kernel, "params": dict(variant.params), "counters": values})
    path, out = tmp_path / "p.json", tmp_path / "c.json"
    record.write_json(path, record.document("profile", rows, record.provenance(seed=1)))
    args = ["explain", "--claims", "0[67]*", "-a", "N=64", "--record", str(path), "--json", str(out)]
    result = harness(*args)
    assert result.exit_code == 1 and "1 of 6 predictions do not hold" in result.output, result.output
    found = {r["kernel"]: r for r in record.load(out)["rows"]}
    measured = [o for r in found.values() for o in r["measured"]]
    assert [(o["value"], o["holds"]) for o in measured] == [(22, True), (1, False), (110, True)]
    assert all(o["holds"] for r in found.values() for o in r["outcomes"])
    assert found["07_bank_padded"]["figures"]["conflicts"] == 0
    assert record.load(out)["meta"]["emulated"].startswith("emulated at 64")
    assert harness("explain", "coalesced", "tiled", "--json", str(out)).exit_code == 2


@pytest.mark.slow
def test_what_ncu_counts_is_what_the_emulator_counts() -> None:
    """The recorded report of the plain tiled kernel, at its own size."""
    from harness.instruments import ncu_reports

    (profile,) = ncu_reports.load(DATA / "tiled-512-raw.csv")
    measured = claims.measured({"counters": profile.counters})
    result = harness("explain", "tiled", "tiled TILE=16", "-a", "N=512", "-d", "emulator")
    table = result.output.split("emulated at 512")[0]
    lines = {s.split()[0]: s.split() for s in table.splitlines() if s}
    for figure in ("sectors", "wavefronts", "conflicts", "ways"):
        shown = lines.get(figure, ["", "0"])[1]  # what neither kernel has is left out
        assert shown == tables.number(measured[figure]), figure


# Two kernels


def test_a_card_from_code_and_counts(profiles: Path) -> None:
    ladder = record_file("h200/bench/ladder")
    result = harness("explain", "coalesced", "tiled", "--record", str(ladder), "--record", str(profiles))
    assert result.exit_code == 0, result.output
    lines = {s.split("  ")[0].strip(): s.split() for s in result.output.splitlines() if s.strip()}
    assert lines["global_requests"][1:4] == ["1,050,624", "67,584", "0.0643"]  # by ncu, too: records/
    assert lines["shared bytes"][-2:] == ["0", "2,048"]
    assert "BAR.SYNC" in result.output and "times as fast at 4096 on NVIDIA H200" in result.output
    assert lines["gpu__time_duration.sum"][-2:] == ["2,668,928", "2,105,152"]
    assert "A is memory-bound" in result.output and "B is MIO-queue-bound" in result.output
    assert lines["global_bytes <= 0.07 of 02_coalesced"][-1] == "held"


def test_the_recorded_ratio_is_of_the_largest_size() -> None:
    content = record.load(record_file("h200/bench/ladder"))
    a, b = (catalog.kernel(n).variant() for n in ("coalesced", "tiled"))
    found = explanation.recorded(a, b, content["rows"])
    rows = {r["kernel"]: r["seconds"] for r in content["rows"] if r["shape"] == "4096"}
    assert found is not None and found.shape == "4096"
    assert found.seconds == (rows["02_coalesced"], rows["03_tiled"])
    assert found.ratio is not None
    assert found.ratio.estimate == pytest.approx(rows["03_tiled"] / rows["02_coalesced"], rel=0.01)
    assert explanation.recorded(a, catalog.kernel("tiled").variant(TILE=32), content["rows"]) is None


def test_a_kernel_and_itself() -> None:
    result = harness("explain", "tiled", "tiled TILE=16", "--device", "emulator")
    assert result.exit_code == 0 and "identical machine code" in result.output


@pytest.mark.slow
def test_timed_in_turn_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.problems.gemm import Gemm

    fake = fake_driver.install(monkeypatch)
    fake.functions = {"matmul": fake_gemm.SIZES}
    fake.execute = fake_gemm.gemm
    monkeypatch.setattr(Gemm, "bench_axes", ({"N": 32}, {"N": 48}))
    result = harness("explain", "coalesced", "tiled", "-a", "N=32")
    assert " times as fast at 32, timed in turn" in result.output, result.output
    fake.execute = lambda *_: None  # nothing is written: wrong, and a wrong kernel has no time
    assert "not timed: " in harness("explain", "coalesced", "tiled", "-a", "N=32").output


@pytest.mark.parametrize(
    "args",
    [
        ["naive"],  # it has no predecessor
        ["coalesced", "tiled", "naive"],
        ["coalesced", "tiled TILE=[8,16]"],
        ["coalesced", "'tiled"],
        ["coalesced", "nothing"],
        ["coalesced", "tiled", "--record", "nowhere.json"],
        ["coalesced", "tiled", "--record", "h200/selftest/noise"],
    ],
)
def test_bad_requests(args: list[str]) -> None:
    args = [str(record_file(a)) if a.startswith("h200/") else a for a in args]
    result = harness("explain", *args)
    assert result.exit_code == 2 and result.output.startswith(("error: ", "Usage")), result.output
