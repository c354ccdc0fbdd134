"""`harness check --device gpu`: compute-sanitizer's findings are read, and that it looked is made sure of.

tests/data/racecheck-no_sync.txt is what it said of the rung without barriers on an H200 (2025.3, N = 64), and
memcheck-bounds.txt of the probe with a read out of bounds (two frames of each host backtrace are kept).
"""

from __future__ import annotations

import re
import stat
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fakes import driver as fake_driver
from harness.cli import main
from harness.errors import HarnessError
from harness.instruments import sanitizer
from harness.kernels import catalog
from harness.launch.fresh import zones
from harness.results import record
from harness.support import tools
from shared.places import DATA

RACES = DATA / "racecheck-no_sync.txt"
BOUNDS = DATA / "memcheck-bounds.txt"
CLEAN = """\
========= COMPUTE-SANITIZER
kernel            shapes ok  error/bound  check
----------------  ---------  -----------  -----
03_tiled TILE=16  1/1               0.04  ok
shapes: 64
========= {}
"""
# In the form that NVIDIA's documentation has (Compute Sanitizer, "Understanding Synccheck Reports"), not
# recorded: without line numbers, and with the function's arguments.
DIVERGENT = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block
=========     at planted(const float *, int)+0x90
=========     by thread (32,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""


def harness(*args: str) -> Result:
    return CliRunner().invoke(main, args, env={"COLUMNS": None})


def grown_by() -> int:
    """Return by how many lines the head of rung 05 has grown since `RACES` was recorded."""
    source = catalog.kernel("05_tiled_no_sync").source.splitlines()
    return next(i for i, s in enumerate(source, 1) if "Bs[ty][tx] =" in s) - 38


def of_today(folder: Path) -> Path:
    """Write what `RACES` would be of the file of today: its lines are looked up there."""
    path = folder / "races.txt"
    text = RACES.read_text()
    path.write_text(re.sub(r"(no_sync\.cu:)(\d+)", lambda m: f"{m[1]}{int(m[2]) + grown_by()}", text))
    return path


def test_races_are_read_to_their_source_lines() -> None:
    error, warning = sanitizer.parse(RACES.read_text())
    assert (error.severity, warning.severity) == ("error", "warning")
    assert error.sources == ("05_tiled_no_sync.cu:38", "05_tiled_no_sync.cu:41")
    assert warning.sources == ("05_tiled_no_sync.cu:37", "05_tiled_no_sync.cu:41")
    assert len(error.places) == 17 and len(warning.places) == 5
    assert str(error.places[0]) == "write at 05_tiled_no_sync.cu:38" and error.places[0].offset == 0x3D0
    assert {p.access for p in error.places[1:]} == {"read"}
    source = catalog.kernel("05_tiled_no_sync").source.splitlines()
    grown = grown_by()
    assert "Bs[" in source[37 + grown] and "Bs[" in source[40 + grown], "the lines are those of the fault"


def test_faults_of_memory_are_read() -> None:
    found = sanitizer.parse(BOUNDS.read_text())
    assert len(found) == 4, "as its own summary says; that the program failed is no finding"
    for one in found:
        assert (one.severity, one.message) == ("error", "Invalid __global__ read of size 4 bytes")
        assert one.sources == ("planted_bounds.cu:13",)
        assert (one.places[0].function, one.places[0].offset) == ("planted", 0xA0)
        assert "Access to 0x807770c00000 is out of bounds" in one.details
        assert not any("Host" in s or "backtrace" in s for s in one.details)
    source = (Path(sanitizer.__file__).parent / "planted_bounds.cu").read_text().splitlines()
    assert "A[1LL << 38]" in source[12], "the line is that of the fault"


def test_faults_of_barriers_are_read() -> None:
    (found,) = sanitizer.parse(DIVERGENT)
    assert found.message == "Barrier error detected. Divergent thread(s) in block"
    assert found.sources == () and str(found.places[0]) == "at planted+0x90"
    assert found.details[-1] == "by thread (32,0,0) in block (0,0,0)"


@pytest.mark.parametrize("summary", ["ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed"])
def test_nothing_found(summary: str) -> None:
    assert sanitizer.parse(CLEAN.format(summary)) == ()


@pytest.mark.parametrize(
    "text", ["", "03_tiled TILE=16  1/1  ok", "========= COMPUTE-SANITIZER\n03_tiled 1/1 ok\n"]
)
def test_silence_is_not_a_pass(text: str) -> None:
    with pytest.raises(HarnessError, match="said nothing, or was cut off"):
        sanitizer.parse(text)


def test_a_summary_of_errors_that_cannot_be_read_is_not_a_pass() -> None:
    with pytest.raises(HarnessError, match="3 errors, none of which could be read"):
        sanitizer.parse(CLEAN.format("ERROR SUMMARY: 3 errors"))


# The tool, by a script in its place


def fake_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> Path:
    path = tmp_path / "compute-sanitizer"
    path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {tmp_path}/args\nALL="$*"\n{script}\n')
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setattr(tools, "find", lambda name: path if name == "compute-sanitizer" else None)
    return tmp_path / "args"


HONEST = f'case "$ALL" in *no_sync*) cat {RACES};; *) cat {{clean}};; esac'


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    path = tmp_path / "clean.txt"
    path.write_text(CLEAN.format("RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"))
    return path


def test_exactly_this_kernel_on_exactly_this_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clean: Path
) -> None:
    args = fake_tool(monkeypatch, tmp_path, f"cat {clean}")
    variant = catalog.kernel("tiled").variant()
    assert sanitizer.check(variant, {"N": 64}, "racecheck", device="GPU-1") == ()
    given = args.read_text().splitlines()
    assert given[:4] == ["--tool", "racecheck", "--report-api-errors", "no"]
    assert given[given.index("-d") + 1] == "GPU-1" and {"verify", "-pTILE=16", "-aN=64"} <= set(given)


