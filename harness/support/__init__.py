"""Helpers that need no CUDA, for every room: a cache, files, processes, other programs and the terminal."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any


def submodules(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package whose modules are its attributes.

    So `harness.sass.code` works after ``import harness`` alone, as a reader of documentation types it, and
    completion shows what there is; nothing is imported before it is asked for.
    """

    def names() -> list[str]:
        import pkgutil  # `harness --help` is quicker without

        return [m.name for m in pkgutil.iter_modules(sys.modules[package].__path__)]

    def get(name: str) -> Any:
        if name.startswith("_") or name not in names():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(f"{package}.{name}")

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names()})

    return get, listed


__getattr__, __dir__ = submodules(__name__)
