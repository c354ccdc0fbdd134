"""Make one HTML page of records that needs no network: charts, sortable tables and provenance.

Results of different GPUs are kept apart: the page has a part for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.errors import UsageError
from harness.kernels.dtypes import FP32
from harness.results import explanation, tables
from harness.results.html import charts, checked, markup, rung_cards, series
from harness.results.html.palette import Palette
from harness.results.record import Document
from harness.results.rows import ProfileRow, Row, flops_rate, seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("bench", "profile", "claims", *checked.KINDS)
_COLUMNS: tuple[tables.Column, ...] = (
    ("kernel", "kernel", str),
    ("params", "parameters", lambda v: " ".join(f"{k}={x}" for k, x in v.items())),
    ("shape", "size", str),
    ("flops_rate", "GFLOP/s", lambda v: f"{v / 1e9:,.0f}"),
    ("bandwidth", "GB/s", lambda v: f"{v / 1e9:,.0f}"),
    ("seconds", "median time", tables.seconds),
    ("samples", "samples", str),
    ("vs_cublas", "% of cuBLAS", lambda v: f"{100 * v:.1f}"),
    ("of_ceiling", "% of ceiling", lambda v: f"{100 * v:.1f}"),
    ("registers", "registers", str),
    ("shared", "shared B", "{:,}".format),
    ("occupancy", "occupancy", "{:.0%}".format),
    ("intensity", "FLOP/B", "{:.3g}".format),
    ("emulated.intensity", "FLOP/B asked for", "{:.3g}".format),
    ("emulated.sectors_per_request", "sectors a request", "{:.3g}".format),
    ("emulated.ways", "ways", "{:.3g}".format),
    ("sass.LDS.128", "LDS.128", str),
    ("regime", "regime", str),
    ("status", "check", str),
)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A figure of a page. `name` identifies it in file names and ids."""

    name: str
    title: str
    description: str
    figure: Figure


@dataclass(frozen=True, kw_only=True)
class Part:
    """The records of one GPU.

    `gpu` is the model's name, `about` its entry in the records. `benches` are documents of ``harness bench``
    by file name. `profiles` are those of this card, and of cards of the same model that have no part of their
    own. `claims` go to every part.
    """

    gpu: str
    about: Mapping[str, Any]
    benches: dict[str, Document] = field(default_factory=dict)
    profiles: list[ProfileRow] = field(default_factory=list)
    claims: list[Document] = field(default_factory=list)

    @property
    def ladder(self) -> list[Row]:
        """The rows of those files that have each kernel in a single parameter set."""
        return [r for c in self.benches.values() if not _sweeps(c) for r in c["rows"]]

    @property
    def sweeps(self) -> list[Row]:
        """The rows of those files that have a kernel in several parameter sets."""
        return [r for c in self.benches.values() if _sweeps(c) for r in c["rows"]]


def parts(contents: Mapping[str, Document]) -> list[Part]:
    """Group record files, given by name, by GPU; the GPU with the most rungs comes first.

    Raises UsageError if there is nothing to show.
    """
    unfit = [name for name, c in contents.items() if c.get("kind") not in KINDS or not c["rows"]]
    if all(name in unfit or c["kind"] == "claims" for name, c in contents.items()):
        raise UsageError(
            f"no rows of bench or profile in {', '.join(contents) or 'no file'}",
            hint="the option --json of bench, profile, check, verify and sass writes files to show",
        )
    found: dict[str, Part] = {}
    for name, content in contents.items():
        if content["kind"] == "bench" and name not in unfit:
            about = content["meta"].get("gpu") or {}
            key = about.get("uuid") or "emulator"
            part = found.setdefault(key, Part(gpu=about.get("name", "Without a GPU"), about=about))
            part.benches[name] = content
    for name, content in contents.items():
        if content["kind"] == "profile" and name not in unfit:
            about = content["meta"].get("gpu") or {}
            model = about.get("name", "Reports that name no GPU")
            same = [p for p in found.values() if p.gpu == model]
            same = [p for p in same if p.about.get("uuid") == about.get("uuid")] or same
            for part in same or [found.setdefault(model, Part(gpu=model, about=about))]:
                part.profiles.extend(content["rows"])
    for name, content in contents.items():
        if content["kind"] == "claims" and name not in unfit:
            for part in found.values():
                part.claims.extend(content["rows"])
    return sorted(found.values(), key=lambda p: -len(explanation.rungs(p.ladder)))


def _sweeps(content: Document) -> bool:
    """Return True if some kernel has several parameter sets in this file."""
    sets: dict[str, set[str]] = {}
    for row in content["rows"]:
        sets.setdefault(row["kernel"], set()).add(str(row["params"]))
    return any(len(found) > 1 for found in sets.values())


