"""The command line, with no GPU and with a fake one: what it prints, and what it exits with."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fakes import gemm as fake_gemm
from harness.cli import main, running
from harness.errors import MissingDependency, UsageError
from harness.kernels import catalog
from harness.results import record
from harness.support import tools
from shared.command import FAST, fake, harness, no_gpu  # noqa: F401  (fixtures)
from shared.kernels import IM2COL, REDUCE, STORE, TILED, refused
from shared.places import record_file
from shared.sweeps import sweep

# ---- without a GPU ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("no_gpu")
def test_bench_without_a_gpu_is_emulated_and_says_so(tmp_path: Path) -> None:
    result = harness("bench", "0*", refused(tmp_path, "one"))
    assert result.exit_code == 0, "a rung that needs a GPU is no failure"
    lines = result.stdout.splitlines()
    (row,) = [s for s in lines if s.startswith("03_tiled ")]
    assert row.split() == [
        "03_tiled",
        *row.split()[1:2],  # registers, which compilers choose
        "2048",
        "4",
        "100%",
        "3.89",
        "4",
        "1",
        "ok",
    ]
    assert "No GPU (libcuda was not found): in the emulator; `harness check` tells more" in lines
    assert any(line.startswith("05_tiled_no_sync") and line.endswith("broken") for line in lines)
    assert any(line.startswith("one") and line.endswith("GPU only") for line in lines)
    assert "GFLOP/s" not in result.stdout
    assert max(map(len, lines[: lines.index("")])) <= 80


@pytest.mark.slow
def test_shapes_fit_80_columns_and_one_refusal_is_said_once(tmp_path: Path) -> None:
    one = refused(tmp_path, "one")
    result = CliRunner().invoke(main, ["verify", one, "03"], env={"COLUMNS": "80"})
    lines = result.output.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("shapes: "))
    shown = [line for line in lines[first:] if line.startswith(("shapes: ", "        "))]
    assert len(shown) > 2 and max(map(len, shown)) <= 80
    assert "129x132x17 lda=20 ldb=140 ldc=135 alpha=-1.5" in "\n".join(shown)  # no label is broken in two
    told = " ".join(result.output.split())  # the name is long, so a line is broken before it
    assert told.count(f"one: the emulator does not know {REDUCE}.bulk_group") == 1
    assert told.count("does not know") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("command", sweep(["bench", "verify", "check"], lambda command: command == "check"))
def test_what_the_emulator_refuses_is_said_once_with_the_kernels_it_holds_for(
    command: str, tmp_path: Path
) -> None:
    given = (("one", STORE), ("two", REDUCE), ("three", REDUCE))
    one, two, three = (refused(tmp_path, *each) for each in given)
    result = harness(command, one, two, three, "-a", "N=[64,65]")
    lines = [line for line in result.output.splitlines() if "does not know" in line]
    assert lines == [
        f"one: the emulator does not know {STORE}.bulk_group",
        f"two, three: the emulator does not know {REDUCE}.bulk_group",
    ]
    alone = harness(command, one, "-a", "N=[64,128]").output
    (line,) = re.findall(r"line (\d+) \(PTX line ", alone)
    assert "INSTRUCTION" in IM2COL.splitlines()[int(line) - 1]
    assert f"'{STORE}.bulk_group [" in alone


def test_a_reason_that_holds_for_some_rows_of_a_kernel_says_how_many(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def row(kernel: str, status: str) -> dict[str, Any]:
        return {"kernel": kernel, "params": {}, "shape": "64", "status": status, "detail": "it is wrong"}

    running.explain([row("a", "FAILED"), row("b", "FAILED"), row("b", "ok")], [])
    assert capsys.readouterr().out == "a, b (1 of 2): it is wrong\n"
    running.explain([row("a", "FAILED"), row("a", "ok")], [])
    assert capsys.readouterr().out == "a, 64: it is wrong\n"


@pytest.mark.usefixtures("no_gpu")
def test_skipped_for_one_reason_is_said_once() -> None:
    result = CliRunner().invoke(
        main, ["bench", "01", "13", "14", "-a", "N=32", "--arch", "sm_75"], env={"COLUMNS": "200"}
    )
    assert [s for s in result.output.splitlines() if s.startswith("skipped")] == [
        "skipped 13_cp_async, 14_warp_tiles, sm_75: needs sm_80, asked for sm_75"
    ]


@pytest.mark.usefixtures("no_gpu")
def test_bench_without_a_gpu_fails_for_a_race(kernel_file: Any) -> None:
    racy = kernel_file(body=TILED.replace("        __syncthreads();\n    }", "    }"))
    result = harness("bench", str(racy), "-a", "N=48")
    assert result.exit_code == 1 and "WAR hazard" in result.stdout


@pytest.mark.usefixtures("no_gpu")
def test_require_gpu() -> None:
    result = harness("bench", "tiled", "--require-gpu")
    assert result.exit_code == 1 and "libcuda was not found" in result.stderr


@pytest.mark.usefixtures("no_gpu")
def test_verify_without_a_gpu_is_emulated() -> None:
    result = harness("verify", "tiled")
    assert result.exit_code == 0 and "5/5" in result.stdout
    assert "No GPU (libcuda was not found): in the emulator" in result.stdout
    assert harness("verify", "tiled", "-d", "0").exit_code == 1, "a GPU was asked for"


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    "args",
    [
        pytest.param(["bench", "0*", "1[5-8]*"], marks=pytest.mark.exhaustive),
        pytest.param(["bench", "03", "20"], marks=pytest.mark.slow),
        ["list"],
        ["doctor"],
        ["build", "tiled"],
        pytest.param(["sass", "0*", "--sweep"], marks=pytest.mark.exhaustive),
        ["sass", "03", "08", "--sweep"],
    ],
)
def test_tables_fit_80_columns(args: list[str]) -> None:
    """Tables only: a sentence may be wrapped by the terminal."""
    result = CliRunner().invoke(main, args, env={"COLUMNS": "80"})
    table = [s for s in result.stdout.splitlines() if "  " in s]
    assert len(table) > 2 or args[0] == "build"
    assert max(map(len, table)) <= 80


def test_sass_shows_the_published_finding() -> None:
    result = harness("sass", "tiled", "--arch", "sm_75")
    assert result.exit_code == 0
    assert "03_tiled TILE=16, sm_75, NVRTC" in result.stdout
    assert "vectorised shared loads: 4 LDS.U.128 beside 16 LDS.U\n" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("0x")]
    assert [(row[0], row[1]) for row in rows] == [("0x1e0", "*")], "one loop, and it is the hot one"
    assert rows[0][6] == "16/0/4", "shared loads of 32, 64 and 128 bits in the loop"


def test_sass_of_several_architectures_and_listing() -> None:
    both = harness("sass", "naive", "tiled", "--arch", "sm_75,sm_90a").stdout
    assert both.count("no shared loads") == 2 and "vectorised shared loads: 4 LDS.128" in both
    listing = harness("sass", "tiled", "--listing").stdout
    assert "sum += As[ty][k] * Bs[k][tx];" in listing and "LDS.128" in listing


@pytest.mark.slow
def test_sweep_and_params() -> None:
    table = harness("build", "tiled", "--sweep").stdout
    assert all(f"TILE={n} " in table for n in (8, 16, 32))
    table = harness("build", "coalesced", "tiled", "-p", "TILE=[8,24]").stdout
    assert "TILE=8 " in table and "TILE=24" in table and "TILE=16" not in table and "BX=32" in table


def test_build_exports(tmp_path: Path) -> None:
    assert harness("build", "tiled", "tiled_v4", "-o", str(tmp_path / "out")).exit_code == 0
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert names == [
        f"{stem}-sm_90a.{suffix}"
        for stem in ("03_tiled-TILE16", "08_tiled_v4")
        for suffix in ("cubin", "log", "ptx")
    ]
    assert (tmp_path / "out" / names[0]).read_bytes().startswith(b"\x7fELF")


def listed(columns: int, *words: str) -> str:
    return CliRunner().invoke(main, ["list", *words], env={"COLUMNS": str(columns)}).stdout


def test_list_has_a_line_for_each_kernel_on_80_columns() -> None:
    lines = listed(80).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["kernel", "from", "type", "what"]
    kernels = len({kernel.path for kernel in catalog.shipped()})
    assert len(lines) == 2 + kernels + 2 and lines[-1].startswith("harness list KERNEL"), "and no line more"
    heads = {line.split()[0]: line.split()[1:] for line in lines[2:-2]}
    assert heads["03_tiled"][:2] == ["sm_75", "fp32"] and heads["21_mma_sync"][:2] == ["sm_80", "bf16"]
    assert heads["23_wgmma_pipeline"][:3] == ["sm_90a", "bf16,", "fp16"]
    assert heads["05_tiled_no_sync"][-1] == "(broken)", "whatever else is cut off"
    assert "24_wgmma_fp16" not in heads, "a former name is no kernel of its own"
    assert "| 25_wgmma_tf32 | sm_90a | tf32 |" in " ".join(harness("list", "25*", "--md").stdout.split())


@pytest.mark.parametrize(("columns", "more"), [(40, []), (120, []), (220, ["after", "parameters"])])
def test_list_uses_the_width_that_there_is(columns: int, more: list[str]) -> None:
    lines = listed(columns).splitlines()
    names = max(len(kernel.path.stem) for kernel in catalog.shipped())
    types = max(len(", ".join(kernel.dtypes)) for kernel in catalog.shipped())
    assert max(map(len, lines[2:])) <= max(columns, names + types + 36)  # a title has 24 at least
    assert lines[0].split() == ["kernel", "from", "type", "what", *more]
    assert ("neighbouring lanes in one column" in lines[2]) == (columns > 80)


def test_list_of_a_kernel_is_whole_and_breaks_no_value_of_a_parameter() -> None:
    found = listed(80, "26", "19")
    assert max(map(len, found.splitlines())) <= 80 and "SPLIT=2,3,4,5,6,7,8,1 " in found
    assert "for products with too\n  few tiles for all SMs\n    from sm_90a, bf16, fp16\n" in found
    assert "after 16_pipeline" in found and "EACH=0" in found


def test_what_the_emulator_refuses_has_no_error_to_show(tmp_path: Path) -> None:
    lines = harness("verify", refused(tmp_path, "one"), "-a", "N=16").stdout.splitlines()
    assert "> 100" not in lines[2] and lines[2].split()[-4:] == ["-", "needs", "a", "GPU"]


@pytest.mark.slow
def test_csv_without_a_gpu_tells_what_the_emulator_found() -> None:
    result = harness("bench", "tiled", "16", "-a", "N=16", "--csv")
    tiled, pipeline = csv.DictReader(io.StringIO(result.stdout))
    assert (tiled["shape"], tiled["status"], tiled["emulated.ways"]) == ("16", "ok", "1.0")
    assert pipeline["status"] == "ok"


def test_list_and_doctor() -> None:
    assert "(broken)" in harness("list").stdout
    doctor = harness("doctor")
    assert doctor.exit_code == 0 and "NVRTC" in doctor.stdout


def test_a_users_own_kernel_works_like_a_shipped_one(kernel_file: Any) -> None:
    path = str(kernel_file("my kernel.cu"))
    assert harness("sass", path).exit_code == 0
    assert "my kernel" in harness("build", path).stdout


BAD = [
    (["bench", "nothing.cu"], 2, "no such file"),
    (["bench", "tilde"], 2, "did you mean"),
    (["bench", "kernel.txt/"], 2, "kernels end in .cu or .ptx"),
    (["bench", "tiled", "-p", "TIEL=16"], 2, "parameter TIEL"),
    (["bench", "tiled", "-p", "TILE=x"], 2, "'x' in 'TILE=x' is not a number"),
    (["bench", "tiled", "-p", "TILE=64"], 2, "64 x 64 x 1 threads"),
    (["bench", "tiled", "-p", "TILE=0"], 2, "0; 1 is the least"),
    (["bench", "04*", "-p", "COARSE=3"], 2, "satisfies where"),
    (["bench", "-a", "N=0"], 2, "N=0 is out of range"),
    (["bench", "-a", "N=-5"], 2, "out of range"),
    (["bench", "-a", "N=99999999999"], 2, "out of range"),
    (["bench", "-a", "Q=1"], 2, "no axis 'Q'"),
    (["bench", "-a", "N=[1:2:0]"], 2, "is empty"),
    (["bench", "--arch", "sm_75,sm_80"], 2, "one architecture at a time"),
    (["sass", "--arch", "hopper"], 2, "not an architecture"),
    (["sass", "--arch", "sm_91"], 2, "does not know sm_91"),
    (["sass", "--arch", ","], 2, "names no architecture"),
    (["bench", "--min-samples", "0"], 2, "--min-samples"),
    (["bench", "--json", "/"], 2, "directory"),
    (["frobnicate"], 2, "No such command"),
]


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(("args", "code", "message"), BAD, ids=[" ".join(a) for a, _, _ in BAD])
def test_bad_input(args: list[str], code: int, message: str) -> None:
    result = harness(*args)
    assert result.exit_code == code
    assert message in result.stderr and "Traceback" not in result.output


@pytest.mark.usefixtures("no_gpu")
def test_bad_kernel_files(kernel_file: Any, tmp_path: Path) -> None:
    result = harness("bench", str(kernel_file("a.cu", body="int x = ;")))
    assert result.exit_code == 1 and f"{tmp_path}/a.cu(11): error" in result.stderr
    result = harness("bench", str(kernel_file("b.cu", extra="blok = 3")))
    assert result.exit_code == 2 and "b.cu:7: unknown key 'blok'" in result.stderr
    result = harness("bench", "tiled", str(kernel_file("c.cu", body="int x = ;")))
    assert result.exit_code == 1 and "03_tiled" in result.stdout and "skipped c TILE=16" in result.stdout


@pytest.mark.usefixtures("no_gpu")
def test_unusable_cache_is_said_and_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "file" / "below"))
    result = harness("build", "tiled")
    assert result.exit_code == 0 and "03_tiled" in result.stdout
    assert result.stderr.count("warning: cannot use the cache directory") == 1


@pytest.mark.usefixtures("no_gpu")
def test_json_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "r.json"
    assert harness("bench", "tiled", "--json", str(path)).exit_code == 0
    content = json.loads(path.read_text())
    assert (content["schema"], content["kind"], content["rows"][0]["kernel"]) == (2, "bench", "03_tiled")
    assert [p.name for p in path.parent.iterdir()] == ["r.json"]
    (tmp_path / "file").write_text("")
    result = harness("bench", "tiled", "--json", str(tmp_path / "file" / "r.json"))
    assert result.exit_code == 1 and "cannot write" in result.stderr


@pytest.mark.usefixtures("no_gpu")
def test_json_never_replaces_a_device_a_link_or_a_kernel(tmp_path: Path, kernel_file: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    result = harness("bench", "tiled", "--json", str(tmp_path / "pipe"))
    assert result.exit_code == 1 and "not a regular file" in result.stderr
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "real.json").chmod(0o600)
    (tmp_path / "link.json").symlink_to("real.json")
    assert harness("bench", "tiled", "--json", str(tmp_path / "link.json")).exit_code == 0
    assert (tmp_path / "link.json").is_symlink() and "schema" in (tmp_path / "real.json").read_text()
    assert (tmp_path / "real.json").stat().st_mode & 0o777 == 0o600
    kernel = kernel_file()
    before = kernel.read_text()
    assert harness("sass", str(kernel), "--json", str(kernel)).exit_code == 2
    assert kernel.read_text() == before


@pytest.mark.slow
def test_build_refuses_to_export_two_kernels_under_one_name(tmp_path: Path, kernel_file: Any) -> None:
    (tmp_path / "other").mkdir()
    one, two = kernel_file("k.cu"), tmp_path / "other" / "k.cu"
    two.write_text(one.read_text())
    result = harness("build", str(one), str(two), "-o", str(tmp_path / "out"))
    assert result.exit_code == 2 and "share a name" in result.stderr and not (tmp_path / "out").exists()


def test_some_kernels_fail(kernel_file: Any) -> None:
    """Those that compile are shown, and the exit code says that not all did."""
    bad = str(kernel_file("bad.cu", body="int x = ;"))
    for verb in ("build", "sass"):
        result = harness(verb, "tiled", bad)
        assert result.exit_code == 1
        assert "03_tiled" in result.stdout and "skipped bad TILE=16, sm_90a" in result.stderr
    new = str(kernel_file("new.cu", extra='min_arch = "sm_90"'))
    result = harness("sass", new, "--arch", "sm_75,sm_90")
    assert result.exit_code == 0 and "skipped new, sm_75: needs sm_90" in result.stderr


@pytest.mark.usefixtures("no_gpu")
def test_bench_without_nvdisasm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its own column is lost."""
    monkeypatch.setattr(tools, "find", lambda _name: None)
    result = harness("bench", "tiled")
    assert result.exit_code == 0 and "03_tiled" in result.stdout and "LDS.128" not in result.stdout
    assert "pip install 'nvidia-cuda-nvdisasm" in harness("sass", "tiled").stderr


