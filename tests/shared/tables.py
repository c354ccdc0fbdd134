"""The library of harness.torch.known with a planted fault."""

from __future__ import annotations

import atexit
import ctypes
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any


def faulty(name: str, text: str, fault: str, folder: Path) -> Any:
    """Return the table whose source file `name` has `fault` in place of `text`, compiled in `folder`."""
    from harness.torch import known

    for path in (known.SOURCE, known.HEADER):
        source = path.read_text(encoding="utf-8")
        if path.name == name:
            assert text in source
            source = source.replace(text, fault)
        (folder / path.name).write_text(source, encoding="utf-8")
    compiler, *rest = _command(folder / known.SOURCE.name)
    known._compile([compiler, "-include", str(_headers()), *rest], folder / "changed.so")
    return known.Known(ctypes.CDLL(str(folder / "changed.so")))


def _command(source: Path) -> list[str]:
    from harness.torch import known

    return [str(source) if part == str(known.SOURCE) else part for part in known._command()]


@functools.cache
def _headers() -> Path:
    """Return a header of PyTorch's headers, compiled once: they are most of what a compiler reads."""
    from harness.torch import known

    folder = Path(tempfile.mkdtemp(prefix="harness-"))
    atexit.register(shutil.rmtree, folder)
    lines = [line for path in (known.HEADER, known.SOURCE) for line in path.read_text().splitlines()]
    header = folder / "all.h"
    header.write_text("\n".join(line for line in lines if line.startswith("#include <")))
    compiler, *rest = _command(header)
    rest = [part for part in rest if part != "-shared" and part[:2] not in ("-l", "-L")]
    known._compile([compiler, "-x", "c++-header", *rest], folder / "all.h.gch")
    return header
