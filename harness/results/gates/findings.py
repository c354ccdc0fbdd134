"""Write what ``harness check`` found for the tools that show it: SARIF, JUnit and GitHub's annotations.

SARIF is that of OASIS, 2.1.0, as code scanning reads it. JUnit's XML has no standard; the elements used are
those that CI servers agree on: a test case for each kernel and size, with ``failure``, ``error`` or
``skipped``. Annotations are GitHub's workflow commands, one a line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from harness.bench.row import EXPECTED, FAILURES, UNCHECKED, Measurement
from harness.emulator import Source
from harness.errors import BuildError, HarnessError
from harness.launch.builds import Skipped
from harness.launch.further import unsure

Level = str  # SARIF's: error, warning, note
_SARIF = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_HELP = {
    "wrong result": "The result differs from the reference by more than the bound of its rounding errors.",
    "error": "The kernel could not be run.",
    "build error": "The compiler refused the kernel.",
    "needs a GPU": "The emulator cannot run the kernel: it was not checked.",
    "not ended": "The emulator had no time for all of the kernel.",
}
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # not allowed in XML 1.0


@dataclass(frozen=True, kw_only=True)
class Reported:
    """One finding as other tools show it.

    `path` is relative to the repository where it lies below it. `line` counts from 1. `others` are further
    lines that take part. `excused` is True for a kernel whose file marks it as broken.
    """

    kind: str
    level: Level
    message: str
    path: str
    line: int
    text: str
    others: tuple[tuple[str, int], ...] = ()
    excused: bool = False

    def __str__(self) -> str:
        source = f"\n    {self.text}" if self.text else ""
        return f"{self.path}:{self.line}: {self.kind}: {self.message}{source}"


def reported(rows: Sequence[Measurement], skipped: Sequence[Skipped] = ()) -> list[Reported]:
    """Return every finding of the rows once, wrong results, and kernels that could not be built or run."""
    found: dict[tuple[object, ...], Reported] = {}
    for row in rows:
        for one in of_row(row):
            found.setdefault((one.kind, one.path, one.line, one.others, row.label), one)
    for s in skipped:
        if s.failed:
            path = relative(s.variant.kernel.path)
            line = _line(s.error, s.variant.kernel.path.name)
            one = Reported(
                kind="build error", level="error", message=str(s.error), path=path, line=line, text=""
            )
            found.setdefault((one.kind, path, one.message), one)
    return list(found.values())


def _line(error: HarnessError, name: str) -> int:
    """Return the line of the first error in a compiler's log; 1 where none is in the kernel's file."""
    log = error.log if isinstance(error, BuildError) else ""
    found = re.search(rf"^(?:.*/)?{re.escape(name)}\((\d+)\): .*\berror\b", log, re.MULTILINE)
    return max(1, int(found[1])) if found else 1


def of_row(row: Measurement) -> Iterator[Reported]:
    """Yield what one row found: hazards and faults by line; else a wrong result or an error at line 1."""
    if row.built is None:
        return
    kernel = row.built.variant.kernel
    path, lines = relative(kernel.path), kernel.source.splitlines()
    where = f"{row.label}, {row.problem.label}"
    findings = (*row.emulation.findings, *row.emulation.notices) if row.emulation is not None else ()
    for f in findings:
        first, *others = [_place(s, path) for s in f.sources] or [(path, 1)]
        own = first[0] == path and first[1] <= len(lines)
        yield Reported(
            kind=f.kind,
            level="note" if f.benign or row.status == EXPECTED else "error",
            message=f"{f.message} ({where}, seen {f.seen} times)",
            path=first[0],
            line=first[1],
            text=lines[first[1] - 1].strip() if own else "",
            others=tuple(others),
            excused=row.status == EXPECTED,
        )
    failed = row.status in FAILURES and not any(not f.benign for f in findings)
    if failed or row.status in UNCHECKED or (row.before is not None and not row.before.ok):
        kind = row.status if row.status in UNCHECKED else "error" if row.error else "wrong result"
        level = "note" if row.status in (*UNCHECKED, EXPECTED) else "error"
        said = f"{row.error or row.before} ({where})"
        excused = row.status == EXPECTED
        yield Reported(kind=kind, level=level, message=said, path=path, line=1, text="", excused=excused)


def relative(path: Path) -> str:
    """Return a path as CI tools name it: below the checkout (GITHUB_WORKSPACE, else the working directory).

    A file elsewhere is named by its name alone.
    """
    base = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd()).resolve()
    whole = path.resolve()
    return whole.relative_to(base).as_posix() if whole.is_relative_to(base) else whole.name


def _place(s: Source, path: str) -> tuple[str, int]:
    """Return file and line of a source; line 1 where it is not known."""
    return (s.file or path, max(1, s.line))


def sarif(found: Sequence[Reported], version: str) -> dict[str, Any]:
    """Return the findings as a SARIF 2.1.0 log. Kernels marked as broken are suppressed in source."""
    kinds = list(dict.fromkeys(f.kind for f in found))
    rules = [
        {
            "id": _identifier(kind),
            "name": kind,
            "shortDescription": {"text": kind},
            "fullDescription": {"text": _HELP.get(kind, f"{kind}, found by the emulator of harness check.")},
        }
        for kind in kinds
    ]
    results = [
        {
            "ruleId": _identifier(f.kind),
            "ruleIndex": kinds.index(f.kind),
            "level": f.level,
            "message": {"text": f.message},
            "locations": [_location(f.path, f.line, f.text)],
            "relatedLocations": [
                {"id": n, **_location(path, line)} for n, (path, line) in enumerate(f.others)
            ],
            "suppressions": [{"kind": "inSource", "justification": "marked as broken in its front matter"}]
            if f.excused
            else [],
        }
        for f in found
    ]
    driver = {"name": "harness", "version": version, "rules": rules}
    return {
        "$schema": _SARIF,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}],
    }


def _identifier(kind: str) -> str:
    """Return a kind as the stable identifier of a rule, ``raw-hazard``."""
    return re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-")


def _location(path: str, line: int, text: str = "") -> dict[str, Any]:
    """Return a SARIF location."""
    region: dict[str, Any] = {"startLine": line} | ({"snippet": {"text": text}} if text else {})
    uri = "".join(
        c if c.isalnum() or c in "-._~/" else "".join(f"%{b:02X}" for b in c.encode()) for c in path
    )
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}


def junit(rows: Sequence[Measurement], skipped: Sequence[Skipped] = ()) -> str:
    """Return JUnit XML: a test case for each kernel and size, and one for each kernel that was not built."""
    suite = ElementTree.Element("testsuite", name="harness check")
    counts = dict.fromkeys(("failures", "errors", "skipped"), 0)
    for row in rows:
        case = ElementTree.SubElement(
            suite, "testcase", classname=_xml(row.label), name=_xml(row.problem.label)
        )
        told = list(of_row(row))
        if row.status in UNCHECKED:
            counts["skipped"] += 1
            ElementTree.SubElement(case, "skipped", message=_xml(row.error or row.status))
        elif row.status in FAILURES:
            tag = "failure" if row.emulation is not None else "error"
            counts[f"{tag}s"] += 1
            kinds = ", ".join(dict.fromkeys(f.kind for f in told if f.level == "error")) or row.status
            part = ElementTree.SubElement(case, tag, message=_xml(kinds), type=_xml(row.status))
            part.text = _xml("\n".join(map(str, told)))
        elif lengths := unsure(row.problem):
            counts["skipped"] += 1
            said = f"in doubt, as the kernel goes farther than the text says: {', '.join(lengths)}"
            ElementTree.SubElement(case, "skipped", message=_xml(said))
        if told and row.status not in (*UNCHECKED, *FAILURES):
            ElementTree.SubElement(case, "system-out").text = _xml("\n".join(map(str, told)))
    for s in skipped:
        case = ElementTree.SubElement(
            suite, "testcase", classname=_xml(s.variant.label), name=f"build {s.arch}"
        )
        tag = "error" if s.failed else "skipped"
        counts["errors" if s.failed else "skipped"] += 1
        ElementTree.SubElement(case, tag, message=_xml(s.error.what)).text = _xml(s.error)
    suite.attrib |= {"tests": str(len(suite)), **{name: str(n) for name, n in counts.items()}}
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _xml(value: object) -> str:
    """Return a value as text that XML 1.0 can hold."""
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", str(value))


_COMMANDS: Mapping[Level, str] = {"error": "error", "warning": "warning", "note": "notice"}


def workflow_commands(found: Sequence[Reported]) -> Iterator[str]:
    """Yield a GitHub workflow command for each finding: ``::error file=a.cu,line=3,title=...::message``."""
    for f in found:
        fields = f"file={_field(f.path)},line={f.line},title={_field(f.kind)}"
        yield f"::{_COMMANDS[f.level]} {fields}::{_escaped(f.message)}"


def _escaped(text: str) -> str:
    """Escape what would end a workflow command's message."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _field(text: str) -> str:
    """Escape what would end a property of a workflow command."""
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
