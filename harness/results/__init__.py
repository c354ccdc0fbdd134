"""Measured rows kept and compared: record files, tables, explanations, claims and exports."""

from harness.support import submodules

__getattr__, __dir__ = submodules(__name__)
