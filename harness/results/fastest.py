"""Make a user's own table of what `harness.matmul` runs on a GPU, from result files.

For each size and element type that ``harness bench`` or ``harness tune`` has timed, an entry names the
fastest variant that was verified. It holds for the sizes around it as well, see
`harness.dispatch.user_table.ranges`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.dispatch import choose, user_table
from harness.dispatch.model import traffic
from harness.driver import Device
from harness.errors import UsageError
from harness.kernels import catalog
from harness.kernels.dtypes import FP32
from harness.kernels.spec import Variant
from harness.results import record

Row = dict[str, Any]
Point = tuple[str, int, str, int, int, int]  # GPU, SMs, element type, M, N, K
_KINDS = ("bench", "tune")


@dataclass(frozen=True, kw_only=True)
class Found:
    """The result at one size.

    `seconds` is the median time of `fastest`. `today` is what `harness.matmul` would choose now, and `regret`
    how much longer that takes, as a fraction of the fastest time; None if no file has timed it.
    """

    point: Point
    fastest: Variant
    seconds: float
    today: Variant
    regret: float | None


def measured(files: Sequence[Path]) -> dict[Point, list[Row]]:
    """Read result files, and return the usable rows by point: GPU, SMs, element type and size.

    Usable are timed rows with a right result, of GEMMs with alpha 1, beta 0 and tightly packed row-major
    matrices, by shipped kernels. A row of the kernel ``matmul`` counts as the variant it chose, if that is a
    single launch. If it is several launches, and faster than every single one, the point is left out: an
    entry names one kernel for a shape, and would replace them. If a variant was timed more than once, as
    ``harness tune`` does, the time with the most samples counts.

    Raises UsageError for a file of another kind, and if there is nothing to choose from.
    """
    found: dict[Point, dict[str, Row]] = defaultdict(dict)
    divided: dict[Point, float] = {}  # least seconds by point of products divided into several launches
    for file in files:
        content = record.load(file)
        if content.get("kind") not in _KINDS:
            raise UsageError("no times of variants in it", where=str(file), hint="a --json of bench or tune")
        gpu = content["meta"].get("gpu") or {}
        if not {"name", "sms"} <= gpu.keys():
            raise UsageError(
                "not measured on a GPU: there are no times in it",
                where=str(file),
                hint="harness bench --json on the GPU that harness.matmul shall know",
            )
        for row in filter(_counts, content["rows"]):
            axes = row["axes"]
            point = gpu["name"], gpu["sms"], row.get("dtype") or FP32.name, axes["M"], axes["N"], axes["K"]
            if (row.get("chosen") or {}).get("others"):
                divided[point] = min(divided.get(point, math.inf), row["seconds"])
                continue
            label = _variant(row).label
            known = found[point].get(label)
            if known is None or row.get("samples", 0) > known.get("samples", 0):
                found[point][label] = {**row, "file": file.name, "gpu": gpu}
    for point, seconds in divided.items():
        if seconds < min((r["seconds"] for r in found.get(point, {}).values()), default=math.inf):
            found.pop(point, None)
    if not found:
        raise UsageError(
            "nothing to choose from: no shipped GEMM was right and timed with alpha 1, beta 0, tight rows",
            where=", ".join(map(str, files)),
            hint="harness bench '1[1-9]*' '2*' --sweep -a N=[512,1024] --json FILE",
        )
    return {point: list(rows.values()) for point, rows in found.items()}


def _counts(row: Row) -> bool:
    """Return True if the row is usable, see `measured`."""
    axes = row.get("axes") or {}
    sized = all(type(axes.get(name)) is int and 0 < axes[name] < 2**31 for name in "MNK")
    packed = axes.get("lda") == axes.get("K") and axes.get("ldb") == axes.get("ldc") == axes.get("N")
    row_major = not axes.get("transa") and not axes.get("transb")
    plain = sized and packed and row_major and (axes.get("alpha"), axes.get("beta")) == (1.0, 0.0)
    # A file of the first schema does not say what a kernel was compiled for.
    right = not row.get("baseline") and row["status"] == "ok" and row.get("seconds") and row.get("arch")
    return bool(plain and right and user_table.serves(row.get("chosen") or row, row.get("dtype")))


def _variant(row: Row) -> Variant:
    """Return the variant that the row ran, or that the dispatcher chose."""
    ran = row.get("chosen") or row
    return catalog.kernel(ran["kernel"]).variant(**ran["params"])


def judged(found: Mapping[Point, Sequence[Row]]) -> Iterator[Found]:
    """Yield for each point the fastest variant, and what is chosen today."""
    for point, rows in sorted(found.items()):
        gpu, sms, dtype, m, n, k = point
        times = {_variant(r).label: r["seconds"] for r in rows}
        best = min(rows, key=lambda r: r["seconds"])
        dram = traffic.dram_bytes(Device.of_record(best["gpu"]))
        today = choose.choose(m, n, k, sms=sms, arch=best["arch"], gpu=gpu, dtype=dtype, dram=dram)
        least = best["seconds"]
        regret = times[today.label] / least - 1 if today.label in times else None
        yield Found(point=point, fastest=_variant(best), seconds=least, today=today, regret=regret)


def entries(found: Mapping[Point, Sequence[Row]]) -> list[Row]:
    """Return a table entry for each point, in order of size.

    Each holds for a range of sizes; where two ranges overlap, the first entry decides.
    """
    made = []
    for (gpu, sms, dtype, m, n, k), rows in sorted(found.items()):
        best = min(rows, key=lambda r: r["seconds"])
        variant = _variant(best)
        span = user_table.ranges(m, n, k, variant.tile)
        about = {"kernel": variant.kernel.name, "params": dict(variant.params), "file": best["file"]}
        typed = {} if dtype == FP32.name else {"dtype": dtype}
        made.append({"gpu": gpu, "sms": sms, **typed, **span, **about})
    return made


def keep(made: Iterable[Row]) -> Path:
    """Write entries into the user's own table, before all others and replacing those of the same ranges.

    Returns the path of the table.
    """
    path = user_table.keep(made)
    choose.reread()
    return path


def forget() -> Path | None:
    """Remove the user's own table. Returns its path, None if there was none. Raises UsageError if it cannot
    be removed.
    """
    path = user_table.path()
    try:
        path.unlink()
    except FileNotFoundError:
        return None
    except OSError as e:
        raise UsageError(f"cannot be removed: {e.strerror}", where=str(path)) from e
    choose.reread()
    return path
