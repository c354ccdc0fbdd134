"""Fixtures of the driver's tests: a fake driver, and a context and a stream on it."""

from __future__ import annotations

import pytest

from fakes.driver import FakeDriver, install
from harness.driver import Context, Device, Stream


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    return install(monkeypatch)


@pytest.fixture
def context(fake: FakeDriver):
    with Context(Device.open()) as context:
        yield context
        fake.sticky = 0


@pytest.fixture
def stream(context: Context) -> Stream:
    return Stream(context)
