"""Make a page of kernels' source: each line with its instructions, counts, stalls and findings beside it.

What is known of a line depends on what was done: machine code where the kernel was compiled and nvdisasm is
there, PTX with counts and findings where it was emulated, warp samples where Nsight Compute profiled it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.bench.row import Measurement
from harness.emulator import Counts, Emulation, Finding, Source
from harness.instruments.hotspots import Hotspots
from harness.instruments.ncu_reports import Profile
from harness.launch.builds import Built
from harness.results import tables
from harness.results.html import annotated_lines, markup
from harness.results.html.annotated_columns import COLUMNS, Column, Measures, source_of
from harness.results.html.annotated_lines import Line
from harness.sass.code import Code


@dataclass(frozen=True, kw_only=True)
class Annotated:
    """One kernel and what is known of it, each part None or empty where it is not.

    `code` is its machine code. `ptx` is its PTX, whose instructions `run` counted at `shape`. `compiled` has
    the counts of the same run in the widths of the machine code. `findings` are those of all sizes, each with
    the first size that shows it. `hotspots` are ncu's samples. `status` is the verdict of `harness check`,
    `detail` why there are no counts.
    """

    label: str
    arch: str
    file: str
    source: str
    code: Code | None = None
    ptx: str = ""
    shape: str = ""
    status: str = ""
    detail: str = ""
    run: Emulation | None = None
    compiled: Emulation | None = None
    findings: tuple[tuple[Finding, str], ...] = ()
    hotspots: Hotspots | None = None

    @classmethod
    def of_built(cls, built: Built, hotspots: Hotspots | None = None) -> Annotated:
        """Return what is known of a kernel that was compiled, and perhaps profiled, but not emulated."""
        kernel = built.variant.kernel
        return cls(
            label=built.label,
            arch=built.cubin.arch,
            file=kernel.path.name,
            source=kernel.source,
            code=Code.of(built.cubin, built.sass) if built.sass is not None else None,
            hotspots=hotspots,
        )

    @classmethod
    def of_code(cls, code: Code) -> Annotated:
        """Return what is known of machine code, which harness may not have built."""
        return cls(label=code.label, arch=code.arch, file=code.file, source=code.source, code=code)

    @classmethod
    def of_profile(cls, p: Profile) -> Annotated:
        """Return a profile whose source is not at hand: the lines and instructions that it quotes."""
        return cls(
            label=p.label, arch=f"sm_{p.capability.replace('.', '')}", file="", source="", hotspots=p.hotspots
        )

    @classmethod
    def of_rows(cls, rows: Sequence[Measurement], compiled: Measurement | None = None) -> Annotated:
        """Return what the emulator saw of one kernel: findings of all `rows`, counts of the first.

        `compiled` is that row with accesses in the widths of the machine code. Raises ValueError if the rows
        are not of a kernel that was compiled.
        """
        first = rows[0]
        if first.built is None:
            raise ValueError(f"{first.label} was not compiled")
        found: dict[tuple[object, ...], tuple[Finding, str]] = {}
        for row in rows:
            for f in (*row.emulation.findings, *row.emulation.notices) if row.emulation else ():
                found.setdefault((f.kind, f.sources, f.variable, f.benign), (f, row.problem.label))
        bad = next((row for row in rows if not row.right), first)
        known = cls.of_built(first.built)
        return cls(
            label=known.label,
            arch=known.arch,
            file=known.file,
            source=known.source,
            code=known.code,
            ptx=first.built.cubin.ptx,
            shape=first.problem.label,
            status=bad.status,
            detail=bad.error or ("" if bad.before is None else f"numbers: {bad.before}"),
            run=first.emulation,
            compiled=compiled.emulation if compiled is not None else None,
            findings=tuple(found.values()),
        )


def page(kernels: Sequence[Annotated], title: str, notes: Sequence[str] = ()) -> str:
    """Return the HTML page of `kernels`, with `notes` about how it was made below them."""
    body = [f"<h1>{markup.text(title)}</h1>"]
    if len(kernels) > 1:
        items = [
            f'<li><a href="#k{n}">{markup.text(k.label)}</a> {markup.text(_verdict(k))}</li>'
            for n, k in enumerate(kernels)
        ]
        body.append(f"<nav><ol>{''.join(items)}</ol></nav>")
    for n, kernel in enumerate(kernels):
        body += _section(kernel, n)
    body += [f'<p class="note">{markup.text(note)}</p>' for note in notes]
    return markup.page(title, "\n".join(body), parts=("annotated",))


def _verdict(k: Annotated) -> str:
    """Return status and number of findings in words: ``FAILED, 2 findings``; empty if it was not run."""
    bad = sum(not f.benign for f, _ in k.findings)
    return ", ".join(filter(None, (k.status, f"{bad} finding{'s' * (bad != 1)}" if k.run else "")))


def _section(k: Annotated, number: int) -> Iterator[str]:
    """Yield the elements of one kernel."""
    yield f'<section id="k{number}"><h2>{markup.text(k.label)}</h2>'
    yield markup.facts(list(_facts(k)))
    if k.status and k.status != "ok" and k.detail:
        yield f'<p class="note">{markup.text(k.detail)}</p>'
    if k.findings:
        items = [annotated_lines.listed(f, at, number, k.file) for f, at in k.findings]
        yield f'<ol class="findings">{"".join(items)}</ol>'
    if not k.source:
        yield '<p class="note">The source is not at hand, or has changed since it was recorded.</p>'
    columns = [c for c in COLUMNS if c.known(k)]
    if columns:
        yield (
            '<p class="legend">'
            + "; ".join(f"<b>{markup.text(c.name)}</b> {markup.text(c.meaning)}" for c in columns)
            + '. Darker: <span class="h2">less</span> <span class="h5">to</span> '
            + '<span class="h9">more</span>.</p>'
        )
    yield annotated_lines.table([c.name for c in columns], _lines(k, columns), number)
    yield "</section>"


def _facts(k: Annotated) -> Iterator[tuple[str, str]]:
    """Yield names and values of what is known of the whole kernel."""
    yield "architecture", k.arch
    if k.status:
        yield "check", _verdict(k)
    if k.code is not None and k.code.registers is not None:
        yield "registers a thread", str(k.code.registers)
        yield "shared memory a block", f"{k.code.shared or 0:,} B"
        yield "spills", "-" if k.code.spills is None else f"{k.code.spills:,} B"
        if (filled := k.code.occupancy) is not None:
            yield "occupancy", f"{filled.fraction:.0%}, limited by {filled.limiter}"
        yield "instructions", f"{len(k.code.sass.instructions):,}"
    if k.run is not None:
        total = (k.compiled or k.run).total
        yield "counted at size", k.shape
        yield "FLOP a byte asked for", tables.ratio(total.intensity)
        yield "sectors a request", tables.ratio(total.sectors_per_request)
        yield "ways", tables.ratio(total.ways)
    if k.hotspots is not None:
        yield "warp samples", f"{k.hotspots.samples:,}"


def _lines(k: Annotated, columns: Sequence[Column]) -> Iterator[Line]:
    """Yield every line of the source, then lines of headers and what belongs to no line."""
    measures, ptx = Measures(k), k.ptx.splitlines()
    by_line: dict[Source, list[Finding]] = {}
    for finding, _ in k.findings:
        for source in dict.fromkeys(finding.sources):
            by_line.setdefault(source, []).append(finding)
    hot = k.code.hot_loop if k.code is not None else None
    texts = k.source.splitlines()
    known = [Source(line=n) for n in range(1, len(texts) + 1)]
    seen = {*measures.counts, *measures.spots, *by_line, *(Source(line=n) for n in measures.sass)}
    for at in (*known, *sorted(seen.difference(known), key=lambda s: (not s.line, s.file, s.line))):
        sass = measures.sass.get(at.line, []) if not at.file else []
        yield Line(
            name=str(at) if at.file else str(at.line or ""),
            text=texts[at.line - 1]
            if 0 < at.line <= len(texts) and not at.file
            else _elsewhere(measures, at),
            cells={c.name: cell for c in columns if (cell := c.cell(measures, at)) is not None},
            findings=by_line.get(at, ()),
            sass=tuple((i, hot is not None and i.address in hot.addresses) for i in sass),
            ptx=tuple((_ptx(ptx, c), c) for c in measures.ptx.get(at, ())),
        )


def _elsewhere(m: Measures, at: Source) -> str:
    """Return the text of a line that the kernel's own source does not have, where a profile quotes it."""
    spot = m.spots.get(at)
    return spot.text if spot is not None else "" if at.line else "(not in the source)"


