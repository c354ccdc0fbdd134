"""Fixtures of the tests that need a GPU."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def torch() -> Any:
    """Return PyTorch with a fixed seed; skip where it is missing or cannot use the GPU."""
    found = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not found.cuda.is_available():
        pytest.skip("this PyTorch cannot use the GPU")
    found.manual_seed(1)
    return found
