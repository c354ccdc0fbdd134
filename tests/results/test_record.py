"""Result files: written in nvbench's shape, read back, compared, replayed; measured in child processes."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from fakes import driver as fake_driver
from fakes import gemm as fake_gemm
from harness.cli import main
from harness.cli.children import isolation
from harness.cli.verbs.replay import arguments_of
from harness.errors import UsageError
from harness.kernels import catalog
from harness.results import record
from harness.support.files import PACKAGE
from shared.places import RECORDS, ROOT, record_file

FAST = ["--min-time", "0.005", "--timeout", "0.05"]


def harness(*args: str) -> Result:
    result = CliRunner().invoke(main, list(args))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> fake_driver.FakeDriver:
    return fake_gemm.gpu(monkeypatch)


def benched(path: Path, *args: str) -> dict[str, Any]:
    argv = ["bench", *args, *FAST, "--json", str(path)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["harness", *argv])
        result = harness(*argv)
    assert result.exit_code in (0, 1, 3), result.output
    return json.loads(path.read_text())  # type: ignore[no-any-return]


# ---- nvbench's shape -------------------------------------------------------------------------------


def test_a_result_file_is_one_of_nvbenchs(fake: Any, tmp_path: Path) -> None:
    """Every name and type that its reader (cuda.bench.results) and compare script look up."""
    content = benched(
        tmp_path / "r.json", "coalesced", "tiled", "-a", "M=64", "-a", "N=[16,32]", "-a", "K=40"
    )
    assert content["meta"]["version"]["json"]["string"] == "1.0.0"
    (device,) = content["devices"]
    assert (device["id"], device["name"], device["sm_version"]) == (0, "Fake GPU", 900)
    assert [b["name"] for b in content["benchmarks"]] == ["02_coalesced BX=32 BY=32", "03_tiled TILE=16"]
    for bench in content["benchmarks"]:
        axes = {axis["name"]: axis for axis in bench["axes"]}
        assert axes["N"]["type"] == "int64" and axes["alpha"]["type"] == "float64"
        assert [v["input_string"] for v in axes["N"]["values"]] == ["16", "32"]
        for state in bench["states"]:
            assert state["name"].startswith("Device=0 M=64 N=") and state["device"] in bench["devices"]
            assert {v["name"] for v in state["axis_values"]} == set(axes) and not state["is_skipped"]
            tags = {s["tag"]: s for s in state["summaries"]}
            mean = tags["nv/cold/time/gpu/mean"]["data"][0]
            assert mean["name"] == "value" and mean["type"] == "float64" and isinstance(mean["value"], str)
            assert float(mean["value"]) == pytest.approx(1.5e-3)
            assert tags["nv/cold/sample_size"]["data"][0]["type"] == "int64"


@pytest.mark.parametrize("regime", ["hot", "graph"])
def test_other_regimes_do_not_call_themselves_cold(fake: Any, tmp_path: Path, regime: str) -> None:
    content = benched(tmp_path / "r.json", "tiled", "-a", "N=16", "--regime", regime)
    (state,) = content["benchmarks"][0]["states"]
    tags = [s["tag"] for s in state["summaries"]]
    assert f"harness/{regime}/time/gpu/mean" in tags and not [t for t in tags if t.startswith("nv/")]


def test_a_failed_row_is_skipped_with_its_reason(fake: Any, tmp_path: Path) -> None:
    fake.execute = fake_gemm.zeros
    (state,) = benched(tmp_path / "r.json", "tiled", "-a", "N=16")["benchmarks"][0]["states"]
    assert state["is_skipped"] and "256 of 256 elements wrong" in state["skip_reason"]


def test_nvbenchs_own_reader_opens_it(fake: Any, tmp_path: Path) -> None:
    results = pytest.importorskip("cuda.bench.results")
    benched(tmp_path / "r.json", "tiled", "-a", "N=[16,32]")
    (bench,) = results.BenchmarkResult.from_json(tmp_path / "r.json").values()
    assert len(bench) == 2


def test_rows_come_back_as_they_were(fake: Any, tmp_path: Path) -> None:
    content = benched(tmp_path / "r.json", "coalesced", "tiled", "-a", "N=[16,32]")
    rows = record.load(tmp_path / "r.json")["rows"]
    assert [(r["kernel"], r["shape"]) for r in rows] == [
        ("02_coalesced", "16"), ("03_tiled", "16"), ("02_coalesced", "32"), ("03_tiled", "32"),
    ]  # fmt: skip
    row, meta = rows[0], content["meta"]
    assert len(row["times"]) == row["samples"] == sum(b["n"] for b in row["batches"])
    assert row["sm_hz"] == pytest.approx(1.98e9) and row["cycles"] == pytest.approx(1.5e-3 * 1.98e9)
    assert {"argv", "utc", "seed", "commit", "dirty", "versions", "rule", "gpu", "code_sha256"} <= meta.keys()
    assert meta["gpu"]["uuid"].startswith("GPU-") and "event_overhead" in meta["gpu"]
    assert all(len(row[f"{what}_sha256"]) == 64 for what in ("source", "cubin", "sass"))


def test_the_program_that_ran_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    own = PACKAGE / "__main__.py"
    for started, name in (
        (own, "harness"),
        ("/usr/bin/harness", "harness"),
        ("benchmarks/tuners.py", "tuners.py"),
    ):
        monkeypatch.setattr(sys, "argv", [str(started), "-a", "N=8", "--json", "x/r.json"])
        assert record.provenance()["argv"] == [name, "-a", "N=8", "--json", "r.json"]
    elsewhere = Path(pytest.__file__).with_name("__main__.py")
    monkeypatch.setattr(sys, "argv", [str(elsewhere)])
    assert record.provenance()["argv"] == ["__main__.py"]


def test_a_checkout_knows_its_version_without_being_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "_version", lambda name: None)
    checkout = ROOT / "pyproject.toml"
    assert record.own_version(checkout) == tomllib.loads(checkout.read_text())["project"]["version"]
    monkeypatch.setattr(record, "_version", lambda name: f"{name} as installed")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\nversion = "9"\n')
    for file in ("pyproject.toml", "none.toml"):
        assert record.own_version(tmp_path / file) == "cuda-harness as installed"


def test_what_differs_from_the_commit_is_named(tmp_path: Path) -> None:
    def git(*args: str) -> str:
        who = ["-c", "user.name=t", "-c", "user.email=t@t"]
        done = subprocess.run(
            ["git", "-C", tmp_path, *who, *args], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    package = tmp_path / "harness"
    (tmp_path / "cu").mkdir()
    package.mkdir()
    (package / "a.py").write_text("a = 1\n")
    (tmp_path / "README.md").write_text("words\n")
    assert record._commit(package) == (None, None)
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    (tmp_path / "README.md").write_text("other words\n")  # which nothing measured depends on
    assert record._commit(package) == (git("rev-parse", "HEAD"), [])
    (package / "a.py").write_text("a = 2\n")
    (package / "new.py").write_text("")  # a working tree that was copied without its commits has such files
    (tmp_path / "cu" / "my kernel.cu").write_text("")
    assert record._commit(package)[1] == ["cu/my kernel.cu", "harness/a.py", "harness/new.py"]
    (tmp_path / "inner").mkdir()
    assert record._commit(tmp_path / "inner" / "harness") == (None, None)


def test_files_of_the_first_schema_are_read() -> None:
    old = record.load(record_file("h200/bench/tiles"))
    assert old["schema"] in (1, record.SCHEMA) and len(old["rows"]) == 27


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": 99, "meta": {}}', "written by a newer harness: schema 99"),
        ("{", "not JSON"),
        ("[]", "not a result file"),
        ('{"schema": "2", "meta": {}}', "not a result file"),
        ('{"schema": 2, "meta": {}}', "a damaged result file"),
        ('{"schema": 2, "meta": {}, "benchmarks": [{}]}', "a damaged result file"),
        ('{"schema": 2, "kind": "bench", "meta": {}, "rows": null}', "no list of objects"),
        ('{"schema": 2, "kind": "bench", "meta": {"gpu": "x"}, "rows": []}', "meta.gpu is a text, not an"),
        (
            '{"schema": 2, "kind": "bench", "meta": {}, "rows": '
            '[{"kernel": "a", "params": {}, "shape": "8"}]}',
            "row 0 has no 'status'",
        ),
        (
            '{"schema": 2, "kind": "bench", "meta": {}, "rows": '
            '[{"kernel": "a", "params": {}, "status": "ok", "seconds": 1}]}',
            "row 0 has no 'shape'",
        ),
        ('{"schema": 2, "kind": "profile", "meta": {}, "rows": [{"kernel": "a"}]}', "no 'counters'"),
        (
            '{"schema": 2, "kind": "bench", "meta": {}, "rows": '
            '[{"kernel": 1, "params": {}, "shape": "8", "status": ""}]}',
            "row 0: kernel is 1, not a text",
        ),
        ('{"schema": 2, "kind": "tune", "meta": {}, "rows": [{}]}', "row 0 has no 'kernel'"),
        (
            '{"schema": 2, "kind": "bench", "meta": {}, "rows": [{"kernel": "a", "status": "ok"}]}',
            "no 'params'",
        ),
        (
            '{"schema": 2, "kind": "bench", "meta": {}, "rows": '
            '[{"kernel": "a", "status": "ok", "params": {}, "shape": "8", "seconds": -1}]}',
            "row 0: seconds is -1, not more than 0",
        ),
        ('{"schema": 2, "kind": "bench", "meta": {}, "rows": [{"seconds": NaN}]}', "not JSON: NaN"),
        ('{"schema": true, "kind": "bench", "meta": {}, "rows": []}', "not a result file"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "r.json").write_text(text)
    result = harness("compare", str(tmp_path / "r.json"), str(tmp_path / "r.json"))
    assert result.exit_code == 2 and message in result.stderr and "Traceback" not in result.output
    assert "with --json" in result.stderr or not message.startswith("not ")
    assert harness("compare", str(tmp_path / "r.json"), str(tmp_path / "none.json")).exit_code == 2


# ---- compare ---------------------------------------------------------------------------------------


def run_file(path: Path, seconds: float, *, noise: float = 0.01, sass: str = "a", **changes: Any) -> Path:
    """A result file of one kernel; `changes` replace keys of its row, or of its GPU."""
    rng = np.random.default_rng(int(seconds * 1e9))
    times = [float(t) for t in seconds * np.exp(noise * rng.normal(size=200))]
    row = {
        "kernel": "k", "params": {"T": 1}, "problem": "gemm", "shape": "64", "status": "ok", "detail": "",
        "regime": "cold", "seconds": seconds, "noise": noise, "times": times, "sm_hz": 1.98e9,
        "sass_sha256": sass, "block": [1], "tile": [1], "shared": 0,
    }  # fmt: skip
    gpu = {"uuid": "GPU-1", "math_mode": "pedantic", "cublas": "13"}
    meta = {"gpu": {k: changes.pop(k, v) for k, v in gpu.items()}, "seed": changes.pop("seed", 1)}
    content = {"schema": 1, "kind": "bench", "meta": meta, "rows": [{**row, **changes}]}
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("seconds", "noise", "status", "code"),
    [
        (1.001e-3, 0.01, "SAME", 0),
        (1.05e-3, 0.01, "SLOW", 1),
        (0.95e-3, 0.01, "FAST", 0),
        (1.02e-3, 0.01, "INCONCLUSIVE", 3),
        (1.01e-3, 0.5, "INCONCLUSIVE", 3),
    ],
)
def test_compare(tmp_path: Path, seconds: float, noise: float, status: str, code: int) -> None:
    ref, cmp = run_file(tmp_path / "a", 1e-3), run_file(tmp_path / "b", seconds, noise=noise, sass="b")
    result = harness("compare", str(ref), str(cmp))
    assert result.exit_code == code
    (line,) = [s for s in result.stdout.splitlines() if s.startswith("k ")]
    assert line.split()[-1] == status and "1.00 ms" in line and len(line) <= 80
    header = next(s for s in result.stdout.splitlines() if "Ref Time" in s)
    assert header.split() == ["kernel", "Ref", "Time", "+-%", "Cmp", "Time", "+-%", "%Diff", "Status"]
    csv = harness("compare", str(ref), str(cmp), "--csv").stdout.splitlines()
    assert csv[0].startswith("Kernel,Shape,Ref Time") and f",{status}," in csv[1]


def test_the_threshold_decides_what_counts(tmp_path: Path) -> None:
    ref, cmp = (
        run_file(tmp_path / "a", 1e-3, noise=0.001),
        run_file(tmp_path / "b", 1.01e-3, noise=0.001, sass="b"),
    )
    assert harness("compare", str(ref), str(cmp)).exit_code == 0
    assert harness("compare", str(ref), str(cmp), "--threshold", "0.5%").exit_code == 1
    assert harness("compare", str(ref), str(cmp), "--threshold", "-1").exit_code == 2


def test_identical_code_is_noise_however_far_apart(tmp_path: Path) -> None:
    ref, cmp = run_file(tmp_path / "a", 1e-3), run_file(tmp_path / "b", 1.1e-3)
    result = harness("compare", str(ref), str(cmp))
    assert result.exit_code == 0 and "identical SASS: machine noise: k" in result.stdout
    other = run_file(tmp_path / "c", 1.1e-3, block=[2])  # the same instructions, launched otherwise
    assert harness("compare", str(ref), str(other)).exit_code == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"uuid": "GPU-2"}, "another GPU: GPU-1 and GPU-2"),
        ({"math_mode": "TF32"}, "another math mode: pedantic and TF32"),
        ({"cublas": "12"}, "another cuBLAS"),
        ({"seed": 2}, "another input data (seed)"),
        ({"regime": "hot"}, "another regime: cold and hot"),
        ({"sm_hz": 1.755e9}, "another SM clock, 1980 and 1755 MHz (k T=1, 64)"),
    ],
)
def test_incomparable_runs_are_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    ref, cmp = run_file(tmp_path / "a", 1e-3), run_file(tmp_path / "b", 1e-3, sass="b", **change)
    result = harness("compare", str(ref), str(cmp))
    assert result.exit_code == 2 and reason in result.stderr and "--force" in result.stderr
    assert harness("compare", str(ref), str(cmp), "--force").exit_code == 0


@pytest.mark.parametrize("kind", ["selftest", "tuners", "calibration"])
def test_what_has_no_times_of_kernels_is_not_compared(tmp_path: Path, kind: str) -> None:
    bench, other = run_file(tmp_path / "a", 1e-3), tmp_path / "other.json"
    record.write_json(other, record.document(kind, [{"median": 1.0}], {}))
    for pair in ((bench, other), (other, bench), (other, other)):
        result = harness("compare", *map(str, pair), "--force")
        assert result.exit_code == 2
        assert f"{other}: what {kind} wrote has neither times nor static figures" in result.stderr


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": 2, "meta": {}, "rows": [3'])
def test_what_is_no_result_file_is_no_regression(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    result = harness("compare", str(path), str(path))
    assert result.exit_code == 2 and str(path) in result.stderr


def test_a_row_that_fails_now_has_regressed(tmp_path: Path) -> None:
    ref = run_file(tmp_path / "a", 1e-3)
    cmp = run_file(tmp_path / "b", 1e-3, status="FAILED", detail="all wrong", times=[])
    content = json.loads(cmp.read_text())
    content["rows"][0]["seconds"] = None
    cmp.write_text(json.dumps(content))
    result = harness("compare", str(ref), str(cmp))
    assert result.exit_code == 1 and "all wrong" in result.stdout


def test_nothing_in_common(tmp_path: Path) -> None:
    ref, cmp = run_file(tmp_path / "a", 1e-3), run_file(tmp_path / "b", 1e-3, shape="128")
    result = harness("compare", str(ref), str(cmp))
    assert result.exit_code == 2 and "no measured row in common" in result.stderr


# ---- replay ----------------------------------------------------------------------------------------


def test_replay(fake: Any, tmp_path: Path) -> None:
    benched(tmp_path / "r.json", "tiled", "-a", "N=16")
    result = harness("replay", str(tmp_path / "r.json"))
    assert result.exit_code == 0 and "reproduced: all 1 rows within 2%" in result.stdout
    assert "harness bench tiled --axis=N=16 --min-time=0.005 --timeout=0.05" in result.stdout
    fake.milliseconds = 1.6
    result = harness("replay", str(tmp_path / "r.json"))
    assert result.exit_code == 1 and "not reproduced: 1 of 1 rows differ" in result.stdout
    fake.milliseconds, fake.sm_ghz = 1.5, 1.7
    result = harness("replay", str(tmp_path / "r.json"))
    assert result.exit_code == 3 and "incomparable: " in result.stdout and "SM clock" in result.stdout


@pytest.mark.slow
def test_replay_of_a_changed_source(
    fake: Any, tmp_path: Path, kernel_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = kernel_file("mine.cu")
    benched(tmp_path / "r.json", str(path), "-a", "N=16")
    assert harness("replay", "r.json").exit_code == 0
    path.write_text(path.read_text() + "// another line\n")
    result = harness("replay", "r.json")
    assert result.exit_code == 3 and "incomparable: another source of mine" in result.stdout


def test_replay_of_what_was_no_measurement(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"schema": 2, "kind": "sass", "meta": {}, "rows": []}')
    result = harness("replay", str(tmp_path / "r.json"))
    assert result.exit_code == 2 and "nothing was measured in this file" in result.stderr


def test_replay_of_a_file_without_its_command(tmp_path: Path) -> None:
    result = harness("replay", str(run_file(tmp_path / "r.json", 1e-3)))
    assert result.exit_code == 2 and "does not say what was run" in result.stderr


def test_arguments_of_a_recorded_command() -> None:
    argv = [
        "harness",
        "bench",
        "tiled",
        "-a",
        "N=8",
        "--json",
        "x.json",
        "-d",
        "GPU-1",
        "--json=y",
        "--md",
        "--sweep",
    ]
    assert arguments_of(argv) == ["tiled", "--sweep", "--axis=N=8"]
    with pytest.raises(UsageError):
        arguments_of(["harness", "sass"])


@pytest.mark.parametrize(
    "word",
    ["--rows=x", "--no-such-option", "/tmp/k.cu", "../k.cu", "--ref=/k.cu", "--arch", "--json=/x/y --rows=x"],
)
def test_a_result_file_chooses_no_hidden_options_and_no_paths(word: str) -> None:
    with pytest.raises(UsageError):
        arguments_of(["harness", "bench", "tiled", *word.split()])
    if word.startswith("--"):
        with pytest.raises(UsageError):
            arguments_of(["harness", "bench", "--", *word.split()])


# ---- --isolate -------------------------------------------------------------------------------------

CHILD = """\
import json, os, signal, sys, time
rows = open(sys.argv[-1], "a")
def row(**r): print(json.dumps(r), file=rows, flush=True)
"""


def child(code: str, timeout: float = 20) -> isolation.Outcome:
    return isolation.run_child([sys.executable, "-c", CHILD + code], timeout)


def test_a_child_that_finishes() -> None:
    found = child("row(gpu=1); row(kernel='a'); sys.exit(1)")  # 1: a kernel failed, which its row says
    assert (found.about, found.rows, found.error) == ({"gpu": 1}, ({"kernel": "a"},), "")


def test_a_child_that_hangs_is_killed_and_its_rows_kept() -> None:
    found = child(
        "row(gpu=1); row(kernel='a'); rows.write('{\"torn'); rows.flush(); time.sleep(60)", timeout=1.5
    )
    assert found.rows == ({"kernel": "a"},)
    assert found.error.startswith("not done after 1.5 s, and killed: it hangs")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "its process was ended by SIGSEGV"),
        (
            "print('error: cuEventSynchronize failed: 700', file=sys.stderr); sys.exit(1)",
            "cuEventSynchronize failed: 700",
        ),
        ("raise RuntimeError('bug')", "its process ended with code 1: RuntimeError: bug"),
        ("sys.exit(7)", "its process ended with code 7: silently"),
    ],
)
def test_a_child_that_dies(code: str, error: str) -> None:
    assert child(f"row(gpu=1)\n{code}").error == error


def test_ctrl_c_keeps_what_the_child_had_measured() -> None:
    """In a process of its own, which its child interrupts as a terminal would. Begun in the background, as
    this one may have been, it would ignore that.
    """
    inner = f"{CHILD}row(gpu=1); row(kernel='a'); os.kill(os.getppid(), signal.SIGINT); time.sleep(60)"
    call = f"isolation.run_child([sys.executable, '-c', {inner!r}], 50)"
    listens = "import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command = [sys.executable, "-c", f"{listens}from harness.cli.children import isolation\nprint({call})"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=True)
    assert "{'kernel': 'a'}" in done.stdout and "interrupted=True" in done.stdout


def test_a_fault_in_one_kernel_leaves_the_others(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent's part: what each child is told to do, and what becomes of their rows."""
    told, interrupted = [], False

    def run_child(command: list[str], timeout: float) -> isolation.Outcome:
        told.append(command)
        rows = tmp_path / "rows"
        rows.unlink(missing_ok=True)
        result = harness(*command[3:], "--rows", str(rows))
        assert "Traceback" not in result.output
        about, *lines = [json.loads(s) for s in rows.read_text().splitlines()]
        if interrupted:
            return isolation.Outcome(rows=tuple(lines[:1]), about=about, error="", interrupted=True)
        if "02_coalesced.cu" in command[4]:  # it faults in its second size
            return isolation.Outcome(rows=tuple(lines[:1]), about=about, error="the context is lost")
        return isolation.Outcome(rows=tuple(lines), about=about, error="")

    monkeypatch.setattr(isolation, "run_child", run_child)
    content = benched(
        tmp_path / "r.json",
        "coalesced",
        "tiled",
        "-a",
        "N=[16,32]",
        "--isolate",
        "--kernel-timeout",
        "9",
        "--alone",
        "--regime",
        "hot",
    )
    assert len(told) == 2 and told[0][:4] == [sys.executable, "-m", "harness", "bench"]
    assert "--regime=hot" in told[0] and "--param=BX=32" in told[0] and "--axis=N=[16,32]" in told[0]
    assert "--alone" in told[0]
    assert "--max-noise=0.5" in told[0] and "--throttle-threshold=60.0" in told[0]
    rows = record.load(tmp_path / "r.json")["rows"]
    assert [(r["kernel"], r["shape"], r["status"]) for r in rows] == [
        ("02_coalesced", "16", "ok"), ("03_tiled", "16", "ok"),
        ("02_coalesced", "32", "error"), ("03_tiled", "32", "ok"),
    ]  # fmt: skip
    interrupted = True
    result = harness(
        "bench", "tiled", "-a", "N=[16,32]", "--isolate", *FAST, "--json", str(tmp_path / "i.json")
    )
    assert result.exit_code == 130 and "interrupted" in result.stderr
    assert [r["shape"] for r in record.load(tmp_path / "i.json")["rows"]] == ["16"]
    assert rows[2]["detail"] == "the context is lost" and content["meta"]["ended"] == "complete"


