"""A pytest plugin: no test leaves behind what another would see.

After each test the process has the environment, working directory, import path, signal handlers and NumPy
error state that it had before, and the modules of harness hold what they held. What a test did change is put
back, and that test fails.
"""

from __future__ import annotations

import itertools
import operator
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Set by others at their leisure: pytest names the test and its phase, PyTorch where its compiler keeps code.
_OTHERS = ("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR")


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> Iterator[None]:
    """Restore the state of this process after a test, and fail the test that changed it."""
    before = [place.read() for place in _PLACES]
    yield
    changes = []
    for place, old in zip(_PLACES, before, strict=True):
        if told := place.changes(old, place.read()):
            changes.append(f"{place.name}: {', '.join(told)}")
            place.restore(old)
    if changes:
        pytest.fail("this test left a change behind:\n  " + "\n  ".join(changes), pytrace=False)


class _Place(NamedTuple):
    """A place of state: how to read it, to put it back, and to name the changes between two readings."""

    name: str
    read: Callable[[], Any]
    restore: Callable[[Any], None]
    changes: Callable[[Any, Any], list[str]]


def _value_changes(before: object, now: object) -> list[str]:
    return [] if now == before else [f"it was {before!r} and is {now!r}"]


def _item_changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return [f"{name} was {before.get(name)!r} and is {now.get(name)!r}" for name in names]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OTHERS}


def _set_environment(values: dict[str, str]) -> None:
    for name in _environment().keys() - values.keys():
        del os.environ[name]
    os.environ.update(values)


def _set_path(path: list[str]) -> None:
    sys.path[:] = path


def _handlers() -> dict[str, Any]:
    return {number.name: signal.getsignal(number) for number in _SIGNALS}


def _set_handlers(handlers: dict[str, Any]) -> None:
    for number in _SIGNALS:
        signal.signal(number, handlers[number.name])


def _set_error_state(state: Any) -> None:
    np.seterr(**state)


_Modules = dict[str, tuple[Any, dict[str, Any]]]


def _modules() -> _Modules:
    """Return each module of harness with its names."""
    return {
        name: (module, dict(vars(module)))
        for name, module in list(sys.modules.items())
        if name == "harness" or name.startswith("harness.")
    }


def _set_modules(modules: _Modules) -> None:
    for name, (module, values) in modules.items():
        sys.modules[name] = module
        vars(module).update(values)


def _module_changes(before: _Modules, now: _Modules) -> list[str]:
    """Name modules that are others or gone, and their names that stand for another object or are gone. A
    module imported meanwhile is no change, nor is a name that a module adds: it keeps a late import so.
    """
    changed = []
    for module, (was, values) in before.items():
        found, others = now.get(module, (None, {}))
        if found is not was:
            changed.append(module)
            continue
        # First all names at once: this runs after each of thousands of tests, and most change none.
        if not all(map(operator.is_, map(others.get, values, itertools.repeat(others)), values.values())):
            changed += [f"{module}.{k}" for k, v in values.items() if others.get(k, others) is not v]
    return changed


_PLACES = (
    _Place("environment", _environment, _set_environment, _item_changes),
    _Place("working directory", os.getcwd, os.chdir, _value_changes),
    _Place("sys.path", lambda: list(sys.path), _set_path, _value_changes),
    _Place("signal handlers", _handlers, _set_handlers, _item_changes),
    _Place("NumPy error state", np.geterr, _set_error_state, _item_changes),
    _Place("modules of harness", _modules, _set_modules, _module_changes),
)
