"""Write the measured part of ``harness/heuristic.json`` from result files, and say how good the model is.

    harness bench '1[1-8]*' --sweep -a N=[256,512,1024,2048,4096,8192] --json squares.json
    harness bench '1[5-8]*' --sweep -a M=[1,4,16] -a N=4096 -a K=4096 --json rows.json
    python records/tune_matmul.py squares.json rows.json [--write]

For each size and element type in the files, the fastest verified variant, and what the model would have
chosen: its regret is the time that it loses. ``--write`` replaces the entries of these GPUs and types.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from harness import catalog, heuristic, record

TABLE = Path(heuristic.__file__).with_suffix(".json")
Row = dict[str, Any]


Point = tuple[str, int, str, int, int, int]  # GPU, SMs, element type, M, N, K


def rows(files: list[Path]) -> dict[Point, list[Row]]:
    """Right and timed GEMMs with alpha 1 and beta 0, tightly packed."""
    found: dict[Point, list[Row]] = defaultdict(list)
    for file in files:
        content = record.load(file)
        gpu = content["meta"]["gpu"]
        for row in content["rows"]:
            axes = row["axes"]
            packed = axes.get("lda") == axes.get("K") and axes.get("ldb") == axes.get("ldc") == axes.get("N")
            plain = packed and (axes.get("alpha"), axes.get("beta")) == (1.0, 0.0)
            if plain and row["status"] == "ok" and not row["baseline"] and not row.get("chosen"):
                dtype = row.get("dtype", "fp32")
                key = gpu["name"], gpu["sms"], dtype, axes["M"], axes["N"], axes["K"]
                found[key].append({**row, "file": file.name})
    return found


def entries(measured: dict[Point, list[Row]]) -> list[Row]:
    """A range for each measured size, in order of size; of two that overlap, the first decides."""
    made = []
    for (gpu, sms, dtype, m, n, k), candidates in sorted(measured.items()):
        best = min(candidates, key=lambda r: r["seconds"])
        span = heuristic.ranges(m, n, k, tuple(best["tile"]))
        about = {"kernel": best["kernel"], "params": best["params"], "file": best["file"]}
        typed = {} if dtype == "fp32" else {"dtype": dtype}
        made.append({"gpu": gpu, "sms": sms, **typed, **span, **about})
    return made


def report(measured: dict[Point, list[Row]]) -> None:
    """The best of each size, and the model's choice beside it."""
    for (gpu, sms, dtype, m, n, k), candidates in sorted(measured.items()):
        by_label = {_label(r["kernel"], r["params"]): r["seconds"] for r in candidates}
        best = min(by_label, key=lambda label: by_label[label])
        arch = candidates[0]["arch"]
        ranked = heuristic.ranked(m, n, k, sms=sms, arch=arch, dtype=dtype)
        model = next((v.label for v, _ in ranked if v.label in by_label), None)
        regret = "-" if model is None else f"{100 * (by_label[model] / by_label[best] - 1):.1f}%"
        fastest = f"{best} {by_label[best] * 1e6:.1f} us"
        print(f"{gpu} {dtype} {m}x{n}x{k}: {fastest}; the model's {model}: +{regret}")


def _label(kernel: str, params: dict[str, int]) -> str:
    return catalog.kernel(kernel).variant(**params).label


def written(table: dict[str, Any], made: list[Row]) -> str:
    """The table with these entries in place of those of the same GPUs and types, an entry a line."""

    def about(entry: Row) -> tuple[str, str]:
        return entry["gpu"], entry.get("dtype", "fp32")

    replaced = {about(entry) for entry in made}
    tuned = [entry for entry in table["tuned"] if about(entry) not in replaced] + made

    def listed(values: list[Row]) -> str:
        return "[\n" + ",\n".join(f"  {json.dumps(value)}" for value in values) + "\n ]" if values else "[]"

    parts = [f' "{key}": {listed(value)}' for key, value in (table | {"tuned": tuned}).items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    measured = rows(given.files)
    report(measured)
    if given.write:
        TABLE.write_text(written(json.loads(TABLE.read_text()), entries(measured)))


if __name__ == "__main__":
    main()
