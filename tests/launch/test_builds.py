"""Builds in processes of their own: what comes back, and what is said where none does."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, cast

import pytest

from harness.errors import BuildError, ContextLost, HarnessError, UsageError
from harness.kernels import spec
from harness.launch import builds
from harness.launch.builds import Built
from harness.support.cache import Cache, default_root


@pytest.mark.slow
def test_builds_in_the_background_say_what_the_others_do(kernel_file: Any) -> None:
    """Without instructions: what was counted, what is not as the file expects, why one was skipped."""
    kernel = kernel_file("right.cu")
    strict = kernel_file("strict.cu", extra='sass = ["HMMA", "FFMA"]')
    wrong = kernel_file("wrong.cu", body="syntax error")
    variants = [spec.load(path).variant() for path in (kernel, strict, wrong)]
    cache, done = Cache(default_root()), list[int]()
    with builds.building(variants, "sm_90a", cache, lambda: done.append(1)) as arriving:
        good, unmet, skipped = list(arriving)
    (same,), _ = builds.build_all(variants[:1], ["sm_90a"], cache, lambda _: None)
    assert isinstance(good, Built) and isinstance(unmet, Built) and isinstance(skipped, builds.Skipped)
    assert (good.sass, good.tally, good.unmet) == (None, same.tally, "") and builds.unmet(same) == ""
    assert builds.unmet(unmet) == "HMMA (0)"
    assert isinstance(skipped.error, BuildError)
    assert "does not compile" in skipped.error.what and "wrong.cu" in skipped.error.log
    assert len(done) == 3


@pytest.mark.parametrize(
    "error",
    [
        UsageError("what", where="where", hint="hint"),
        BuildError("what", where="k.cu", log="line 3"),
        ContextLost("what", call="cuInit", code=7, name="NAME"),
    ],
)
def test_errors_pass_from_process_to_process(error: HarnessError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args, vars(again), str(again)) == (
        type(error),
        error.args,
        vars(error),
        str(error),
    )


def test_a_compiler_that_is_killed_is_a_reason(kernel_file: Any) -> None:
    dead: Future[Any] = Future()
    dead.set_exception(BrokenProcessPool())
    found = builds._outcome(cast(Any, None), spec.load(kernel_file()).variant(), "sm_90a", dead)
    assert isinstance(found, builds.Skipped) and "was ended" in str(found.error)


def test_a_script_without_a_main_guard_is_told_so(kernel_file: Any, tmp_path: Path) -> None:
    """Each process imports it again, and may start none of its own while it does."""
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from harness.kernels import spec\nfrom harness.launch import builds\n"
        "from harness.support.cache import Cache, default_root\n"
        f"variants = [spec.load({str(kernel_file())!r}).variant()]\n"
        "with builds.building(variants, 'sm_90a', Cache(default_root()), lambda: None) as arriving:\n"
        "    print(*(one.error for one in arriving))\n"
    )
    root = {"PYTHONPATH": str(Path(builds.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, script],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | root,
    )
    assert "keep what it does below if __name__" in done.stdout
