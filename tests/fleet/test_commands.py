"""The commands on a fleet: what each unit is told, and what becomes of what they find.

Units run one after the other in this process, on a fake GPU: test_fleet_processes.py has real ones.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fakes import gemm as fake_gemm
from harness.cli import main
from harness.cli.children import fleet as fleet_options
from harness.cli.children import fleet_tune, fleet_verdicts
from harness.errors import UsageError
from harness.fleet.units import FOLDER, Outcome, Unit
from harness.results import record
from shared.command import FAST, harness
from shared.fleets import Rig, gpu, rig, workers  # noqa: F401  (rig is a fixture)

_one = threading.Lock()


class InProcess:
    """Performs units by the command line in this process. `broken` are labels of units whose process dies."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig, self.folder, self.words = rig, folder, dict[str, tuple[str, ...]]()
        self.broken: set[str] = set()
        self.count = 0

    def __call__(self, worker: str, unit: Unit) -> Outcome:
        with _one:
            self.words[unit.label] = unit.words
            self.count += 1
            folder = self.folder / str(self.count)
            folder.mkdir()
            for name, data in unit.files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(data)
            if unit.label in self.broken:
                return Outcome(content="", seconds=1.0, error="it died", fault=True)
            assert unit.words[:2] == ("-m", "harness")
            words = [word.replace(FOLDER, str(folder)) for word in unit.words[2:]]
            result = CliRunner().invoke(main, words, env={"COLUMNS": None})
            assert "Traceback" not in result.output, result.output
            path = folder / unit.result
            return Outcome(content=path.read_text() if path.exists() else "", seconds=1.0)


@pytest.fixture
def units(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcess]:
    fake_gemm.gpu(monkeypatch)
    folder = tmp_path / "units"
    folder.mkdir()
    found = rig.perform = InProcess(rig, folder)
    monkeypatch.chdir(tmp_path)

    @contextlib.contextmanager
    def opened(gpus: str | None, scheduler: str | None) -> Iterator[Any]:
        yield rig.fleet()

    monkeypatch.setattr(fleet_options, "opened", opened)
    yield found


ARGUMENTS = ("naive", "tiled", "-a", "N=[16,32]", *FAST, "--gpus", "all")


@workers("a", "b")
def test_bench_writes_one_record_that_names_each_gpu(units: InProcess, tmp_path: Path) -> None:
    result = harness("bench", *ARGUMENTS, "--json", "r.json")
    assert result.exit_code == 0, result.output
    content = record.load(tmp_path / "r.json")
    told = [(r["kernel"], r["shape"], r["status"]) for r in content["rows"]]
    assert told == [
        ("01_naive", "16", "ok"), ("03_tiled", "16", "ok"),
        ("01_naive", "32", "ok"), ("03_tiled", "32", "ok"),
    ]  # fmt: skip
    cards = content["meta"]["fleet"]["cards"]
    assert [c["uuid"] for c in cards] == ["GPU-a", "GPU-b"] and sum(c["units"] for c in cards) == 4
    assert {r["gpu"] for r in content["rows"]} <= {"GPU-a", "GPU-b"}
    assert content["meta"]["gpu"]["sms"] == 132 and content["meta"]["ended"] == "complete"
    assert "GPU-a" in result.output and "units" in result.output
    words = units.words["03_tiled TILE=16 32"]
    assert {"03_tiled", "--param=TILE=16", "--axis=N=32", "--require-gpu"} <= set(words)
    assert not any(word.startswith(("--gpus", "--json", "--device")) for word in words)


@pytest.mark.slow
@workers("a", "b")
def test_a_record_of_a_fleet_replays_on_one_gpu(units: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["harness", "bench", *ARGUMENTS])
    assert harness("bench", *ARGUMENTS, "--json", "r.json").exit_code == 0
    result = harness("replay", "r.json", "--threshold", "50%")
    assert result.exit_code in (0, 3), result.output
    assert "harness bench naive tiled" in result.output
    assert "--gpus" not in result.output.splitlines()[0]


@pytest.mark.slow
@workers("a")
def test_default_sizes_that_a_kernel_does_not_take_are_told_of(units: InProcess, tmp_path: Path) -> None:
    """Do as on one GPU; a kernel that takes none of them is an error there."""
    from shared.kernels import BODY

    front = (
        '// /// kernel\n// entry = "matmul"\n// block = [16, 16]\n// tile = [16, 16]\n// requires = "{}"\n'
    )
    front += "// ///\n#define TILE 16\n"
    (tmp_path / "mine.cu").write_text(front.format("N <= 512") + BODY)
    result = harness("bench", "mine.cu", *FAST, "--gpus", "all")
    assert result.exit_code == 0, result.output
    assert "left out: 1024, 2048, 4096: mine requires N <= 512" in result.output
    assert set(units.words) == {"mine 512"}
    units.words.clear()
    (tmp_path / "mine.cu").write_text(front.format("N > 9000") + BODY)
    result = harness("bench", "mine.cu", *FAST, "--gpus", "all")
    assert result.exit_code == 1 and set(units.words) == {"mine 512"}


