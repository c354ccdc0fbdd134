"""The table of your own of what `harness.matmul` runs, written by ``harness choose --write``: a JSON file of
entries like those of the shipped one (see `harness.dispatch.choose`).
"""

from __future__ import annotations

import functools
import json
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.kernels import catalog
from harness.kernels.dtypes import FP32


def path() -> Path:
    """``$HARNESS_TABLE``, else ``harness/matmul.json`` in the user's configuration directory."""
    if asked := os.environ.get("HARNESS_TABLE"):
        return Path(asked).expanduser()
    windows = os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else None
    base = windows or os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base, "harness", "matmul.json").expanduser()


@functools.cache
def entries() -> tuple[dict[str, Any], ...]:
    """The entries of your own table that can be served. Warns of the others, as of a table that cannot be
    read: a product does not fail because of it.
    """
    file = path()
    try:
        found = json.loads(file.read_text(encoding="utf-8"))["tuned"]
        able = tuple(entry for entry in found if _complete(entry) and serves(entry, entry.get("dtype")))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "not as `harness choose --write` leaves it"
        warnings.warn(f"{file} is not used: {reason}; `harness choose --forget` removes it", stacklevel=2)
        return ()
    if left := len(found) - len(able):
        warnings.warn(f"{file}: {left} entries name no kernel or parameters of today's", stacklevel=2)
    return able


def _complete(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    spans = [entry.get(axis) for axis in "MNK"]
    return "gpu" in entry and "sms" in entry and all(_is_range(span) for span in spans)


def _is_range(span: Any) -> bool:
    return isinstance(span, list) and len(span) == 2 and all(isinstance(end, int) for end in span)


def serves(entry: Mapping[str, Any], dtype: str | None = None) -> bool:
    """Whether there is a kernel with such a name and parameters, for this element type (None: fp32)."""
    try:
        kernel = catalog.kernel(entry["kernel"])
        params = entry["params"]
        known = set(params) <= set(kernel.params) and all(isinstance(v, int) for v in params.values())
        right = kernel.name == catalog.canonical(entry["kernel"]) and kernel.dtype == (dtype or FP32.name)
        return known and right and bool(kernel.variant(**params))
    except (HarnessError, TypeError, AttributeError, KeyError):
        return False
