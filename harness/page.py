"""Records -> one HTML page that needs no network: charts, tables that sort, and where the numbers come from.

What was measured on different GPUs is kept apart: a page has a part for each.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness import charts, tables
from harness.errors import UsageError
from harness.record import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("bench", "profile")
_COLUMNS: tuple[tables.Column, ...] = (
    ("kernel", "kernel", str),
    ("params", "parameters", lambda v: " ".join(f"{k}={x}" for k, x in v.items())),
    ("shape", "n", str),
    ("flops_rate", "GFLOP/s", lambda v: f"{v / 1e9:,.0f}"),
    ("bandwidth", "GB/s", lambda v: f"{v / 1e9:,.0f}"),
    ("seconds", "time", tables.seconds),
    ("vs_cublas", "% of cuBLAS", lambda v: f"{100 * v:.1f}"),
    ("of_ceiling", "% of ceiling", lambda v: f"{100 * v:.1f}"),
    ("registers", "registers", str),
    ("shared", "shared B", "{:,}".format),
    ("occupancy", "occupancy", "{:.0%}".format),
    ("intensity", "FLOP/B", "{:.3g}".format),
    ("sass.LDS.128", "LDS.128", str),
    ("regime", "regime", str),
    ("status", "check", str),
)


@dataclass(frozen=True, kw_only=True)
class Chart:
    name: str
    title: str
    description: str
    figure: Figure


@dataclass(frozen=True, kw_only=True)
class Part:
    """What was measured on one GPU: result files by name, and the profiles of its model."""

    gpu: str
    about: Mapping[str, Any]
    benches: dict[str, Record] = field(default_factory=dict)
    profiles: list[Record] = field(default_factory=list)

    @property
    def ladder(self) -> list[Record]:
        """Rows of the files that have each kernel in one parameter set."""
        return [r for c in self.benches.values() if not _sweeps(c) for r in c["rows"]]

    @property
    def sweeps(self) -> list[Record]:
        return [r for c in self.benches.values() if _sweeps(c) for r in c["rows"]]


def parts(contents: Mapping[str, Record]) -> list[Part]:
    """By GPU, from record files by name. Raises UsageError where there is nothing to show."""
    unfit = [name for name, c in contents.items() if c.get("kind") not in KINDS or not c["rows"]]
    if len(unfit) == len(contents):
        raise UsageError(
            f"no rows of bench or profile in {', '.join(contents) or 'no file'}",
            hint="harness bench --json and harness profile --json write them",
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
            for part in same or [found.setdefault(model, Part(gpu=model, about=about))]:
                part.profiles.extend(content["rows"])
    return list(found.values())


def _sweeps(content: Record) -> bool:
    """Whether a kernel stands in it with several parameter sets."""
    sets: dict[str, set[str]] = {}
    for row in content["rows"]:
        sets.setdefault(row["kernel"], set()).add(str(row["params"]))
    return any(len(found) > 1 for found in sets.values())


def figures(part: Part) -> list[Chart]:
    """Every chart that the records of one GPU have something to show in."""
    candidates = (
        ("ladder", "Ladder", "GFLOP/s of each kernel by size", charts.ladder(part.ladder, part.about)),
        (
            "roofline",
            "Roofline",
            "GFLOP/s over FLOP a byte, under the card's roofs",
            charts.roofline(part.ladder, part.profiles, part.about),
        ),
        ("tiles", "Tile sizes", "GFLOP/s of every parameter set", charts.tiles(part.sweeps)),
        ("stalls", "Where a warp's time goes", "Stall reasons by kernel", charts.stalls(part.profiles)),
        ("traffic", "How busy the units are", "% of peak of SM, L1, L2, DRAM", charts.traffic(part.profiles)),
    )
    return [
        Chart(name=name, title=title, description=f"{text}, {part.gpu}", figure=figure)
        for name, title, text, figure in candidates
        if figure is not None
    ]


def page(contents: Mapping[str, Record], title: str) -> str:
    found = parts(contents)
    body = [f"<h1>{_e(title)}</h1>"]
    if len(found) > 1:
        names = ", ".join(p.gpu for p in found)
        body.append(f'<p class="note">Measured on {len(found)} GPUs, kept apart below: {_e(names)}.</p>')
    for number, part in enumerate(found):
        body += _part(part, number)
    skipped = [n for n, c in contents.items() if c.get("kind") not in KINDS or not c["rows"]]
    if skipped:
        body.append(f'<p class="note">Nothing to show in: {_e(", ".join(skipped))}.</p>')
    body += ["<h2>Where the numbers come from</h2>", *_provenance(contents)]
    return _SHELL.format(title=_e(title), css=_CSS, js=_JS, body="\n".join(body))


def _part(part: Part, number: int) -> Iterator[str]:
    driver = f", driver {part.about['driver']}" if part.about.get("driver") else ""
    yield f"<h2>{_e(part.gpu)}{_e(driver)}</h2>"
    for chart in figures(part):
        drawn = charts.svg(chart.figure, f"{chart.name}{number}", chart.description)
        yield f"<figure><figcaption>{_e(chart.title)}</figcaption>{drawn}</figure>"
    if part.profiles:
        yield "<h3>What holds each back</h3>"
        yield from _diagnoses(part.profiles)
    steps = _steps(part.ladder, part.profiles)
    if len(steps) > 1:
        yield "<h3>Rung by rung</h3>"
        yield _table(_STEPS, steps)
    for name, content in part.benches.items():
        yield f"<h3>{_e(name)}</h3>"
        shown = [c for c in _COLUMNS if any(tables.cell(r, c) != "-" for r in content["rows"])]
        cells = [[tables.cell(r, c) for c in shown] for r in content["rows"]]
        yield _table([c[1] for c in shown], cells)


def _diagnoses(profiles: Sequence[Record]) -> Iterator[str]:
    yield "<ul>"
    for p in profiles:
        said = "; ".join(f"<b>{_e(d['kind'])}</b>: {_e(d['says'])}" for d in p["diagnoses"])
        yield f"<li>{_e(p['label'])}: {said or 'no rule speaks'}</li>"
    yield "</ul>"


_TAKES = ("registers", "shared", "occupancy", "intensity", "sass.LDS.128")
_STEPS = (
    *("rung", "n", "times the one before"),
    *(heading for key, heading, _ in _COLUMNS if key in _TAKES),
    "bound by",
)


def _steps(rows: Sequence[Record], profiles: Sequence[Record]) -> list[list[str]]:
    """Each rung at the largest size, how much faster than the one before it, and what it takes."""
    rungs = [r for r in rows if r.get("registers") is not None and r.get("seconds") and r["status"] == "ok"]
    if not rungs:
        return []
    shape = max(rungs, key=lambda r: r["seconds"])["shape"]
    rungs = [r for r in rungs if r["shape"] == shape]
    bound = {p["label"].split()[0]: ", ".join(d["kind"] for d in p["diagnoses"]) for p in profiles}
    by_key = {c[0]: c for c in _COLUMNS}
    found = []
    for i, r in enumerate(rungs):
        ratio = f"{rungs[i - 1]['seconds'] / r['seconds']:.2f}" if i else "-"
        cells = [tables.cell(r, by_key[k]) for k in _TAKES]
        found.append([r["kernel"], shape, ratio, *cells, bound.get(r["kernel"], "-")])
    return found


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th aria-sort="none"><button type="button">{_e(h)}</button></th>' for h in headings)
    body = "\n".join("<tr>" + "".join(f"<td>{_e(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _provenance(contents: Mapping[str, Record]) -> Iterator[str]:
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
    yield _table(("file", "command", "time", "GPU", "driver", "cuBLAS", "commit or code"), rows)


def _e(text: object) -> str:
    return html.escape(str(text))


_SHELL = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{css}</style>
</head>
<body>
<main>
{body}
</main>
<script>{js}</script>
</body>
</html>
"""
_CSS = """
:root { --ink: #1b1f24; --paper: #fff; --line: #d0d7de; --soft: #f6f8fa }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #0d1117; --line: #30363d; --soft: #161b22 }
}
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif }
main { max-width: 70rem; margin: 0 auto; padding: 1rem }
h2 { border-bottom: 1px solid var(--line); margin-top: 2.5rem }
figure { margin: 1.5rem 0; overflow-x: auto }
figcaption { font-weight: 600 }
svg { width: 100%; min-width: 34rem; height: auto; font-family: system-ui, sans-serif }
.wide { overflow-x: auto; max-height: 40rem }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left; white-space: nowrap }
th { background: var(--soft); position: sticky; top: 0 }
th button { all: unset; cursor: pointer; font-weight: 600 }
th button:focus-visible { outline: 2px solid }
th[aria-sort=ascending] button::after { content: " \\2191" }
th[aria-sort=descending] button::after { content: " \\2193" }
.note { background: var(--soft); border-left: 4px solid var(--line); padding: .5rem 1rem }
"""
# Numbers by size, a time by its unit; what is no number by its text, after those.
_JS = """
const units = {s: 1, ms: 1e-3, us: 1e-6, ns: 1e-9};
const value = (text) => {
  const m = /^([-+]?[\\d.,]+)\\s*(ns|us|ms|s|%)?\\*?$/.exec(text);
  return m ? parseFloat(m[1].replaceAll(",", "")) * (units[m[2]] ?? 1) : NaN;
};
for (const button of document.querySelectorAll("th button")) button.onclick = () => {
  const th = button.parentElement, body = th.closest("table").tBodies[0], i = th.cellIndex;
  const down = th.getAttribute("aria-sort") === "descending";
  for (const other of th.parentElement.children) other.setAttribute("aria-sort", "none");
  th.setAttribute("aria-sort", down ? "ascending" : "descending");
  const rows = [...body.rows].sort((a, b) => {
    const [x, y] = [a, b].map((r) => r.cells[i].textContent), [p, q] = [value(x), value(y)];
    if (isNaN(p) || isNaN(q)) return isNaN(p) - isNaN(q) || (down ? 1 : -1) * x.localeCompare(y);
    return down ? p - q : q - p;
  });
  body.append(...rows);
};
"""