def test_buffers_have_no_red_zones_that_hide_an_overrun(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clean: Path
) -> None:
    """memcheck sees an access behind a buffer only where nothing of harness lies there."""
    zone = 'python3 -c "from harness.launch.fresh import zones; print(zones.ZONE)"'
    script = zone.replace("python3", sys.executable)
    fake_tool(monkeypatch, tmp_path, f"{script} > {tmp_path}/zone; cat {clean}")
    assert sanitizer.check(catalog.kernel("tiled").variant(), {"N": 64}, "memcheck") == ()
    assert (tmp_path / "zone").read_text() == "0\n"
    assert zones.ZONE == 4096, "elsewhere there are"


def test_a_tool_that_did_not_see_the_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clean: Path
) -> None:
    """A clean summary of another run: nothing was looked at."""
    fake_tool(monkeypatch, tmp_path, f"cat {clean}; echo 'error: no such GPU'")
    with pytest.raises(HarnessError, match=r"racecheck saw no launch of it\. error: no such GPU"):
        sanitizer.check(catalog.kernel("naive").variant(), {"N": 64}, "racecheck")


def test_the_broken_kernel_is_the_control(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clean: Path
) -> None:
    fake_tool(monkeypatch, tmp_path, HONEST.format(clean=clean))
    assert sanitizer.control("racecheck") is None
    blind = clean.with_name("blind.txt")
    blind.write_text(clean.read_text().replace("03_tiled TILE=16", "05_tiled_no_sync TILE=16"))
    fake_tool(monkeypatch, tmp_path, f"cat {blind}")
    said = sanitizer.control("racecheck")
    assert said is not None and "it does not look" in said
    fake_tool(monkeypatch, tmp_path, "exit 1")
    assert "could not be tried" in (sanitizer.control("racecheck") or "")
    assert sanitizer.control("initcheck") is None  # it has none


@pytest.mark.parametrize("tool", ["memcheck", "synccheck"])
def test_planted_faults_are_faults(tool: str) -> None:
    """The emulator finds them too."""
    path = Path(sanitizer.__file__).parent / f"{sanitizer.CONTROLS[tool]}.cu"
    result = harness("check", str(path), "-a", "N=32")
    assert result.exit_code == 0 and "FAILED as marked" in result.output, result.output
    said = {"memcheck": "out of bounds", "synccheck": "barrier"}[tool]
    assert said in result.output.lower()


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clean: Path) -> None:
    fake_driver.install(monkeypatch)
    fake_tool(monkeypatch, tmp_path, HONEST.format(clean=clean).replace(str(RACES), str(of_today(tmp_path))))
    result = harness("check", "tiled", "-d", "gpu", "-a", "N=64")
    assert result.exit_code == 0 and "control: racecheck finds the fault in 05_tiled_no_sync" in result.output
    result = harness("check", "tiled_no_sync", "-d", "gpu", "-a", "N=64", "--json", str(tmp_path / "o.json"))
    assert result.exit_code == 0 and "FAILED as marked" in result.output, result.output
    first, second = (f"05_tiled_no_sync.cu:{line + grown_by()}" for line in (38, 41))
    assert f"{first}: Bs[ty][tx]" in result.output
    assert "and 10 more" in result.output and second in (tmp_path / "o.json").read_text()


# What each tool says of its planted fault, and nothing of anything else; a moment later the earlier it began.
EACH = f"""
case "$ALL" in
  *"memcheck "*planted_bounds*) cat {BOUNDS};;
  *"racecheck "*no_sync*) cat {RACES};;
  *"synccheck "*planted_barrier*) cat {{divergent}};;
  *"memcheck "*) sleep 0.3; cat {{clean}};;
  *) cat {{clean}};;
esac
"""


