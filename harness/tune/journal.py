"""What a tuning has measured, kept as it happens, so that the next one goes on where this one ended.

One JSON line a result, appended at once: a process that dies loses at most the line it was writing, which
does not count. A line that says what begins comes before each measurement, so that whoever watches from
outside knows which candidate hangs or took the process down.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from harness.results.rows import Row
from harness.support.cache import CacheWarning

_BEGINS = "begins"


class Journal:
    """Results by key. `path` None keeps them for this process only."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._rows: dict[str, Row] = {}
        self.unfinished: tuple[str, Row] | None = None
        """Key and beginnings of the measurement that the last line of the file began."""
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
        return len(self._rows)

    def get(self, key: str) -> Row | None:
        return self._rows.get(key)

    def begin(self, key: str, about: Row) -> None:
        """Say that `key` is being measured; `about` is what an error row should say of it."""
        self.unfinished = key, about
        self._append({"key": key, _BEGINS: True, **about})

    def put(self, key: str, row: Row) -> None:
        self._rows[key] = row
        self.unfinished = None
        self._append({"key": key, **row})

    def clear(self) -> None:
        """Forget everything."""
        self._rows.clear()
        self.unfinished = None
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _append(self, line: Mapping[str, Any]) -> None:
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
        with self.path.open("rb") as file:  # type: ignore[union-attr]
            file.seek(-1, 2)
            return file.read(1) == b"\n"

    def _lines(self) -> list[dict[str, Any]]:
        """Whole lines; damaged ones are as good as none."""
        try:
            text = self.path.read_bytes() if self.path is not None else b""
        except OSError:
            return []
        found = []
        for line in text.splitlines():
            try:
                content = json.loads(line)
            except ValueError:
                continue
            if isinstance(content, dict):
                found.append(content)
        return found
