"""Write the generated tables of README.md and docs/*.md from records/: ``python scripts/update_readme.py``.

A table stands between ``<!-- table:NAME -->`` and ``<!-- end -->``. tests/repo/test_readme.py fails where a
table differs from what its records and kernel files say. The tables are made by scripts/readme/.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

from readme import checked, emulated, ladder, products
from readme.records import ROOT

_MARKED = re.compile(r"(<!-- table:(\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """Return the files that may hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def up(page: Path) -> str:
    """Return the way from the page's folder to the root: empty for README.md, ``../`` in docs/."""
    return "../" * (len(page.relative_to(ROOT).parts) - 1)


TABLES: dict[str, Callable[[], str]] = {
    "front": ladder.front,
    "headline": products.headline,
    "ladder": ladder.ladder,
    "batches": products.batches,
    "matmul": products.matmul,
    "tiles": ladder.tiles,
    "emulator": emulated.emulator,
    "emulator_speed": emulated.emulator_speed,
    "emulator_hopper": emulated.emulator_hopper,
    "emulator_peers": emulated.emulator_peers,
    "gpuverify": emulated.gpuverify,
    "indigo": emulated.indigo,
    "selftest": checked.selftest,
    "shapes": products.shapes,
    "shapes_as_fp32": products.shapes_as_fp32,
    "accuracy": checked.accuracy,
    "calibration": checked.calibration,
    "launch_cost": checked.launch_cost,
    "profile_tensor": ladder.profile_tensor,
    "tuned": ladder.tuned,
    "tuners": checked.tuners,
    "rungs": functools.partial(ladder.rungs, tensor=False),
    "rungs_tensor": functools.partial(ladder.rungs, tensor=True),
    "soundness": checked.soundness,
}
# Tables of types that were not measured are empty.
for _dtype in ("bf16", "fp16", "tf32", "3xtf32", "fp16x3", "bf16x6"):
    for _name, _table in {
        "ladder": ladder.ladder,
        "sustained": ladder.sustained,
        "matmul": products.matmul,
    }.items():
        TABLES[f"{_name}_{_dtype}"] = functools.partial(_table, _dtype)


def updated(text: str, root: str = "") -> str:
    """Return `text` with every marked table made anew. `root` leads from the page's folder to the root."""

    def made(name: str) -> str:
        table = TABLES[name]().replace("(ROOT/docs/", "(" if root else "(docs/").replace("(ROOT/", f"({root}")
        return f"{table}\n" if table else ""

    return _MARKED.sub(lambda m: m[1] + made(m[2]) + m[3], text)


def main() -> None:
    for page in pages():
        text = page.read_text()
        new = updated(text, up(page))
        if new != text:
            page.write_text(new)
            print(f"updated {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
