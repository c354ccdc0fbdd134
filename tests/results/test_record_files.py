"""A record file by itself: what is written, what is refused, and what is taken out before it is passed on."""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import json
import lzma
import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.errors import HarnessError, UsageError
from harness.results import nvbench, record
from harness.support import tools
from harness.support.files import PACKAGE

GPU = {
    "ordinal": 3, "name": "A GPU", "uuid": "GPU-1", "capability": (9, 0), "clock_hz": 1, "sms": 2,
    "max_threads_per_sm": 3, "registers_per_sm": 4, "memory_bytes": 5, "memory_clock_hz": 6, "bus_bits": 7,
    "l2_bytes": 8, "shared_per_sm": 9,
}  # fmt: skip
BLANK = {"problem": "", "detail": "", "regime": None, "noise": None, "times": []}
WHOLE = "give a file that a command of harness wrote with --json, whole"


def row(**changes: Any) -> dict[str, Any]:
    made = {
        "kernel": "mine",
        "params": {"T": 1},
        "status": "ok",
        "shape": "8",
        "seconds": None,
        "axes": {"N": 8},
    }
    return {**made, **changes}


def written(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def bench(*rows: Any, kind: str = "bench", **meta: Any) -> dict[str, Any]:
    return {"schema": 2, "kind": kind, "meta": meta, "rows": list(rows)}


# ---- what a document holds ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "meta"), [("verify", {"gpu": GPU}), ("bench", {"gpu": None}), ("bench", {}), ("sass", {"a": 1})]
)
def test_what_no_gpu_timed_is_a_plain_list(kind: str, meta: dict[str, Any]) -> None:
    made = record.document(kind, [row(), row(shape="9")], meta)
    assert made == {
        "schema": 2, "kind": kind, "meta": {"version": {"json": nvbench.JSON_VERSION}, **meta},
        "rows": [row(), row(shape="9")],
    }  # fmt: skip


def test_a_benchmark_of_a_gpu_is_nvbenchs_with_its_rows_numbered() -> None:
    rows = [row(shape=s, axes={"N": int(s)}) for s in "89"]
    made = record.document("bench", rows, {"gpu": GPU, "rule": {"min_samples": 77}})
    assert made.keys() == {"schema", "kind", "meta", "devices", "benchmarks"}
    assert made["devices"] == nvbench.devices(GPU)
    assert nvbench.rows(made) == [{"index": 0, **rows[0]}, {"index": 1, **rows[1]}]
    (only,) = made["benchmarks"]
    assert only["min_samples"] == 77 and only["devices"] == [3]
    assert record.document("bench", rows, {"gpu": GPU})["benchmarks"][0]["min_samples"] == 0


def test_the_callers_version_is_kept() -> None:
    assert record.document("sass", [], {"version": 5})["meta"] == {"version": 5}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/home/me/k.cu", "k.cu"),
        ("at /a/b/c.cu:14, in /x/y", "at c.cu:14, in y"),
        ("'/a/b.cu'", "'b.cu'"),
        ('"/a/b.cu"', '"b.cu"'),
        ("GFLOP/s and a/b/c", "GFLOP/s and a/b/c"),
        ("/ alone", "/ alone"),
        ("../up/k.cu", "../up/k.cu"),
        ("--json=/a/b", "--json=b"),
    ],
)
def test_folders_of_paths_are_taken_out_everywhere(text: str, left: str) -> None:
    made = record.document("sass", [{"a": text, "b": [{"c": [text]}], "n": 1}], {"x": {"y": [text, text]}})
    assert made["rows"] == [{"a": left, "b": [{"c": [left]}], "n": 1}]
    assert made["meta"]["x"] == {"y": [left, left]}


def test_samples_are_passed_on_as_they_are() -> None:
    times, nothing = [1.0, 2.0], []  # type: ignore[var-annotated]
    (made,) = record.document("sass", [{"times": times, "none": nothing, "t": (1,)}], {})["rows"]
    assert made["times"] is times and made["none"] == [] and made["t"] == (1,)


# ---- writing -----------------------------------------------------------------------------------------


