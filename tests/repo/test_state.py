"""No test leaves behind what another would see: each leak is put back, and the test that leaks fails."""

from __future__ import annotations

import os

import pytest

from shared import state

LEAKS = {
    "environment": ("os.environ['COLUMNS'] = '60'", "'COLUMNS' not in os.environ", "COLUMNS was None"),
    "a variable removed": (
        "del os.environ['HARNESS_CACHE_DIR']",
        "'HARNESS_CACHE_DIR' in os.environ",
        "and is None",
    ),
    "folder": ("os.chdir('/')", "os.getcwd() != '/'", "working directory"),
    "path": ("sys.path.append('x')", "'x' not in sys.path", "sys.path"),
    "signal": (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "signal.getsignal(signal.SIGTERM) != signal.SIG_IGN",
        "SIGTERM was",
    ),
    "numpy": ("np.seterr(under='raise')", "np.geterr()['under'] != 'raise'", "under was"),
    "a function replaced": (
        "terminal.columns = None",
        "terminal.columns",
        "harness.support.terminal.columns",
    ),
    "a function removed": ("del terminal.columns", "terminal.columns", "harness.support.terminal.columns"),
    "a module loaded again": (
        "sys.modules['harness.support.terminal'] = type(sys)('other')",
        "sys.modules['harness.support.terminal'] is terminal",
        "modules of harness: harness.support.terminal",
    ),
}
TESTS = """
import os, signal, sys
import numpy as np
from harness.support import terminal

def test_leaks(): {leak}
def test_after(): assert {right}
"""


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """No other plugin, which might order the tests otherwise."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return pytester


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_put_back_and_told(inner: pytest.Pytester, name: str) -> None:
    leak, right, told = LEAKS[name]
    inner.makepyfile(TESTS.format(leak=leak, right=right))
    result = inner.runpytest_inprocess("-p", "shared.state")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_leaks*", "*left a change behind:*", f"*{told}*"])


def test_what_a_fixture_puts_back_is_no_leak(inner: pytest.Pytester) -> None:
    inner.makepyfile(
        """
import os
import pytest
from harness.support import terminal

@pytest.fixture(autouse=True)
def replaced(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(terminal, "columns", None)

def test_it(): assert os.environ["COLUMNS"] == "60" and terminal.columns is None
def test_late_imports_are_none(): import harness.results.claims
"""
    )
    inner.runpytest_inprocess("-p", "shared.state").assert_outcomes(passed=2)


def test_it_costs_little() -> None:
    """It is read twice a test, and there are thousands."""
    import timeit

    read = min(timeit.repeat(lambda: [place.read() for place in state._PLACES], number=1, repeat=20))
    assert read < 0.02, os.environ.get("PYTEST_XDIST_WORKER")
