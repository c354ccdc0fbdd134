"""The table of harness.torch.known: with a planted fault, and used by several threads."""

from __future__ import annotations

import atexit
import ctypes
import functools
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def faulty(name: str, text: str, fault: str, folder: Path) -> Any:
    """Return the table whose source file `name` has `fault` in place of `text`, compiled in `folder`."""
    from harness.torch import known

    for path in (known.SOURCE, *known.HEADERS):
        source = path.read_text(encoding="utf-8")
        if path.name == name:
            assert text in source
            source = source.replace(text, fault)
        (folder / path.name).write_text(source, encoding="utf-8")
    compiler, *rest = _command(folder / known.SOURCE.name)
    known._compile([compiler, "-include", str(_headers()), *rest], folder / "changed.so")
    return known.Known(ctypes.CDLL(str(folder / "changed.so")))


@contextmanager
def standing(table: Any) -> Iterator[Any]:
    """The registered operators have a table of this library, for tensors of the CPU."""
    import torch

    from harness.torch import known, standing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known, "loaded", lambda: (table, ""))
        patch.setattr(standing, "KEY", "CPU")
        patch.setattr(standing, "table", functools.cache(standing._opened.__wrapped__))
        found = standing.table()
        assert found is not None
        try:
            yield found
        finally:
            found.close()
            for name in standing.OPERATORS:  # PyTorch's tracing knows of the kernels that were there
                getattr(torch.ops.harness, name).default._dispatch_cache.clear()


def _command(source: Path) -> list[str]:
    from harness.torch import known

    return [str(source) if part == str(known.SOURCE) else part for part in known._command()]


@functools.cache
def _headers() -> Path:
    """Return a header of PyTorch's headers, compiled once: they are most of what a compiler reads."""
    from harness.torch import known

    folder = Path(tempfile.mkdtemp(prefix="harness-"))
    atexit.register(shutil.rmtree, folder)
    lines = [line for path in (*known.HEADERS, known.SOURCE) for line in path.read_text().splitlines()]
    header = folder / "all.h"
    header.write_text("\n".join(line for line in lines if line.startswith("#include <")))
    compiler, *rest = _command(header)
    rest = [part for part in rest if part != "-shared" and part[:2] not in ("-l", "-L")]
    known._compile([compiler, "-x", "c++-header", *rest], folder / "all.h.gch")
    return header


def in_threads(multiply: Callable[[], None], look: Callable[[], None], count: int = 4) -> None:
    """Call `multiply` in so many threads, and `look` in another one until they end; raise what any raises."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            look()

    with ThreadPoolExecutor(count + 1) as pool:
        watching = pool.submit(watch)
        try:
            for one in [pool.submit(multiply) for _ in range(count)]:
                one.result()
        finally:
            ended.set()
        watching.result()