@pytest.mark.usefixtures("no_gpu")
def test_closed_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(sys, "stderr", None)
    with running.progress(3) as step:
        step("goes nowhere, and does not fail")


@pytest.mark.parametrize(
    "args", [["--seed", "-1"], ["--min-time", "nan"], ["--timeout", "inf"], ["--max-noise", "-1"]]
)
@pytest.mark.usefixtures("no_gpu")
def test_numbers_that_make_no_sense(args: list[str]) -> None:
    assert harness("bench", "tiled", *args).exit_code == 2


# ---- with a fake GPU -------------------------------------------------------------------------------


def test_bench(fake: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    result = harness("bench", "coalesced", "tiled", "-a", "N=[16,32]", "--json", str(path), *FAST)
    assert result.exit_code == 0, result.output
    assert "Fake GPU, sm_90a" in result.stdout
    assert result.stdout.count("gemm 16: cold") == result.stdout.count("gemm 32: cold") == 1
    content = record.load(path)
    assert [(r["kernel"], r["shape"], r["status"]) for r in content["rows"]] == [
        (kernel, shape, "ok") for shape in ("16", "32") for kernel in ("02_coalesced", "03_tiled")
    ]
    row = content["rows"][-1]
    assert row["flops_rate"] == pytest.approx(2 * 32**3 / 1.5e-3) and len(row["times"]) == row["samples"]
    assert row["protections"][0].startswith("new random data for each launch") and len(row["data_key"]) == 16
    assert content["meta"]["gpu"]["uuid"].startswith("GPU-a0")
    assert content["meta"]["seed"] == 1 and len(content["meta"]["code_sha256"]) == 64


def test_bench_csv_is_one_table_of_plain_numbers(fake: Any) -> None:
    result = harness("bench", "tiled", "-a", "N=16", "--csv", *FAST)
    (row,) = csv.DictReader(io.StringIO(result.stdout))
    broken = harness("bench", "tiled_no_sync", "-a", "N=16", "--csv", *FAST)
    assert len(broken.stdout.splitlines()) == 2 and "05_tiled_no_sync" in broken.stderr
    assert (
        float(row["seconds"]) == pytest.approx(1.5e-3) and row["status"] == "ok" and row["block"] == "16x16x1"
    )


def test_bench_markdown(fake: Any) -> None:
    result = harness("bench", "tiled", "-a", "N=16", "--md", *FAST)
    assert "| 03_tiled |" in result.stdout


def test_a_wrong_kernel_fails_the_run(fake: Any) -> None:
    fake.execute = fake_gemm.zeros
    for verb in (["bench", *FAST], ["verify"]):
        result = harness(*verb, "tiled", "-a", "N=16")
        assert result.exit_code == 1
        assert "03_tiled TILE=16, 16: FAILED: 256 of 256 elements wrong, first at [0,0]" in result.stdout


def test_a_kernel_marked_broken_does_not(fake: Any) -> None:
    fake.execute = fake_gemm.zeros
    for verb in (["bench", *FAST], ["verify"]):
        result = harness(*verb, "tiled_no_sync", "-a", "N=16")
        assert result.exit_code == 0
        assert re.search(r"05_tiled_no_sync.* (broken|FAILED as marked)\n", result.stdout)


def test_verify_counts_shapes(fake: Any) -> None:
    result = harness("verify", "tiled")
    assert result.exit_code == 0
    (row,) = [s for s in result.stdout.splitlines() if s.startswith("03_tiled")]
    assert "5/5" in row and row.endswith("ok")


def test_a_fault_in_the_last_row_shows_those_before_it_and_fails(fake: Any, tmp_path: Path) -> None:
    def fault_in_third_kernel(run: Any) -> None:
        fake_gemm.gemm(run)
        if len(run.args) and run.block == (256, 1, 1):  # 08_tiled_v4
            fake.sticky = 700

    fake.execute = fault_in_third_kernel
    path = tmp_path / "r.json"
    result = harness("bench", "coalesced", "tiled", "tiled_v4", "-a", "N=16", "--json", str(path), *FAST)
    assert result.exit_code == 1
    assert "03_tiled" in result.stdout and not result.stderr, "no other process is needed"
    content = record.load(path)
    assert [r["status"] for r in content["rows"]] == ["ok", "ok", "error"]  # the culprit is named
    assert "context is lost" in content["rows"][2]["detail"] and content["meta"]["ended"] == "complete"


def test_absurd_sizes_end_before_any_launch(fake: Any) -> None:
    result = harness("bench", "tiled", "-a", "N=1000000")
    assert result.exit_code == 1 and "GiB of device memory" in result.stdout
    assert not fake.launches


def test_unknown_gpu(fake: Any) -> None:
    result = harness("verify", "tiled", "-d", "7")
    assert result.exit_code == 2 and "no GPU matches '7'" in result.stderr
    assert harness("bench", "tiled", "-d", "").exit_code == 2  # not "no GPU", which would be exit 0


@pytest.mark.parametrize(("verb", "others"), [("verify", True), ("bench", True), ("tune", False)])
def test_what_is_no_name_of_a_gpu(verb: str, others: bool) -> None:
    """Told so before any driver is asked, which may not be there."""
    result = harness(verb, "tiled", "-d", "emu")
    assert result.exit_code == 2 and "error: no GPU is called 'emu'\n" in result.stderr
    assert "GPU-5a" in result.stderr and ("or emulator" in result.stderr) == others
    if not others:
        result = harness(verb, "tiled", "-d", "emulator")
        assert result.exit_code == 2 and "the emulator is no GPU" in result.stderr


@pytest.mark.parametrize(
    "args", [["list"], ["sass", "tiled"], ["--help"], ["bench", "--help"], ["--version"]]
)
def test_a_reader_that_has_enough(args: list[str]) -> None:
    """`harness sass tiled | head -1` has not failed, and says nothing of it."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "harness", *args]
    done = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, check=False, env=tools.environment()
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_errors_and_hints_fit_the_terminal(tmp_path: Path) -> None:
    """Broken at spaces; in a pipe, where others read them, not at all."""
    args = ["verify", str(tmp_path / "nothing here.cu")]
    long = harness(*args).stderr
    assert max(map(len, long.splitlines())) > 60
    short = CliRunner().invoke(main, args, env={"COLUMNS": "60"}).stderr
    words = [w for line in short.splitlines() if len(line) > 60 for w in line.split() if len(w) > 40]
    assert len(short.splitlines()) > len(long.splitlines()) and short.split() == long.split()
    assert all(len(line) <= 60 or any(w in line for w in words) for line in short.splitlines())


def test_missing_cublas_is_said(fake: Any) -> None:
    result = harness("bench", "tiled", "-a", "N=16", *FAST)
    assert result.exit_code == 0 and "cublas cannot be loaded: none here" in result.stdout


def test_ctrl_c_keeps_what_was_measured(fake: Any, tmp_path: Path) -> None:
    def interrupt(run: Any) -> None:
        if run.block == (256, 1, 1):  # 08_tiled_v4
            raise KeyboardInterrupt
        fake_gemm.gemm(run)

    fake.execute = interrupt
    path = tmp_path / "r.json"
    result = harness("bench", "tiled", "tiled_v4", "-a", "N=16", "--json", str(path), *FAST)
    assert result.exit_code == 130 and "interrupted" in result.stderr and "03_tiled" in result.stdout
    content = record.load(path)
    assert [r["kernel"] for r in content["rows"]] == ["03_tiled"] and "interrupted" in content["meta"][
        "ended"
    ]
    result = harness("verify", "tiled", "tiled_v4", "-a", "N=16")
    assert result.exit_code == 130 and "03_tiled" in result.stdout


def test_the_record_says_what_is_missing_from_it(fake: Any, tmp_path: Path, kernel_file: Any) -> None:
    path = tmp_path / "r.json"
    bad = str(kernel_file("bad.cu", body="int x = ;"))
    assert harness("bench", "tiled", bad, "-a", "N=16", "--json", str(path), *FAST).exit_code == 1
    meta = json.loads(path.read_text())["meta"]
    assert meta["ended"] == "complete" and meta["skipped"][0].startswith("bad TILE=16, sm_90a")


def test_a_full_standard_output_does_not_cost_the_record(fake: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    args = ["bench", "tiled", "-a", "N=16", "--json", str(path), *FAST]

    def full(*_args: Any, **_kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.results.tables.table", full)
        result = harness(*args)
    assert result.exit_code == 1 and "No space left" in result.stderr
    assert record.load(path)["rows"][0]["kernel"] == "03_tiled"


def test_a_missing_compiler_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_args: Any) -> None:
        raise MissingDependency("nvJitLink cannot be loaded", hint="install it")

    monkeypatch.setattr("harness.kernels.compiler._nvjitlink", absent)
    monkeypatch.setattr("harness.support.cache.Cache.get", lambda *_: None)
    result = harness("build", "tiled", "tiled_v4")
    assert result.exit_code == 1 and "nvJitLink cannot be loaded" in result.stderr


@pytest.mark.usefixtures("no_gpu")
def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.cu"))
    path.write_text(catalog.find("tiled")[0].source)
    for args in (["bench"], ["sass"], ["sass", "tiled", "--diff"]):
        result = harness(*args, str(path))
        assert result.exit_code == 2 and "its name is not UTF-8\n  -> rename it" in result.stderr
    ladder = record_file("h200/bench/tiles")
    copy, page = path.with_suffix(".json"), tmp_path / "page.html"
    copy.write_bytes(ladder.read_bytes())
    assert harness("report", str(copy), "-o", str(page)).exit_code == 0
    assert r"<h3>caf\udce9.json</h3>" in page.read_text(encoding="utf-8")


def test_a_parameter_that_cannot_be_read_is_not_called_an_axis() -> None:
    result = harness("bench", "tiled", "-p", "TILE=")
    assert result.exit_code == 2 and "cannot read the parameter 'TILE='" in result.stderr
    assert "-p TILE=[8,16]" in result.stderr


@pytest.mark.usefixtures("no_gpu")
def test_names_that_no_file_can_have(tmp_path: Path) -> None:
    result = harness("bench", "tiled", "--json", str(tmp_path / ("n" * 300)))
    assert result.exit_code == 1 and "cannot write" in result.stderr


def test_records_hold_no_folders(
    fake: Any, tmp_path: Path, kernel_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.json"
    bad = str(kernel_file("bad.cu", body="int x = ;"))
    args = ["bench", "tiled", bad, "-a", "N=16", f"--json={path}", *FAST]
    monkeypatch.setattr(sys, "argv", ["harness", *args, str(tmp_path)])
    assert harness(*args).exit_code == 1
    assert str(tmp_path.parent) not in path.read_text()
    assert "--json=r.json" in json.loads(path.read_text())["meta"]["argv"]


@pytest.mark.parametrize("word", ["03_tiled", "tiled", "03"])
def test_a_rung_by_name_and_number(word: str) -> None:
    assert [k.name for k in catalog.find(word)] == ["03_tiled"]


@pytest.mark.parametrize("word", ["3", "0", "", "003"])
def test_parts_of_a_number_name_nothing(word: str) -> None:
    with pytest.raises(UsageError):
        catalog.find(word)