@pytest.fixture
def each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clean: Path) -> Path:
    """Its arguments, a line each."""
    divergent = tmp_path / "divergent.txt"
    divergent.write_text(DIVERGENT)
    both = clean.read_text().replace("shapes: 64", "05_tiled_no_sync TILE=16  1/1  0.04  ok\nshapes: 64")
    clean.write_text(both)
    fake_driver.install(monkeypatch)
    return fake_tool(monkeypatch, tmp_path, EACH.format(clean=clean, divergent=divergent))


def test_several_tools_at_once(each: Path, tmp_path: Path) -> None:
    """A column each, in the order asked for, though the first is the last to end."""
    out = tmp_path / "o.json"
    asked = ("--tool", "memcheck,racecheck,synccheck,memcheck", "-a", "N=[64,65]", "--json", str(out))
    result = harness("check", "tiled", "tiled_no_sync", "-d", "gpu", *asked)
    assert result.exit_code == 0, result.output
    lines = [s.split() for s in result.output.splitlines() if s.startswith(("kernel ", "03_", "05_"))][:5]
    assert lines[0] == ["kernel", "shape", "findings", "memcheck", "racecheck", "synccheck"]
    assert [s[2:] for s in lines[1:3]] == [["64", "0", "ok", "ok", "ok"], ["65", "0", "ok", "ok", "ok"]]
    assert lines[3][2:] == ["64", "2", "ok", "FAILED", "as", "marked", "ok"]
    for tool, planted in sanitizer.CONTROLS.items():
        assert f"control: {tool} finds the fault in {planted}" in result.output
    content = record.load(out)
    assert content["meta"]["gpu"]["name"] == "Fake GPU" and content["meta"]["ended"] == "complete"
    found = [(r["kernel"], r["shape"], r["tool"]) for r in content["rows"]]
    assert found == [
        (kernel, shape, tool)
        for kernel in ("03_tiled", "05_tiled_no_sync")
        for shape in ("64", "65")
        for tool in ("memcheck", "racecheck", "synccheck")
    ]
    assert [r["status"] for r in content["rows"][6:9]] == ["ok", "FAILED as marked", "ok"]
    runs = each.read_text().split("--tool\n")[1:]
    assert len(runs) == 3 + 2 * 2 * 3, "no tool twice"


def test_one_blind_tool_of_several_is_refused(
    each: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clean: Path
) -> None:
    blind = clean.with_name("blind.txt")
    blind.write_text(clean.read_text() + "planted_barrier\n")
    fake_tool(monkeypatch, tmp_path, EACH.format(clean=clean, divergent=blind))
    result = harness("check", "tiled", "-d", "gpu", "-a", "N=64", "--tool", "memcheck,synccheck")
    assert result.exit_code == 1 and "synccheck found nothing in planted_barrier" in result.output
    assert harness("check", "tiled", "-d", "gpu", "-a", "N=64", "--tool", "memcheck").exit_code == 0


def test_one_tool_that_cannot_look(
    each: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clean: Path
) -> None:
    """The others' columns stand."""
    script = EACH.format(clean=clean, divergent=tmp_path / "divergent.txt")
    lost = '*"synccheck "*03_tiled*) exit 1;;\n  *"memcheck "*planted'
    fake_tool(monkeypatch, tmp_path, script.replace('*"memcheck "*planted', lost, 1))
    result = harness("check", "tiled", "-d", "gpu", "-a", "N=64", "--tool", "memcheck,synccheck")
    (line,) = [s.split() for s in result.output.splitlines() if s.startswith("03_tiled TILE=16  ")]
    assert result.exit_code == 1 and line[2:] == ["64", "0", "ok", "error"]
    assert "said nothing, or was cut off" in result.output


def test_a_finding_in_a_sound_kernel_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_driver.install(monkeypatch)
    fake_tool(monkeypatch, tmp_path, f"cat {RACES}")
    result = harness("check", "tiled", "--device", "gpu", "-a", "N=64")
    assert result.exit_code == 1 and "FAILED" in result.output


def test_a_blind_tool_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clean: Path) -> None:
    fake_driver.install(monkeypatch)
    fake_tool(monkeypatch, tmp_path, f"sed s/03_tiled/05_tiled_no_sync/ {clean}")
    result = harness("check", "tiled_no_sync", "-d", "gpu", "-a", "N=64")
    assert result.exit_code == 1 and "it does not look" in " ".join(result.output.split())


def test_bad_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    assert harness("check", "tiled", "--tool", "racecheck").exit_code == 2
    assert harness("check", "tiled", "-d", "gpu", "--lines").exit_code == 2
    for wrong in ("racechek", "memcheck,", "", "all"):
        result = harness("check", "tiled", "-d", "gpu", "--tool", wrong)
        assert result.exit_code == 2 and "memcheck, racecheck, initcheck, synccheck" in result.output
    fake_driver.install(monkeypatch)
    monkeypatch.setattr(tools, "find", lambda name: None)
    result = harness("check", "tiled", "-d", "gpu", "-a", "N=64")
    assert result.exit_code == 1 and "compute-sanitizer is not installed" in " ".join(result.output.split())