# ---- bench --ref, regimes --------------------------------------------------------------------------


class Slower:
    """A GPU on which one block shape takes longer: the fake's clock follows what was launched last."""

    def __init__(self, fake: Any, block: tuple[int, int, int], ratio: float) -> None:
        self.fake, self.block, self.ratio = fake, block, ratio
        self.rng = np.random.default_rng(0)

    def __call__(self, launch: Any) -> None:
        fake_gemm.gemm(launch)
        factor = self.ratio if launch.block == self.block else 1.0
        self.fake.milliseconds = 1.5 * factor * float(np.exp(0.002 * self.rng.normal()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ratio", "verdict", "code"), [(1.03, "SLOW", 1), (0.97, "FAST", 0), (1.0, "SAME", 0)]
)
def test_bench_against_another_kernel(
    fake: Any, tmp_path: Path, ratio: float, verdict: str, code: int
) -> None:
    fake.execute = Slower(fake, (16, 16, 1), ratio)
    args = ["bench", "tiled", "--ref", "coalesced", "-a", "N=16", *FAST]
    result = harness(*args, "--json", str(tmp_path / "r.json"))
    assert result.exit_code == code, result.output
    (line,) = [s for s in result.stdout.splitlines() if s.startswith("03_tiled") and verdict in s]
    assert f"{100 / ratio:.0f}"[:2] in line and "+-" in line
    reference, row = record.load(tmp_path / "r.json")["rows"]
    assert (reference["kernel"], reference["ratio"], reference["decision"]) == ("02_coalesced", None, None)
    assert row["against"].startswith("02_coalesced") and row["decision"] == verdict
    assert row["ratio"]["low"] <= row["ratio"]["estimate"] <= row["ratio"]["high"]
    assert row["ratio"]["estimate"] == pytest.approx(ratio, rel=3e-3)
    pair = row["pair"]
    assert len(pair["candidate"]) == len(pair["baseline"]) == 2 * len(pair["order"])
    assert pair["sm_hz"] == {"candidate": pytest.approx(1.98e9), "baseline": pytest.approx(1.98e9)}


@pytest.mark.parametrize(("ghz", "said"), [(1.98, False), (1.965, False), (1.955, True)])
def test_another_clock_in_the_turns_of_the_other_is_said(
    fake: Any, tmp_path: Path, ghz: float, said: bool
) -> None:
    """A kernel that draws the card's power lowers the clock: the ratio is then not one of cycles."""
    execute = Slower(fake, (16, 16, 1), 1.0)

    def clocked(launch: Any) -> None:
        execute(launch)
        fake.sm_ghz = ghz if launch.block == (16, 16, 1) else 1.98

    fake.execute = clocked
    path = tmp_path / "r.json"
    result = harness("bench", "tiled", "--ref", "coalesced", "-a", "N=16", *FAST, "--json", str(path))
    text = " ".join(result.stdout.split())
    assert ("* the SM clock was 1955 MHz in its turns, 1980 MHz in 02_coalesced" in text) == said
    clocks = record.load(path)["rows"][1]["pair"]["sm_hz"]
    assert clocks == {"candidate": pytest.approx(ghz * 1e9), "baseline": pytest.approx(1.98e9)}
    assert ("the SM clock was" in text) == said


def test_identical_code_on_both_sides_is_said(fake: Any, tmp_path: Path) -> None:
    result = harness("bench", "tiled", "--ref", "tiled", "-a", "N=16", *FAST)
    assert "identical SASS on both sides: machine noise" in result.stdout
    other = harness("bench", "tiled", "--ref", "coalesced", "-a", "N=16", *FAST)
    assert "identical SASS" not in other.stdout


def test_a_reference_that_cannot_serve(fake: Any) -> None:
    both = harness("bench", "tiled", "--ref", "coalesced", "--alone", "-a", "N=16")
    assert both.exit_code == 2 and "one of the two" in both.stderr
    other = harness("bench", "tiled", "--ref", "copy", "-a", "N=16")
    assert other.exit_code == 2 and "solve different problems" in other.stderr
    assert harness("bench", "tiled", "--ref", "0[12]*", "-a", "N=16").exit_code == 2
    broken = harness("bench", "tiled", "--ref", "tiled_no_sync", "-a", "N=16", *FAST)
    assert broken.exit_code == 3  # it has no time, so nothing can be told


def test_the_baseline_does_not_write_what_the_candidate_is_verified_by(fake: Any) -> None:
    """A candidate that stops working once it is timed, beside a baseline that is right."""
    seen = 0

    def lazy(launch: Any) -> None:
        nonlocal seen
        if launch.block == (16, 16, 1):
            seen += 1
            if seen > 30:
                return
        fake_gemm.gemm(launch)

    fake.execute = lazy
    result = harness("bench", "tiled", "--ref", "coalesced", "-a", "N=16", *FAST)
    assert result.exit_code == 1 and "03_tiled TILE=16, 16: FAILED" in result.stdout


def test_hot_uses_one_set_and_a_graph_runs_whole_rounds(fake: Any, tmp_path: Path) -> None:
    rows = {}
    for regime in ("hot", "graph"):
        benched(tmp_path / "r.json", "tiled", "-a", "N=16", "--regime", regime)
        (rows[regime],) = record.load(tmp_path / "r.json")["rows"]
    assert (rows["hot"]["sets"], rows["hot"]["regime"]) == (1, "hot")
    graph = rows["graph"]
    assert (graph["regime"], graph["status"]) == ("graph", "ok") and graph["sets"] == 8
    assert graph["seconds"] == pytest.approx(
        1.5e-3 / graph["sets"]
    )  # the fake's graph takes as long as a launch
    assert not [kind for kind, _ in fake.live]


def test_near_the_cost_of_the_events(fake: Any) -> None:
    """On the fake GPU a kernel takes as long as nothing does."""
    result = harness("bench", "tiled", "-a", "N=16", *FAST)
    assert (
        "1.50 ms*" in result.stdout and "near the cost of the events themselves, 1500.00 us" in result.stdout
    )


def test_wide_shows_the_machine(fake: Any) -> None:
    result = harness("bench", "tiled", "-a", "N=16", "--wide", *FAST)
    header = next(s for s in result.stdout.splitlines() if "CPU time" in s)
    assert header.split() == ["kernel", "samples", "CPU", "time", "GPU", "time", "cycles", "MHz"]
    assert "2,970,000" in result.stdout  # 1.5 ms at 1980 MHz
    assert len(header) <= 110


FILES = sorted(RECORDS.rglob("*.json")) if RECORDS.is_dir() else []


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda p: str(p.relative_to(RECORDS)))
def test_every_record_there_is_can_be_read(file: Path) -> None:
    """They were written by harness of many days, with names of kernels that have others today."""
    if file.parent.name in ("benchmarks", "scripts"):
        pytest.skip("written by a script, in a form of its own")
    rows_ = record.load(file)["rows"]
    assert rows_
    named = {row["kernel"] for row in rows_ if "kernel" in row} - {"cuBLAS", "cuBLASLt", "matmul"}
    assert {catalog.kernel(name.split()[0]).name for name in named if name[:2].isdigit()} == {
        name for name in named if name[:2].isdigit()
    }
