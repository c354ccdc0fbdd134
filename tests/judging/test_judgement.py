"""A whole verdict, children and all: what a submission does to its own process never reaches ours."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import harness
from harness.cli import main
from harness.errors import HarnessError, UsageError
from harness.judging import scores, session
from harness.judging.session import Limits, judge
from harness.judging.verdict import (
    ACCEPTED,
    CHECKS,
    EMULATOR,
    FAILED,
    GPU,
    INCOMPLETE,
    PASSED,
    REJECTED,
    SKIPPED,
    STATIC,
    WARNING,
    Check,
    Timed,
    Verdict,
)
from harness.support import tools
from harness.support.children import Ended
from shared.corpus import DATA
from shared.kernels import BODY

BRIEF = Limits(alone=1.0)
FRONT = (
    '// /// kernel\n// entry = "matmul"\n// block = [16, 16]\n// tile = [16, 16]\n{}// ///\n#define TILE 16\n'
)


def write(folder: Path, body: str = BODY, extra: str = "", name: str = "mine.cu") -> Path:
    path = folder / name
    path.write_text(FRONT.format("".join(f"// {line}\n" for line in extra.splitlines())) + body)
    return path


def emulated(path: Path, **how: Any) -> Verdict:
    return judge(path, device="emulator", **{"limits": BRIEF, "seed": 3, **how})


def reason(verdict: Verdict, name: str) -> str:
    return "\n".join(c.reason for c in verdict.failed if c.name == name)


@pytest.mark.slow
def test_an_honest_kernel_without_a_gpu(tmp_path: Path) -> None:
    found = emulated(write(tmp_path), limits=Limits(alone=30))
    assert found.failed == ()
    assert (found.status, found.exit_code) == (INCOMPLETE, 3)
    assert set(found.missing) == {"timed launches", "ceiling"}
    assert {c.outcome for c in found.checks if c.where in (STATIC, EMULATOR)} == {PASSED}
    assert {c.reason for c in found.checks if c.where == GPU} == {"in the emulator, as asked"}
    assert len(found.shapes) >= 5 and found.seed == 3
    json.dumps(found.record(), allow_nan=False)
    again = emulated(tmp_path / "mine.cu")
    assert again.shapes == found.shapes[: len(again.shapes)], "the seed repeats the sizes"
    assert again.sha256 == found.sha256


@pytest.mark.slow
def test_a_text_that_asks_for_its_architecture_gets_a_warning(tmp_path: Path) -> None:
    found = emulated(write(tmp_path, "#if __CUDA_ARCH__ < 800\n#define LESS\n#endif\n" + BODY))
    (check,) = (c for c in found.checks if c.name == "other architectures")
    assert check.outcome == WARNING and "__CUDA_ARCH__, mine.cu:" in check.reason
    assert "sm_" in check.reason and found.failed == ()


def test_python_of_a_submission_is_not_executed(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    (tmp_path / "own.py").write_text(f"open({str(marker)!r}, 'w')\nclass P: pass\n")
    found = emulated(write(tmp_path, extra='problem = "own.py:P"'))
    assert found.status == REJECTED and "Python" in reason(found, "sealed")
    assert "harness check" in reason(found, "sealed"), "what else there is to do"
    assert not marker.exists()


@pytest.mark.slow
def test_python_that_lies_where_it_is_judged_is_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "executed"
    for name in ("numpy.py", "click.py", "json.py", "sitecustomize.py"):
        (tmp_path / name).write_text(f"open({str(marker)!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    found = emulated(write(tmp_path))
    assert found.status == INCOMPLETE and not marker.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ('problem = "copy"', "computes copy, not gemm"),
        ('dtype = "tf32"', "tf32, not fp32"),
        ('broken = "on purpose"', "broken"),
        ("shared = -1", "shared"),
        ('workspace = "1 << 99"', ""),
        ('where = ["1 // 0 == 0"]', "where"),
        ("sass = " + "[" * 3000, "front matter"),
        ("x = 1", "unknown key"),
    ],
)
def test_front_matter_that_asks_for_too_much(tmp_path: Path, extra: str, said: str) -> None:
    found = emulated(write(tmp_path, extra=extra))
    assert found.status == REJECTED
    assert said in found.failed[0].reason and "Traceback" not in found.failed[0].reason


def test_a_block_of_too_many_threads(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().replace("block = [16, 16]", "block = [64, 64]"))
    assert "1024" in reason(emulated(path), "sealed")


@pytest.mark.slow
def test_more_shared_memory_than_there_is(tmp_path: Path) -> None:
    assert "shared memory" in reason(emulated(write(tmp_path, extra="shared = 1000000")), "compiles")


def test_no_front_matter_is_told_of_the_file_that_was_given(tmp_path: Path) -> None:
    path = tmp_path / "plain.cu"
    path.write_text("__global__ void k(float* x) { *x = 1; }\n")
    assert reason(emulated(path), "sealed").startswith("plain.cu: no front matter"), "not of a copy's folder"


def test_an_include_from_outside(tmp_path: Path) -> None:
    found = emulated(write(tmp_path, '#include "/etc/hostname"\n' + BODY))
    assert found.status == REJECTED and "/etc/hostname" in reason(found, "sealed")


def test_code_that_does_not_compile(tmp_path: Path) -> None:
    found = emulated(write(tmp_path, "this is no C++"))
    assert found.status == REJECTED and "error" in reason(found, "compiles")


@pytest.mark.slow
def test_a_compilation_without_end_is_ended(tmp_path: Path) -> None:
    powers = "".join(f"#define A{i + 1} A{i} A{i}\n" for i in range(40))
    began = time.monotonic()
    found = emulated(
        write(tmp_path, f"#define A0 +1\n{powers}int x = A40;\n{BODY}"), limits=Limits(compiling=3)
    )
    assert found.status == REJECTED and reason(found, "compiles")
    assert time.monotonic() - began < 30


def test_a_child_that_takes_too_much_memory_is_ended(tmp_path: Path) -> None:
    found = emulated(write(tmp_path), limits=Limits(memory=20 << 20))
    assert found.status == REJECTED
    assert "memory" in found.failed[0].reason.lower()


@pytest.mark.parametrize(
    ("steps", "code", "hung", "where", "fault"),
    [
        ([("step", "drawn shapes, 3x4x5")], -9, True, GPU, True),
        ([("step", "drawn shapes, 3x4x5")], -9, True, EMULATOR, False),
        ([("step", "drawn shapes, 3x4x5"), ("own", "preparing")], -9, True, GPU, False),
        ([("own", "preparing"), ("step", "timing 3x4x5")], -9, True, GPU, True),
        ([("step", "values"), ("own", "preparing")], -11, False, GPU, True),
        ([("step", "values")], 1, False, GPU, False),
    ],
)
def test_who_is_to_blame_for_a_child_that_does_not_end(
    steps: list[tuple[str, str]], code: int, hung: bool, where: str, fault: bool
) -> None:
    """A library that takes long to load, after the kernel's last launch, is no hang of the kernel."""
    told = session._Told(lines=steps, ended=Ended(code=code, why="not done after 6 s, and killed", hung=hung))
    assert told.is_fault(where) == fault
    assert told.died.endswith(f"at: {steps[-1][1]}")


