"""Modules and names that moved are still found under their old names."""

from __future__ import annotations

import importlib

import pytest

import harness
from harness.support.moved import MOVED

# As README named them.
PUBLIC = {
    "harness.code": ["Code"],
    "harness.control": ["decode"],
    "harness.contract": ["check"],
    "harness.diff": ["compare"],
    "harness.binary": ["read"],
    "harness.problem": ["Problem", "Matrices", "Layout"],
    "harness.problems": ["Problem", "Copy", "Gemm"],
    "harness.driver": [
        "Context",
        "Device",
        "Stream",
        "Event",
        "Buffer",
        "PinnedBuffer",
        "Module",
        "Function",
    ],
    "harness.heuristic": ["choose"],
    "harness.predict": ["parse"],
    "harness.bounds": [],
    "harness.torch_ops": [],
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_where_they_were(name: str) -> None:
    if name == "harness.torch_ops":
        pytest.importorskip("torch")
    module = importlib.import_module(name)
    assert all(hasattr(module, member) for member in PUBLIC[name])


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_an_old_name_is_the_module_of_today(old: str, new: str) -> None:
    if new == "torch":
        pytest.importorskip("torch")
    today = importlib.import_module(f"harness.{new}")
    assert importlib.import_module(f"harness.{old}") is today
    assert today.__name__ == f"harness.{new}" and today.__spec__.name == today.__name__


def test_names_that_never_were_are_refused() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("harness.problemo")
    with pytest.raises(AttributeError):
        _ = harness.nothing
