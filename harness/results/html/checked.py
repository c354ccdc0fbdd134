"""Show files of check, verify and sass, and emulated rows of bench, as parts of a report: in full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.results import tables
from harness.results.html.markup import table, text
from harness.results.record import Document
from harness.results.rows import Row, label

KINDS = ("check", "run", "verify", "sass")
_COLUMNS: tuple[tables.Column, ...] = (
    ("arch", "architecture", str),
    ("shape", "size", str),
    ("status", "check", str),
    ("error_over_bound", "error / bound", "{:.3g}".format),
    ("registers", "registers", str),
    ("shared", "shared B", "{:,}".format),
    ("spills", "spills B", "{:,}".format),
    ("occupancy", "occupancy", "{:.0%}".format),
    ("emulated.intensity", "FLOP/B asked for", "{:.3g}".format),
    ("emulated.sectors_per_request", "sectors a request", "{:.3g}".format),
    ("emulated.ways", "ways", "{:.3g}".format),
)
_LINES: tuple[tables.Column, ...] = (
    ("line", "line", str),
    ("executions", "threads", tables.si),
    ("flops", "FLOP", tables.si),
    ("global_requests", "global requests", tables.si),
    ("sectors", "sectors", tables.si),
    ("shared_requests", "shared requests", tables.si),
    ("wavefronts", "wavefronts", tables.si),
    ("conflicts", "by conflicts", tables.si),
)


def section(content: Document) -> Iterator[str]:
    """Yield the elements of a file: a table of its rows, then findings and counts, or expectations."""
    rows = content["rows"]
    shown = [c for c in _COLUMNS if any(tables.cell(r, c) != "-" for r in rows)]
    several = any(isinstance(r.get("findings"), list) for r in rows)
    headings = ["kernel", *(c[1] for c in shown), *(["findings"] if several else [])]
    cells = [
        [
            _name(r),
            *(tables.cell(r, c) for c in shown),
            *([str(len(r.get("findings") or ()))] if several else []),
        ]
        for r in rows
    ]
    yield table(headings, cells)
    yield from findings(rows)
    yield from counts(rows)
    expected = [(r, e) for r in rows for e in r.get("expectations") or ()]
    if expected:
        listed = [
            [_name(r), str(r.get("arch", "-")), str(e.get("text")), _amount(e.get("actual")), _holds(e)]
            for r, e in expected
        ]
        yield table(("kernel", "architecture", "expectation", "is", ""), listed)


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a list of the findings of rows, each once a kernel, and why rows are wrong that have none."""
    said: dict[tuple[str, ...], str] = {}
    for row in rows:
        name = _name(row)
        for f in (*(row.get("findings") or ()), *(row.get("notices") or ())):
            sources = f.get("sources")
            places = " and ".join(map(_place, sources if isinstance(sources, list) else ()))
            kind = f"notice: {f.get('kind')}" if f.get("benign") else str(f.get("kind"))
            told = f"at {places}: {f.get('message')} (size {row.get('shape')}, seen {f.get('seen')} times)"
            said.setdefault((name, kind, places), f"<b>{text(name)}: {text(kind)}</b> {text(told)}")
        if row.get("status") not in ("ok", None) and not row.get("findings") and row.get("detail"):
            why = f"<b>{text(name)}: {text(row['status'])}</b> {text(row['detail'])}"
            said.setdefault((name, row["status"], row["detail"]), why)
    if said:
        yield f'<ul class="findings">{"".join(f"<li>{item}</li>" for item in said.values())}</ul>'


def counts(rows: Sequence[Row]) -> Iterator[str]:
    """Yield for each kernel its counts by source line at the first size, in a part that opens and closes."""
    seen: set[str] = set()
    for row in rows:
        lines = row.get("lines") or []
        if _name(row) in seen or not lines:
            continue
        seen.add(_name(row))
        shown = [c for c in _LINES if any(line.get(c[0]) for line in lines)]
        cells = [[_cell(line, c) for c in shown] for line in lines]
        title = f"{_name(row)}: counts by source line, size {row.get('shape')}"
        yield f"<details><summary>{text(title)}</summary>{table([c[1] for c in shown], cells)}</details>"


def _cell(line: Mapping[str, Any], column: tables.Column) -> str:
    """Return a count as text; a header's line with its file."""
    if column[0] == "line" and line.get("file"):
        return f"{line['file']}:{line['line']}"
    value = line.get(column[0])
    return tables.cell(line, column) if isinstance(value, int | float) else str(value or "-")


def _name(row: Mapping[str, Any]) -> str:
    """Return the kernel with its parameters, or what code that harness did not build is called."""
    known = isinstance(row.get("params"), Mapping) and row.get("kernel")
    return label(row) if known else str(row.get("label", "-"))  # type: ignore[arg-type]


def _place(source: Any) -> str:
    """Return a source line of a record, ``[41, ""]``, in words."""
    line, file = source if isinstance(source, list) and len(source) == 2 else ("?", "")
    return f"{file}:{line}" if file else f"line {line}"


def _amount(value: Any) -> str:
    """Return what an expectation found as text; ``-`` for what is no number."""
    return tables.number(value) if isinstance(value, int | float) else "-"


def _holds(expectation: Mapping[str, Any]) -> str:
    """Return whether an expectation holds, in a word."""
    return "holds" if expectation.get("holds") else "FAILED"
