"""Draw figures from records with matplotlib: GFLOP/s by size, roofline, tile sizes, stalls, traffic.

Every drawing function takes rows of one GPU and returns a Figure, or None if the rows have nothing to draw.
Text and axes take the text colour of the page that contains the SVG (see `series`). With `narrow` a figure
is as wide as a phone, and has no legend: the page names the series in buttons.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from harness.errors import MissingDependency
from harness.instruments import counters
from harness.kernels.dtypes import FP32
from harness.launch.cublas import LABEL as CUBLAS
from harness.results.html.palette import Palette, colours, label_ends
from harness.results.rows import ProfileRow, Row, flops_rate, label, seconds
from harness.support.files import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")
INK = "#123456"  # a placeholder, which `series` replaces by the page's text colour
_NARROW = 4.6  # inches: at 390 pixels text is as large as that of the page
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "harness",  # the same rows give the same bytes
    "font.size": 10,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
    "grid.alpha": 0.25,
    "axes.grid": True,
}
_L1_BYTES = 128  # bytes per cycle and SM, sm_70 to sm_120
_STALLS = 7  # the reasons that have a colour of their own; all others share one


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Return `draw` so that it uses our style only, whatever the process has set.

    Calling it raises MissingDependency if matplotlib is not installed.
    """

    @functools.wraps(draw)
    def inner(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            import matplotlib
        except ImportError:
            hint = "pip install '.[report]' from a checkout"
            raise MissingDependency("matplotlib is not installed", hint=hint) from None
        with matplotlib.rc_context(_STYLE):
            return draw(*args, **kwargs)

    return inner


def by_type(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows by the element type of their matrices; rows without one count as fp32."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.get("dtype") or FP32.name, []).append(row)
    return found


@styled
def ladder(
    rows: Sequence[Row],
    about: Mapping[str, Any],
    palette: Palette,
    *,
    few: bool = False,
    narrow: bool = False,
) -> Figure | None:
    """Draw the GFLOP/s of each kernel by size, named at the end of its line, with cuBLAS dashed.

    Rows are of one element type (see `by_type`); for fp32 the card's measured FFMA ceiling is drawn as well.
    `about` is the GPU's entry in the record. With `few` only those rungs are drawn that are faster than all
    before them at their largest size. None unless a kernel has at least two square sizes.
    """
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        n = _size(row)
        if row.get("flops_rate") and row.get("status") == "ok" and n:
            lines.setdefault(row["kernel"], []).append((n, flops_rate(row) / 1e9))
    lines = {k: sorted(lines[k]) for k in palette.sorted(lines)}
    if not any(len(v) > 1 for v in lines.values()):
        return None
    if few:
        lines = _records(lines)
    figure, axes = _new(_NARROW if narrow else 8, 5.2)
    for name, points in lines.items():
        x, y = zip(*points, strict=True)
        colour, dashes = (INK, "--") if name == CUBLAS else (palette.colour(name), "-")
        axes.plot(x, y, dashes, marker=palette.marker(name), color=colour, label=name, markersize=4.5)
    (dtype,) = by_type(rows)
    ceiling = _ceiling(about, "flops")
    if ceiling and dtype == FP32.name:
        axes.axhline(ceiling / 1e9, color=INK, linewidth=1, linestyle=":")
        start = min(x for v in lines.values() for x, _ in v), ceiling / 1e9
        axes.annotate("FFMA ceiling, measured", start, (0, 3), textcoords="offset points")
    axes.set(xscale="log", yscale="log", xlabel="n (square product)", ylabel=f"GFLOP/s, {dtype}")
    sizes = sorted({x for v in lines.values() for x, _ in v})
    axes.set_xticks(sizes, [f"{x:g}" for x in sizes])
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))  # most types span less than two decades
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    if narrow:  # no room for names: the page has buttons with them
        return figure
    label_ends(axes, [(k, *v[-1], INK if k == CUBLAS else palette.colour(k)) for k, v in lines.items()])
    return figure


def _records(lines: Mapping[str, list[tuple[float, float]]]) -> dict[str, list[tuple[float, float]]]:
    """Return the lines that end higher than all before them at the largest size, and cuBLAS."""
    largest = max(points[-1][0] for points in lines.values())
    kept, best = {}, 0.0
    for name, points in lines.items():
        if name == CUBLAS or (points[-1][0] == largest and points[-1][1] > best):
            kept[name] = points
            best = best if name == CUBLAS else points[-1][1]
    return kept


