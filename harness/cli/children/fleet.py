"""``--gpus`` and ``--scheduler``: the same command on several GPUs, each unit of it in a worker's process."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harness.errors import HarnessError, UsageError
from harness.support import terminal

if TYPE_CHECKING:
    from harness.driver import Device
    from harness.fleet.cards import Card
    from harness.fleet.sweep import Fleet

F = TypeVar("F", bound=Callable[..., Any])
ALL = "all"

_gpus = click.option(
    "--gpus",
    metavar="all|0,1|N",
    help="On all GPUs, on these, or on N of them at once; each kernel and size is measured on one.",
)
_scheduler = click.option(
    "--scheduler",
    metavar="ADDRESS|slurm",
    help="On the GPUs of `harness worker`s of this scheduler of Dask, or on --gpus N jobs of SLURM.",
)


def options(command: F) -> F:
    """Add ``--gpus`` and ``--scheduler`` to a command."""
    return _gpus(_scheduler(command))


def wanted(gpus: str | None, scheduler: str | None, device: str | None) -> bool:
    """Return True if a command asks for several GPUs. Raises UsageError if it also names one of them."""
    if device is not None and (gpus or scheduler):
        raise UsageError("--device is one GPU, and --gpus and --scheduler are several: one of the two")
    return bool(gpus or scheduler)


def selected(text: str) -> list[Device]:
    """Return the GPUs of this machine that ``--gpus`` names: ``all``, a number of them, or a list.

    Raises UsageError for a text that means nothing or GPUs that are not there, NoGpu where there is none.
    """
    from harness.driver import Device

    there = list(Device.all())
    if text == ALL:
        return there
    words = [word.strip() for word in text.split(",") if word.strip()]
    if text.strip().isascii() and text.strip().isdecimal():
        count = int(text)
        if not 0 < count <= len(there):
            hint = f"--gpus all, or a list such as {','.join(str(d.ordinal) for d in there[:2])},"
            raise UsageError(f"--gpus {text}: there are {len(there)}", hint=hint)
        return there[:count]
    found = [Device.open(word) for word in words]
    if not found or len({d.uuid for d in found}) < len(found):
        raise UsageError(f"--gpus {text}: all, a number of GPUs, or a list of different ones such as 0,1")
    return found


@contextlib.contextmanager
def opened(gpus: str | None, scheduler: str | None) -> Iterator[Fleet]:
    """Start or find the workers that the options ask for, and yield the fleet of their GPUs.

    Raises UsageError for options that mean nothing, NoGpu or HarnessError where there is no GPU.
    """
    from harness.fleet import cluster, sweep

    address = scheduler or ""
    if address:
        count = _count(gpus)
        client = cluster.connected(address, count)
    else:
        here = selected(gpus or ALL)
        count, client = len(here), cluster.local(here)
    with client as found:
        fleet = sweep.Fleet(found, address="" if address == cluster.SLURM else address, said=_say)
        fleet.wait(count, math.inf if address == cluster.SLURM else None)  # jobs wait for their turn
        if link := cluster.dashboard(found):
            _say(f"dashboard: {link}")
        yield fleet


def _count(gpus: str | None) -> int:
    """Return how many GPUs of a scheduler are waited for."""
    if gpus in (None, ALL):
        return 1
    if gpus is not None and gpus.isascii() and gpus.isdecimal() and int(gpus):
        return int(gpus)
    raise UsageError(f"--gpus {gpus}: with --scheduler it is the number of GPUs to wait for, or all")


def device(card: Card) -> Device:
    """Return the card's GPU as this machine's code knows GPUs."""
    from dataclasses import fields

    from harness.driver import Device

    found = {f.name: card.gpu[f.name] for f in fields(Device)}
    return Device(**{**found, "capability": tuple(found["capability"])})


def beside(path: Path | None, models: Sequence[str]) -> list[Path | None]:
    """Return the file for the GPUs of each model: `path`, with the model's name where there are several.

    Raises UsageError where several records would go to standard output.
    """
    if path is None or len(models) == 1:
        return [path] * len(models)
    if not path.suffix:
        raise UsageError(f"{path} for GPUs of {len(models)} models", hint="each has a record: --json r.json")
    names = [re.sub(r"[^A-Za-z0-9]+", "-", model).strip("-") for model in models]
    numbered = [f"{n}-{names[:i].count(n) + 1}" if n in names[:i] else n for i, n in enumerate(names)]
    return [path.with_stem(f"{path.stem}-{name}") for name in numbered]


def ended(fault: HarnessError | None) -> str:
    """Return what a record says of the end of a run; no addresses of machines."""
    return re.sub(r"\b(tcp|tls)://[^\s:]+(:\d+)?", r"\1://...", str(fault)) if fault else "complete"


def show(entry: Mapping[str, Any], *, err: bool = False) -> None:
    """Print the table of the GPUs of a record's entry, and why any of them was left out."""
    from harness.results import tables

    cells = [
        [
            card["uuid"][:12],
            card["host"],
            str(card["units"]),
            f"{card['busy']:.1f} s",
            "-" if card["apart"] is None else f"{100 * card['apart']:+.2f}%",
        ]
        for card in entry["cards"]
    ]
    table = tables.plain_table(cells, ["GPU", "host", "units", "busy", "baseline"])
    click.echo(f"\n{table}", err=err)
    if any(card["apart"] is not None for card in entry["cards"]):
        said = "baseline: its time against the median of the GPUs that measured it at the same sizes"
        click.echo(terminal.fill(said), err=err)
    for card in entry["cards"]:
        if card["left_out"]:
            click.echo(terminal.fill(f"{card['uuid'][:12]} was left out: {card['left_out']}"), err=err)


def _say(text: str) -> None:
    """Tell what happens to the fleet while it works."""
    click.echo(terminal.fill(text), err=True)
