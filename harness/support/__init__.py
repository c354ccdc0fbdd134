"""Helpers that need no CUDA, for every room: a cache, files, processes, other programs and the terminal."""

from harness.support.lazy import submodules

__getattr__, __dir__ = submodules(__name__)
