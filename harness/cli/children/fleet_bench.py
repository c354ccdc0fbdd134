"""``harness bench`` on several GPUs: a unit of work for each kernel and size, with its baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli import matmul_option, options, running
from harness.cli.children import apart, fleet, isolation
from harness.cli.views import timed
from harness.errors import HarnessError
from harness.support.children import lines

if TYPE_CHECKING:
    from harness.cli.session import Points
    from harness.fleet.cards import Card
    from harness.fleet.units import Outcome, Unit
    from harness.kernels.spec import Variant
    from harness.launch.builds import Built, Skipped
    from harness.problems.protocol import Problem
    from harness.results.record import Document
    from harness.results.rows import Row
    from harness.support.cache import Cache

_REF = "ref"


@dataclass(frozen=True, kw_only=True)
class _Planned:
    """A unit and what it is to measure."""

    unit: Unit
    built: Built
    problem: Problem


@dataclass(kw_only=True)
class _Model:
    """The GPUs of one model, and what is measured on them."""

    cards: Sequence[Card]
    built: Sequence[Built]
    skipped: Sequence[Skipped]
    plans: Sequence[_Planned]
    done: dict[int, tuple[Card, Outcome]]
    left_out: dict[str, list[str]]  # sizes that were not asked for and that a kernel does not take, by reason


def bench(ctx: click.Context, variants: Sequence[Variant], points: Points, meta: Document) -> None:
    """Measure `variants` at `points` on all GPUs of a fleet, write the records, print tables, and exit.

    GPUs of several models measure everything each; there is a record and a table for each model then.
    """
    given = ctx.params
    matmul_option.refuse(given["kernels"], True, "--gpus")
    with ExitStack() as owned:
        found = owned.enter_context(fleet.opened(given["gpus"], given["scheduler"]))
        models = []
        for cards in found.cards.models().values():
            models.append(_planned(ctx, variants, points, cards, owned))
        paths = fleet.beside(given["json_file"], [model.cards[0].gpu["name"] for model in models])
        plans = [plan.unit for model in models for plan in model.plans]
        step = owned.enter_context(running.progress(len(plans)))
        fault = _perform(found, models, step)
    last: HarnessError | None = None
    every: list[Row] = []
    for model, path in zip(models, paths, strict=True):
        model.cards = found.cards.of(model.cards[0].model)
        records, unwritten = _conclude(ctx, model, points, meta, fault, path)
        every += records
        last = last or unwritten
    running.finish(every, [s for model in models for s in model.skipped], fault or last)
    if given["ref"]:
        compared = [r for r in every if r["status"] == "ok" and not r.get("baseline")]
        running.conclude(r.get("decision") or "INCONCLUSIVE" for r in compared)


def _planned(
    ctx: click.Context, variants: Sequence[Variant], points: Points, cards: Sequence[Card], owned: ExitStack
) -> _Model:
    """Build all variants for the GPUs of one model, and plan a unit for each size that a kernel takes."""
    from harness.launch.builds import build_all

    cache, gpu = options.open_cache(), fleet.device(cards[0])
    target = options.one_arch(ctx.params["arch"], gpu)
    with running.progress(len(variants)) as step:
        built, skipped = build_all(variants, [target], cache, step)
    model, left_out = cards[0].model, dict[str, list[str]]()
    plans = [plan for one in built for plan in _of_kernel(ctx, one, points, model, cache, left_out)]
    return _Model(cards=cards, built=built, skipped=skipped, plans=plans, done={}, left_out=left_out)


def _of_kernel(
    ctx: click.Context,
    one: Built,
    points: Points,
    model: tuple[Any, ...],
    cache: Cache,
    left_out: dict[str, list[str]],
) -> Iterator[_Planned]:
    """Yield a unit for each size of one kernel; of sizes that were not asked for, those that it takes.

    The others go into `left_out` by reason.
    """
    from harness.fleet.parcel import parcel
    from harness.fleet.units import FOLDER, Unit

    target = one.cubin.arch
    mine = parcel([one.variant], target, cache, ctx.params["include"])
    timeout = float(ctx.params["kernel_timeout"])
    reference, files, more = _reference(ctx.params["ref"], target, cache)
    for axes, problem in apart.taken(one, points, None if ctx.params["axis"] else left_out):
        changes = isolation.of_kernel(one) | {
            "include": mine.include,
            "ref": reference,
            "axis": apart.values(axes),
        }
        words = isolation.command_line(ctx, mine.word, changes, without=apart.WITHOUT)[1:]
        unit = Unit(
            words=(*words, "--rows", f"{FOLDER}/result"),
            label=f"{one.label} {problem.label}",
            timeout=timeout,
            model=model,
            files={**mine.files, **files},
            cubins={**mine.cubins, **more},
        )
        yield _Planned(unit=unit, built=one, problem=problem)


def _reference(word: str | None, target: str, cache: Cache) -> tuple[str | None, dict[str, bytes], Any]:
    """Return the word for the kernel of --ref in a unit, its files in a folder of their own, its build."""
    from harness.fleet.parcel import parcel
    from harness.fleet.units import FOLDER
    from harness.kernels import catalog
    from harness.kernels.compiler import compile_kernel

    if word is None:
        return None, {}, {}
    compile_kernel(catalog.kernel(word).variant(), target, cache)
    mine = parcel([catalog.kernel(word).variant()], target, cache)
    there = mine.word.replace(FOLDER, f"{FOLDER}/{_REF}")
    return there, {f"{_REF}/{name}": data for name, data in mine.files.items()}, mine.cubins


def _perform(found: Any, models: Sequence[_Model], step: Any) -> HarnessError | None:
    """Perform the units of all models; return what ended it early, if anything did."""
    where = [(model, i) for model in models for i in range(len(model.plans))]
    done, fault = running.collect(found.run([m.plans[i].unit for m, i in where], step))
    for index, card, outcome in done:
        model, i = where[index]
        model.done[i] = card, outcome
    return fault


def _conclude(
    ctx: click.Context,
    model: _Model,
    points: Points,
    meta: Document,
    fault: HarnessError | None,
    path: Path | None,
) -> tuple[list[Row], HarnessError | None]:
    """Write and print what the GPUs of one model have measured; return its rows, and an error of writing."""
    from harness.fleet import merge
    from harness.results import encode
    from harness.results.rows import label

    given = ctx.params
    measured: list[tuple[Card, Sequence[Row]]] = []
    about: dict[str, Any] = dict(model.cards[0].gpu)
    for i, (card, outcome) in sorted(model.done.items()):
        said, *rows = lines(outcome.content) or [{}]
        about = {**said, **about}
        plan = model.plans[i]
        if not any(label(row) == plan.built.label and row["shape"] == plan.problem.label for row in rows):
            rows.append(_lost(plan, card, outcome, given))
        measured.append((card, rows))
    records = isolation.in_order(merge.together(measured), points)
    entry = merge.entry(model.cards, merge.apart(measured))
    meta = {
        **meta,
        "gpu": about,
        "fleet": entry,
        "ended": fleet.ended(fault),
        "skipped": [f"{s.variant.label}, {s.arch}: {s.error}" for s in model.skipped],
    }
    unwritten = running.keep(path, "bench", records, meta)
    style = given["style"]
    timed.bench([encode.static_record(b) for b in model.built], records, meta, style, wide=given["wide"])
    fleet.show(entry, err=style == "csv")
    running.tell(model.left_out, err=style == "csv")
    running.explain(records, model.skipped, err=style == "csv")
    running.warn(model.built)
    return records, unwritten


def _lost(plan: _Planned, card: Card, outcome: Outcome, given: Mapping[str, Any]) -> Row:
    """Return the row of a unit that wrote none."""
    from harness.bench.row import Measurement
    from harness.results import encode

    error = HarnessError(outcome.error or "its process ended without this row")
    row = Measurement.failed_with(plan.built, plan.problem, error)
    threshold = given["threshold"] if given["ref"] else None
    return encode.timed_record(row, fleet.device(card).peak_fp32, threshold)
