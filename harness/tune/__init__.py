"""Tuning: search a kernel's parameters for the fastest ones, with a journal to resume from."""

from harness.support import submodules

__getattr__, __dir__ = submodules(__name__)
