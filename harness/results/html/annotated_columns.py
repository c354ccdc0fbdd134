"""Measure source lines for an annotated page: executions, FLOP, sectors, ways, stalls, live registers.

Each is a column of heat. Of counts the heat is a line's share of the line that has most; of sectors and ways
it is the share that is wasted, which is what can be gained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.emulator import Counts, Source
from harness.results import tables
from harness.results.html.annotated_lines import Cell
from harness.sass.instructions import Instruction

if TYPE_CHECKING:
    from harness.results.html.annotated import Annotated


@dataclass(frozen=True, kw_only=True)
class Column:
    """A heat column: its heading, what it means, and the cell of a line.

    `cell` gets the kernel's measures and a line; None where there is nothing to say of it.
    """

    name: str
    meaning: str
    known: Callable[[Annotated], bool]
    cell: Callable[[Measures, Source], Cell | None]


class Measures:
    """Counts, instructions and samples of a kernel by source line, and the largest of each."""

    def __init__(self, k: Annotated) -> None:
        self.counts = {c.source: c for c in k.run.lines} if k.run else {}
        self.accesses = {c.source: c for c in k.compiled.lines} if k.compiled else self.counts
        self.sass: dict[int, list[Instruction]] = {}
        for i in k.code.sass.instructions if k.code else ():
            self.sass.setdefault(i.line, []).append(i)
        self.ptx: dict[Source, list[Counts]] = {}
        for c in k.run.instructions if k.run else ():
            self.ptx.setdefault(c.source, []).append(c)
        self.spots = {source_of(s.place, k.file): s for s in k.hotspots.lines} if k.hotspots else {}
        self.samples = k.hotspots.samples if k.hotspots else 0
        self.most = {
            name: max((getattr(c, name) for c in self.counts.values()), default=0)
            for name in ("executions", "flops")
        }


def _executions(m: Measures, at: Source) -> Cell | None:
    """Return how many threads executed the line's instructions, against the line that has most."""
    c = m.counts.get(at)
    if c is None or not c.executions:
        return None
    return Cell.of(tables.si(c.executions), c.executions / m.most["executions"], f"{c.executions:,} threads")


def _flops(m: Measures, at: Source) -> Cell | None:
    """Return the line's floating-point operations, against the line that has most."""
    c = m.counts.get(at)
    if c is None or not c.flops:
        return None
    return Cell.of(tables.si(c.flops), c.flops / m.most["flops"], f"{c.flops:,} FLOP")


def _sectors(m: Measures, at: Source) -> Cell | None:
    """Return the line's sectors per global request; the heat is the share of their bytes that nobody asked
    for.
    """
    c = m.accesses.get(at)
    if c is None or not c.global_requests:
        return None
    wasted = max(0.0, 1 - c.global_bytes / (32 * c.sectors)) if c.sectors else 0.0
    said = f"{c.global_requests:,} requests, {c.sectors:,} sectors; {wasted:.0%} of their bytes not asked for"
    return Cell.of(tables.ratio(c.sectors_per_request), wasted, said)


def _ways(m: Measures, at: Source) -> Cell | None:
    """Return the line's wavefronts over the least; the heat is the share of them that conflicts cost."""
    c = m.accesses.get(at)
    if c is None or not c.shared_requests:
        return None
    said = f"{c.shared_requests:,} requests, {c.wavefronts:,} wavefronts, {c.conflicts:,} by conflicts"
    return Cell.of(tables.ratio(c.ways), c.conflicts / c.wavefronts if c.wavefronts else 0.0, said)


def _stalls(m: Measures, at: Source) -> Cell | None:
    """Return the line's share of warp samples, with the reason that is most frequent."""
    spot = m.spots.get(at)
    if spot is None:
        return None
    share = spot.samples / m.samples
    said = f"{spot.samples:,} of {m.samples:,} samples, mostly {spot.reason} ({spot.because:,})"
    return Cell.of(f"{share:.0%} {spot.reason}", share, said)


def _live(m: Measures, at: Source) -> Cell | None:
    """Return the most registers that are live at one of the line's instructions, of the 255 there can be."""
    live = [i.live for i in m.sass.get(at.line, ()) if i.live is not None] if not at.file else []
    return Cell.of(str(max(live)), max(live) / 255, f"{max(live)} live registers") if live else None


COLUMNS = (
    Column(
        name="stall",
        meaning="share of warp samples and their most frequent reason, by ncu",
        known=lambda k: k.hotspots is not None and bool(k.hotspots.lines),
        cell=_stalls,
    ),
    Column(
        name="threads",
        meaning="executions, summed over threads and instructions",
        known=lambda k: k.run is not None,
        cell=_executions,
    ),
    Column(
        name="FLOP",
        meaning="floating-point operations",
        known=lambda k: k.run is not None and k.run.total.flops > 0,
        cell=_flops,
    ),
    Column(
        name="sect",
        meaning="32-byte sectors a global request, darker where their bytes are wasted",
        known=lambda k: k.run is not None and k.run.total.global_requests > 0,
        cell=_sectors,
    ),
    Column(
        name="ways",
        meaning="wavefronts of shared requests over the least",
        known=lambda k: k.run is not None and k.run.total.shared_requests > 0,
        cell=_ways,
    ),
    Column(
        name="live",
        meaning="live registers at most",
        known=lambda k: k.code is not None and any(i.live is not None for i in k.code.sass.instructions),
        cell=_live,
    ),
)


def source_of(place: str, own: str) -> Source:
    """Return the source line of a spot, ``03_tiled.cu:41``; without a file if it is the kernel's `own`."""
    file, _, line = place.rpartition(":")
    return Source(line=int(line), file="" if file == own else file) if line.isdigit() else Source(file=place)
