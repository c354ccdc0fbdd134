"""Machine code of shipped kernels as its tests read it, and `harness sass` as they call it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from harness.cli import main
from harness.kernels import catalog
from harness.kernels.compiler import Cubin, compile_kernel
from harness.sass.code import Code
from harness.sass.instructions import disassemble
from harness.support.cache import Cache

ARCHS = ("sm_75", "sm_80", "sm_90a", "sm_100", "sm_120")

Read = Callable[..., Code]


def build(name: str, arch: str, cache: Cache, **params: int) -> Cubin:
    return compile_kernel(catalog.kernel(name).variant(**params), arch, cache)


@pytest.fixture
def read(cache: Cache) -> Read:
    def read(name: str, arch: str, **params: int) -> Code:
        cubin = build(name, arch, cache, **params)
        return Code.of(cubin, disassemble(cubin, cache))

    return read


def harness(*args: str) -> Result:
    """Run `harness sass` without a width: a line with a long temporary path would be broken anywhere."""
    return CliRunner().invoke(main, ["sass", *args], env={"COLUMNS": None})
