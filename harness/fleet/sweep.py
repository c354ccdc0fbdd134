"""Perform units of work wherever a GPU is free, until each has an outcome.

As many units are on their way as there are GPUs, and the next goes out when one comes back, so that a slow
GPU gets fewer. Dask moves a unit whose worker has died. What is lost in another way (a scheduler that was
started again, a GPU that faults where others do not) is sent out anew, to another GPU where there is one.
"""

from __future__ import annotations

import contextlib
import functools
import math
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError
from harness.fleet.cards import Card, Cards
from harness.fleet.cluster import RESOURCE, connect, imported
from harness.fleet.units import Outcome, Unit, describe, perform

if TYPE_CHECKING:
    from distributed import Client, Future

_CONNECTING = 10  # seconds after which a worker is asked again what it is
LOSSES = 3  # of a unit, after which it is given up
_LOOK = 0.5  # seconds between looks at who is there
PATIENCE = 60.0  # seconds without a GPU, or without a scheduler, after which a sweep is given up
Said = Callable[[str], None]
Model = tuple[Any, ...] | None  # `Card.model`; None: any


@dataclass(kw_only=True, eq=False)
class _Job:
    """A unit on its way: where it may run, where it has failed, and with what."""

    index: int
    unit: Unit
    tried: dict[str, Outcome] = field(default_factory=dict)
    where: tuple[str, ...] = ()
    careful: bool = False
    lost: int = 0  # times that its worker or scheduler was gone before it was done


