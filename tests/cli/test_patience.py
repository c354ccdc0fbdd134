"""Tests of `check` with more kernels without front matter than there is time for."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness.cli import main, patience
from harness.emulator.machine import Launch
from harness.kernels import catalog
from harness.kernels.cpp import includes

SEVERAL = """template <int N>
__global__ void shifted(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += N;
}
__global__ void doubled(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= 2;
}
void host(float* x, int n) {
  shifted<1><<<4, 64>>>(x, n);
  shifted<2><<<4, 64>>>(x, n);
  doubled<<<4, 64>>>(x, n);
}
"""

LONG = """__global__ void k(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    for (int k = 0; k < 5000; ++k) x[INDEX] += k;
}
"""


def harness(*arguments: Any) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


@pytest.mark.slow
def test_what_time_did_not_suffice_for_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is run in any case; one instance of each template comes before further ones."""
    path, record = tmp_path / "several.cu", tmp_path / "r.json"
    path.write_text(SEVERAL)
    whole = harness("check", path)
    assert whole.exit_code == 0 and "NOT RUN" not in whole.output
    kept = patience.Patience.until
    # Compiling takes no time, and running the first one all there is.
    monkeypatch.setattr(
        patience.Patience, "until", lambda self, share: kept(self, share) + (-999 if share == 1 else 999)
    )
    ran = harness("check", path, "--json", str(record))
    assert ran.exit_code == 3
    said = " ".join(ran.output.split())
    assert "NOT RUN, as 40 s were over: several:doubled, several:shifted<2>. --seconds gives more" in said
    assert "shapes: x=1000 n=1000" in ran.output and ran.output.count("was launched as by") == 1
    document = json.loads(record.read_text())
    assert len(document["rows"]) == 1 and "several:doubled" in document["meta"]["ended"]
    assert harness("check", path, "--allow-refused").exit_code == 0


@pytest.mark.parametrize(("index", "exit_code"), [("i", 3), ("i - 1", 1)])
def test_a_kernel_that_goes_on_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: str, exit_code: int
) -> None:
    """It is named, and not said to be wrong; what was found before that is."""
    path, record = tmp_path / "long.cu", tmp_path / "r.json"
    path.write_text(LONG.replace("INDEX", index))
    kept, timely, looks = patience.Patience.until, Launch.timely, iter([True])
    monkeypatch.setattr(patience.Patience, "until", lambda self, share: kept(self, share) * (share < 1.25))
    monkeypatch.setattr(Launch, "timely", lambda self: next(looks, False) or timely(self))  # the second one
    ran = harness("check", path, "--json", str(record))
    assert ran.exit_code == exit_code, ran.output
    assert ("NOT ENDED after 50 s: long" in ran.output) == (exit_code == 3)
    assert "had not ended when time was over" in ran.output
    (row,) = json.loads(record.read_text())["rows"]
    assert row["status"] == ("not ended" if exit_code == 3 else "FAILED")
    assert ("out of bounds" in ran.output) == (exit_code == 1)


def test_what_is_not_compiled_in_time_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "several.cu"
    path.write_text(SEVERAL)
    monkeypatch.setattr(patience.Patience, "until", lambda self, share: time.monotonic() - 1)
    from harness.support import daemons

    ended: Any = daemons.Daemons.ended
    monkeypatch.setattr(daemons.Daemons, "ended", lambda self, future, until: bool(ended) and False)
    ran = harness("check", path)
    assert ran.exit_code == 3 and "several:shifted<1> " in ran.output
    assert "several:doubled, several:shifted<2>" in " ".join(ran.output.split())


def test_what_is_not_read_in_time_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guessing counts as reading: a file may have hundreds of kernels. The first one is read in any case."""
    path = tmp_path / "several.cu"
    path.write_text(SEVERAL)
    monkeypatch.setattr(patience, "READ", -1)
    ran = harness("check", path)
    said = " ".join(ran.output.split())
    assert ran.exit_code == 3 and "several:shifted<1> was launched as by" in said
    assert "NOT RUN, as 40 s were over: several:shifted<2>, several:doubled. --seconds gives more" in said
    path.write_text(
        "struct P { void (*f)(); };\n" + SEVERAL.replace("float* x, int n) {\n  int", "P p, int n) {\n  int")
    )
    ran = harness("check", path)
    assert ran.exit_code == 2 and "were over before 2 others were read: --seconds gives more" in ran.output


def test_front_matter_has_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    waiting = patience.Patience(1)
    assert waiting.until(1) == float("inf") and waiting.end() == float("inf")
    assert waiting.reached([], [], [], {}) == ([], {}, "")


def test_headers_are_looked_for_once_for_all_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may have hundreds of kernels and dozens of headers."""
    path = tmp_path / "several.cu"
    path.write_text('#include "sizes.h"\n' + SEVERAL)
    (tmp_path / "sizes.h").write_text("#define SIZE 4\n")
    real, seen = includes.included, list[Path]()
    monkeypatch.setattr(includes, "included", lambda *given: seen.append(given[0]) or real(*given))
    assert len(catalog.load_each(path)) == 3 and seen == [path]


@pytest.mark.parametrize(("from_", "idle"), [("0", False), ("100000000", True)])
def test_a_launch_of_which_no_thread_does_anything_is_told(tmp_path: Path, from_: str, idle: bool) -> None:
    """It would be clean whatever the kernel does."""
    text = (
        LONG.replace("if (i < n)", f"if (i >= {from_} && i < n)").replace("5000", "5").replace("INDEX", "i")
    )
    path = tmp_path / "idle.cu"
    path.write_text(text)
    found = CliRunner().invoke(main, ["check", str(path)])
    assert ("NOTHING DONE, all threads leave before they read or write: idle." in found.output) == idle
    assert found.exit_code == (3 if idle else 0), found.output


def test_a_kernel_that_has_nothing_to_read_is_not_idle(tmp_path: Path) -> None:
    path = tmp_path / "hello.cu"
    path.write_text(
        '#include <cstdio>\n__global__ void k(int n) { printf("%d\\n", n); }\n__global__ void none() {}\n'
    )
    found = CliRunner().invoke(main, ["check", str(path)])
    assert "NOTHING DONE" not in found.output and found.exit_code == 0, found.output