def test_each_row_is_a_line_in_either_shape(tmp_path: Path) -> None:
    rows = [row(shape=s, axes={"N": 8}, note='"rows": []') for s in "89"]
    plain, timed = record.document("verify", rows, {}), record.document("bench", rows, {"gpu": GPU})
    two = record.document("bench", [*rows, row(kernel="b")], {"gpu": GPU})
    for content, lines in ((plain, 2), (timed, 2), (two, 3)):
        record.write_json(tmp_path / "r.json", content)
        text = (tmp_path / "r.json").read_text()
        assert json.loads(text) == json.loads(json.dumps(content))
        assert text.startswith('{\n "schema": 2,\n') and text.endswith("}\n")
        held = [line for line in text.splitlines() if '"shape": "' in line]
        assert len(held) == lines and all(line.startswith("  {") for line in held)
    record.write_json(tmp_path / "r.json", plain)
    found = re.findall(r'"rows": \[\n  \{.*\},\n  \{.*\}\n \]\n\}\n', (tmp_path / "r.json").read_text())
    assert len(found) == 1


def test_a_file_without_rows(tmp_path: Path) -> None:
    record.write_json(tmp_path / "r.json", record.document("bench", [], {"gpu": GPU}))
    assert json.loads((tmp_path / "r.json").read_text())["benchmarks"] == []


@pytest.mark.parametrize("where", ["rows", "meta"])
def test_what_is_no_number_of_json_is_not_written(tmp_path: Path, where: str) -> None:
    value = float("nan")
    content = bench(row(seconds=value) if where == "rows" else row(), x=1.0 if where == "rows" else value)
    with pytest.raises(ValueError, match="JSON"):
        record.write_json(tmp_path / "r.json", content)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["k.cu", "k.ptx"])
def test_no_record_is_written_over_a_kernel(tmp_path: Path, name: str) -> None:
    kernel = tmp_path / name
    kernel.write_text("code")
    link = tmp_path / "link.json"
    link.symlink_to(kernel)
    for path in (kernel, link):
        with pytest.raises(UsageError) as refused:
            record.check_writable(path)
        assert str(refused.value) == f"{path}: that is a kernel's name, not a record's\n  -> --json r.json"
    record.check_writable(tmp_path / "new" / "r.json")
    assert kernel.read_text() == "code" and not (tmp_path / "new" / "r.json").exists()
    with pytest.raises(HarnessError, match="cannot write"):
        record.check_writable(kernel / "r.json")


# ---- reading -----------------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as refused:
        record.load(path)
    assert refused.value.where == str(path)
    return str(refused.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", f"not a result file of harness\n  -> {WHOLE}"),
        ({"meta": {}}, f"not a result file of harness\n  -> {WHOLE}"),
        ({"schema": True, "meta": {}}, f"not a result file of harness\n  -> {WHOLE}"),
        ({"schema": 2, "meta": []}, f"not a result file of harness\n  -> {WHOLE}"),
        ({"schema": 2}, f"not a result file of harness\n  -> {WHOLE}"),
        (
            {"schema": 3, "meta": {}},
            "written by a newer harness: schema 3, this one reads up to 2\n"
            "  -> pip install --upgrade cuda-harness",
        ),
        ({"schema": 2, "meta": {}}, "a damaged result file: KeyError('benchmarks')"),
        ('{"schema": 2, "meta": {}, "x": NaN}', f"not JSON: NaN is no number of JSON\n  -> {WHOLE}"),
        (
            '{"schema": 2, "meta": {}, "x": -Infinity}',
            f"not JSON: -Infinity is no number of JSON\n  -> {WHOLE}",
        ),
        (bench(5), f"a damaged result file: its rows are no list of objects\n  -> {WHOLE}"),
    ],
)
def test_what_cannot_be_read_says_what_it_is(tmp_path: Path, content: Any, message: str) -> None:
    assert refusal(written(tmp_path / "r.json", content)) == message


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.json") == f"cannot read: No such file or directory\n  -> {WHOLE}"
    (tmp_path / "r.json").write_bytes(b"\x80\x81\x82")
    assert refusal(tmp_path / "r.json").startswith("not JSON: ")


