"""Old names of public modules: ``import harness.problem`` still works and returns the module's new home."""

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
    "torch_ops": "torch",
}


class Moved(MetaPathFinder, Loader):
    """An import hook that resolves the old module names of `package` to the modules that replaced them.

    `moved` maps old names to new ones, both relative to `package`. An old name and its new name are the same
    module object.
    """

    def __init__(self, package: str, moved: Mapping[str, str]) -> None:
        self._moved = {f"{package}.{old}": f"{package}.{new}" for old, new in moved.items()}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for an old name, or None for any other name."""
        return ModuleSpec(name, self) if name in self._moved else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module under its new name and return it."""
        module = importlib.import_module(self._moved[spec.name])
        spec.loader_state = module.__spec__  # the import system replaces it by `spec`; see exec_module
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own ``__spec__``; the module itself has been executed under its new name."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state
