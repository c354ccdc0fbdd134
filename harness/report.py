"""Rows -> tables for people, CSV and Markdown for documents, JSON for records."""

from __future__ import annotations

import csv
import datetime
import hashlib
import io
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import tabulate as tabulate_module
from tabulate import tabulate

from harness.builds import Built
from harness.errors import HarnessError, UsageError
from harness.measure import Measurement

SCHEMA = 1
COUNTED = ("FFMA", "LDG", "LDG.128", "LDS", "LDS.64", "LDS.128", "STS", "BAR", "LDL", "STL")
NO_GPU = "no GPU"  # what stands in a cell that only a GPU could fill

Record = dict[str, Any]  # one flat row: JSON-ready, None where there is no value
Column = tuple[str, str, Callable[[Any], str]]  # key in the record, heading, how to print the value


def static_record(built: Built) -> Record:
    """What is known of a kernel without running it."""
    variant, resources, sass = built.variant, built.cubin.resources, built.sass
    return {
        "kernel": variant.kernel.name,
        "params": dict(variant.params),
        "arch": built.cubin.arch,
        "compiler": built.cubin.compiler,
        "problem": variant.kernel.problem,
        "tile": list(variant.tile),
        "block": list(variant.block),
        "registers": resources.registers,
        "shared": built.cubin.shared,
        "spills": resources.spill_stores + resources.spill_loads,
        "intensity": built.intensity,
        "sass": sass and {**{o: sass.count(o) for o in COUNTED}, "bytes": sass.code_bytes},
        "source_sha256": _sha256(variant.kernel.source.encode()),
        "cubin_sha256": built.cubin.sha256,
    }


def timed_record(row: Measurement, peak_fp32: float) -> Record:
    """A measured row; times in seconds, rates in FLOP/s and bytes/s, ratios as fractions."""
    static: Record = {"kernel": row.label, "params": {}, "problem": "gemm"}  # the baseline
    if row.built is not None:
        static = static_record(row.built)
    summary = row.samples.summary if row.samples else None
    return {
        **static,
        "shape": row.problem.label,
        "axes": {name: getattr(row.problem, name, None) for name in row.problem.axes},
        "status": row.status,
        "detail": row.detail,
        "seconds": row.seconds,
        "noise": summary.noise if summary else None,
        "samples": summary.samples if summary else None,
        "stopped": row.samples.stopped if row.samples else None,
        "flops_rate": row.flops_rate,
        "bandwidth": row.bandwidth,
        "vs_cublas": row.speedup,
        "vs_peak": row.flops_rate / peak_fp32 if row.flops_rate else None,
        "occupancy": row.occupancy,
        "regime": {True: "cold", False: "warm", None: None}[row.cold],
        "sets": row.sets,
        "bytes_touched": row.bytes_touched,
        "device": asdict(row.device) if row.device else None,
        "error_over_bound": row.before.worst if row.before and math.isfinite(row.before.worst) else None,
        "times": [float(f"{t:.4g}") for t in row.samples.times] if row.samples else [],
    }


# ---- tables ----------------------------------------------------------------------------------------


def params_text(record: Record) -> str:
    """``TILE=64 COARSE=16``."""
    return _params(record["params"])


def _params(value: Mapping[str, int]) -> str:
    return " ".join(f"{k}={v}" for k, v in value.items())


def _by(value: Sequence[int]) -> str:
    return "x".join(map(str, value))


def _share(value: float) -> str:
    return f"{100 * value:.1f}"


def _giga(value: float) -> str:
    return f"{value / 1e9:.0f}" if value >= 1e10 else f"{value / 1e9:.2f}"


def _si_seconds(value: float) -> str:
    for scale, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{value / 1e-9:.0f} ns"


STATIC: tuple[Column, ...] = (
    ("name", "kernel", str),
    ("params", "params", _params),
    ("tile", "tile", _by),
    ("registers", "regs", str),
    ("shared", "smem", str),
    ("intensity", "FLOP/B", "{:.3g}".format),
    ("sass.LDS.128", "LDS.128", str),
    ("occupancy", "occ", "{:.0%}".format),
)
TIMED: tuple[Column, ...] = (
    ("name", "kernel", str),
    ("seconds", "time", _si_seconds),
    ("noise", "+-%", _share),
    ("flops_rate", "GFLOP/s", _giga),
    ("vs_cublas", "%cuBLAS", _share),
    ("vs_peak", "%peak", _share),
    ("bandwidth", "GB/s", _giga),
    ("status", "check", str),
)
GPU_ONLY: tuple[Column, ...] = (
    ("gpu.occupancy", "occ", str),
    ("gpu.flops_rate", "GFLOP/s", str),
    ("gpu.vs_cublas", "cuBLAS", str),
)
FLAT: tuple[Column, ...] = (
    ("kernel", "kernel", str),
    *STATIC[1:3],
    ("block", "block", _by),
    ("shape", "shape", str),
    ("arch", "arch", str),
    *STATIC[3:],
    *TIMED[1:-1],
    ("samples", "samples", str),
    ("device.sm_mhz", "SM MHz", str),
    ("device.power", "W", "{:.0f}".format),
    ("regime", "regime", str),
    ("status", "check", str),
)