class Fleet:
    """The GPUs behind a client of Dask.

    `cards` are those seen so far. `address` is that of a scheduler that may be started again, empty where it
    is this process's own. `said` is called with what a user wants to know, such as that a GPU is left out.
    """

    def __init__(
        self, client: Client, *, address: str = "", patience: float = PATIENCE, said: Said = lambda _: None
    ) -> None:
        from harness.results import record

        self.client, self.cards = client, Cards()
        self._address, self._patience, self._said = address, patience, said
        self._code = record.code_sha256()
        self._addresses: dict[str, str] = {}  # by name, of those that are present
        self._asked: dict[str, tuple[Future, float]] = {}  # address -> what it will say of itself, since when
        self._refused: dict[str, str] = {}  # address -> why it is not used
        self._looked = -math.inf
        self._distributed = imported()

    def wait(self, count: int = 1, patience: float | None = None) -> None:
        """Wait until there are `count` GPUs, or some and no more for a while.

        Raises HarnessError if there is none after `patience` seconds, with the reasons that workers gave.
        """
        patience = self._patience if patience is None else patience
        began, seen, since = time.monotonic(), 0, time.monotonic()
        while True:
            self._looked = -math.inf
            self._refresh()
            able = len(self.cards.able())
            if able != seen:
                seen, since = able, time.monotonic()
            if able >= count or (able and time.monotonic() - since > self._patience / 6):
                return
            if not able and time.monotonic() - began > patience:
                raise self._nobody()
            time.sleep(_LOOK / 5)

    def run(
        self, units: Sequence[Unit], progress: Callable[[str], None] = lambda _: None
    ) -> Iterator[tuple[int, Card, Outcome]]:
        """Perform all units; yield each one's index, the card that did it, and its outcome.

        The order is that in which they are done. `progress` is called with each unit's label as it goes out.
        Units for a model of which no GPU has been there for a while end with that as their error. Raises
        HarnessError if there is no other model either; what is done has been yielded by then.
        """
        waiting: dict[Model, deque[_Job]] = {}
        for i, unit in enumerate(units):
            waiting.setdefault(unit.model, deque()).append(_Job(index=i, unit=unit))
        flying: dict[Future, _Job] = {}
        done: queue.SimpleQueue[Future] = queue.SimpleQueue()
        since = dict.fromkeys(waiting, time.monotonic())  # when there was last a GPU of a model
        try:
            while flying or any(waiting.values()):
                self._refresh()
                yield from self._lost(self._stranded(flying), waiting)
                for model, jobs in waiting.items():
                    able = self._able(model)
                    busy = sum(job.unit.model == model for job in flying.values())
                    if able or not (jobs or busy):
                        since[model] = time.monotonic()
                    elif time.monotonic() - since[model] > self._patience or not self._may_return(model):
                        yield from self._deserted(jobs, waiting)
                    for job in [jobs.popleft() for _ in range(min(len(jobs), len(able) - busy))]:
                        if set(able) <= set(job.tried) and not job.careful:  # where else could it be tried?
                            yield self._settled(job, *next(iter(job.tried.items())))
                            continue
                        progress(job.unit.label)
                        flying[self._submitted(job, able, done)] = job
                for job, came in [(flying.pop(f), self._outcome(f)) for f in _arrived(done) if f in flying]:
                    if came is None:
                        yield from self._lost([job], waiting)
                    elif self._elsewhere(job, *came):
                        waiting[job.unit.model].appendleft(job)
                    else:
                        yield self._settled(job, *came)
        finally:
            with contextlib.suppress(Exception):  # a scheduler that has gone cancels nothing
                self.client.cancel(list(flying), force=True)

    def _deserted(self, jobs: deque[_Job], models: Iterable[Model]) -> Iterator[tuple[int, Card, Outcome]]:
        """Give up the jobs of a model whose GPUs have gone. Raises HarnessError if those of all have."""
        if not any(map(self._able, models)):
            raise self._nobody()
        while jobs:
            yield self._settled(jobs.popleft(), "", _failed(self._nobody().what))

    def _able(self, model: Model) -> list[str]:
        """Return the names of the workers that may be given work for GPUs of `model`, None for any."""
        return [card.name for card in self.cards.able() if model in (None, card.model)]

    def _elsewhere(self, job: _Job, name: str, outcome: Outcome) -> bool:
        """Return True if a unit that faulted is to be performed again, and prepare it for that."""
        others = [x for x in self._able(job.unit.model) if x != name]
        if not outcome.fault or job.tried or not (others or job.unit.careful):
            return False
        job.tried[name] = outcome
        if job.unit.careful:  # in a way that finds out what is at fault, on the same GPU if there is no other
            job.unit, job.careful = replace(job.unit, words=job.unit.careful), True
        return True

    def _lost(
        self, jobs: Sequence[_Job], waiting: dict[Model, deque[_Job]]
    ) -> Iterator[tuple[int, Card, Outcome]]:
        """Send jobs out again whose worker or scheduler has gone; yield those to which it happens always."""
        for job in jobs:
            job.lost += 1
            if job.lost < LOSSES:
                waiting[job.unit.model].appendleft(job)
            else:
                why = f"its worker was gone {job.lost} times before it was done"
                yield self._settled(job, "", _failed(why))

    def _submitted(self, job: _Job, names: Sequence[str], done: queue.SimpleQueue[Future]) -> Future:
        """Send a job to one of the workers with these names where it has not failed.

        Its future goes into `done` when it is.
        """
        others = [name for name in names if name not in job.tried] or names
        job.where = tuple(self._addresses[name] for name in others)
        future = self.client.submit(
            _performed, job.unit, workers=list(job.where), resources={RESOURCE: 1}, pure=False
        )
        future.add_done_callback(done.put)
        return future

    def _stranded(self, flying: dict[Future, _Job]) -> list[_Job]:
        """Take back the jobs none of whose workers is there any more, and return them."""
        there = set(self._addresses.values())
        lost = [future for future, job in flying.items() if there.isdisjoint(job.where)]
        found = [flying.pop(future) for future in lost]
        if lost:
            with contextlib.suppress(Exception):
                self.client.cancel(lost, force=True)
        return found

    def _outcome(self, future: Future) -> tuple[str, Outcome] | None:
        """Return the worker's name and the outcome; None if it was lost on the way."""
        killed = self._distributed.KilledWorker
        try:
            name, outcome = future.result(timeout=self._patience)
            return name, outcome
        except killed as e:
            why = f"{e.allowed_failures + 1} workers died of it"
            return "", _failed(why)
        except (self._distributed.CancelledError, OSError, TimeoutError):
            return None
        except Exception as e:  # whatever Python raises on the other machine
            return "", _failed(f"{type(e).__name__}: {e}")

    def _settled(self, job: _Job, name: str, outcome: Outcome) -> tuple[int, Card, Outcome]:
        """Return what is yielded for a job that is done, and hold its failures against the cards."""
        known = self.cards.known
        card = known.get(name) or next(c for c in known.values() if job.unit.model in (None, c.model))
        if not outcome.error and not job.careful:
            for other, failed in job.tried.items():
                if self.cards.failed(other, f"{job.unit.label}: {failed.error}"):
                    left_out = self.cards.known[other]
                    self._said(f"{_called(left_out)} is left out: {left_out.out}")
        card.units += name == card.name
        card.seconds += outcome.seconds
        return job.index, card, outcome

    def _refresh(self) -> None:
        """Look who is there, at most twice a second, and ask those that are new what they are."""
        if time.monotonic() - self._looked < _LOOK and self.client.status == "running":
            return
        self._looked = time.monotonic()
        try:
            workers = self.client.scheduler_info(n_workers=-1)["workers"]
        except (OSError, TimeoutError, ValueError, RuntimeError):
            self._reconnect()
            return
        here = {str(about["name"]): address for address, about in workers.items()}
        self.cards.keep(here)
        for name, address in here.items():
            if self._addresses.get(name) == address or address in self._refused:
                continue
            asked, when = self._asked.get(address, (None, 0.0))
            if asked is not None and asked.status in ("finished", "error"):
                del self._asked[address]
                self._met(name, address, _answer(asked), workers[address].get("resources") or {})
            elif asked is None or time.monotonic() - when > _CONNECTING:  # it may have been lost
                # As a task: a worker that does not answer keeps nobody waiting.
                task = self.client.submit(describe, workers=[address], pure=False)
                self._asked[address] = task, time.monotonic()
        self._addresses = {n: a for n, a in self._addresses.items() if here.get(n) == a}
        self.cards.keep(self._addresses)

    def _met(self, name: str, address: str, about: Any, resources: dict[str, float]) -> None:
        """Take a worker's GPU in, or note why it is not used."""
        if isinstance(about, BaseException):
            why = f"harness does not run there: {about}"
        elif about["code"] != self._code:
            why = "it runs other code of harness: install the same version there"
        elif about["gpu"] is None:
            why = about["error"]
        elif resources.get(RESOURCE) != 1:
            why = f"it has no resource {RESOURCE}=1: harness worker, or dask worker --resources {RESOURCE}=1"
        elif any(c.uuid == about["gpu"]["uuid"] and c.name != name for c in self.cards.there()):
            why = f"another worker has {about['gpu']['uuid']}"
        else:
            self.cards.add(Card(name=name, host=about["host"], gpu=about["gpu"]))
            self._addresses[name] = address
            return
        self._refused[address] = why
        self._said(f"worker {name} is not used: {why}")

    def _reconnect(self) -> None:
        """Wait for a scheduler that was started again. Raises HarnessError if there is none."""
        self._addresses.clear()
        self.cards.keep(())
        if self._address:
            self._said(f"the scheduler at {self._address} does not answer: waiting for it")
            with contextlib.suppress(Exception):
                self.client.close(timeout=1)
            self.client = connect(self._distributed, self._address, self._patience)
        elif self.client.status == "closed":
            raise HarnessError("the scheduler has ended")

    def _may_return(self, model: Model) -> bool:
        """Return True if a GPU of `model` may still come: not if all that are there are left out."""
        there = [card for card in self.cards.there() if model in (None, card.model)]
        return not there or any(not card.out for card in there)

    def _nobody(self) -> HarnessError:
        out = [f"{_called(card)}: {card.out}" for card in self.cards.known.values() if card.out]
        why = "; ".join(dict.fromkeys([*out, *self._refused.values()])) or "no worker has come"
        return HarnessError(
            f"no GPU to work on: {why}", hint="harness worker ADDRESS on a machine with GPUs lends these"
        )


