"""A pytest plugin that leaves slow tests out.

`slow` marks what CI runs and a newcomer need not wait for, `exhaustive` what takes CI too long. Such a test
runs where something names it: `-m slow`, `-m exhaustive`, `-m gpu`, `-m ''`, `-k`, or its node id. A plain
`pytest` leaves it out and says so in its last lines.

``--share 0.4`` runs of a test with many cases about that share, drawn by ``--share-seed``, and one case at
least: what takes CI too long as a whole is run in turns. With ``--share-tests 0.5`` one case at least runs
of about half of the tests only, as on a slow machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

MARKERS = (
    "slow: a run takes it only where -m, -k or a node id names it",
    "exhaustive: the same, and CI does not take it",
)
RUN_SLOW = "pytest -m slow -n auto"

_LEFT_OUT, _UNDRAWN = pytest.StashKey[int](), pytest.StashKey[int]()
_COUNTS = {"left_out": _LEFT_OUT, "undrawn": _UNDRAWN}  # by what a worker calls them


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("selection")
    group.addoption("--share", type=float, default=1.0, help="of the cases of a test, the share that runs")
    group.addoption(
        "--share-tests", type=float, default=1.0, help="of the tests, those that run at least once"
    )
    group.addoption("--share-seed", default="0", help="what these cases are drawn from")


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def _something_is_named(config: pytest.Config) -> bool:
    """Tell whether -m or -k chooses the tests; `-m ''` leaves no other trace than the argument itself."""
    return bool(config.option.markexpr or config.option.keyword or "-m" in config.invocation_params.args)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_slow_out(config, items)
    if config.option.share < 1:
        out = _undrawn(items, config.option.share, config.option.share_tests, config.option.share_seed)
        items[:] = [i for i in items if i not in out]
        config.hook.pytest_deselected(items=list(out))
        config.stash[_UNDRAWN] = len(out)


def _undrawn(items: Sequence[pytest.Item], share: float, tests: float, seed: str) -> set[pytest.Item]:
    """Return the cases that are not drawn; of a share of the tests the first case in the draw runs anyway."""
    drawn: dict[str, list[tuple[float, pytest.Item]]] = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        drawn.setdefault(name, []).append((_place(f"{seed} {item.nodeid}"), item))
    out: set[pytest.Item] = set()
    for name, cases in drawn.items():
        least = min(place for place, _ in cases) if _place(f"{seed} test {name}") < tests else -1
        out |= {item for place, item in cases if place >= share and place != least}
    return out


def _place(name: str) -> float:
    """Return where a name is in a draw, from 0 to 1."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest()) / 2**56


def _leave_slow_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _something_is_named(config):
        return
    named = _node_ids(config)
    out = [i for i in items if _left_out(i) and not _is_among(i, named)]
    if out:
        dropped = set(out)
        items[:] = [i for i in items if i not in dropped]
        config.hook.pytest_deselected(items=out)
    config.stash[_LEFT_OUT] = len(out)


def _left_out(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("slow", "exhaustive"))


def _node_ids(config: pytest.Config) -> list[tuple[Path, str]]:
    """Return the arguments with "::" as (file, the names after it)."""
    split = [argument.partition("::") for argument in config.args]
    return [((config.invocation_params.dir / file).resolve(), name) for file, colons, name in split if colons]


def _is_among(item: pytest.Item, named: Sequence[tuple[Path, str]]) -> bool:
    own = item.nodeid.partition("::")[2]
    return any(
        item.path == file and (own == name or own.startswith((f"{name}[", f"{name}::")))
        for file, name in named
    )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the controller what this worker left out; every worker collects the same tests."""
    if hasattr(session.config, "workeroutput"):
        stash = session.config.stash
        session.config.workeroutput |= {name: stash.get(key, 0) for name, key in _COUNTS.items()}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    for name, key in _COUNTS.items():
        node.config.stash[key] = getattr(node, "workeroutput", {}).get(name, 0)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    if count := config.stash.get(_LEFT_OUT, 0):
        tests = "test" if count == 1 else "tests"
        terminalreporter.write_line(f"{count} slow {tests} left out: {RUN_SLOW}")
    if count := config.stash.get(_UNDRAWN, 0):
        how = f"--share {config.option.share:g} --share-seed {config.option.share_seed}"
        terminalreporter.write_line(f"{count} cases left out by {how}")
