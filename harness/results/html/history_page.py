"""Make a page of histories: a chart of each series of times, with its changes and their intervals."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from harness.results import tables
from harness.results.gates.history import ChangePoint, Series
from harness.results.html import markup
from harness.results.html.annotated import made

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 720, 200, 70, 12, 24  # in units of the drawing
_STATUS = {"SLOW": "slower", "FAST": "faster"}


def page(found: Sequence[Series], meta: Mapping[str, object]) -> str:
    """Return the HTML page of `found`, those with changes first; `meta` is a record's provenance."""
    changed = [s for s in found if s.changes]
    body = ["<h1>Times over time</h1>"]
    slow = sum(s.changes[-1].status == "SLOW" for s in changed)
    fast = sum(s.changes[-1].status == "FAST" for s in changed)
    body.append(
        markup.facts(
            [
                ("series", str(len(found))),
                ("changed", str(len(changed))),
                ("slower at last", str(slow)),
                ("faster at last", str(fast)),
            ]
        )
    )
    ordered = [*changed, *(s for s in found if not s.changes)]
    items = [
        f'<li><a href="#s{n}">{markup.text(s.name)}</a> {_verdict(s)}</li>' for n, s in enumerate(ordered)
    ]
    body.append(f"<nav><ol>{''.join(items)}</ol></nav>")
    for n, s in enumerate(ordered):
        body += _section(s, n)
    body.append(
        '<p class="note">Median times, one a result file. Lines: levels between changes; bands: where a '
        "change lies at 95%. Optimal partitioning, then a permutation test of each change.</p>"
    )
    body.append(f'<p class="note">{markup.text(made(meta))}</p>')
    return markup.page("harness history", "\n".join(body), parts=("history",))


def _verdict(s: Series) -> str:
    """Return the newest change in words, as an element."""
    if not s.changes:
        return "no change"
    c = s.changes[-1]
    return f'<span class="{markup.text(c.status)}">{markup.text(_size(c))}</span>'


def _size(c: ChangePoint) -> str:
    """Return a change's size in words: ``slower: +4.7% (+4.0 to +5.3) of time``."""
    low, estimate, high = (f"{100 * (x - 1):+.1f}" for x in (c.ratio.low, c.ratio.estimate, c.ratio.high))
    return f"{_STATUS.get(c.status, c.status)}: {estimate}% ({low} to {high}) of time"


def _section(s: Series, number: int) -> Iterator[str]:
    """Yield the chart of one series and a table of its changes."""
    yield f'<section id="s{number}"><h2>{markup.text(s.name)}</h2>'
    yield f"<p>{markup.text(', '.join(filter(None, (s.gpu, s.regime, f'{len(s.points)} results'))))}</p>"
    yield _chart(s)
    if s.changes:
        rows = [
            [
                s.points[c.at].utc,
                s.points[c.at].commit[:10] or "-",
                s.points[c.at].file,
                _size(c),
                f"{s.points[c.first - 1].utc[:10]} and {s.points[c.last].utc[:10]}",
                f"{100 * c.confidence:.1f}%",
            ]
            for c in s.changes
        ]
        headings = ("first result after it", "commit", "file", "change", "between", "confidence")
        yield markup.table(headings, rows)
    yield "</section>"


def _chart(s: Series) -> str:
    """Return the series as an SVG drawing: a dot a result, levels, and a band for each change."""
    times = [p.seconds for p in s.points]
    low, high = min(times), max(times)
    margin = (high - low) / 10 or high / 20
    low, high = low - margin, high + margin

    def x(index: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 10) * (index + 0.5) / len(times)

    def y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low)

    ends = [0, *(c.at for c in s.changes), len(times)]
    bands = "".join(
        f'<rect class="{markup.text(c.status)}" x="{x(c.first - 0.5):.1f}" y="{_TOP}" '
        f'width="{max(2.0, x(c.last) - x(c.first)):.1f}" height="{_HEIGHT - _TOP - _BOTTOM}"/>'
        for c in s.changes
    )
    levels = "".join(
        f'<path d="M{x(a - 0.4):.1f} {y(level):.1f}H{x(b - 0.6):.1f}"/>'
        for a, b in itertools.pairwise(ends)
        for level in [sorted(times[a:b])[(b - a) // 2]]
    )
    dots = "".join(
        f'<circle cx="{x(n):.1f}" cy="{y(p.seconds):.1f}" r="3.5"><title>'
        f"{markup.text(f'{tables.seconds(p.seconds)}, {p.utc}, {p.commit[:10]}, {p.file}')}</title></circle>"
        for n, p in enumerate(s.points)
    )
    axis = "".join(
        f'<text x="{_LEFT - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{markup.text(tables.seconds(v))}</text>'
        for v in (min(times), max(times))[: 1 + (max(times) > min(times))]
    )
    dates = (
        f'<text x="{_LEFT}" y="{_HEIGHT - 6}">{markup.text(s.points[0].utc[:10])}</text>'
        f'<text x="{_WIDTH - 10}" y="{_HEIGHT - 6}" text-anchor="end">'
        f"{markup.text(s.points[-1].utc[:10])}</text>"
    )
    span = f"{tables.seconds(min(times))} to {tables.seconds(max(times))}"
    said = f"{s.name}: {len(times)} median times from {span}"
    return (
        f'<figure class="history"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{markup.text(said)}">{bands}{levels}{dots}{axis}{dates}</svg></figure>'
    )
