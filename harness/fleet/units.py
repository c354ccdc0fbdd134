"""A unit of work: one command of harness, performed by a worker in a process of its own on its GPU.

The process ends before the next unit begins, so that a fault on the GPU, a hang or a leak costs this unit
only. It also ends with its worker, and when the unit is cancelled.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.support import children, tools
from harness.support.cache import default as default_cache

FOLDER = "{folder}"  # stands in a unit's words for the folder with its files
_UNBOUNDED = 2**62  # bytes: more than there are, for a child that may be stopped


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One command, with everything that it needs on another machine.

    `words` are the arguments of Python, such as ``-m harness bench``; `FOLDER` in them stands for a folder
    that is made for this unit and has `files` by relative path. The command writes what it finds to `result`,
    a file there. If that does not grow for `timeout` seconds, the process is killed. `careful` are the words
    of a second attempt after a fault, empty for the same. `cubins` are entries of the cache of compiled
    kernels by key. `label` says in a few words what it is. `model` is that of the GPUs it is for
    (`harness.fleet.cards.Card.model`), None for all.
    """

    words: tuple[str, ...]
    label: str
    timeout: float
    careful: tuple[str, ...] = ()
    model: tuple[Any, ...] | None = None
    result: str = "result"
    files: Mapping[str, bytes] = field(default_factory=dict)
    cubins: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a unit: the content of its file, `seconds` that it took, and the `error` that ended it.

    `fault` is True if the process did not end by itself, or ended in a way that is not for the command's own
    reasons: the GPU or the machine may be at fault, and another one may be asked.
    """

    content: str
    seconds: float
    error: str = ""
    fault: bool = False
    hung: bool = False


def perform(unit: Unit, stopped: Callable[[], bool] = lambda: False, *, parent: str | None = None) -> Outcome:
    """Perform a unit in a child process and return its outcome; the child is killed when `stopped` says so.

    The unit's folder is made in `parent`, which may be removed with a worker that was killed. Errors of the
    command become the outcome's.
    """
    began = time.monotonic()
    cache = default_cache()
    for key, entry in unit.cubins.items():
        if cache.get(key) is None:
            cache.put(key, entry)
    content = ""
    try:
        with tempfile.TemporaryDirectory(
            prefix="harness-unit-", dir=parent, ignore_cleanup_errors=True
        ) as name:
            folder = Path(name)
            for path, data in unit.files.items():
                place = folder / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
            words = [word.replace(FOLDER, name) for word in unit.words]
            ended = children.watch(
                [sys.executable, *words],
                unit.timeout,
                env=tools.environment(),
                captured=True,
                progress=functools.partial(_size, folder / unit.result),
                memory=_UNBOUNDED,
                stop=stopped,
            )
            with contextlib.suppress(OSError):
                content = (folder / unit.result).read_text(encoding="utf-8")
    except OSError as e:  # no room for its files, or no process to be had
        return Outcome(content="", seconds=time.monotonic() - began, error=str(e), fault=True)
    error = children.failure(ended)
    return Outcome(
        content=content,
        seconds=time.monotonic() - began,
        error=error,
        fault=bool(error) and (bool(ended.why) or ended.code == 1),
        hung=ended.hung,
    )


def _size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if there is none."""
    return path.stat().st_size if path.exists() else 0


def describe() -> dict[str, Any]:
    """Return what a worker is: its GPU as in a record, its host, and which code it runs.

    ``gpu`` is None where there is none, and ``error`` then says why.
    """
    import platform
    from dataclasses import asdict

    from harness.driver import Device, driver_version
    from harness.results import record

    about: dict[str, Any] = {"host": platform.node(), "code": record.code_sha256(), "error": "", "gpu": None}
    try:
        about["gpu"] = {**asdict(Device.open()), "driver": "{}.{}".format(*driver_version())}
    except HarnessError as e:
        about["error"] = e.what
    return about
