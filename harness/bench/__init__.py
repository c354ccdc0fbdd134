"""Verified times: kernels are prepared, checked, sampled in rounds and checked again, a row for each."""

from harness.support import submodules

__getattr__, __dir__ = submodules(__name__)
