"""Put a chart on a page: series that buttons hide, points that tell their values, a narrow copy for phones.

matplotlib draws; here its artists are found again in the SVG by their ids. A series is what has a label: a
line with its markers, a scatter of points, a group of bars. Every point and bar gets a ``<title>``, which
browsers show and which ``page.js`` shows for the point nearest to the pointer or the finger.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.results.html import markup
from harness.results.html.charts import INK, styled

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class _Part:
    """An artist of a chart: the series to which it belongs, if any, its colour, and a text for each point."""

    artist: Artist
    series: str
    colour: str
    points: tuple[str, ...] = ()


def figure(wide: Figure, narrow: Figure, name: str, title: str, description: str) -> str:
    """Return a ``<figure>`` with both drawings, of which the page shows the one that its width has room for.

    `name` prefixes the ids, to keep them unique in the page. `title` is its caption, `description` its text
    for screen readers.
    """
    parts = list(_parts(wide))
    colours = {part.series: part.colour for part in reversed(parts) if part.series}
    names = list(dict.fromkeys(part.series for part in parts if part.series))
    buttons = [
        _button(series, f' data-series="{markup.text(series)}" style="--c: {colours[series]}"')
        for series in names
    ]
    legend = f'<div class="series">{"".join([_button("all", ""), *buttons])}</div>' if len(names) > 1 else ""
    drawn = _svg(wide, f"{name}w", description, "wide-only") + _svg(
        narrow, f"{name}n", description, "narrow-only"
    )
    value = "<output>&nbsp;</output>" if any(part.points for part in parts) else ""
    return f"<figure><figcaption>{markup.text(title)}</figcaption>{drawn}{value}{legend}</figure>"


def _button(text: str, attributes: str) -> str:
    return f'<button type="button" aria-pressed="true"{attributes}>{markup.text(text)}</button>'


@styled
def _svg(drawing: Figure, name: str, description: str, css: str) -> str:
    """Return the figure as an SVG element for a page, in the page's text colour."""
    parts = list(_parts(drawing))
    for number, part in enumerate(parts):
        part.artist.set_gid(f"part{number}")
    out = io.StringIO()
    drawing.savefig(out, format="svg", bbox_inches="tight", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    # What matplotlib styles by an element is in page.css: the page's policy allows its own style only.
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    for number, part in enumerate(parts):
        text = _told(text, f'<g id="{name}-part{number}"', part)
    opening = rf'<svg class="{css}" viewBox="\1" role="img" aria-label="'
    opening += markup.text(description).replace("\\", "")
    opening += '" xmlns:xlink="http://www.w3.org/1999/xlink">'
    text = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', opening, text, count=1)
    return text.replace(INK, "currentColor")


def _told(text: str, opening: str, part: _Part) -> str:
    """Return the SVG with the name of its series at a group, and a title at each of its points."""
    begin = text.find(opening)
    if begin < 0:
        return text
    depth, end = 0, begin
    for tag in re.finditer(r"<g\b|</g>", text[begin:]):
        depth += 1 if tag[0] == "<g" else -1
        end = begin + tag.end()
        if not depth:
            break
    group = text[begin:end]
    titles = [f"<title>{markup.text(point)}</title>" for point in part.points]
    uses = iter(titles)
    if "<use" in group:
        group = re.sub(r"(<use\b[^>]*?)/>", lambda use: f"{use[1]}>{next(uses, '')}</use>", group)
    elif titles:
        group = re.sub(r"\A(<g[^>]*>)", lambda g: g[1] + titles[0], group)
    series = f' data-series="{markup.text(part.series)}"' if part.series else ""
    return text[:begin] + group.replace("<g", f"<g{series}", 1) + text[end:]


def _parts(drawing: Figure) -> Iterator[_Part]:
    """Yield the artists of all series of a figure, with what their points say."""
    from matplotlib.text import Annotation

    for axes in drawing.axes:
        known: set[str] = set()
        for line in axes.lines:
            series = _name(line)
            if series:
                known.add(series)
                marked = line.get_marker() not in (None, "None", "")
                points = _points(axes, series, line.get_xydata()) if marked else ()
                yield _Part(artist=line, series=series, colour=_hex(line.get_color()), points=points)
        for scatter in axes.collections:
            series = _name(scatter)
            points = _points(axes, series, scatter.get_offsets())
            yield _Part(artist=scatter, series=series, colour=_hex(scatter.get_edgecolor()), points=points)
        for bars in axes.containers:
            yield from _bars(axes, bars)
        for text in axes.texts:
            if isinstance(text, Annotation) and text.get_text() in known:
                for artist in filter(None, (text, text.arrow_patch)):
                    yield _Part(artist=artist, series=text.get_text(), colour="")


def _bars(axes: Axes, bars: Any) -> Iterator[_Part]:
    """Yield the bars of one series, named by the tick that is nearest to each."""
    series = "" if str(bars.get_label()).startswith("_") else str(bars.get_label())
    ticks = [
        (float(at), label.get_text())
        for at, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    ]
    for bar in bars.patches:
        middle = bar.get_y() + bar.get_height() / 2
        name = min(ticks, key=lambda tick: abs(tick[0] - middle))[1]
        said = f"{name}: {series + ' ' if series else ''}{bar.get_width():,.4g} {axes.get_xlabel()}"
        yield _Part(artist=bar, series=series, colour=_hex(bar.get_facecolor()), points=(said,))


def _name(artist: Artist) -> str:
    """Return the series of an artist, its label; matplotlib's own labels are ``_child3``.

    ``_of NAME`` is the label of one that has no place of its own in the legend.
    """
    label = str(artist.get_label())
    return label.removeprefix("_of ") if label.startswith("_of ") or not label.startswith("_") else ""


def _points(axes: Axes, series: str, places: Any) -> tuple[str, ...]:
    """Return what each point says, ``03_tiled: 8,130 GFLOP/s, fp32 at n 4,096``."""
    across = re.sub(r" \(.*", "", axes.get_xlabel())
    return tuple(f"{series}: {y:,.4g} {axes.get_ylabel()}; {across} {x:,.4g}" for x, y in places)


def _hex(colour: Any) -> str:
    """Return a colour of matplotlib as CSS has it."""
    from matplotlib.colors import to_hex

    one = (
        colour[0]
        if not isinstance(colour, str) and len(colour) and not isinstance(colour[0], float)
        else colour
    )
    found = to_hex(one)
    return "currentColor" if found == INK else found
