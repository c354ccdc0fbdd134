"""The tables of a sampler's record: ratios by type and class, the worst draws, and what the choice loses."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from harness.results.tables import plain_table

Row = Mapping[str, Any]

LOST = 0.98  # of the faster library's speed; what is below counts as lost

# What issue 21 asks of each type: geometric mean, 5th percentile, least.
TARGETS = {
    "fp32": (1.12, 0.98, 0.92),
    "tf32": (1.12, 0.98, 0.92),
    "bf16": (1.04, 0.98, 0.92),
    "fp16": (1.04, 0.98, 0.92),
}
_ORDER = (
    "all", "square", "oblong", "flat", "deep", "skinny", "thin", "round", "ragged", "model", "NN", "NT", "TN",
    "TT", "packed", "long", "padded", "odd",
)  # fmt: skip
WORST = 20
_WIDTH, _INDENT = 80, " " * 7
_LONG = 20e-6  # seconds


def summary(rows: Sequence[Row]) -> str:
    """Return all tables as text, for a terminal."""
    parts = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        parts.append(by_class(dtype, [row for row in rows if row["dtype"] == dtype]))
    parts += [worst(rows), regret(rows), invariant(rows), failures(rows)]
    return "\n\n".join(part for part in parts if part)


def by_class(dtype: str, rows: Sequence[Row]) -> str:
    """Return the table of ratios of one type, by class, with what is asked of it and whether it holds."""
    timed = [row for row in rows if row["status"] == "ok"]
    if not timed:
        return f"{dtype}: nothing was timed"
    single = all("event_ratio" in row for row in timed)
    headings = [
        "draws",
        "geomean",
        "5th pct",
        "least",
        f"below {LOST}",
        *(["an event each"] if single else []),
    ]
    cells = []
    for name in _ORDER:
        chosen = [row for row in timed if counts(row, name)]
        if chosen:
            found = np.array([row["ratio"] for row in chosen])
            mean, fifth, least = statistics(found)
            cell = [name, str(len(chosen)), f"{mean:.3f}", f"{fifth:.3f}", f"{least:.3f}"]
            cell.append(f"{np.mean(found < LOST):.0%}")
            if single:
                cell.append(f"{statistics(np.array([row['event_ratio'] for row in chosen]))[0]:.3f}")
            cells.append(cell)
    text = plain_table(cells, [dtype, *headings])
    if dtype in TARGETS:
        failed = sum(row["status"] == "error" for row in rows)
        said = verdict(dtype, np.array([row["ratio"] for row in timed]))
        text += f"\n{said}" + (f"; {failed} draws FAILED" if failed else "")
    return text


def counts(row: Row, name: str) -> bool:
    """Return True if a draw counts in a line of the table.

    Beside those of the draw's classes there are ``all``, and ``long`` for packed operands with which the
    faster library takes 20 us or more.
    """
    if name != "long":
        return name == "all" or name in row["classes"]
    theirs = min(taken for side, taken in row["seconds"].items() if side != "matmul")
    return "packed" in row["classes"] and theirs >= _LONG


def verdict(dtype: str, ratios: Any) -> str:
    """Return in words which of the type's `TARGETS` hold."""
    names = ("geomean", "5th percentile", "least")
    pairs = zip(names, statistics(ratios), TARGETS[dtype], strict=True)
    parts = [f"{name} >= {asked}: {'yes' if found >= asked else 'no'}" for name, found, asked in pairs]
    return ", ".join(parts)


def statistics(ratios: Any) -> tuple[float, float, float]:
    """Return geometric mean, 5th percentile and least of the ratios."""
    return float(np.exp(np.mean(np.log(ratios)))), float(np.percentile(ratios, 5)), float(np.min(ratios))


