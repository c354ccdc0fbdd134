"""The library of harness.torch.known with a planted fault."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest


def faulty(name: str, text: str, fault: str, folder: Path) -> Any:
    """Return the table whose source file `name` has `fault` in place of `text`, compiled in `folder`."""
    from harness.torch import known

    for path in (known.SOURCE, known.HEADER):
        source = path.read_text(encoding="utf-8")
        if path.name == name:
            assert text in source
            source = source.replace(text, fault)
        (folder / path.name).write_text(source, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known, "SOURCE", folder / known.SOURCE.name)
        known._compile(known._command(), folder / "changed.so")
    return known.Known(ctypes.CDLL(str(folder / "changed.so")))
