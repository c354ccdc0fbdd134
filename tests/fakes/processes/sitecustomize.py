"""Fake GPUs in every process of Python that finds this file: HARNESS_FAKE_GPUS says how many there are.

Its folder and `tests` have to be on PYTHONPATH. CUDA_VISIBLE_DEVICES is obeyed. A file that
HARNESS_FAKE_FAULTS names has lines ``UUID call code``: that call of the driver fails on that GPU, always.
A call ``launch:16:32`` is the launch of a GEMM with N = 32 by blocks that are 16 threads wide: after it the
context is lost, with that code.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

SEAM = "harness.driver.api"


def install() -> Any:
    """Put the fake driver in place, with the GPUs that are visible to this process; return it."""
    import pytest

    from fakes import gemm

    fake = gemm.gpu(pytest.MonkeyPatch())
    uuid = fake._cuDeviceGetUuid
    names = {_text(uuid(i)[0].bytes): i for i in range(int(os.environ["HARNESS_FAKE_GPUS"]))}
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    every = {**names, **{str(i): i for i in names.values()}}
    shown = [every[x] for x in listed.split(",") if x in every] if listed else list(names.values())
    fake.devices = len(shown)
    limited = {"_cuDeviceGetUuid": lambda self, device: uuid(shown[device])}
    fake.__class__ = type("Visible", (type(fake),), limited)
    for line in _faults():
        name, call, code = line.split()
        if names.get(name) in shown and call.startswith("launch:"):
            _, width, n = call.split(":")
            fake.execute = gemm.Faulting(fake, {(int(width), int(n))}, int(code))
        elif names.get(name) in shown:
            fake.fail(call, *[int(code)] * 1000)
    return fake


def _text(raw: bytes) -> str:
    import uuid

    return f"GPU-{uuid.UUID(bytes=raw)}"


def _faults() -> list[str]:
    path = Path(os.environ.get("HARNESS_FAKE_FAULTS") or os.devnull)
    return path.read_text().splitlines() if path.exists() else []


class _Loader(importlib.abc.Loader):
    """Loads the seam, and lets its first use install the fake: most processes never do."""

    def __init__(self, real: importlib.abc.Loader) -> None:
        self.real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.real.exec_module(module)
        module.bindings = lambda: (install(), module.bindings())[1]  # type: ignore[attr-defined]


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != SEAM:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        spec.loader = _Loader(spec.loader)
        return spec


if os.environ.get("HARNESS_FAKE_GPUS"):
    sys.meta_path.insert(0, _Finder())