@pytest.mark.parametrize("kind", ["bench", "tune", "verify"])
@pytest.mark.parametrize(
    ("change", "damage"),
    [
        ({"kernel": 1}, "kernel is 1, not a text"),
        ({"status": None}, "status is None, not a text"),
        ({"shape": []}, "shape is [], not a text"),
        ({"params": [1]}, "params is [1], not an object"),
        ({"axes": None}, "axes is None, not an object"),
        ({"ratio": 1.5}, "ratio is 1.5, not an object or null"),
        ({"chosen": "x" * 99}, f"chosen is '{'x' * 36}..., not an object or null"),
        ({"seconds": "1"}, "seconds is '1', not a number or null"),
        ({"times": 1.0}, "times is 1.0, not a list"),
        ({"seconds": 0}, "seconds is 0, not more than 0"),
        ({"seconds": -0.5}, "seconds is -0.5, not more than 0"),
        ({"ratio": {"low": 1, "estimate": 1}}, "ratio has no 'high'"),
        ({"ratio": {}}, "ratio has no 'low'"),
        ({"times": [1, "a"]}, "times[1] is 'a', not a number"),
        ({"times": [[1]]}, "times[0] is [1], not a number"),
        ({"times": [1, 0]}, "times[1] is 0, not more than 0"),
        ({"seconds": 10**400}, "seconds is 1000000000000000000000000000000000000..., not a number or null"),
        ({"params": {"T": True}}, "params.T is True, not a whole number"),
        ({"rounds": 3}, "rounds is 3, not a list"),
        ({"device": {"sm_mhz": "1"}}, "device.sm_mhz is '1', not a number"),
    ],
    ids=str,
)
def test_a_row_of_another_type_is_named(
    tmp_path: Path, kind: str, change: dict[str, Any], damage: str
) -> None:
    found = refusal(written(tmp_path / "r.json", bench(row(), row(**change), kind=kind)))
    assert found == f"a damaged result file: row 1: {damage}\n  -> {WHOLE}"


@pytest.mark.parametrize(
    ("kind", "key"), [(k, n) for k in ("bench", "tune", "verify") for n in ("kernel", "status", "params")]
)
def test_a_row_that_lacks_what_others_have_is_named(tmp_path: Path, kind: str, key: str) -> None:
    lacking = {k: v for k, v in row().items() if k != key}
    found = refusal(written(tmp_path / "r.json", bench(row(), lacking, kind=kind)))
    assert found == f"a damaged result file: row 1 has no '{key}'\n  -> {WHOLE}"


def test_counters_are_what_a_profile_must_have(tmp_path: Path) -> None:
    assert refusal(written(tmp_path / "r.json", bench({}, kind="profile"))).startswith(
        "a damaged result file: row 0 has no 'counters'"
    )
    assert record.load(written(tmp_path / "r.json", bench({"counters": {}}, kind="profile")))["rows"]


@pytest.mark.parametrize(
    ("kind", "sound"),
    [("bench", False), ("sass", False), ("selftest", True), ("tuners", True), (None, True)],
)
def test_only_files_that_a_command_reads_again_are_held_to_it(tmp_path: Path, kind: Any, sound: bool) -> None:
    path = written(tmp_path / "r.json", {**bench({"kernel": 1}, gpu="x"), "kind": kind})
    if sound:
        assert record.load(path)["rows"] == [{"kernel": 1}]
    else:
        assert refusal(path).startswith("a damaged result file: meta.gpu is a text, not an object")


