"""A fleet without GPUs: workers of Dask that are threads of this process, whose GPUs a test describes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from harness.fleet import sweep
from harness.fleet.sweep import Fleet
from harness.fleet.units import Outcome, Unit

GPU = {
    "ordinal": 0, "name": "Fake GPU", "uuid": "", "pci_bus_id": "0000:00:00.0", "capability": (9, 0),
    "sms": 132, "clock_hz": 1980000000, "memory_clock_hz": 3201000000, "bus_bits": 6144,
    "memory_bytes": 2**30, "l2_bytes": 62914560, "shared_per_block_optin": 232448, "shared_per_sm": 233472,
    "registers_per_sm": 65536, "max_threads_per_sm": 2048, "driver": "13.0",
}  # fmt: skip


def gpu(uuid: str, **other: Any) -> dict[str, Any]:
    """Return what the driver says of a GPU."""
    return {**GPU, "uuid": f"GPU-{uuid}", **other}


@dataclass
class Rig:
    """A fleet, and how its workers behave: `about` by worker, `perform` called with its name and the unit."""

    client: Any
    about: dict[str, dict[str, Any]]
    perform: Callable[[str, Unit], Outcome]
    done: list[tuple[str, str]] = field(default_factory=list)  # (worker, label) in order
    said: list[str] = field(default_factory=list)

    def fleet(self, count: int = 0, patience: float = 5.0) -> Fleet:
        found = Fleet(self.client, patience=patience, said=self.said.append)
        found.wait(count or len(self.about))
        return found


def right(worker: str, unit: Unit) -> Outcome:
    return Outcome(content=f"{worker} did {unit.label}", seconds=0.1)


_rigs: list[Rig] = []  # of the test that runs; what goes to a worker has to be found by name


def described() -> dict[str, Any]:
    """Stands for `units.describe` in a worker."""
    from distributed import get_worker

    about = _rigs[0].about[str(get_worker().name)]
    return {"host": "here", "code": "same", "error": "", "gpu": about, **about.get("said", {})}


def performed(unit: Unit, stopped: Any, *, parent: str) -> Outcome:
    """Stands for `units.perform` in a worker."""
    from distributed import get_worker

    name = str(get_worker().name)
    outcome = _rigs[0].perform(name, unit)
    _rigs[0].done.append((name, unit.label))
    return outcome


def workers(*names: str) -> pytest.MarkDecorator:
    """Give a test's `rig` workers of these names."""
    return pytest.mark.parametrize("rig", [names], indirect=True, ids=["-".join(names)])


@pytest.fixture
def rig(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A rig with the workers a, b and c, or those that the test names by `workers`."""
    distributed = pytest.importorskip("distributed", reason="pip install '.[fleet]'")
    names = getattr(request, "param", ("a", "b", "c"))
    options = {"nthreads": 1, "resources": {"GPU": 1}, "memory_limit": 0}
    path = list(sys.path)  # Dask adds folders of its own
    cluster = distributed.SpecCluster(
        scheduler={
            "cls": distributed.Scheduler,
            "options": {"protocol": "inproc://", "dashboard_address": "127.0.0.1:0"},
        },
        workers={name: {"cls": distributed.Worker, "options": options} for name in names},
        silence_logs=50,
    )
    with cluster, distributed.Client(cluster, set_as_default=False) as client:
        found = Rig(client, {name: gpu(name) for name in names}, right)

        _rigs[:] = [found]
        monkeypatch.setattr(sweep, "describe", described)
        monkeypatch.setattr(sweep, "perform", performed)
        monkeypatch.setattr("harness.results.record.code_sha256", lambda: "same")
        yield found
    sys.path[:] = path
