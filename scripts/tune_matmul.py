"""Write the measured part of ``harness/dispatch/table.json``, which is shipped, from result files.

    harness bench '1[1-8]*' --sweep -a N=[256,512,1024,2048,4096,8192] --json squares.json
    harness bench '1[5-8]*' --sweep -a M=[1,4,16] -a N=4096 -a K=4096 --json rows.json
    python scripts/tune_matmul.py squares.json rows.json

It replaces the entries of these GPUs and types. ``harness choose`` with the same files shows before how good
today's choices are, and does this for a table of your own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.dispatch import shipped_table
from harness.results import fastest

TABLE = shipped_table.FILE
Row = dict[str, Any]


def written(table: dict[str, Any], made: list[Row]) -> str:
    """The table with these entries in place of those of the same GPUs and types."""

    def about(entry: Row) -> tuple[str, str]:
        return entry["gpu"], entry.get("dtype", "fp32")

    replaced = {about(entry) for entry in made}
    tuned = [entry for entry in table["tuned"] if about(entry) not in replaced] + made
    return text(table | {"tuned": tuned})


def text(table: Mapping[str, Any]) -> str:
    """The table as it lies in its file, an entry a line."""

    def value_text(value: Any) -> str:
        if not isinstance(value, list):
            return json.dumps(value)
        return "[\n" + ",\n".join(f"  {json.dumps(entry)}" for entry in value) + "\n ]" if value else "[]"

    parts = [f' "{key}": {value_text(value)}' for key, value in table.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    made = fastest.entries(fastest.measured(parser.parse_args().files))
    TABLE.write_text(written(json.loads(TABLE.read_text()), made))


if __name__ == "__main__":
    main()