@workers("a", "b")
@pytest.mark.slow
def test_a_unit_that_dies_loses_its_row_only(units: InProcess, tmp_path: Path) -> None:
    units.broken = {"03_tiled TILE=16 16"}
    result = harness("bench", *ARGUMENTS, "--json", "r.json")
    assert result.exit_code == 1
    rows = record.load(tmp_path / "r.json")["rows"]
    assert [r["status"] for r in rows] == ["ok", "error", "ok", "ok"] and rows[1]["detail"] == "it died"


@pytest.mark.slow
@workers("h", "l")
def test_models_of_gpus_have_a_record_each(rig: Rig, units: InProcess, tmp_path: Path) -> None:
    rig.about["l"] = gpu("l", name="Lesser GPU")
    result = harness("bench", "tiled", "-a", "N=16", *FAST, "--gpus", "all", "--json", "r.json")
    assert result.exit_code == 0, result.output
    found = {path.name: record.load(path) for path in tmp_path.glob("*.json")}
    assert {name: [r["gpu"] for r in c["rows"]] for name, c in found.items()} == {
        "r-Fake-GPU.json": ["GPU-h"], "r-Lesser-GPU.json": ["GPU-l"],
    }  # fmt: skip


@workers("a", "b")
@pytest.mark.slow
def test_ones_own_kernel_travels_with_its_header(units: InProcess, tmp_path: Path) -> None:
    (tmp_path / "tile.h").write_text("#define TILE 16\n")
    from shared.kernels import BODY

    front = '// /// kernel\n// entry = "matmul"\n// block = [16, 16]\n// tile = [16, 16]\n// ///\n'
    (tmp_path / "mine.cu").write_text(front + '#include "tile.h"\n' + BODY)
    result = harness("verify", "mine.cu", "-a", "N=[16,33]", "--gpus", "2", "--json", "v.json")
    assert result.exit_code == 0, result.output
    assert "2/2" in result.output
    assert units.words["mine"][3] == f"{FOLDER}/mine.cu" and "--device=0" in units.words["mine"]
    rows = record.load(tmp_path / "v.json")["rows"]
    assert [(r["shape"], r["status"], r["gpu"][:4]) for r in rows] == [
        ("16", "ok", "GPU-"),
        ("33", "ok", "GPU-"),
    ]


@pytest.mark.slow
@workers("a")
def test_the_kernel_of_ref_travels_too(units: InProcess, tmp_path: Path) -> None:
    from shared.kernels import BODY

    front = '// /// kernel\n// entry = "matmul"\n// block = [16, 16]\n// tile = [16, 16]\n// ///\n'
    for name in ("mine.cu", "other.cu"):
        (tmp_path / name).write_text(front + BODY.replace("TILE", "16"))
    words = ("bench", "mine.cu", "--ref", "other.cu", "-a", "N=16", *FAST, "--gpus", "1", "--json", "r.json")
    result = harness(*words)
    assert result.exit_code in (0, 3), result.output
    assert f"--ref={FOLDER}/ref/other.cu" in units.words["mine 16"]
    rows = record.load(tmp_path / "r.json")["rows"]
    assert {r["kernel"] for r in rows} == {"mine", "other"} and all(r["status"] == "ok" for r in rows)


@workers("a", "b")
def test_verify_tells_of_what_died(units: InProcess, tmp_path: Path) -> None:
    units.broken = {"03_tiled TILE=16"}
    result = harness("verify", "tiled", "naive", "-a", "N=16", "--gpus", "2", "--json", "v.json")
    assert result.exit_code == 1
    rows = {r["kernel"]: (r["status"], r["detail"]) for r in record.load(tmp_path / "v.json")["rows"]}
    assert rows["03_tiled"] == ("error", "it died") and rows["01_naive"][0] == "ok"


