"""The table that harness ships: candidates and trials of the cost model, and what was measured.

What its entries mean says `harness.dispatch.choose`. The user's own is `harness.dispatch.user_table`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("table.json")


@functools.cache
def contents() -> Mapping[str, Any]:
    """Return what the table holds."""
    return dict(json.loads(FILE.read_text(encoding="utf-8")))
