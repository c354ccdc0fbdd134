"""`harness compare` without times: registers, instructions, loads, sectors, ways; of files and revisions."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UsageError
from harness.results.gates import static
from shared.command import harness
from shared.kernels import BODY, KERNEL, TILED

ROW: dict[str, Any] = {
    "kernel": "mine",
    "params": {"TILE": 8},
    "arch": "sm_90a",
    "shape": "48",
    "status": "ok",
    "registers": 40,
    "spills": 0,
    "shared": 512,
    "occupancy": 0.5,
    "sass": {"LDS": 8, "LDS.64": 0, "LDS.128": 8, "LDG": 4, "LDG.128": 0, "bytes": 1600},
    "emulated": {"intensity": 2.0, "sectors_per_request": 4.0, "ways": 1.0},
    "total": {"sectors": 1000, "global_bytes": 32000},
    "findings": [],
}


def doc(**changed: Any) -> dict[str, Any]:
    return {"kind": "check", "meta": {}, "rows": [copy.deepcopy(ROW) | changed]}


def worse(reference: dict[str, Any], candidate: dict[str, Any], threshold: float = 0.0) -> set[str]:
    return {
        c.figure for c in static.compare(reference, candidate, threshold=threshold) if c.status == "WORSE"
    }


@pytest.mark.parametrize(
    ("changed", "figure"),
    [
        ({"registers": 41}, "registers"),
        ({"spills": 4}, "spills"),
        ({"occupancy": 0.375}, "occupancy"),
        ({"sass": {**ROW["sass"], "bytes": 1616}}, "instructions"),
        ({"sass": {**ROW["sass"], "LDS.128": 7}}, "LDS_bits"),
        ({"emulated": {**ROW["emulated"], "ways": 1.5}}, "ways"),
        ({"emulated": {**ROW["emulated"], "sectors_per_request": 8.0}}, "sectors_per_request"),
        ({"total": {"sectors": 1001, "global_bytes": 32000}}, "sectors"),
        ({"total": {"sectors": 1000, "global_bytes": 32004}}, "global_bytes"),
        ({"findings": [{}]}, "findings"),
    ],
)
def test_what_costs_more_is_worse_and_its_inverse_is_better(changed: dict[str, Any], figure: str) -> None:
    assert worse(doc(), doc(**changed)) == {figure}
    assert worse(doc(**changed), doc()) == set()
    back = {c.figure: c.status for c in static.compare(doc(**changed), doc(), threshold=0)}
    assert back[figure] == "BETTER" and set(back.values()) == {"SAME", "BETTER"}


def test_the_threshold_is_relative_and_zero_has_none() -> None:
    assert worse(doc(), doc(registers=41), threshold=0.05) == set()
    assert worse(doc(), doc(registers=43), threshold=0.05) == {"registers"}
    assert worse(doc(), doc(spills=1), threshold=0.5) == {"spills"}, "any spill is more than none"
    assert {c.figure for c in static.compare(doc(), doc(), threshold=0, figures=["ways"])} == {"ways"}
    with pytest.raises(UsageError, match="no figure is called 'speed'"):
        static.compare(doc(), doc(), threshold=0, figures=["speed"])


def test_kernels_that_are_new_gone_or_broken_are_told() -> None:
    other = doc(kernel="other")["rows"][0]
    found = static.compare(
        {**doc(), "rows": [ROW, other]}, {**doc(), "rows": [ROW, {**other, "kernel": "new"}]}, threshold=0
    )
    assert {(c.label, c.status) for c in found if not c.figure} == {
        ("other TILE=8", "GONE"),
        ("new TILE=8", "NEW"),
    }
    broken = static.compare(
        doc(), {**doc(), "rows": [ROW, {**ROW, "shape": "64", "status": "FAILED"}]}, threshold=0
    )
    assert [c.status for c in broken if c.failed] == ["FAILED"]
    was = {**doc(), "rows": [ROW, {**ROW, "shape": "64", "status": "FAILED"}]}
    assert not [c for c in static.compare(was, was, threshold=0) if c.failed], "it was before, too"


@pytest.mark.slow
def test_files_of_sass_and_check_are_gates(tmp_path: Path, kernel_file: Any) -> None:
    """A planted change: a padded tile costs shared memory."""
    path, names = kernel_file(body=TILED), {}
    for verb in ("sass", "check"):
        names[verb] = [str(tmp_path / f"{verb}{n}.json") for n in (0, 1)]
    shared = TILED.replace("As[TILE][TILE]", "As[TILE][TILE + 1]")
    for n, body in enumerate((TILED, shared)):
        kernel_file(body=body)
        assert harness("sass", str(path), "-p", "TILE=8", "--json", names["sass"][n]).exit_code == 0
        harness("check", str(path), "-p", "TILE=8", "-a", "N=48", "--json", names["check"][n])
    for pair in names.values():
        result = harness("compare", *pair)
        assert result.exit_code == 1 and "shared" in result.output and "WORSE" in result.output, result.output
        assert harness("compare", pair[0], pair[0]).exit_code == 0
        assert harness("compare", *pair, "-f", "spills").exit_code == 0
    mixed = harness("compare", names["sass"][0], names["check"][1], "-f", "registers", "--all")
    assert mixed.exit_code in (0, 1) and "registers" in mixed.output, "both have figures of the code"


SMALL = ("-a", "N=48")


def git(folder: Path, *args: str) -> None:
    own = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *own, *args], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a kernel that includes a header; the working tree's header has another value."""
    folder = tmp_path / "work"
    (folder / "k").mkdir(parents=True)
    body = '#include "size.h"\n' + BODY.replace("float sum = 0;", "float sum = EXTRA;")
    (folder / "k" / "mine.cu").write_text(KERNEL.format(title="A kernel", extra="", body=body))
    (folder / "k" / "size.h").write_text("#define EXTRA 0\n")
    (folder / "README").write_text("no kernel")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.slow
