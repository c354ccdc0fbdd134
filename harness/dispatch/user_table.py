"""The user's own table of the variants that `harness.matmul` runs, written by ``harness choose --write``.

It is a JSON file, with entries like those under ``tuned`` in the shipped table (see
`harness.dispatch.choose`).
"""

from __future__ import annotations

import functools
import json
import math
import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.dispatch.model import cost
from harness.errors import HarnessError, UsageError
from harness.kernels import catalog
from harness.kernels.dtypes import FP32
from harness.support import files

_KEY = ("gpu", "sms", "dtype", "layout", "M", "N", "K")


def path() -> Path:
    """Return the path of the user's table, whether or not the file exists.

    It is ``$HARNESS_TABLE``, or else ``harness/matmul.json`` in the user's configuration directory.
    """
    if asked := os.environ.get("HARNESS_TABLE"):
        return Path(asked).expanduser()
    windows = os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else None
    base = windows or os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base, "harness", "matmul.json").expanduser()


@functools.cache
def entries() -> tuple[dict[str, Any], ...]:
    """Return the entries of the user's table that today's kernels can serve; none if there is no table.

    Other entries, and a table that cannot be read, cause a warning and no error: no product fails because of
    them. The result is cached.
    """
    file = path()
    try:
        found = json.loads(files.read(file, most=2**26))["tuned"]
        able = tuple(entry for entry in found if _complete(entry) and serves(entry, entry.get("dtype")))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError, RecursionError, UsageError) as e:
        reason = e.strerror if isinstance(e, OSError) else "not as `harness choose --write` leaves it"
        warnings.warn(f"{file} is not used: {reason}; `harness choose --forget` removes it", stacklevel=2)
        return ()
    if left := len(found) - len(able):
        warnings.warn(f"{file}: {left} entries name no kernel or parameters of today's", stacklevel=2)
    return able


def keep(made: Iterable[Mapping[str, Any]]) -> Path:
    """Write entries into the table, before all others and in place of those for the same sizes.

    Returns the table's path. What another process has written before is kept; of two that write at the same
    time the later one wins. Raises HarnessError if the table cannot be written.
    """
    file, made = path(), list(made)
    entries.cache_clear()
    new = {_key(entry) for entry in made}
    kept = [entry for entry in entries() if _key(entry) not in new]
    lines = ",\n".join(f"  {json.dumps(entry)}" for entry in made + kept)
    files.write_file(file, f'{{"tuned": [\n{lines}\n]}}\n'.encode())
    entries.cache_clear()
    return file


def _key(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what an entry is for, by which it replaces another."""
    return tuple(str(entry.get(name, FP32.name if name == "dtype" else "")) for name in _KEY)


def _complete(entry: Any) -> bool:
    """Return True if the entry names a GPU, its SMs, and a range each for M, N and K."""
    if not isinstance(entry, dict):
        return False
    spans = [entry.get(axis) for axis in "MNK"]
    return "gpu" in entry and "sms" in entry and all(_is_range(span) for span in spans)


def _is_range(span: Any) -> bool:
    return isinstance(span, list) and len(span) == 2 and all(isinstance(end, int) for end in span)


def serves(entry: Mapping[str, Any], dtype: str | None = None) -> bool:
    """Return True if there is a kernel with the entry's name and parameters for `dtype` (None: fp32)."""
    try:
        kernel = catalog.kernel(entry["kernel"])
        params = entry["params"]
        known = set(params) <= set(kernel.params) and all(isinstance(v, int) for v in params.values())
        taken = cost.takes(dtype or FP32.name, kernel)
        right = kernel.name == catalog.canonical(entry["kernel"]) and taken
        return known and right and bool(kernel.variant(**params))
    except (HarnessError, TypeError, AttributeError, KeyError):
        return False


def ranges(M: int, N: int, K: int, tile: tuple[int, ...]) -> dict[str, list[int]]:
    """Return the ranges of M, N and K, ends included, for which a measurement at one shape is taken as valid.

    `tile` is the (rows, columns) of the fastest variant's tile. The ranges contain all shapes with the same
    number of tiles, an M and an N that differ by a factor of at most 2, and a K that differs by one of at
    most sqrt(2): the lead of the fastest variant changes in steps with the number of tiles, and slowly with
    K. But a single row is not for the kernel that was the fastest with 64.
    """

    def extent(size: int, step: int) -> list[int]:
        tiles = math.ceil(size / step)
        return [max((tiles - 1) * step + 1, math.ceil(size / 2)), min(tiles * step, 2 * size)]

    span = [math.ceil(K / math.sqrt(2)), math.floor(K * math.sqrt(2))]
    return {"M": extent(M, tile[0]), "N": extent(N, tile[1]), "K": span}
