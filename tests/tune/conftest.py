"""Fixtures of the tuner's tests: a fake GPU, and a kernel with a space that is built once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fakes import driver as fake_driver
from fakes import gemm as fake_gemm
from harness.driver import Context, Device
from harness.kernels import spec
from harness.launch import builds
from harness.launch.builds import Built
from harness.support.cache import Cache, default_root
from shared.kernels import BODY, KERNEL
from shared.tuning import TILES, Speeds


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> fake_driver.FakeDriver:
    return fake_gemm.gpu(monkeypatch)


@pytest.fixture
def speeds(fake: fake_driver.FakeDriver) -> Speeds:
    """Plant speeds: TILE=5 is the fastest, by 5%."""
    fake.execute = Speeds(fake, {t: 1.0 + 0.05 * abs(t - 5) for t in TILES})
    return fake.execute


@pytest.fixture
def context(fake: fake_driver.FakeDriver) -> Iterator[Context]:
    with Context(Device.open()) as context:
        yield context


@pytest.fixture(scope="session")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write one file for all tests: its path is part of its code, which takes a second to compile."""
    path = tmp_path_factory.mktemp("kernels") / "mine.cu"
    path.write_text(KERNEL.format(title="A kernel", extra="", body=BODY))
    return str(path)


@pytest.fixture
def space(kernel: str) -> list[Built]:
    variants = list(spec.load(kernel).variants({"TILE": TILES}))
    return builds.build_all(variants, ["sm_90a"], Cache(default_root()), lambda _: None)[0]
