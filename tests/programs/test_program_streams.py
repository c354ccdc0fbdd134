"""Races between streams: pairs of programs, one right, and one without what orders its work."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from harness.programs import Run, run_program
from shared.nvcc import harness, needs_nvcc
from shared.places import ROOT

pytestmark = [needs_nvcc, pytest.mark.slow]

SOURCE = ROOT / "tests" / "data" / "programs" / "streams.cu"
LINES = SOURCE.read_text().splitlines()
PAIRS = re.findall(r"P\((\w+)\)", SOURCE.read_text().partition("const Pair pairs")[2].partition("};")[0])
PAIRS.remove("f")
OTHERWISE = {"host_other": "missing wait", "after_free": "finding"}  # found by other means

THREADS = """
#include <cuda_runtime.h>
#include <thread>
__global__ void set(int* x, int v) { x[threadIdx.x] = v; }
int main(int argc, char**)
{
    int *x, *y;
    cudaMalloc(&y, 256), cudaMalloc(&x, 256);
    auto work = [&](int i) {
        set<<<1, 32>>>(x + (argc > 1 ? 31 : 32) * i, i);
        if (argc > 2) cudaMemsetAsync(x, 0, 4, cudaStreamLegacy);
    };
    std::thread(work, 0).join();
    std::thread(work, 1).join();
}
"""


@pytest.fixture(scope="module")
def runs() -> dict[bool, Run]:
    """Return what all pairs did, the right ones and the others."""
    return {broken: run_program([SOURCE], ["broken"] * broken, quiet=True) for broken in (False, True)}


def pair_of(line: int) -> str:
    """Return the function that a line is in."""
    heads = [text for text in LINES[:line] if re.match(r"void \w+\(bool", text)]
    return heads[-1].partition(" ")[2].partition("(")[0]


def test_what_is_ordered_is_no_race(runs: dict[bool, Run]) -> None:
    run = runs[False]
    assert not run.failed and run.complete
    assert not (run.races or run.unwaited or run.misuses)


@pytest.mark.parametrize("name", PAIRS)
def test_what_nothing_orders_is_found(runs: dict[bool, Run], name: str) -> None:
    run = runs[True]
    found = {pair_of(event.place.line) for event in run.races}
    waits = {pair_of(event.place.line) for event in run.unwaited}
    other = {pair_of(at.place.line) for one in run.kernels.values() for f, _, at in one.findings.values()}
    assert run.complete and run.code == 0
    means = {"race": found, "missing wait": waits, "finding": other}
    assert {kind for kind, names in means.items() if name in names} == {OTHERWISE.get(name, "race")}


def test_a_race_says_what_and_where(runs: dict[bool, Run]) -> None:
    (event,) = (one for one in runs[True].races if pair_of(one.place.line) == "joined")
    line = next(i for i, text in enumerate(LINES, 1) if "two>>>(z" in text)
    assert event.what == (
        f"x at offset 0: _Z4fillPiii in stream two (streams.cu:{line}) writes it, and _Z3addPKiPii in stream "
        "one reads it; nothing orders the two: cudaStreamWaitEvent in stream one, for an event recorded in "
        "stream two after _Z4fillPiii, would"
    )
    assert [one.line for one in event.others] == [line]
    assert "add<<<B, T, 0, one>>>(x, z, N)" in LINES[event.place.line - 1]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "chunks",
            r"out at offset 4096: _Z5scale\w+ in stream streams\[i\] #2 .* in stream streams\[i\] #1 writes",
        ),
        ("interleaved", "x at offset 2: .* writes it, and .* writes it"),
        ("legacy", "stream s is non-blocking, and the default stream and it do not wait for each other"),
        ("atomics", "updates it, and .* writes it"),
        ("freed", "x: _Z3add.* in stream two .* reads it, and cudaFreeAsync in stream one frees it"),
        (
            "allocated",
            "x: cudaMallocAsync in stream one .* allocates it, and _Z4fill.* in stream two writes it",
        ),
        ("captured", "an edge of the graph from the one to the other would"),
        ("constants", "table at offset 0: _Z7look_up.* reads it, and cudaMemcpyToSymbolAsync in stream two"),
        (
            "dependent",
            r"x at offset 0: _Z4fill.* in stream one reads it; .* cudaGridDependencySynchronize would",
        ),
        ("rows", "x at offset 60: cudaMemcpy2DAsync .* and cudaMemset2DAsync"),
    ],
)
def test_messages(runs: dict[bool, Run], name: str, said: str) -> None:
    found = [event.what for event in runs[True].races if pair_of(event.place.line) == name]
    assert any(re.search(said, what) for what in found), found


def test_a_default_stream_of_each_thread(tmp_path: Path) -> None:
    """They race with each other; the legacy stream waits for them, and they for it."""
    source = tmp_path / "threads.cu"
    source.write_text(THREADS)
    flags = ["--default-stream", "per-thread"]
    runs = [run_program([source], ["x"] * more, flags=flags, quiet=True) for more in range(3)]
    right, wrong, legacy = runs
    assert not right.failed and right.complete and wrong.failed
    (event,) = wrong.races
    assert event.what.startswith("x at offset 124: _Z3setPii in the default stream of a thread")
    assert not legacy.races


def test_it_is_printed_and_written(tmp_path: Path) -> None:
    shutil.copy(SOURCE, tmp_path)
    options = ("-q", "--json", "r.json", "--sarif", "s.json", "--github")
    done = harness(tmp_path, "run", "streams.cu", *options, "--", "broken", "joined")
    assert done.returncode == 1
    assert "races between streams:\n  streams.cu:" in done.stdout
    assert "fill in stream two (streams.cu:" in done.stdout and "_Z" not in done.stdout
    (call,) = json.loads((tmp_path / "r.json").read_text())["meta"]["races"]
    assert call["what"].startswith("x at offset 0") and len(call["others"]) == 1
    (result,) = json.loads((tmp_path / "s.json").read_text())["runs"][0]["results"]
    assert result["ruleId"] == "race-between-streams" and len(result["relatedLocations"]) == 1
    assert f"::error file=streams.cu,line={call['line']},title=race between streams::" in done.stdout