@styled
def roofline(
    rows: Sequence[Row],
    profiles: Sequence[ProfileRow],
    about: Mapping[str, Any],
    palette: Palette,
    *,
    narrow: bool = False,
) -> Figure | None:
    """Draw each fp32 kernel's rate over its FLOP per byte, under the roofs for those bytes.

    Filled markers count the bytes that ncu counted at DRAM; their roof is the card's copy bandwidth. Open
    markers count the bytes that threads load, most of which come from caches; their roof is what the L1
    caches deliver, 128 bytes per cycle and SM. The ceilings are measured ones, or rated ones if the record
    has none. `about` is the GPU's entry in the record.
    """
    flops, bandwidth = _roofs(about)
    points = _points(rows, profiles)
    if not points or not flops:
        return None
    figure, axes = _new(_NARROW if narrow else 8, 5.2)
    low = min(0.1, *(x for _, x, _, _ in points))
    high = max(1000.0, *(2 * x for _, x, _, _ in points))
    told = "measured" if _ceiling(about, "bandwidth") else "rated"
    roofs = [(bandwidth, "-", "DRAM", told)] if bandwidth else []
    if about.get("sms") and about.get("clock_hz"):
        roofs.append((_L1_BYTES * about["sms"] * about["clock_hz"], "--", "L1", "rated"))
    for rate, dashes, level, told in roofs:
        ridge = flops / rate
        axes.plot(
            [low, ridge, high],
            [low * rate / 1e9, flops / 1e9, flops / 1e9],
            dashes,
            color=INK,
            linewidth=1.2,
            label=f"{level}, {told}: {rate / 1e12:.3g} TB/s",
        )
    points.sort(key=lambda point: palette.order[point[0]])
    seen: set[str] = set()
    for name, x, y, counted in points:
        axes.scatter(
            x,
            y,
            marker=palette.marker(name),
            facecolors=palette.colour(name) if counted else "none",
            edgecolors=palette.colour(name),
            label=f"_of {name}" if name in seen else name,
            zorder=3,
        )
        seen.add(name)
    joint = ";\n" if narrow else "; "
    below = f"open: bytes that threads load{joint}filled: bytes that ncu counted at DRAM"
    axes.set(xscale="log", yscale="log", xlabel=f"FLOP / byte ({below})", ylabel="GFLOP/s")
    if not narrow:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)
    return figure


@styled
def tiles(rows: Sequence[Row], palette: Palette, *, narrow: bool = False) -> Figure | None:
    """Draw a bar of GFLOP/s for each parameter set of a kernel, with its occupancy, FLOP/B and shared memory.

    None unless a kernel has several parameter sets.
    """
    timed = [r for r in rows if r.get("params") and r.get("flops_rate") and r.get("status") == "ok"]
    several = {r["kernel"] for r in timed if sum(o["kernel"] == r["kernel"] for o in timed) > 1}
    timed = [r for r in timed if r["kernel"] in several]
    if not timed:
        return None
    timed.sort(key=lambda r: (r["kernel"], -flops_rate(r)))
    figure, axes = _new(_NARROW - 1.2 if narrow else 8, 0.6 + 0.24 * len(timed))
    places = range(len(timed), 0, -1)
    shades = [palette.colour(r["kernel"]) for r in timed]
    axes.barh(places, [flops_rate(r) / 1e9 for r in timed], color=shades)
    axes.set_yticks(places, [label(r) for r in timed], fontsize=8)
    for place, r in () if narrow else zip(places, timed, strict=True):
        kib = r["shared"] / 1024
        text = f" {r['occupancy']:.0%} occ, {r['intensity'] or 0:.3g} FLOP/B, {kib:.3g} KiB"
        axes.text(flops_rate(r) / 1e9, place, text, va="center", fontsize=7)
    axes.set(xlabel="GFLOP/s")
    axes.margins(x=0.05 if narrow else 0.35, y=0.01)
    axes.grid(axis="y", visible=False)
    return figure


@styled
def stalls(profiles: Sequence[ProfileRow], *, narrow: bool = False) -> Figure | None:
    """Draw a bar for each kernel: the shares of a warp's time by stall reason."""
    shares = [(p["label"].split()[0], counters.stalls(p["counters"])) for p in profiles]
    shares = [(name, s) for name, s in shares if s]
    if not shares:
        return None
    total = {r: sum(s.get(r, (0, 0))[1] for _, s in shares) for r in counters.STALLS}
    shown = sorted(total, key=lambda r: -total[r])[:_STALLS]
    figure, axes = _new(_NARROW - 0.8 if narrow else 8, 1 + 0.34 * len(shares))
    places = list(range(len(shares), 0, -1))
    left = [0.0] * len(shares)
    for reason, colour in zip(shown, colours(len(shown)), strict=True):
        widths = [100 * s.get(reason, (0, 0))[1] for _, s in shares]
        axes.barh(places, widths, left=left, color=colour, label=reason)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.barh(places, [100 - x for x in left], left=left, color="#999999", label="others")
    axes.set_yticks(places, [name for name, _ in shares], fontsize=9)
    axes.set(xlabel="% of a warp's time", xlim=(0, 100))
    if not narrow:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)
    axes.grid(axis="y", visible=False)
    return figure