@pytest.mark.slow
@workers("a", "b", "c")
def test_tune_divides_the_candidates_of_one_size(units: InProcess, tmp_path: Path) -> None:
    result = harness("tune", "tiled", "-a", "N=32", "--gpus", "all", "--json", "t.json", "--t4", "t4.json")
    assert result.exit_code == 0, result.output
    shares = {label: words for label, words in units.words.items() if "finals" not in label}
    assert list(shares) == ["N=32: 1 candidates"] and all("--search" in w for w in shares.values())
    content = record.load(tmp_path / "t.json")
    (summary,) = content["meta"]["results"]
    assert summary["confirmed"] and {w["TILE"] for w in summary["winners"]} <= {8, 16, 32}
    stages = [r["stage"] for r in content["rows"]]
    assert "rung 1" in stages and "final" in stages
    assert {r["params"]["TILE"] for r in content["rows"] if r["stage"] == "rung 1"} == {8, 16, 32}
    assert {r["gpu"] for r in content["rows"]} == {"GPU-a", "GPU-b", "GPU-c"}
    assert len(json.loads((tmp_path / "t4.json").read_text())["results"]) == 3


@pytest.mark.slow
@workers("a", "b")
def test_tune_gives_each_size_to_one_gpu(units: InProcess, tmp_path: Path) -> None:
    result = harness("tune", "tiled", "-a", "N=[16,32]", "--gpus", "all", "--json", "t.json")
    assert result.exit_code == 0, result.output
    assert sorted(units.words) == ["N=16: 3 candidates, finals", "N=32: 3 candidates, finals"]
    content = record.load(tmp_path / "t.json")
    assert [s["shape"] for s in content["meta"]["results"]] == ["16", "32"]
    by_size = {shape: {r["gpu"] for r in content["rows"] if r["shape"] == shape} for shape in ("16", "32")}
    assert all(len(gpus) == 1 for gpus in by_size.values()), "pairs never cross cards"


@pytest.mark.slow
@workers("a", "b")
def test_a_share_that_is_lost_is_told_of(units: InProcess) -> None:
    units.broken = {"N=32: 1 candidates"}
    result = harness("tune", "tiled", "-a", "N=32", "--gpus", "all")
    assert result.exit_code == 1
    assert "it died" in result.output and "a share of the candidates is missing" in result.output


def _row(tile: int, ratio: float, *, against: str = "cuBLAS") -> Any:
    interval = {"low": 0.999 * ratio, "estimate": ratio, "high": 1.001 * ratio}
    return {"status": "ok", "params": {"TILE": tile}, "ratio": interval, "against": against}


def _share(*rows: Any) -> Any:
    from harness.tune.search import Result

    nothing = {"confirmed": False, "note": "", "seconds": 1.0, "searching": 1.0, "measured": 1, "resumed": 0}
    one = Result(shape="32", winners=rows[:1], ranking=rows, rows=rows, **nothing)
    return fleet_tune._Share(card=None, results=(one,), unfit=(), about={}, error="")  # type: ignore[arg-type]


def test_who_meets_in_the_finals() -> None:
    """Those that may be the fastest of all; without a reference in common the first of each share."""
    first, second = _share(_row(8, 1.0), _row(16, 1.2)), _share(_row(32, 1.005), _row(64, 1.05))
    assert fleet_tune._finalists([first, second], 0.005) == [{"TILE": 8}, {"TILE": 32}]
    other = _share(_row(32, 2.0, against="03_tiled TILE=32"))
    assert fleet_tune._finalists([first, other], 0.005) == [{"TILE": 8}, {"TILE": 32}]


@workers("a", "b")
def test_judge_gives_each_file_its_verdict(
    units: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_verdicts, "_FIRST", "emulator")  # a judge's own children have no fake GPU
    (tmp_path / "own.cu").write_text('// /// kernel\n// entry = "x"\n// problem = "p.py:P"\n// ///\n')
    (tmp_path / "p.py").write_text("raise SystemExit\n")
    (tmp_path / "off.cu").write_text("no kernel at all\n")
    result = harness("judge", "own.cu", "off.cu", "--gpus", "all", "--json", "j.json", "--scores", "s.jsonl")
    assert result.exit_code == 1
    rows = record.load(tmp_path / "j.json")["rows"]
    assert sorted((r["kernel"], r["verdict"]) for r in rows) == [("off", "rejected"), ("own", "rejected")]
    assert len((tmp_path / "s.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "all", "-d", "0"), "one of the two"),
        (("--gpus", "0"), "--gpus 0: there are 2"),
        (("--gpus", "3"), "there are 2"),
        (("--gpus", "0,0"), "different ones"),
        (("--gpus", ","), "a number of GPUs, or a list"),
        (("--gpus", "0,7"), "no GPU matches '7'"),
        (("--scheduler", "somewhere"), "no scheduler is called 'somewhere'"),
        (("--scheduler", "tcp://host"), "no scheduler is called"),
        (("--scheduler", "tcp://127.0.0.1:9", "--gpus", "0,1"), "the number of GPUs to wait for"),
    ],
)
@pytest.mark.parametrize("verb", ["bench", "verify", "tune"])
def test_options_that_mean_nothing(
    monkeypatch: pytest.MonkeyPatch, verb: str, words: tuple[str, ...], said: str
) -> None:
    pytest.importorskip("distributed", reason="pip install '.[fleet]'")
    from fakes import driver

    driver.install(monkeypatch, devices=2)
    result = harness(verb, "tiled", "-a", "N=16", *words)
    assert result.exit_code == 2 and said in result.stderr


