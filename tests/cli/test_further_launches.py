"""Kernels that are launched again by themselves: in another order, and in the memory that they left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.command import harness
from shared.kernels import BODY
from shared.places import DATA

FLAG = """\
__global__ void flag(int* out, const int* in, int* ready, int n)
{
    int b = blockIdx.x, last = gridDim.x - 1;
    volatile int* flag = ready;
    if (threadIdx.x) return;
    if (b == SETS) { out[b] = in[b]; __threadfence(); flag[0] = 1; }
    else if (b == LOOKS && flag[0] == IS) { FENCE out[b] = out[SETS]; }
}
"""


def written(folder: Path, **words: str) -> str:
    source = FLAG
    for word, text in words.items():
        source = source.replace(word, text)
    (folder / "flag.cu").write_text(source)
    return str(folder / "flag.cu")


@pytest.mark.parametrize(("sets", "looks"), [("0", "last"), ("last", "0")])
@pytest.mark.parametrize(("fence", "code"), [("", 1), ("__threadfence();", 0)])
@pytest.mark.slow
def test_both_ways_behind_a_flag_are_checked(
    tmp_path: Path, sets: str, looks: str, fence: str, code: int
) -> None:
    path = written(tmp_path, SETS=sets, LOOKS=looks, IS="1", FENCE=fence)
    result = harness("check", path, "--grid", "4", "--block", "32")
    assert result.exit_code == code, result.output
    assert ("global race" in result.output) == bool(code)
    if looks == "0":  # the first launch does not take that way
        said = "flag was also launched with --schedule backward: who comes first matters to"
        assert f"{said} line 7" in result.output
        assert ("(in a second launch, with --schedule backward)" in result.output) == bool(code)
        first = harness("check", path, "--grid", "4", "--block", "32", "--schedule", "warp-serial")
        assert first.exit_code == 0 and "also launched" not in first.output


@pytest.mark.slow
def test_a_schedule_is_drawn_and_recorded(tmp_path: Path) -> None:
    path = written(tmp_path, SETS="last", LOOKS="0", IS="1", FENCE="")
    codes, files = {}, tmp_path / "check.json"
    for seed in range(1, 9):
        args = ("--schedule", "random", "--seed", str(seed), "--json", str(files), "--budget", "1_000_000")
        codes[seed] = harness("check", path, "--grid", "4", "--block", "32", *args).exit_code
        written_down = json.loads(files.read_text())
        meta, (row,) = written_down["meta"], written_down["rows"]
        assert (meta["schedule"], meta["seed"], meta["budget"]) == ("random", seed, 1_000_000)
        assert row["schedules"] == ["random"]
    assert set(codes.values()) == {0, 1}


@pytest.mark.slow
def test_what_a_launch_leaves_the_next_one_finds(tmp_path: Path) -> None:
    """Counters that are never set back: the third launch finds no tile left."""
    folder = tmp_path / "honest"
    folder.mkdir()
    (folder / "gemm.cuh").write_text((DATA / "honest" / "gemm.cuh").read_text())
    source = (DATA / "honest" / "tile_counter.cu").read_text()
    path = folder / "tile_counter.cu"
    path.write_text(source)
    right = harness("verify", str(path), "-a", "N=40")
    assert right.exit_code == 0, right.output
    path.write_text(source.replace("gridDim.x - 1", "gridDim.x + 1"))
    wrong = harness("verify", str(path), "-a", "N=40")
    assert wrong.exit_code == 1
    assert "in a third launch, in the workspace and variables as they were left" in wrong.output


@pytest.mark.parametrize(("set_back", "code"), [("uses = 0;", 0), ("", 1)])
def test_variables_stay_from_launch_to_launch(kernel_file: Any, set_back: str, code: int) -> None:
    planted = BODY.replace("if (row >= M", "if (uses > 0 || row >= M")
    planted = planted[: planted.rindex("}")] + f"    if (row + col == 0) {{ uses = 1; {set_back} }}\n}}\n"
    path = kernel_file(body="__device__ volatile int uses;\n" + planted)
    result = harness("verify", str(path), "-a", "N=8")
    assert result.exit_code == code, result.output
    assert ("in a second launch" in result.output) == bool(code)


def test_a_budget_of_instructions(tmp_path: Path) -> None:
    path = tmp_path / "long.cu"
    path.write_text(
        "__global__ void turns(float* y, const float* x) { float s = 0;"
        " for (int i = 0; i < 5000; i++) s = s * x[i & 7] + 1; y[threadIdx.x] = s; }"
    )
    short = harness("check", str(path), "--block", "8", "--grid", "1", "--budget", "2000")
    assert short.exit_code == 1 and "--budget" in short.output, short.output
    assert harness("check", str(path), "--block", "8", "--grid", "1").exit_code == 0
