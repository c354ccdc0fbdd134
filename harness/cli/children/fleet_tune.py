"""``harness tune`` on several GPUs of one model: the search is divided among them, the finals are on one.

With at least as many sizes as GPUs, each size is tuned whole on one of them. With fewer, the candidates of a
size are divided; each GPU drops those of its share that are slower beyond doubt, by their ratio to cuBLAS on
the same GPU, and what is left of all shares meets on one GPU, on fresh data. If another GPU is idle then, it
does the same, and is told of if it finds others the fastest.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli import options, running
from harness.cli.children import fleet, isolation
from harness.cli.views import tuned
from harness.errors import HarnessError
from harness.support.children import lines

if TYPE_CHECKING:
    from harness.fleet.cards import Card
    from harness.fleet.sweep import Fleet
    from harness.fleet.units import Unit
    from harness.kernels.spec import Variant
    from harness.problems.protocol import Axes
    from harness.results.record import Document
    from harness.results.rows import Row
    from harness.tune.plan import Plan
    from harness.tune.search import Result, Unfit

_WITHOUT = (
    *("params", "axis", "json_file", "t4_file", "style", "gpus", "scheduler", "isolate", "kernel_timeout"),
    *("max_fevals", "time_limit", "only", "search", "results_file"),
)
_APART = 0.01  # by which ratios to cuBLAS on two GPUs of one model may differ for the GPUs' sake
_SEARCHING = 0.75  # of a time limit
_ONLY = "only.json"

Params = Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class _Share:
    """A unit of a tuning: what it told, and who did it. `results` is empty if it ended with an `error`."""

    card: Card
    results: tuple[Result, ...]
    unfit: tuple[Unfit, ...]
    about: Mapping[str, Any]
    error: str


# ---- In the process of a unit


def named(space: Sequence[Variant], only: Path) -> list[Variant]:
    """Return the candidates whose parameters a file lists."""
    wanted = json.loads(only.read_text(encoding="utf-8"))
    return [v for params in wanted for v in space if dict(v.params) == params]


def telling(path: Path) -> Callable[[str], None]:
    """Return a function that writes each step to the file of a unit's results, so that it grows."""
    return lambda step: isolation.append(path, {"step": step})


def told(results: Sequence[Result], unfit: Sequence[Unfit], meta: Document) -> Document:
    """Return the last line of a unit's results."""
    skipped = [{"params": dict(u.variant.params), "why": u.why, "compiled": u.compiled} for u in unfit]
    return {"results": [asdict(r) for r in results], "unfit": skipped, "gpu": meta["gpu"]}


# ---- In the process that the user began


def tune(
    ctx: click.Context, plan: Plan, space: Sequence[Variant], points: Sequence[Axes], meta: Document
) -> None:
    """Tune a kernel at `points` on the GPUs of a fleet, write the record, print tables, and exit."""
    from harness.fleet import merge

    given, chosen = ctx.params, plan.choose(space)
    with ExitStack() as owned:
        found = owned.enter_context(fleet.opened(given["gpus"], given["scheduler"]))
        cards = _of_one_model(found)
        work = _Tuning(ctx, found, plan, space, cards)
        results, fault = running.collect(work.run(chosen, points))
        fault = fault or work.fault
    meta |= {
        "gpu": work.about or dict(cards[0].gpu),
        "fleet": merge.entry(cards, merge.apart(_by_card(cards, results))),
        "ended": fleet.ended(fault),
        "skipped": [f"{u.variant.label}: {u.why}" for u in work.unfit],
    }
    target = options.one_arch(None, fleet.device(cards[0]))
    tuned.publish(results, work.unfit, meta, target, given)
    fleet.show(meta["fleet"], err=given["style"] == "csv")
    tuned.conclude(results, fault, missing=bool(work.errors))


def _by_card(cards: Sequence[Card], results: Sequence[Result]) -> list[tuple[Card, list[Row]]]:
    """Return the rows that each GPU has measured."""
    rows = [row for r in results for row in r.rows]
    return [(card, [row for row in rows if row["gpu"] == card.uuid]) for card in cards]