@pytest.mark.slow
def test_a_kernel_that_hangs(tmp_path: Path) -> None:
    found = emulated(DATA / "exploits" / "endless.cu", limits=Limits(alone=30))
    assert found.status == REJECTED and "ends" in {c.name for c in found.failed}


@pytest.mark.slow
def test_requires_limits_the_sizes(tmp_path: Path) -> None:
    found = emulated(write(tmp_path, extra='requires = ["K % 4 == 0", "beta == 0"]'))
    assert found.requires == ("K % 4 == 0", "beta == 0") and found.shapes
    assert not [s for s in found.shapes if "beta" in s]
    for shape in found.shapes:
        assert int(shape.split()[0].split("x")[-1]) % 4 == 0


@pytest.mark.slow
def test_a_kernel_for_no_size_at_all(tmp_path: Path) -> None:
    found = emulated(write(tmp_path, extra='requires = ["M > N + K + 100000"]'))
    assert found.status == INCOMPLETE and "drawn shapes" in found.missing


@pytest.mark.parametrize(
    "wrong",
    [{"problem": "own.py:P"}, {"dtype": "fp8"}, {"regime": "warm"}, {"allow": ["values"]},
     {"axes": [{"N": 0}]}, {"ref": "no such kernel"}],
)  # fmt: skip
def test_a_request_that_makes_no_sense_raises(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        emulated(write(tmp_path), **wrong)


def test_a_gpu_that_is_not_there_raises(tmp_path: Path) -> None:
    with pytest.raises(HarnessError):
        judge(write(tmp_path), device="7")


@pytest.mark.slow
def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    emulated(write(tmp_path))
    assert list(temporary.iterdir()) == []


def test_it_is_a_name_of_the_library() -> None:
    assert harness.judge is judge


# -- what a verdict says


def verdict(*checks: Check, times: tuple[Timed, ...] = ()) -> Verdict:
    return Verdict(
        kernel="k", sha256="0", problem="gemm", dtype="fp32", seed=1, checks=checks, times=times,
        about={"utc": "now", "gpu": None, "versions": {}},
    )  # fmt: skip


def everywhere(outcome: str = PASSED) -> list[Check]:
    return [Check(name=n, where=w, outcome=outcome) for n, (places, _) in CHECKS.items() for w in places]


def test_a_verdict_is_what_its_checks_are() -> None:
    timed = Timed(shape="64", regime="cold", seconds=1e-5)
    assert verdict(*everywhere(), times=(timed,)).status == ACCEPTED
    assert verdict(*everywhere(SKIPPED)).status == INCOMPLETE
    one = Check(name="values", where=GPU, outcome=FAILED, reason="wrong")
    assert verdict(*everywhere(), one).status == REJECTED
    assert "values (GPU): wrong" in str(verdict(one))


def test_what_only_the_emulator_sees_is_not_missed_on_a_gpu() -> None:
    """Hopper's instructions do not run there; a kernel that has them can be accepted all the same."""
    checks = [c for c in everywhere() if c.where != EMULATOR]
    timed = Timed(shape="64", regime="cold", seconds=1e-5)
    assert verdict(*checks, times=(timed,)).status == ACCEPTED
    assert verdict(*checks).status == INCOMPLETE


# -- scores


def test_a_line_for_each_submission(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    timed = Timed(shape="64", regime="cold", seconds=1e-5, ratio=(0.9, 1.0, 1.1), against="cuBLAS", sm_hz=1e9)
    for seed in range(3):
        scores.append(path, replace(verdict(times=(timed,)), seed=seed))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["seed"] for line in lines] == [0, 1, 2]
    assert lines[0]["times"][0]["ratio"] == [0.9, 1.0, 1.1] and lines[0]["times"][0]["sm_hz"] == 1e9
    assert {"sha256", "verdict", "gpu", "versions", "utc"} <= lines[0].keys()


def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("not JSON\n")
    with pytest.raises(UsageError):
        scores.append(path, verdict())
    assert path.read_text() == "not JSON\n"


def test_judges_that_append_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from harness.judging import scores\n"
        "from harness.judging.verdict import Verdict\n"
        "for i in range(20):\n"
        "    scores.append(Path(sys.argv[1]), Verdict(kernel=sys.argv[2], sha256='', problem='gemm',"
        " dtype='fp32', seed=i, checks=()))\n"
    )
    path, link = tmp_path / "scores.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(path)
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(named), str(n)], env=tools.environment())
        for n, named in enumerate((path, link, path))
    ]
    assert [p.wait() for p in started] == [0, 0, 0]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted((line["kernel"], line["seed"]) for line in lines) == sorted(
        (str(n), i) for n in range(3) for i in range(20)
    )
    assert set(tmp_path.iterdir()) == {path, link}, "no lock is left"


# -- the command


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("")
    path = write(tmp_path, extra='problem = "own.py:P"')
    out, table = tmp_path / "v.json", tmp_path / "s.jsonl"
    run = CliRunner().invoke(
        main, ["judge", str(path), "-d", "emulator", "--json", str(out), "--scores", str(table)]
    )
    assert run.exit_code == 1, run.output
    assert run.output.splitlines()[-1].startswith("mine: rejected: sealed (static)")
    document = json.loads(out.read_text())
    assert document["kind"] == "judge" and document["rows"][0]["verdict"] == "rejected"
    assert str(tmp_path) not in out.read_text() + table.read_text(), "no path of this machine"


def test_the_command_refuses_to_trust(tmp_path: Path) -> None:
    run = CliRunner().invoke(main, ["judge", "naive", "--no-untrusted"])
    assert run.exit_code == 2 and "trusts no kernel" in run.output


def test_the_command_takes_what_it_judges_by_from_its_caller(tmp_path: Path) -> None:
    run = CliRunner().invoke(main, ["judge", str(write(tmp_path)), "--problem", "own.py:P"])
    assert run.exit_code == 2
    assert "no problem" in run.output