def palette(found: Sequence[Part]) -> Palette:
    """Return the colours and markers of all kernels of a page."""
    rows = [r for p in found for content in p.benches.values() for r in content["rows"]]
    return Palette([r["kernel"] for r in rows] + [r.get("kernel", "") for p in found for r in p.profiles])


def figures(
    part: Part, look: Palette | None = None, *, few: bool = False, narrow: bool = False
) -> list[Chart]:
    """Return every chart for which the records of one GPU have something to draw.

    `look` is the page's palette, by default one of this part. With `few`, as for a README, the ladder has
    only the rungs that are faster than all before them, and charts have title and GPU in them. `narrow`
    charts are for phones.
    """
    look = look or palette([part])
    ladders = [
        (
            "ladder" if dtype == FP32.name else f"ladder-{dtype}",
            f"Ladder, {dtype}",
            f"GFLOP/s of each kernel by size, {dtype}",
            charts.ladder(rows, part.about, look, few=few, narrow=narrow),
        )
        for dtype, rows in charts.by_type(part.ladder).items()
    ]
    candidates = (
        *ladders,
        (
            "roofline",
            "Roofline",
            "GFLOP/s over FLOP a byte, under the card's roofs",
            charts.roofline(part.ladder, part.profiles, part.about, look, narrow=narrow),
        ),
        (
            "tiles",
            "Tile sizes",
            "GFLOP/s of every parameter set",
            charts.tiles(part.sweeps, look, narrow=narrow),
        ),
        (
            "stalls",
            "Where a warp's time goes",
            "Stall reasons by kernel",
            charts.stalls(part.profiles, narrow=narrow),
        ),
        (
            "traffic",
            "How busy the units are",
            "% of peak of SM, L1, L2, DRAM",
            charts.traffic(part.profiles, narrow=narrow),
        ),
    )
    made = [
        Chart(name=name, title=title, description=f"{text}, {part.gpu}", figure=figure)
        for name, title, text, figure in candidates
        if figure is not None
    ]
    for chart in made if few else ():
        chart.figure.axes[0].set_title(f"{chart.title}, {part.gpu}", loc="left", fontsize=11)
    return made


def page(contents: Mapping[str, Document], title: str) -> str:
    """Return the HTML page of record files, given by name. Raises UsageError if there is nothing to show."""
    found = parts(contents)
    look = palette(found)
    body = [f"<h1>{markup.text(title)}</h1>", markup.facts(list(_summary(contents, found)))]
    others = {n: c for n, c in contents.items() if c.get("kind") in checked.KINDS and c["rows"]}
    titles = [*map(_title, found), *(f"{c['kind']}: {n}" for n, c in others.items()), _SOURCES]
    items = [f'<li><a href="#p{i}">{markup.text(name)}</a></li>' for i, name in enumerate(titles)]
    body.append(f"<nav><ol>{''.join(items)}</ol></nav>")
    cards = [p for p in found if p.about]
    if len(cards) > 1:
        models = Counter(p.gpu for p in cards)
        names = ", ".join(f"{n} {model}" if n > 1 else model for model, n in models.items())
        body.append(
            f'<p class="note">Measured on {len(cards)} GPUs, kept apart below: {markup.text(names)}.</p>'
        )
    for number, part in enumerate(found):
        body += _part(part, number, look)
    for number, content in enumerate(others.values(), len(found)):
        body.append(f'<h2 id="p{number}">{markup.text(titles[number])}</h2>')
        body += checked.section(content)
    skipped = [n for n, c in contents.items() if c.get("kind") not in KINDS or not c["rows"]]
    if skipped:
        body.append(f'<p class="note">Nothing to show in: {markup.text(", ".join(skipped))}.</p>')
    body += [f'<h2 id="p{len(titles) - 1}">{_SOURCES}</h2>', *_provenance(contents)]
    return markup.page(title, "\n".join(body), attributes=True)


_SOURCES = "Where the numbers come from"


def _summary(contents: Mapping[str, Document], found: Sequence[Part]) -> Iterator[tuple[str, str]]:
    """Yield names and values that sum up the page: how much there is, what failed, what is fastest."""
    rows = [r for c in contents.values() if c["kind"] in ("bench", *checked.KINDS) for r in c["rows"]]
    yield "files", str(len(contents))
    yield "rows", f"{len(rows):,}"
    wrong = [r for r in rows if r.get("status") in ("FAILED", "error", "impossible")]
    yield "failed", ", ".join(dict.fromkeys(str(r.get("kernel")) for r in wrong)) or "none"
    for part in found:
        for dtype, ladder in charts.by_type(part.ladder).items():
            rungs = [r for r in explanation.rungs(ladder) if r.get("flops_rate")]
            if rungs:
                best = min(rungs, key=seconds)
                ratio = best.get("vs_cublas")
                of = f", {100 * ratio:.1f}% of cuBLAS" if ratio else ""
                rate = f"{flops_rate(best) / 1e9:,.0f} GFLOP/s at {best['shape']}{of}"
                yield (
                    f"fastest {dtype}, {part.gpu}",
                    f"{best['kernel']}: {rate}, {best.get('samples')} samples",
                )