@pytest.mark.parametrize(
    "change",
    [
        {}, {"seconds": 1}, {"seconds": 1e-9, "times": []}, {"ratio": None, "chosen": None, "times": None},
        {"ratio": {"low": 1, "estimate": 1, "high": 1}}, {"more": object},
        {"ratio": {"low": 1, "estimate": 1, "high": 1, "x": 1}},
    ],
    ids=str,
)  # fmt: skip
def test_sound_rows_come_back(tmp_path: Path, change: dict[str, Any]) -> None:
    sound = row(**{k: "x" if v is object else v for k, v in change.items()})
    whole = {**BLANK, **sound, "times": sound.get("times") or []}
    loaded = record.load(written(tmp_path / "r.json", bench(sound, gpu=None, seed=4)))
    assert loaded == {"schema": 2, "kind": "bench", "meta": {"gpu": None, "seed": 4}, "rows": [whole]}
    assert record.load(written(tmp_path / "r.json", {**bench(sound), "schema": 1}))["schema"] == 1
    timed = record.document("bench", [sound], {"gpu": GPU}) if not sound.get("seconds") else bench(sound)
    loaded = record.load(written(tmp_path / "r.json", timed))
    assert [{k: v for k, v in r.items() if k != "index"} for r in loaded["rows"]] == [whole]


def test_kernels_have_their_names_of_today_where_a_row_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record.catalog, "former_names", lambda: {"old": "new"})
    before = row(
        kernel="old", label="matmul -> old T=1", against="old", detail="old is old", params={"old": 1},
        chosen={"kernel": "old", "others": ["old x", "older"], "params": {"old": 2}},
    )  # fmt: skip
    (after,) = record.load(written(tmp_path / "r.json", bench(before)))["rows"]
    assert after == {
        **BLANK, **before, "kernel": "new", "label": "matmul -> new T=1", "against": "new",
        "chosen": {"kernel": "new", "others": ["new x", "older"], "params": {"old": 2}},
    }  # fmt: skip


# ---- provenance --------------------------------------------------------------------------------------


def test_the_program_is_harness_however_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for started, name in ((PACKAGE / "__main__.py", "harness"), ("/usr/bin/tune.py", "tune.py")):
        monkeypatch.setattr(sys, "argv", [str(started)])
        assert record.provenance()["argv"] == [name]


def test_the_version_is_the_checkouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "cuda-harness"\nversion = "7.7"\n')
    monkeypatch.setattr(record, "ROOT", tmp_path)
    assert record.provenance()["harness"] == "7.7"


def test_where_a_record_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "argv", ["/usr/bin/harness", "bench", "/a/k.cu", "--json=/b/r.json", "-a", "N=1"]
    )
    monkeypatch.setattr(record, "_commit", lambda package: ("abc", ["x"]) if package == PACKAGE else None)
    found = record.provenance(seed=5)
    assert found["argv"] == ["harness", "bench", "k.cu", "--json=r.json", "-a", "N=1"]
    assert (found["seed"], found["commit"], found["dirty"], found["differs"]) == (5, "abc", True, ["x"])
    assert found["python"] == platform.python_version()
    said = datetime.fromisoformat(found["utc"])
    assert said.tzinfo == UTC and said.microsecond == 0
    assert abs((datetime.now(UTC) - said).total_seconds()) < 60
    assert found["versions"]["numpy"] == importlib.metadata.version("numpy")
    assert {"cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-ml-py"} < found["versions"].keys()
    code = b"".join(p.read_bytes() for p in sorted(PACKAGE.rglob("*.py"), key=lambda p: str(p.as_posix())))
    assert len(found["code_sha256"]) == 64 and len(code) > 10_000
    assert found.keys() == {
        "argv", "utc", "seed", "harness", "commit", "dirty", "differs", "code_sha256", "python", "versions",
    }  # fmt: skip


@pytest.mark.parametrize(("differs", "dirty"), [(None, None), ([], False), (["x"], True)])
def test_dirty_is_what_differs_from_the_commit(
    monkeypatch: pytest.MonkeyPatch, differs: list[str] | None, dirty: bool | None
) -> None:
    monkeypatch.setattr(record, "_commit", lambda package: (None, differs))
    found = record.provenance()
    assert found["dirty"] is dirty and found["differs"] == differs and found["seed"] is None


def test_the_codes_hash_is_of_every_module_in_the_order_of_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b").mkdir()
    for name in ("z.py", "b/a.py", "a.py", "b.txt"):
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(record, "PACKAGE", tmp_path)
    assert (
        record.code_sha256()
        == hashlib.sha256(b"a.pyb/a.pyz.py").hexdigest()
        == record.sha256(b"a.pyb/a.pyz.py")
    )