def _arrived(done: queue.SimpleQueue[Future]) -> list[Future]:
    """Wait for a moment, and return what is done by then."""
    found = []
    with contextlib.suppress(queue.Empty):
        found.append(done.get(timeout=_LOOK))
        while True:
            found.append(done.get_nowait())
    return found


def _answer(future: Future) -> Any:
    """Return what a worker says of itself, or the exception that it raised."""
    try:
        return future.result(timeout=_CONNECTING)
    except Exception as e:
        return e


def _failed(why: str) -> Outcome:
    """Return the outcome of a unit that no worker has performed to its end."""
    return Outcome(content="", seconds=0.0, error=why)


def _called(card: Card) -> str:
    """Return what a card is called in a message."""
    return f"{card.gpu['name']} {card.uuid[:12]} on {card.host}"


def _performed(unit: Unit) -> tuple[str, Outcome]:
    """Perform a unit in a worker of Dask; return the worker's name and the outcome."""
    from distributed import get_worker

    worker = get_worker()
    stopped = functools.partial(_cancelled, worker, worker.get_current_task())
    return str(worker.name), perform(unit, stopped, parent=worker.local_directory)


def _cancelled(worker: Any, key: str) -> bool:
    """Return True if nobody waits for the task of a worker any more."""
    task = worker.state.tasks.get(key)
    return task is None or task.state == "cancelled"
