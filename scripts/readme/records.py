"""Read records, and say what tables say of them: rates, shares, and where they come from."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from harness.bench.row import EXPECTED
from harness.results import record

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "records"
GPU = "h200"  # whose records the tables show
OTHERS = ("h100",)  # of which some have records, too


def load(name: str, folder: str = GPU) -> dict[str, Any]:
    """Return the record of this name, as ``bench/ladder``, with its path as ``path``."""
    return read(*files(f"{name}.json", folder))


def files(pattern: str, folder: str = GPU) -> list[Path]:
    """Return the paths of records of a GPU, those that are packed among them, by name."""
    found = (path for end in ("", ".xz") for path in (RECORDS / folder).glob(pattern + end))
    return sorted(found, key=lambda path: str(path).removesuffix(".xz"))


def every(pattern: str, folder: str = GPU) -> list[dict[str, Any]]:
    """Return the records of a GPU whose paths match, such as ``verify/*.json``, sorted."""
    return [read(path) for path in files(pattern, folder)]


def read(path: Path) -> dict[str, Any]:
    """Return the record at `path`; its key ``path`` says where it lies, for links."""
    return {**_loaded(path, path.stat().st_mtime_ns), "path": path.relative_to(RECORDS).as_posix()}


@functools.cache
def _loaded(path: Path, _changed: int) -> dict[str, Any]:
    """Return the record's contents, which many tables share."""
    return record.load(path)


def provenance(content: dict[str, Any], *others: dict[str, Any]) -> str:
    """Return the footer of a table: machine, versions, commands and date. `others` are further records of the
    same machine that the table shows.
    """
    meta = content["meta"]
    gpu = meta["gpu"]
    compiler = next(r["compiler"] for r in content["rows"] if "compiler" in r)
    return (
        f"{gpu['name']}, driver {gpu['driver']}, {compiler}, cuBLAS {gpu['cublas']} in {gpu['math_mode']}; "
        f"{' and '.join(command(c) for c in (content, *others))}, {meta['utc'][:10]}."
    )


def command(content: dict[str, Any]) -> str:
    """Return the command that made the record, as a link to it (`updated` completes the address)."""
    return linked(" ".join(content["meta"]["argv"]), content)


def linked(text: str, content: dict[str, Any]) -> str:
    return f"[`{text}`](ROOT/records/{content['path']})"


def machine(record: dict[str, Any]) -> str:
    meta = record["meta"]
    return f"{meta['gpu']['name']}; {command(record)}, {meta['utc'][:10]}."


def of_type(dtype: str, *patterns: str) -> list[dict[str, Any]]:
    """Return the records of these names that have rows of this element type, with those rows only."""
    named = [f for p in patterns for f in sorted(files(p), key=lambda f: (len(f.stem), f.stem))]
    found = []
    for content in map(read, named):
        rows = [r for r in content["rows"] if (r.get("dtype") or "fp32") == dtype]
        found += [{**content, "rows": rows}] if rows else []
    return found


def unit(dtype: str) -> tuple[str, float, str]:
    """Return the unit of a type's rates, its size in FLOP/s, and the format of a number of it."""
    return ("GFLOP/s", 1e9, ",.0f") if dtype == "fp32" else ("TFLOP/s", 1e12, ",.1f")


def rate(row: dict[str, Any], dtype: str = "fp32") -> str:
    """Return a row's rate, or its status where it was not both verified and timed."""
    _, scale, form = unit(dtype)
    if row["status"] == "ok":
        return f"{row['flops_rate'] / scale:{form}}"
    return "wrong" if row["status"] == EXPECTED else row["status"]


def size(row: dict[str, Any]) -> str:
    """Return ``512`` or ``300x500x260``, without the element type, which the table's heading names."""
    return str(row["shape"].split()[0])


def share(row: dict[str, Any]) -> str:
    """Return the per cent of cuBLAS with its interval, where the row was verified and paired with it."""
    if row["status"] != "ok" or row["against"] != "cuBLAS" or not row["speedup"]:
        return "-"
    low, estimate, high = (100 * row["speedup"][key] for key in ("low", "estimate", "high"))
    return f"{estimate:.1f} ({low:.1f} to {high:.1f})"


def clock(row: dict[str, Any]) -> str:
    return f"{row['sm_hz'] / 1e6:,.0f}" if row["status"] == "ok" and row["sm_hz"] else "-"