def _part(part: Part, number: int, look: Palette) -> Iterator[str]:
    """Yield the elements of one GPU's part."""
    yield f'<h2 id="p{number}">{markup.text(_title(part))}</h2>'
    for chart, small in zip(figures(part, look), figures(part, look, narrow=True), strict=True):
        name = f"{chart.name}{number}"
        yield series.figure(chart.figure, small.figure, name, chart.title, chart.description)
    if part.profiles:
        yield "<h3>What holds each back</h3>"
        yield from _diagnoses(part.profiles)
    for dtype, rows in charts.by_type(part.ladder).items():
        rungs = explanation.rungs(rows)
        if steps := explanation.cards(rungs, part.profiles, part.claims):
            yield f"<h3>Rung by rung{'' if dtype == FP32.name else f', {dtype}'}</h3>"
            yield markup.table(_STEPS, _steps(rungs, steps, part.profiles))
            yield from map(rung_cards.card, steps)
    for name, content in part.benches.items():
        yield f"<h3>{markup.text(name)}</h3>"
        shown = [c for c in _COLUMNS if any(tables.cell(r, c) != "-" for r in content["rows"])]
        cells = [[tables.cell(r, c) for c in shown] for r in content["rows"]]
        yield markup.table([c[1] for c in shown], cells)
        yield from checked.findings(content["rows"])
        yield from checked.counts(content["rows"])


def _title(part: Part) -> str:
    """Return the heading of a part; driver and UUID tell cards of one model apart."""
    told = [f"driver {part.about['driver']}"] if part.about.get("driver") else []
    told += [part.about["uuid"]] if part.about.get("uuid") else []
    return ", ".join([part.gpu, *told])


def _diagnoses(profiles: Sequence[ProfileRow]) -> Iterator[str]:
    """Yield a list of what holds each kernel back."""
    yield "<ul>"
    for p in profiles:
        said = "; ".join(f"<b>{markup.text(d['kind'])}</b>: {markup.text(d['says'])}" for d in p["diagnoses"])
        yield f"<li>{markup.text(p['label'])}: {said or 'no rule speaks'}</li>"
    yield "</ul>"


_TAKES = ("registers", "shared", "occupancy", "intensity", "sass.LDS.128")
_STEPS = (
    *("rung", "size", "times as fast", "as (its predecessor)"),
    *(heading for key, heading, _ in _COLUMNS if key in _TAKES),
    "bound by",
)


def _steps(
    rungs: Sequence[Row], found: Sequence[explanation.Card], profiles: Sequence[ProfileRow]
) -> list[list[str]]:
    """Return a row for each rung at the largest size: its speed over its predecessor's, and its resources."""
    by_key = {c[0]: c for c in _COLUMNS}
    speeds = {id(card.b): (card.times.speed, card.a["kernel"]) for card in found}
    rows = []
    for r in rungs:
        cells = [tables.cell(r, by_key[k]) for k in _TAKES]
        profile = explanation.find(r, profiles)
        bound = ", ".join(d["kind"] for d in profile["diagnoses"]) if profile else ""
        rows.append([r["kernel"], r["shape"], *speeds.get(id(r), ("-", "-")), *cells, bound or "-"])
    return rows


def _provenance(contents: Mapping[str, Document]) -> Iterator[str]:
    """Yield a table of how each file was made."""
    rows = []
    for name, content in contents.items():
        meta = content["meta"]
        gpu = meta.get("gpu")
        about = gpu if isinstance(gpu, Mapping) else {"name": gpu or "-"}
        code = (meta.get("commit") or meta.get("code_sha256") or "-")[:10] + (
            "+" if meta.get("dirty") else ""
        )
        rows.append(
            [
                name,
                " ".join(meta.get("argv") or []) or "-",
                meta.get("utc") or "-",
                f"{about.get('name', '-')} {about.get('uuid', '')}".strip(),
                str(about.get("driver", "-")),
                f"{about['cublas']}, {about.get('math_mode', '')}" if about.get("cublas") else "-",
                code,
            ]
        )
    yield markup.table(("file", "command", "time", "GPU", "driver", "cuBLAS", "commit or code"), rows)
