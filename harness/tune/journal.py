"""A journal of a tuning's results, so that an interrupted tuning can be resumed.

Each result is one line of JSON, appended at once. A process that dies loses at most the line that it was
writing, and a damaged line is ignored. Before each measurement a line says what begins, so that the process
that supervises a tuning knows which candidate hangs or has ended it.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from harness.errors import UsageError
from harness.results.rows import Row
from harness.support import files
from harness.support.cache import CacheWarning

_BEGINS = "begins"


class Journal:
    """Results by key, read from the file at `path` and appended to it.

    If `path` is None, or if the file cannot be written (which causes a CacheWarning), results are kept for
    this process only. `unfinished` is the key and the row of the measurement that was begun last, if its
    result was not recorded; else None.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._rows: dict[str, Row] = {}
        self.unfinished: tuple[str, Row] | None = None
        for line in self._lines():
            key = line.pop("key", None)
            if not isinstance(key, str):
                continue
            if line.pop(_BEGINS, False):
                self.unfinished = key, cast(Row, line)
            else:
                self.unfinished = None
                self._rows[key] = cast(Row, line)

    @property
    def count(self) -> int:
        """The number of results."""
        return len(self._rows)

    def get(self, key: str) -> Row | None:
        """Return the result of this key, or None."""
        return self._rows.get(key)

    def begin(self, key: str, about: Row) -> None:
        """Record that the measurement of `key` begins.

        `about` is the row to report, with an error filled in, if the process does not live to record a
        result.
        """
        self.unfinished = key, about
        self._append({"key": key, _BEGINS: True, **about})

    def put(self, key: str, row: Row) -> None:
        """Record the result of `key`."""
        self._rows[key] = row
        self.unfinished = None
        self._append({"key": key, **row})

    def clear(self) -> None:
        """Forget all results and delete the file."""
        self._rows.clear()
        self.unfinished = None
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _append(self, line: Mapping[str, Any]) -> None:
        """Append a line to the file, on a line of its own even if the last one was cut off."""
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                torn = file.tell() > 0 and not self._ends_whole()
                file.write(b"\n" * torn + json.dumps(line, allow_nan=False).encode() + b"\n")
        except OSError as e:
            where, self.path = self.path, None
            warnings.warn(
                f"cannot keep what is measured in {where} ({e.strerror}): an interrupted tuning starts anew",
                CacheWarning,
                stacklevel=3,
            )

    def _ends_whole(self) -> bool:
        """Return True if the file's last line is complete."""
        with self.path.open("rb") as file:  # type: ignore[union-attr]
            file.seek(-1, 2)
            return file.read(1) == b"\n"

    def _lines(self) -> list[dict[str, Any]]:
        """Return the file's lines as dictionaries, without those that are damaged."""
        try:
            text = files.read(self.path) if self.path is not None else b""
        except (OSError, UsageError):
            return []
        found = []
        for line in text.splitlines():
            try:
                content = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(content, dict):
                found.append(content)
        return found