def _of_one_model(found: Fleet) -> list[Card]:
    """Return the GPUs of the model of which there are most; say so if there are others."""
    models = found.cards.models()
    (_, cards), *others = models.items()
    if others:
        count = sum(len(more) for _, more in others)
        click.echo(f"tuned on GPUs of one model, {cards[0].gpu['name']}: {count} others rest", err=True)
    return cards


class _Tuning:
    """A tuning on `cards`: its units are sent out, and their results put together."""

    def __init__(
        self, ctx: click.Context, found: Fleet, plan: Plan, space: Sequence[Variant], cards: Sequence[Card]
    ) -> None:
        from harness.fleet.parcel import parcel

        self.ctx, self.fleet, self.plan, self.space, self.cards = ctx, found, plan, space, cards
        self.unfit: list[Unfit] = []
        self.about: dict[str, Any] = {}
        self.errors: list[str] = []
        self.fault: HarnessError | None = None  # what ended it early
        cache = options.open_cache()
        self._parcel = parcel(space, options.one_arch(None, fleet.device(cards[0])), cache)
        self._end = math.inf if plan.time_limit is None else time.monotonic() + plan.time_limit

    def run(self, chosen: Sequence[Variant], points: Sequence[Axes]) -> Iterable[Result]:
        """Yield the result of each size."""
        began = time.monotonic()
        shares = math.ceil(len(self.cards) / len(points)) if len(points) < len(self.cards) else 1
        shares = min(shares, len(chosen))
        parts = [chosen[i::shares] for i in range(shares)]
        whole = shares == 1
        limit = self._left() * (1 if whole else _SEARCHING)
        # The units of a GPU follow each other, and share what time there is.
        limit /= math.ceil(len(points) * shares / len(self.cards))
        units = [self._unit(axes, part, limit, search=not whole) for axes in points for part in parts]
        searched = self._performed(units)
        of_size = [searched[i * shares : (i + 1) * shares] for i in range(len(points))]
        if whole:
            yield from (result for (share,) in of_size for result in share.results)
            return
        middle = time.monotonic()
        left = [_finalists(group, self.plan.threshold) for group in of_size]
        twice = len(self.cards) > len(points)
        finals = [
            self._unit(axes, [v for v in chosen if dict(v.params) in names], self._left(), search=False)
            for axes, names in zip(points, left, strict=True)
            if names
            for _ in range(1 + twice)
        ]
        decided = iter(self._performed(finals))
        for group, names in zip(of_size, left, strict=True):
            mine = [next(decided) for _ in range(1 + twice)] if names else []
            if any(share.results for share in (*group, *mine)):
                yield _merged(group, mine, middle - began, time.monotonic() - began)

    def _left(self) -> float:
        """Return the seconds that are left of the time limit, infinity without one."""
        return max(self._end - time.monotonic(), 0.001)

    def _unit(self, axes: Axes, candidates: Sequence[Variant], limit: float, *, search: bool) -> Unit:
        """Return the unit that tunes these candidates at one size, or only searches among them."""
        from harness.fleet.units import FOLDER, Unit

        given = self.ctx.params
        changes = {
            "params": given["params"],
            "axis": [f"{name}={value!r}" for name, value in axes.items()],
            "time_limit": None if math.isinf(limit) else limit,
            "search": search,
        }
        without = [name for name in _WITHOUT if name not in changes]
        words = isolation.command_line(self.ctx, self._parcel.word, changes, without=without)[1:]
        words += ["--only", f"{FOLDER}/{_ONLY}", "--results", f"{FOLDER}/result"]
        careful = ["--isolate", f"--kernel-timeout={given['kernel_timeout']}"]
        listed = json.dumps([dict(v.params) for v in candidates])
        size = " ".join(f"{name}={value}" for name, value in axes.items())
        return Unit(
            words=tuple(words),
            careful=(*words, *careful),
            label=f"{size}: {len(candidates)} candidates{'' if search else ', finals'}",
            timeout=float(given["kernel_timeout"]) + 60,  # the first measurement waits for builds
            model=self.cards[0].model,
            files={**self._parcel.files, _ONLY: listed.encode()},
            cubins=self._parcel.cubins,
        )

    def _performed(self, units: Sequence[Unit]) -> list[_Share]:
        """Perform the units, and return what came of them in their order."""
        if self.fault is None:
            with running.progress(len(units)) as step:
                done, self.fault = running.collect(self.fleet.run(units, step))
        else:
            done = []
        found = {i: self._share(card, outcome.content, outcome.error) for i, card, outcome in done}
        missing = _Share(card=self.cards[0], results=(), unfit=(), about={}, error="not done")
        return [found.get(i, missing) for i in range(len(units))]

    def _share(self, card: Card, content: str, error: str) -> _Share:
        """Read what a unit has written."""
        from harness.tune.search import Result, Unfit

        last = (lines(content) or [{}])[-1]
        if "results" not in last:
            error = error or "its process ended without a result"
            self.errors.append(error)
            click.echo(f"{card.uuid[:12]}: {error}", err=True)
            return _Share(card=card, results=(), unfit=(), about={}, error=error)
        by_params = {tuple(v.params.items()): v for v in self.space}
        unfit = [
            Unfit(variant=by_params[tuple(u["params"].items())], why=u["why"], compiled=u["compiled"])
            for u in last["unfit"]
        ]
        known = {u.variant.label for u in self.unfit}
        self.unfit += [u for u in unfit if u.variant.label not in known]
        self.about = self.about or last["gpu"]
        keys = [f.name for f in fields(Result)]
        results = [Result(**{k: _of(card, k, r[k]) for k in keys}) for r in last["results"]]
        return _Share(card=card, results=tuple(results), unfit=tuple(unfit), about=last["gpu"], error=error)