def worst(rows: Sequence[Row]) -> str:
    """Return the draws with the lowest ratios: what each is, and what ran for it."""
    timed = sorted((row for row in rows if row["status"] == "ok"), key=lambda row: row["ratio"])[:WORST]
    if not timed:
        return ""
    lines = [f"the worst {len(timed)}, time of cuBLAS over ours:"]
    for row in timed:
        seconds = row["seconds"]
        theirs = min((name for name in seconds if name != "matmul"), key=seconds.__getitem__)
        times = f"{microseconds(seconds['matmul'])}, {theirs} {microseconds(seconds[theirs])}"
        said = [f"{row['ratio']:.3f}  {row['dtype']} {shape(row)}: {times}", row["origin"], row["chosen"]]
        said.append(row["algorithm"] and f"cuBLASLt: {row['algorithm']}")
        for text in filter(None, said):
            indented = "" if text is said[0] else _INDENT
            lines += textwrap.wrap(text, _WIDTH, initial_indent=indented, subsequent_indent=_INDENT)
    return "\n".join(lines)


def shape(row: Row) -> str:
    """Return sizes, layout and leading dimensions: ``300x500x260 NT ld 264,264,512``."""
    layout = "".join("NT"[row[axis]] for axis in ("transa", "transb"))
    leading = [row[axis] for axis in ("lda", "ldb", "ldc")]
    packed = [
        row["M"] if row["transa"] else row["K"],
        row["K"] if row["transb"] else row["N"],
        row["N"],
    ]
    text = f"{row['M']}x{row['N']}x{row['K']} {layout}"
    return text if leading == packed else f"{text} ld {','.join(map(str, leading))}"


def microseconds(seconds: float) -> str:
    """Return a time in microseconds with three digits."""
    digits = max(0, 2 - math.floor(math.log10(seconds * 1e6)))
    return f"{seconds * 1e6:.{digits}f} us"


def regret(rows: Sequence[Row]) -> str:
    """Return how much longer than the best of its candidates each choice takes; empty if none was timed."""
    cells = [list(cell) for cell in _regrets(rows)]
    headings = ["type", "chosen by", "draws", "mean", "95th pct", "most", "within 2%"]
    return plain_table(cells, headings, keys=2) if cells else ""


def _regrets(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        for key, name in (("regret", "harness.matmul"), ("named_regret", "NVIDIA's heuristics")):
            found = np.array([r[key] for r in rows if r["dtype"] == dtype and r.get(key) is not None])
            if len(found):
                mean = float(np.exp(np.mean(np.log1p(found)))) - 1
                tail, most = float(np.percentile(found, 95)), float(found.max())
                numbers = (f"{mean:.1%}", f"{tail:.1%}", f"{most:.1%}", f"{np.mean(found <= 0.02):.0%}")
                yield dtype, name, str(len(found)), *numbers


def invariant(rows: Sequence[Row]) -> str:
    """Return how much longer products take whose rows have the same bits in a product of any rows.

    The last column is the time of the faster library over theirs, as a geometric mean. Empty if no such
    product was timed.
    """
    cells = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        timed = [row for row in rows if row["dtype"] == dtype and "invariant" in row]
        if timed:
            found = np.array([row["invariant"]["price"] for row in timed])
            theirs = [row["ratio"] / (1 + row["invariant"]["price"]) for row in timed]
            numbers = [float(np.median(found)), float(np.percentile(found, 95)), float(found.max())]
            mean = statistics(np.array(theirs))[0]
            cells.append([dtype, str(len(timed)), *(f"{x:.1%}" for x in numbers), f"{mean:.3f}"])
    headings = ["invariant rows", "draws", "median", "95th pct", "most", "ratio"]
    return plain_table(cells, headings) if cells else ""


def failures(rows: Sequence[Row]) -> str:
    """Return the draws without a time and the sides that failed, each with its reason."""
    lines = []
    for row in rows:
        what = f"{row['dtype']} {shape(row)}"
        if row["status"] != "ok":
            lines.append(f"{row['status']}: {what} ({row['chosen']}): {row['error']}")
        else:
            lines += [f"without {name}: {what}: {why}" for name, why in row.get("failures", {}).items()]
    return "\n".join(lines)
