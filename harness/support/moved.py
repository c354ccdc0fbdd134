"""Old names of public modules: ``import harness.problem`` still works, and gives the module of today."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "binary": "sass.binary",
    "bounds": "problems.bounds",
    "code": "sass.code",
    "contract": "sass.contract",
    "control": "sass.listing",
    "diff": "sass.diff",
    "heuristic": "dispatch.choose",
    "predict": "kernels.prediction",
    "problem": "problems.protocol",
}


class Moved(MetaPathFinder, Loader):
    """Finds each old name as the module that has its content now: one module under two names."""

    def __init__(self, package: str, moved: Mapping[str, str]) -> None:
        self._moved = {f"{package}.{old}": f"{package}.{new}" for old, new in moved.items()}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in self._moved else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._moved[spec.name])
        spec.loader_state = module.__spec__  # Python is about to put `spec` in its place
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module, which has been executed under its own name, its own description back."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state