def table(records: Sequence[Record], columns: Sequence[Column], style: str | None = None) -> str:
    """Records as text, ``-`` where there is no value. A column without any value is left out, except the
    GPU's: they stay and say so.
    """
    shown = [c for c in columns if c in GPU_ONLY or any(_look_up(r, c[0]) not in (None, {}) for r in records)]
    rows = [[_cell(r, c) for c in shown] for r in records]
    return plain_table(rows, [c[1] for c in shown], style)


def plain_table(rows: Sequence[Sequence[str]], headings: Sequence[str], style: str | None = None) -> str:
    """Cells as text; columns of numbers to the right. `style` is None for a terminal, ``md`` or ``csv``."""
    if style == "csv":
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([headings, *rows])
        return out.getvalue().rstrip("\n")
    numeric = [all(_NUMBER.match(row[i]) for row in rows) for i in range(len(headings))]
    align = ["right" if n else "left" for n in numeric]
    format_ = "github" if style == "md" else "simple"
    with _narrow_columns():
        return tabulate(
            rows, headings, tablefmt=format_, colalign=align if rows else None, disable_numparse=True
        )


@contextmanager
def _narrow_columns() -> Iterator[None]:
    """tabulate pads every heading by two spaces, which costs us the 80th column; a module global says so."""
    before, tabulate_module.MIN_PADDING = tabulate_module.MIN_PADDING, 0
    try:
        yield
    finally:
        tabulate_module.MIN_PADDING = before


_NUMBER = re.compile(rf"-?[\d.,]+( (s|ms|us|ns)|%)?\Z|-\Z|{NO_GPU}\Z")


def csv_table(records: Sequence[Record]) -> str:
    """Everything in one table: plain numbers in base units, a column for each key."""
    rows = [[_plain(_look_up(record, key)) for key, _, _ in FLAT] for record in records]
    return plain_table(rows, [key for key, _, _ in FLAT], "csv")


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return _params(value)
    if isinstance(value, list):
        return _by(value)
    return "" if value is None else str(value)


def _cell(record: Record, column: Column) -> str:
    key, _, show = column
    value = _look_up(record, key)
    if value is None:
        return NO_GPU if column in GPU_ONLY else "-"
    return show(value) or "-"


def _look_up(record: Record, key: str) -> Any:
    """``sass.LDS.128`` is record["sass"]["LDS.128"]."""
    if key in record:
        return record[key]
    head, _, tail = key.partition(".")
    inner = record.get(head)
    return inner.get(tail) if isinstance(inner, Mapping) and tail else None


# ---- files -----------------------------------------------------------------------------------------


def document(kind: str, records: Sequence[Record], meta: Mapping[str, Any]) -> Record:
    """A record file: what was measured, and what is needed to know what it was."""
    return {"schema": SCHEMA, "kind": kind, "meta": dict(meta), "rows": list(records)}


def provenance(*, seed: int | None = None) -> Record:
    """Command, time, versions and commit. No paths: folders are taken off the arguments."""
    return {
        "argv": ["harness", *(re.sub(r"(^|=)/.*/", r"\1", argument) for argument in sys.argv[1:])],
        "utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "harness": _version("cuda-harness"),
        "commit": _commit(),
        "code_sha256": _code_sha256(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("cuda-bindings", "numpy", "nvmath-python")},
    }


def write_json(path: Path, content: Record) -> None:
    """One record file, a line a row, so that raw samples stay out of the way; see `write_file`."""
    if path.suffix in (".cu", ".ptx"):
        raise UsageError("that is a kernel's name, not a record's", where=str(path), hint="--json r.json")
    head = json.dumps({**content, "rows": []}, indent=1, allow_nan=False)
    rows = ",\n".join("  " + json.dumps(row, allow_nan=False) for row in content["rows"])
    write_file(path, head.replace('"rows": []', f'"rows": [\n{rows}\n ]').encode() + b"\n")


def check_writable(path: Path) -> None:
    """Raises HarnessError where `write_file` would."""
    path = _target(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as e:
        raise HarnessError(f"cannot write: {e.strerror}", where=str(path)) from None


def _target(path: Path) -> Path:
    """What `path` leads to. Renaming over a device or a pipe would destroy it."""
    real = Path(os.path.realpath(path))
    if real.exists() and not real.is_file():
        raise HarnessError("cannot write: not a regular file", where=str(path))
    return real


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_file(path: Path, data: bytes) -> None:
    """Whole or not at all: written beside `path` (or what it links to) and renamed.

    Raises HarnessError where that fails, and for a target that is a device or a pipe.
    """
    path = _target(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            mode = path.stat().st_mode if path.exists() else 0o666 & ~_umask()
            Path(temporary).chmod(mode & 0o777)  # mkstemp makes it readable by its owner alone
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as e:
        raise HarnessError(f"cannot write: {e.strerror}", where=str(path)) from None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _code_sha256() -> str:
    """Of the package's own modules: says which code ran where there is no checkout to ask."""
    folder = Path(__file__).parent
    files = sorted(folder.rglob("*.py"), key=lambda p: p.relative_to(folder).as_posix())
    return _sha256(b"".join(f.read_bytes() for f in files))


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The checkout's commit, with "+" where tracked files differ from it; None outside a checkout."""
    folder = Path(__file__).parent

    def git(*args: str) -> str:
        done = subprocess.run(["git", "-C", folder, *args], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != folder.parent.resolve():
            return None  # installed somewhere inside another project's checkout
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
