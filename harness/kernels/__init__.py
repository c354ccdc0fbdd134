"""Kernel files: found, read, checked and compiled for an architecture; no GPU is needed."""

from harness.support import submodules

__getattr__, __dir__ = submodules(__name__)
