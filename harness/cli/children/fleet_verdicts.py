"""``harness verify`` and ``harness judge`` on several GPUs: a unit of work for each kernel."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli import matmul_option, options, running
from harness.cli.children import fleet, isolation
from harness.cli.views import verified
from harness.errors import INCONCLUSIVE_EXIT, HarnessError

if TYPE_CHECKING:
    from harness.cli.session import Points
    from harness.fleet.cards import Card
    from harness.fleet.units import Outcome, Unit
    from harness.judging.verdict import Verdict
    from harness.kernels.spec import Variant
    from harness.launch.builds import Built
    from harness.results.rows import Row

_WITHOUT = ("sweep", "json_file", "style", "gpus", "scheduler", "scores", "untrusted")
_SECONDS = 600  # in which a kernel has to be verified at all shapes, or judged
_A_REPEAT = 0.01  # seconds more for each of --repeat at a shape
_FIRST = "0"  # the only GPU that a worker sees


def verify(ctx: click.Context, variants: Sequence[Variant], points: Points) -> None:
    """Verify kernels at `points` on a fleet, write the record, print the table, and exit."""
    from harness.fleet import merge
    from harness.launch.builds import build_all
    from harness.problems.protocol import unverified
    from harness.results import record

    given = ctx.params
    matmul_option.refuse(given["kernels"], True, "--gpus")
    with ExitStack() as owned:
        found = owned.enter_context(fleet.opened(given["gpus"], given["scheduler"]))
        cards = next(iter(found.cards.models().values()))
        target = options.one_arch(given["arch"], fleet.device(cards[0]))
        with running.progress(len(variants)) as step:
            built, skipped = build_all(variants, [target], options.open_cache(), step)
        units = [_verifying(ctx, one, points, cards[0].model) for one in built]
        step = owned.enter_context(running.progress(len(units)))
        done, fault = running.collect(found.run(units, step))
    kernels, measured = [], []
    for index, card, outcome in sorted(done, key=lambda one: one[0]):
        rows = list(_rows(built[index], points, card, outcome))
        kernels.append((built[index].label, rows))
        measured.append((card, rows))
    records = merge.together(measured)
    meta = record.provenance(seed=given["seed"]) | {
        "gpu": dict(cards[0].gpu),
        "fleet": merge.entry(found.cards.known.values(), {}),
        "repeats": given["repeats"],
        "ended": fleet.ended(fault),
        "skipped": [f"{s.variant.label}, {s.arch}: {s.error}" for s in skipped],
    }
    unwritten = running.keep(given["json_file"], "verify", records, meta)
    verified.show(kernels, given["repeats"], given["style"])
    running.name_shapes(points)
    fleet.show(meta["fleet"])
    running.explain(records, skipped)
    running.finish(records, skipped, fault or unwritten)
    if any(unverified(cls.from_axes(axes)) for cls, listed in points.items() for axes in listed):
        raise SystemExit(INCONCLUSIVE_EXIT)


def _verifying(ctx: click.Context, one: Built, points: Points, model: tuple[Any, ...]) -> Unit:
    """Return the unit that verifies one kernel at all shapes, on a GPU of the model it is built for."""
    from harness.fleet.parcel import parcel
    from harness.fleet.units import FOLDER, Unit

    mine = parcel([one.variant], one.cubin.arch, options.open_cache(), ctx.params["include"])
    changes = isolation.of_kernel(one) | {"include": mine.include, "device": _FIRST}
    words = isolation.command_line(ctx, mine.word, changes, without=_WITHOUT)[1:]
    return Unit(
        words=(*words, "--json", f"{FOLDER}/result"),
        label=one.label,
        timeout=limit(ctx.params["repeats"], max(map(len, points.values()))),
        model=model,
        files=mine.files,
        cubins=mine.cubins,
    )


def limit(repeats: int, shapes: int) -> float:
    """Return the seconds in which a kernel has to be verified."""
    return _SECONDS + _A_REPEAT * repeats * shapes


def _rows(one: Built, points: Points, card: Card, outcome: Outcome) -> Iterator[Row]:
    """Yield the rows of a unit; what ended it early is the error of the first shape without a row."""
    from harness.bench.row import Measurement
    from harness.problems.registry import resolve
    from harness.results import encode

    rows = json.loads(outcome.content)["rows"] if outcome.content else []
    yield from rows
    if outcome.error or not rows:
        cls = resolve(one.variant.kernel)
        done = {row["shape"] for row in rows}
        problems = [cls.from_axes(axes) for axes in points[cls]]
        first = next((p for p in problems if p.label not in done), problems[-1])
        error = HarnessError(_why(outcome))
        yield encode.verified_record(Measurement.failed_with(one, first, error))


def _why(outcome: Outcome) -> str:
    """Return why a unit did not finish."""
    return outcome.error.partition(", or needs")[0] or "its process wrote no result"


def judge(ctx: click.Context, paths: Sequence[Path]) -> Iterator[Verdict]:
    """Yield the verdict on each kernel file, in the order in which they are done.

    What is handed in goes to the worker as text: neither here nor there is any Python of it executed.
    """
    given = ctx.params
    with fleet.opened(given["gpus"], given["scheduler"]) as found:
        units = [_judging(ctx, path) for path in paths]
        with running.progress(len(units)) as step:
            for index, card, outcome in found.run(units, step):
                yield _verdict(paths[index], card, outcome, given)


def _judging(ctx: click.Context, path: Path) -> Unit:
    """Return the unit that judges one file."""
    from harness.errors import SpecError
    from harness.fleet.units import FOLDER, Unit
    from harness.judging import submission
    from harness.kernels import catalog

    try:
        files = dict(submission.read(path).files)
    except SpecError:  # which is a verdict, too, and reached there
        files = {path.name: path.read_bytes()}
    files = {f"kernel/{name}": data for name, data in files.items()}
    changes: dict[str, Any] = {"device": _FIRST}
    if ref := ctx.params["ref"]:
        kernel = catalog.kernel(ref)
        if kernel.path.exists() and Path(ref).exists():
            mine = {f"ref/{n}": data for n, data in submission.read(Path(ref)).files.items()}
            files, changes["ref"] = {**files, **mine}, f"{FOLDER}/ref/{Path(ref).name}"
    words = isolation.command_line(ctx, f"{FOLDER}/kernel/{path.name}", changes, without=_WITHOUT)[1:]
    return Unit(words=(*words, "--json", f"{FOLDER}/result"), label=path.name, timeout=_SECONDS, files=files)


def _verdict(path: Path, card: Card, outcome: Outcome, given: Any) -> Verdict:
    """Return the verdict that a unit has written; if it wrote none, that nothing could be checked."""
    from harness.judging.verdict import GPU, SKIPPED, Check, Timed, Verdict

    if not outcome.content:
        why = f"{card.uuid[:12]}: {_why(outcome)}"
        return Verdict(
            kernel=path.stem,
            sha256="",
            problem=given["problem"],
            dtype=given["dtype"],
            seed=given["seed"] or 0,
            checks=(Check(name="ends", where=GPU, outcome=SKIPPED, reason=why),),
        )
    (row,) = json.loads(outcome.content)["rows"]
    told = {name: row[name] for name in Verdict.__dataclass_fields__}
    for name, kind in (("checks", Check), ("times", Timed)):
        told[name] = tuple(kind(**{k: _tuple(v) for k, v in one.items()}) for one in told[name])
    return Verdict(**{name: _tuple(value) for name, value in told.items()})


def _tuple(value: Any) -> Any:
    """Return lists of JSON as the tuples that they were."""
    return tuple(value) if isinstance(value, list) else value