def test_versions_of_what_is_installed_and_of_what_is_not(tmp_path: Path) -> None:
    assert record._version("numpy") == importlib.metadata.version("numpy")
    assert record._version("no-such-distribution") is None
    project = tmp_path / "pyproject.toml"
    project.write_text('[project]\nname = "cuda-harness"\nversion = "9.8"\n')
    assert record.own_version(project) == "9.8"
    for text in ("[project]\nname = 'cuda-harness'\n", "no toml", "x = 1"):
        project.write_text(text)
        assert record.own_version(project) == record._version("cuda-harness")


def test_the_commit_and_what_differs_are_asked_of_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git is asked about code and kernels only, and about all of them."""
    package = tmp_path / "harness"
    top, head = ("rev-parse", "--show-toplevel"), ("rev-parse", "HEAD")
    status = ("status", "--porcelain", "--no-renames", "-uall", "-z", "--", "harness", "cu", "ptx")
    answers = {top: f"{tmp_path}\n", head: "abc\n", status: " M harness/b.py\0?? cu/a b\0"}

    def run(command: Any, where: str) -> subprocess.CompletedProcess[str]:
        program, *question = command
        assert (program, question[:2]) == ("git", ["-C", tmp_path])
        return subprocess.CompletedProcess(command, 0, answers[tuple(question[2:])], "")

    monkeypatch.setattr(tools, "run", run)
    assert record._commit(package) == ("abc", ["cu/a b", "harness/b.py"])
    answers[status] = ""
    assert record._commit(package) == ("abc", [])
    for elsewhere in ("", f"{tmp_path.parent}\n"):
        answers[top] = elsewhere
        assert record._commit(package) == (None, None)

    def none(command: Any, where: str) -> Any:
        raise HarnessError("there is no git")

    monkeypatch.setattr(tools, "run", none)
    assert record._commit(package) == (None, None)


def test_a_checkout_behind_a_link_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    done = subprocess.CompletedProcess([], 0, f"{tmp_path / 'real'}", "")
    monkeypatch.setattr(tools, "run", lambda command, where: done)
    assert record._commit(tmp_path / "link" / "harness")[0] == os.fspath(tmp_path / "real")


def test_sizes_beyond_any_machine_are_refused(tmp_path: Path) -> None:
    """A choice of kernels by such a size overflowed."""
    change = row(axes={"M": 2**63, "N": 8, "K": None})
    assert "axes.M is 9223372036854775808, more than" in refusal(written(tmp_path / "r.json", bench(change)))
    assert record.load(written(tmp_path / "r.json", bench(row(axes={"M": 2**40, "beta": None, "x": -0.5}))))


@pytest.mark.parametrize("module", [gzip, lzma])
def test_a_record_may_be_compressed(tmp_path: Path, module: ModuleType) -> None:
    plain = json.dumps(bench(row()))
    whole = module.compress(plain.encode())
    (packed := tmp_path / "a.json.packed").write_bytes(whole)
    assert record.load(packed) == record.load(written(tmp_path / "a.json", plain))
    for damaged in (whole[:-9], whole[:12] + b"?" + whole[13:], whole[:2], whole[:6]):
        packed.write_bytes(damaged)
        with pytest.raises(UsageError, match=r"damaged|cannot read|not JSON") as caught:
            record.load(packed)
        assert caught.value.hint == WHOLE


def test_a_python_without_xz_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (packed := tmp_path / "a.json.xz").write_bytes(lzma.compress(json.dumps(bench(row())).encode()))
    assert record.load(packed)
    monkeypatch.setitem(sys.modules, "lzma", None)
    with pytest.raises(UsageError, match="compressed by xz, which this Python was built without"):
        record.load(packed)


@pytest.mark.parametrize("module", [gzip, lzma])
def test_a_small_file_with_too_much_in_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType
) -> None:
    (packed := tmp_path / "a.json.packed").write_bytes(module.compress(b" " * 100_000))
    monkeypatch.setattr(record, "_MOST", 50_000)
    with pytest.raises(UsageError, match="more than 50000 bytes"):
        record.load(packed)