def test_which_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    from fakes import driver

    driver.install(monkeypatch, devices=4)
    numbers = {
        text: [d.ordinal for d in fleet_options.selected(text)]
        for text in ("all", "2", "0,3", "GPU-a1,", "1,")
    }
    assert numbers == {"all": [0, 1, 2, 3], "2": [0, 1], "0,3": [0, 3], "GPU-a1,": [1], "1,": [1]}
    with pytest.raises(UsageError, match="there are 4"):
        fleet_options.selected("5")


def test_without_dask(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from fakes import driver

    driver.install(monkeypatch, devices=2)
    monkeypatch.setitem(sys.modules, "distributed", None)
    result = harness("bench", "tiled", "-a", "N=16", "--gpus", "all")
    assert result.exit_code == 1 and "cuda-harness[fleet]" in result.stderr


@workers("a")
def test_a_fault_in_the_middle_of_verify_is_kept(
    units: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows before it stay, and the first shape without a row tells it; with none at all, too."""
    perform = units.__class__.__call__

    def faulting(self: InProcess, worker: str, unit: Unit) -> Outcome:
        found = perform(self, worker, unit)
        content = json.loads(found.content)
        content["rows"] = content["rows"][: 1 if "03" in unit.label else 0]
        return Outcome(content=json.dumps(content), seconds=1.0, error="the context is lost", fault=True)

    monkeypatch.setattr(InProcess, "__call__", faulting)
    result = harness("verify", "tiled", "naive", "-a", "N=[16,32]", "--gpus", "1", "--json", "v.json")
    assert result.exit_code == 1
    rows = [(r["kernel"], r["shape"], r["status"]) for r in record.load(tmp_path / "v.json")["rows"]]
    assert ("03_tiled", "16", "ok") in rows and ("03_tiled", "32", "error") in rows
    assert ("01_naive", "16", "error") in rows and len(rows) == 3


@workers("a")
@pytest.mark.slow
def test_of_a_file_with_two_kernels_each_is_measured_once(units: InProcess, tmp_path: Path) -> None:
    text = (
        "__global__ void NAME(const float* x, float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = 1; }\n"
    )
    (tmp_path / "two.cu").write_text(text.replace("NAME", "first") + text.replace("NAME", "second"))
    harness("verify", "two.cu", "--gpus", "1", "--json", "v.json")
    told = {label: [w for w in words if w.startswith("--entry")] for label, words in units.words.items()}
    assert sorted(told.values()) == [["--entry=first"], ["--entry=second"]]


def test_files_for_several_models() -> None:
    names = ["NVIDIA H100", "NVIDIA H200", "NVIDIA H100"]
    found = fleet_options.beside(Path("r.json"), names)
    told = [p and p.name for p in found]
    assert told == ["r-NVIDIA-H100.json", "r-NVIDIA-H200.json", "r-NVIDIA-H100-2.json"]
    assert fleet_options.beside(Path("r.json"), names[:1]) == [Path("r.json")]
    assert fleet_options.beside(None, names) == [None] * 3
    with pytest.raises(UsageError, match="3 models"):
        fleet_options.beside(Path("/dev/stdout"), names)


def test_a_record_holds_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.errors import HarnessError

    for words in (("--scheduler", "tls://node7.lab:8786"), ("--scheduler=tcp://10.0.0.7:8786",)):
        monkeypatch.setattr("sys.argv", ["harness", "bench", *words, "--json", "a/b.json"])
        told = " ".join(record.provenance()["argv"])
        assert "node7" not in told and "10.0.0" not in told and "--scheduler" in told and "b.json" in told
    ended = fleet_options.ended(HarnessError("no scheduler answers at tls://node7.lab:8786: refused"))
    assert ended == "no scheduler answers at tls://...: refused"
