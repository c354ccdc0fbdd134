"""Tests of `harness build`, `sass`, `list` and `doctor`, and of tables on 80 columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.errors import MissingDependency
from harness.kernels import catalog
from shared.command import harness, no_gpu  # noqa: F401  (a fixture)


def test_build_exports(tmp_path: Path) -> None:
    assert harness("build", "tiled", "tiled_v4", "-o", str(tmp_path / "out")).exit_code == 0
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert names == [
        f"{stem}-sm_90a.{suffix}"
        for stem in ("03_tiled-TILE16", "08_tiled_v4")
        for suffix in ("cubin", "log", "ptx")
    ]
    assert (tmp_path / "out" / names[0]).read_bytes().startswith(b"\x7fELF")


@pytest.mark.slow
def test_build_refuses_to_export_two_kernels_under_one_name(tmp_path: Path, kernel_file: Any) -> None:
    (tmp_path / "other").mkdir()
    one, two = kernel_file("k.cu"), tmp_path / "other" / "k.cu"
    two.write_text(one.read_text())
    result = harness("build", str(one), str(two), "-o", str(tmp_path / "out"))
    assert result.exit_code == 2 and "share a name" in result.stderr and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_sweep_and_params() -> None:
    table = harness("build", "tiled", "--sweep").stdout
    assert all(f"TILE={n} " in table for n in (8, 16, 32))
    table = harness("build", "coalesced", "tiled", "-p", "TILE=[8,24]").stdout
    assert "TILE=8 " in table and "TILE=24" in table and "TILE=16" not in table and "BX=32" in table


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


def test_a_missing_compiler_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_args: Any) -> None:
        raise MissingDependency("nvJitLink cannot be loaded", hint="install it")

    monkeypatch.setattr("harness.kernels.compiler._nvjitlink", absent)
    monkeypatch.setattr("harness.support.cache.Cache.get", lambda *_: None)
    result = harness("build", "tiled", "tiled_v4")
    assert result.exit_code == 1 and "nvJitLink cannot be loaded" in result.stderr


@pytest.mark.usefixtures("no_gpu")
def test_unusable_cache_is_said_and_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "file" / "below"))
    result = harness("build", "tiled")
    assert result.exit_code == 0 and "03_tiled" in result.stdout
    assert result.stderr.count("warning: cannot use the cache directory") == 1


def test_a_users_own_kernel_works_like_a_shipped_one(kernel_file: Any) -> None:
    path = str(kernel_file("my kernel.cu"))
    assert harness("sass", path).exit_code == 0
    assert "my kernel" in harness("build", path).stdout


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


def test_list_and_doctor() -> None:
    assert "(broken)" in harness("list").stdout
    doctor = harness("doctor")
    assert doctor.exit_code == 0 and "NVRTC" in doctor.stdout
    assert "nothing can be run" not in doctor.stdout, "the emulator runs kernels"


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
