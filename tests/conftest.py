"""Fixtures that several test files share."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

import harness
from harness.errors import MissingDependency
from harness.support.cache import Cache, default, default_root
from shared.kernels import BODY, KERNEL

# pytester: tests/test_pytest_plugin.py runs pytest inside pytest. The plugin of harness is loaded by its
# entry point where harness is installed, and by this line in a bare checkout.
pytest_plugins = ["pytester", "harness.pytest_plugin", "shared.selection", "shared.alone", "shared.state"]


# For scripts/mutate.py: the first example that fails will do, it need not be the smallest.
settings.register_profile("mutants", phases=(Phase.explicit, Phase.generate), database=None)


def pytest_configure(config: pytest.Config) -> None:
    """Let each worker multiply matrices in one thread: there is a worker a core, and threads that wait for a
    core that others have spin. A test of small products took ten times as long.
    """
    if getattr(config.option, "numprocesses", None):  # of pytest-xdist, whose workers begin after this
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_collection_finish() -> None:
    """Leave what was collected to itself: thousands of cases live as long as the process, and each full
    collection of garbage would look at all of them.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Use neither the user's cache nor his table, whose content must not decide a test. Workers of one run
    share a cache, so that a kernel is compiled once; in .ci/run all runs do, which name it in
    HARNESS_TESTS_CACHE.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    os.environ["HARNESS_CACHE_DIR"] = os.environ.get("HARNESS_TESTS_CACHE") or str(folder / "cache")
    os.environ["HARNESS_TABLE"] = str(tmp_path_factory.mktemp("table") / "matmul.json")
    default()  # opened once a process, so not by a test that names another folder


@pytest.fixture(scope="session", autouse=True)
def _no_ci() -> None:
    """Hide where the tests run: with CI set `check` fails for what it cannot verify. Its tests set it."""
    os.environ.pop("CI", None)


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the terminal of whoever runs the tests: lines are broken only where a test sets COLUMNS."""

    def none(*_: int) -> os.terminal_size:
        raise OSError("no terminal")

    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(os, "get_terminal_size", none)


@pytest.fixture(scope="session")
def cache(_own_cache: None) -> Cache:
    """Return the cache of this run, which the command line uses too."""
    return Cache(default_root())


@pytest.fixture
def kernel_file(tmp_path: Path) -> Any:
    """Write a small correct GEMM kernel; `extra` goes into its front matter, `body` replaces its code."""

    def write(name: str = "mine.cu", *, extra: str = "", body: str = BODY, title: str = "A kernel") -> Path:
        lines = "".join(f"// {line}\n" for line in extra.splitlines())
        path = tmp_path / name
        path.write_text(KERNEL.format(title=title, extra=lines, body=body))
        return path

    return write


@pytest.fixture(scope="session")
def _every_module() -> None:
    walk = pkgutil.walk_packages(harness.__path__, "harness.", onerror=lambda name: None)  # harness.torch
    for module in walk:
        if not module.name.endswith("__main__"):
            with contextlib.suppress(MissingDependency):  # PyTorch
                importlib.import_module(module.name)


@pytest.fixture
def pytester(_every_module: None, pytester: pytest.Pytester) -> pytest.Pytester:
    """Run pytest inside pytest with every module of harness loaded: `runpytest_inprocess` forgets the modules
    that it was the first to import, and each of them would be there twice from then on.
    """
    return pytester


@pytest.fixture
def gpu() -> Iterator[Any]:
    """Open a context on the first GPU, and close it after the test."""
    from harness.driver import Context, Device

    with Context(Device.open()) as context:
        yield context


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the kill rates of tests/emulator/test_mutation.py, which a passing test does not show."""
    reports = [r for key in ("passed", "failed") for r in terminalreporter.getreports(key)]
    rates = sorted(
        value for r in reports for key, value in r.user_properties if key == "mutation" and r.when == "call"
    )
    if rates:
        terminalreporter.section("mutants")
        for line in rates:
            terminalreporter.write_line(line)
