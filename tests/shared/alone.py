"""A pytest plugin that keeps tests of a whole GPU from running on a shared one.

`alone` marks what measures the GPU itself, its times or its free memory. Such a test is skipped while other
processes use that GPU, other workers of pytest among them.
"""

from __future__ import annotations

import os
import subprocess

import pytest

MARKER = "alone: measures the whole GPU; skipped while other processes use it"
RUN_ALONE = "HARNESS_REQUIRE_GPU=1 python3 -m pytest -m alone"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip an `alone` test on a shared GPU; last, since harness.pytest_plugin skips where there is no GPU."""
    if item.get_closest_marker("alone") and (users := gpu_shared_by()):
        pytest.skip(f"{users} share the GPU; run it alone: {RUN_ALONE}")


def gpu_shared_by() -> str:
    """Name those that may use the first GPU beside this process; "" for nobody."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        return f"{workers} workers of pytest"
    others = other_processes()
    return f"{others} other {'process' if others == 1 else 'processes'}" if others else ""


def other_processes() -> int:
    """Return how many processes beside this one have a context on the first GPU, by nvidia-smi; 0 where it
    does not say. In a container the process ids may be another namespace's, so that ours is not among them.
    """
    from harness.driver import Device, api

    device = Device.open()
    query = ["nvidia-smi", f"--id={device.uuid}", "--query-compute-apps=pid", "--format=csv,noheader"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    pids = [int(line) for line in told.split() if line.isdigit()]
    _, active = api.call("cuDevicePrimaryCtxGetState", api.call("cuDeviceGet", device.ordinal))
    return len(pids) - (1 if pids and (os.getpid() in pids or active) else 0)