@styled
def traffic(profiles: Sequence[ProfileRow], *, narrow: bool = False) -> Figure | None:
    """Draw a group of bars for each kernel: how busy the SM and each level of memory are, in percent of the
    peak.
    """
    units = {"SM": counters.SM, "L1/TEX": counters.L1, "L2": counters.L2, "DRAM": counters.DRAM}
    shown = [p for p in profiles if all(m in p["counters"] for m in units.values())]
    if not shown:
        return None
    figure, axes = _new(_NARROW - 0.8 if narrow else 8, 1 + 0.5 * len(shown))
    shades = colours(len(units))
    for i, (unit, metric) in enumerate(units.items()):
        places = [len(shown) - j + 0.3 - 0.2 * i for j in range(len(shown))]
        busy = [float(p["counters"][metric]) for p in shown]  # whole numbers may be larger than NumPy's
        axes.barh(places, busy, height=0.18, color=shades[i], label=unit)
    axes.set_yticks(range(len(shown), 0, -1), [p["label"].split()[0] for p in shown], fontsize=9)
    axes.set(xlabel="% of the peak", xlim=(0, 100))
    if not narrow:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)
    axes.grid(axis="y", visible=False)
    return figure


@styled
def save(figure: Figure, folder: Path, name: str) -> None:
    """Write the figure into `folder` as SVG and PNG, on white. Raises HarnessError if they cannot be
    written.
    """
    about: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "png": {}}
    for suffix, metadata in about.items():
        out = io.BytesIO()
        figure.savefig(out, format=suffix, dpi=160, bbox_inches="tight", facecolor="white", metadata=metadata)
        write_file(folder / f"{name}.{suffix}", out.getvalue())


def _new(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a new figure of this size in inches, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    return figure, figure.add_subplot()


def _size(row: Row) -> float | None:
    """Return the size of a square product; None for other shapes."""
    axes = row.get("axes") or {}
    sizes = {axes.get(k) for k in ("M", "N", "K")}
    return axes["N"] if len(sizes) == 1 and axes.get("N") else None


def _ceiling(about: Mapping[str, Any], what: str) -> float | None:
    """Return a measured ceiling of the GPU, `flops` in FLOP/s or `bandwidth` in bytes/s; None without one."""
    found = (about.get("ceilings") or {}).get(what) or {}
    return found.get("rate")


def _roofs(about: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the highest FLOP/s and bytes/s, measured or else rated; None where neither is known."""
    flops, bandwidth = _ceiling(about, "flops"), _ceiling(about, "bandwidth")
    if flops is None and about.get("sms") and about.get("clock_hz"):
        lanes = 64 if list(about.get("capability") or (9, 0)) <= [8, 0] else 128  # as Device.peak_fp32
        flops = 2 * lanes * about["sms"] * about["clock_hz"]
    if bandwidth is None and about.get("memory_clock_hz") and about.get("bus_bits"):
        bandwidth = 2 * about["memory_clock_hz"] * about["bus_bits"] / 8
    return flops, bandwidth


def _points(rows: Sequence[Row], profiles: Sequence[ProfileRow]) -> list[tuple[str, float, float, bool]]:
    """Return kernel, FLOP/B, GFLOP/s and whether ncu counted the bytes, for each fp32 kernel at its largest
    size.

    Other element types are left out, as the roof is that of fp32. The points with bytes that ncu counted are
    at the size that was profiled.
    """
    rows = by_type(rows).get(FP32.name, [])
    rows = [r for r in rows if r.get("status") == "ok" and r.get("flops_rate") and r.get("seconds")]
    largest: dict[str, Row] = {}
    for row in rows:
        best = largest.get(row["kernel"])
        if best is None or seconds(row) > seconds(best):
            largest[row["kernel"]] = row
    found = []
    for name, row in largest.items():
        if intensity := row.get("intensity"):
            found.append((name, intensity, flops_rate(row) / 1e9, False))
    timed = {(r["kernel"], r["shape"]): r for r in rows}
    for p in profiles:
        timed_row = timed.get((p.get("kernel", ""), p.get("shape", "")))
        moved = sum(p["counters"].get(m, 0) for m in (counters.DRAM_READ, counters.DRAM_WRITE))
        if timed_row is not None and moved:
            work = flops_rate(timed_row) * seconds(timed_row)
            found.append((timed_row["kernel"], work / moved, flops_rate(timed_row) / 1e9, True))
    return found
