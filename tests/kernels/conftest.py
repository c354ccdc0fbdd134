"""Fixtures of the tests that compile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.kernels import compiler
from harness.kernels.spec import Variant
from shared.compiling import PTX, Write


@pytest.fixture
def ptx_file(tmp_path: Path) -> Write:
    """Writes a small PTX kernel with `old` replaced by `new`."""

    def write(old: str = "", new: str = "", name: str = "mine.ptx") -> Path:
        assert old in PTX
        path = tmp_path / name
        path.write_text(PTX.replace(old, new) if old else PTX, encoding="utf-8")
        return path

    return write


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The labels of the variants that a compiler had to be started for, in order."""
    labels: list[str] = []

    def watch(name: str) -> None:
        real = getattr(compiler, name)

        def watched(variant: Variant, arch: str, *included: Any) -> Any:
            labels.append(f"{variant.label} {arch}")
            return real(variant, arch, *included)

        monkeypatch.setattr(compiler, name, watched)

    watch("_nvrtc")
    watch("_nvjitlink")
    return labels
