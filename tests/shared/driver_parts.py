"""A kernel on the fake driver, and the error codes that end a context."""

from __future__ import annotations

from fakes.driver import FakeDriver
from harness.driver import Context, Function, Module

CUBIN = b"\x7fELF...."
STICKY = [700, 702, 709, 710, 714, 715, 716, 717, 718, 719]


def kernel(fake: FakeDriver, context: Context, *sizes: int) -> Function:
    """Load a kernel whose parameters have these sizes in bytes."""
    fake.functions["kernel"] = sizes
    return Module(context, CUBIN).function("kernel")
