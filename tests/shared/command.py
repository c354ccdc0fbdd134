"""Run the command line in the process, on a fake GPU or without any."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result

from fakes import driver as fake_driver
from fakes import gemm as fake_gemm
from harness.cli import main
from harness.driver import api
from harness.errors import NoDriver

FAST = ["--min-time", "0.005", "--timeout", "0.05"]


def harness(*args: str) -> Result:
    """Run `harness` with these arguments. No line is broken: a path in it may have any length."""
    result = CliRunner().invoke(main, list(args), env={"COLUMNS": None})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # a traceback for the user
    return result


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the driver away."""

    def refuse() -> None:
        raise NoDriver("libcuda was not found", hint="install it")

    monkeypatch.setattr(api, "init", refuse)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> fake_driver.FakeDriver:
    """Install a fake GPU that computes GEMMs; its "copy" kernel has parameters, and does nothing else."""
    fake = fake_gemm.gpu(monkeypatch)
    fake.functions["copy"] = (8, 8, 8)
    return fake
