"""Lay out annotated source as an HTML table: a row for each line, its heat, findings and instructions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from harness.emulator import Counts, Finding, Source
from harness.results import tables
from harness.results.html.markup import text
from harness.sass import listing
from harness.sass.instructions import Instruction

_OPEN = 3  # with at most so many instructions a line shows them at once
_NAMED = 3  # opcodes that the closed line of a longer list names


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One value of a line: its text, its heat from 0 to 9, and what a pointer that rests on it is told."""

    text: str
    heat: int
    title: str

    @classmethod
    def of(cls, shown: str, share: float, title: str) -> Self:
        """Return a cell whose heat is `share`, from 0 to 1."""
        return cls(text=shown, heat=min(9, int(10 * max(0.0, share))), title=title)


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of source and what is known of it.

    `name` is its number, or file and number in a header; empty for what belongs to no line. `sass` has the
    machine instructions, and whether each is in the hot loop; `ptx` the text and the counts of PTX
    instructions.
    """

    name: str
    text: str
    cells: dict[str, Cell] = field(default_factory=dict)
    findings: Sequence[Finding] = ()
    sass: Sequence[tuple[Instruction, bool]] = ()
    ptx: Sequence[tuple[str, Counts]] = ()


def table(columns: Sequence[str], lines: Iterable[Line], number: int) -> str:
    """Return the table of a kernel's lines; `number` is the kernel's on the page, for links to its lines."""
    head = "".join(f'<th scope="col" class="m">{text(c)}</th>' for c in columns)
    rows = "\n".join(_row(line, columns, number) for line in lines)
    buttons = (
        '<p class="tools"><button type="button" data-open="1">Open all instructions</button> '
        '<button type="button" data-open="">Close all</button></p>'
    )
    return (
        f'{buttons}<div class="source"><table><thead><tr><th scope="col">line</th>{head}'
        f'<th scope="col">source</th><th scope="col">instructions</th></tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>"
    )


def listed(f: Finding, shape: str, number: int, file: str) -> str:
    """Return a finding as an item of a list, with links to its lines."""
    links = " and ".join(_link(s, number, file) for s in f.sources)
    kind = f"notice: {f.kind}" if f.benign else f.kind
    times = "once" if f.seen == 1 else f"{f.seen:,} times"
    return (
        f'<li class="{"notice" if f.benign else "fault"}"><b>{text(kind)}</b> at {links}, seen {times} '
        f"at {text(shape)}: {text(f.message)}</li>"
    )


def _link(s: Source, number: int, file: str) -> str:
    """Return a link to a line of the kernel's own file; a header's line is text."""
    if s.file or not s.line:
        return text(s if s.file else "an unknown line")
    return f'<a href="#k{number}-L{s.line}">{text(file)}:{s.line}</a>'


def _row(line: Line, columns: Sequence[str], number: int) -> str:
    """Return the table row of a line."""
    classes = " ".join(
        name
        for name, there in (
            ("fault", any(not f.benign for f in line.findings)),
            ("notice", bool(line.findings)),
            ("hot", any(hot for _, hot in line.sass)),
            ("bare", not (line.cells or line.sass or line.ptx or line.findings)),
        )
        if there
    )
    label = text(line.name)
    own = line.name.isdigit()
    anchor = f' id="k{number}-L{label}"' if own else ""
    name = f'<a href="#k{number}-L{label}">{label}</a>' if own else label
    cells = "".join(_cell(line.cells.get(c), c) for c in columns)
    found = "".join(f"<p><b>{text(f.kind)}</b>: {text(f.message)}</p>" for f in line.findings)
    return (
        f'<tr{anchor} class="{classes}"><th scope="row">{name}</th>{cells}'
        f"<td class=src><code>{text(line.text.expandtabs(4)) or ' '}</code>{found}</td>"
        f"<td class=asm>{''.join(_instructions(line))}</td></tr>"
    )


def _cell(cell: Cell | None, column: str) -> str:
    """Return the table cell of a value, named by its column for screens that have no room for headings."""
    if cell is None:
        return '<td class="m"></td>'
    about = f'class="m h{cell.heat}" data-c="{text(column)}" title="{text(cell.title)}"'
    return f"<td {about}>{text(cell.text)}</td>"


def _instructions(line: Line) -> Iterator[str]:
    """Yield the line's machine code and its PTX, each as a list that opens and closes."""
    if line.sass:
        items = [
            f'<li class="{listing.kind(i)}{" hot" if hot else ""}">{i.address:04x} {text(i)}</li>'
            for i, hot in line.sass
        ]
        yield _list("SASS", [i.opcode for i, _ in line.sass], items)
    if line.ptx:
        items = [f"<li>{text(said)}{_counted(c)}</li>" for said, c in line.ptx]
        yield _list("PTX", [c.opcode for _, c in line.ptx], items, shown=not line.sass)


def _counted(c: Counts) -> str:
    """Return what the emulator counted of a PTX instruction, as an element."""
    said = [f"{tables.si(c.executions)} threads"]
    if c.global_requests:
        said.append(f"{tables.ratio(c.sectors_per_request)} sect")
    if c.shared_requests:
        said.append(f"{tables.ratio(c.ways)} ways")
    return f" <i>{text(', '.join(said))}</i>"


def _list(name: str, opcodes: Sequence[str], items: Sequence[str], *, shown: bool = True) -> str:
    """Return a list of instructions whose closed line has their number and the most frequent opcodes."""
    most = Counter(opcodes).most_common(_NAMED)
    rest = len(opcodes) - sum(n for _, n in most)
    mix = ", ".join(f"{n} {opcode}" if n > 1 else opcode for opcode, n in most)
    mix += f", {rest} more" if rest else ""
    opened = " open" if shown and len(items) <= _OPEN else ""
    return (
        f"<details{opened}><summary>{len(items)} {name}: {text(mix)}</summary>"
        f"<ol>{''.join(items)}</ol></details>"
    )