def test_a_revision_is_compared_with_the_working_tree(repository: Path) -> None:
    same = harness("compare", "HEAD", *SMALL)
    assert same.exit_code == 0 and "of 1 kernel are the same" in same.output, same.output
    more = (
        "#define EXTRA 0; __shared__ float s[256]; s[threadIdx.x] = col; __syncthreads(); sum += 0 * s[0]\n"
    )
    (repository / "k" / "size.h").write_text(more)
    result = harness("compare", "HEAD", "--csv", *SMALL)
    assert result.exit_code == 1, result.output
    (line,) = [text for text in result.output.splitlines() if ",shared," in text]
    assert line.startswith("k/mine TILE=16,sm_90a,shared,0,") and line.endswith("WORSE")
    git(repository, "commit", "-qam", "two")
    assert harness("compare", "HEAD~1", "HEAD", *SMALL).exit_code == 1
    assert harness("compare", "HEAD", "HEAD~1", *SMALL).exit_code == 0, "less is no fault"
    (repository / "k" / "mine.cu").write_text("/// kernel\nnonsense")
    broken = harness("compare", "HEAD", *SMALL)
    assert broken.exit_code != 0 and "Traceback" not in broken.output


PLAIN = "__global__ void twice(float* x, int n) { for (int i = threadIdx.x; i < n; i += 32) x[i] *= 2; }\n"


@pytest.mark.slow
def test_files_without_front_matter_are_compared_where_none_has_it(repository: Path) -> None:
    (repository / "k" / "mine.cu").rename(repository / "mine.txt")
    (repository / "twice[1].cu").write_text(PLAIN)
    (repository / "thrice.cu").write_text(PLAIN.replace("2", "3"))
    (repository / "host.cu").write_text("int main() { return 0; }\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "two")
    same = harness("compare", "HEAD")
    assert same.exit_code == 0 and "of 2 kernels are the same" in same.output, same.output
    (repository / "twice[1].cu").write_text(PLAIN.replace("x[i] *= 2", "x[i] *= x[n - 1 - i]"))
    more = harness("compare", "HEAD", "-f", "sectors")
    assert more.exit_code == 1 and "WORSE" in more.output, more.output
    (repository / "twice[1].cu").rename(repository / "again.cu")
    moved = harness("compare", "HEAD").output
    assert "only in REF: twice[1]" in moved and "only in CMP: again" in moved
    (repository / "mine.txt").rename(repository / "k" / "mine.cu")
    assert "only in CMP: again" in harness("compare", "HEAD").output, "as long as one side has no other"
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "three")
    marked = harness("compare", "HEAD", *SMALL)
    assert marked.exit_code == 0 and "left out, having no front matter: again.cu" in marked.stderr


def test_a_kernel_in_place_of_a_revision_is_told_the_option(repository: Path) -> None:
    for words in (["k/mine.cu"], ["HEAD", "k/mine.cu"]):
        found = harness("compare", *words)
        assert found.exit_code == 2 and "harness compare HEAD --kernel mine.cu" in found.output, found.output


def test_two_kernel_files_are_told_what_compares_them(repository: Path) -> None:
    found = harness("compare", "k/mine.cu", "k/other.cu")
    assert found.exit_code == 2 and "harness sass k/mine.cu --diff k/other.cu" in found.output, found.output


@pytest.mark.slow
def test_what_is_no_revision_is_told(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for args in (
        ["nope"],
        ["--", "-x"],
        ["HEAD", "nope"],
        ["HEAD", "-k", "nope"],
        ["a.json"],
        ["HEAD", "--arch", "x"],
    ):
        result = harness("compare", *args)
        assert result.exit_code == 2 and "Traceback" not in result.output, (args, result.output)
    outside = tmp_path / "outside"
    outside.mkdir()
    monkeypatch.chdir(outside)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert harness("compare", "HEAD").exit_code == 2


def test_a_result_file_without_figures_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"schema": 2, "kind": "tune", "meta": {}, "rows": []}))
    result = harness("compare", str(path), str(path))
    assert result.exit_code == 2 and "neither times nor static figures" in result.output
    path.write_text(json.dumps(doc() | {"schema": 2, "rows": []}))
    assert "no figure in common" in harness("compare", str(path), str(path)).output
    assert harness("compare", str(path), str(path), "-k", "x").exit_code == 2