def quotes(hotspots: Hotspots, file: str, source: str) -> bool:
    """Return True if all lines of `file` that a profile quotes stand in `source` today."""
    texts = source.splitlines()
    own = [(at.line, s.text) for s in hotspots.lines if s.text and not (at := source_of(s.place, file)).file]
    return all(0 < n <= len(texts) and texts[n - 1].strip() == text.strip() for n, text in own)


def _ptx(lines: Sequence[str], c: Counts) -> str:
    """Return the text of a counted PTX instruction, without its indentation and comments."""
    text = lines[c.ptx_line - 1] if 0 < c.ptx_line <= len(lines) else c.opcode
    return " ".join(text.partition("//")[0].split())


def title_of(kernels: Sequence[Annotated], verb: str) -> str:
    """Return the title of a page that a verb made: ``harness check: 03_tiled TILE=16``."""
    names = list(dict.fromkeys(k.label for k in kernels))
    return f"harness {verb}: {names[0] if len(names) == 1 else f'{len(names)} kernels'}"


def made(meta: Mapping[str, object]) -> str:
    """Return how a page was made, from a record's provenance: command, time, version."""
    argv = meta.get("argv")
    command = " ".join(map(str, argv)) if isinstance(argv, list) else "harness"
    return f"Made by `{command}`, {meta.get('utc')}, harness {meta.get('harness')}."