def _of(card: Card, key: str, value: Any) -> Any:
    """Return a field of a `Result`; rows name the GPU that measured them."""
    if key in ("winners", "ranking", "rows"):
        return tuple({**row, "gpu": card.uuid} for row in value)
    return value


def _finalists(shares: Sequence[_Share], threshold: float) -> list[Params]:
    """Return the parameters of those that may be the fastest of all shares.

    Their ratios are compared if all shares had the same reference, each on its own GPU; otherwise all that
    are ahead in their share meet.
    """
    from harness.bench.stats import Interval
    from harness.tune.race import survivors

    rows = [row for share in shares for r in share.results for row in r.ranking]
    timed = [row for row in rows if row["status"] == "ok" and row["ratio"]]
    if len({row.get("against") for row in timed}) > 1:
        return [dict(row["params"]) for share in shares for r in share.results for row in r.winners]
    standings = {i: Interval(**row["ratio"]) for i, row in enumerate(timed) if row["ratio"]}
    return [dict(timed[i]["params"]) for i in survivors(standings, threshold + _APART)]


def _merged(shares: Sequence[_Share], finals: Sequence[_Share], searching: float, seconds: float) -> Result:
    """Put the search of all shares and the finals together: the first GPU of the finals decides."""
    parts = [r for share in shares for r in share.results]
    deciding = [r for share in finals[:1] for r in share.results]
    others = [r for share in finals[1:] for r in share.results]
    last = deciding[0] if deciding else replace(parts[0], winners=())
    met = [row["params"] for row in last.ranking] if deciding else []
    behind = sorted(
        (row for r in parts for row in r.ranking if row["params"] not in met),
        key=lambda row: row["ratio"]["estimate"] if row["ratio"] else math.inf,
    )
    notes = [r.note for r in (*parts, *deciding) if r.note]
    notes += [f"a share of the candidates is missing: {share.error}" for share in shares if share.error]
    for share, other in zip(finals[1:], others, strict=False):
        if _names(other.winners) != _names(last.winners):
            notes.append(f"on {share.card.uuid[:12]} the fastest are {'; '.join(_names(other.winners))}")
    every = (*parts, *deciding, *others)
    return replace(
        last,
        ranking=(*(last.ranking if deciding else ()), *behind),
        rows=tuple(row for r in every for row in r.rows),
        note="; ".join(dict.fromkeys(notes)),
        seconds=seconds,
        searching=searching,
        measured=sum(r.measured for r in every),
        resumed=sum(r.resumed for r in every),
    )


def _names(rows: Sequence[Row]) -> list[str]:
    """Return the parameters of rows as text, sorted."""
    from harness.results.rows import params_text

    return sorted(params_text(row["params"]) for row in rows)
