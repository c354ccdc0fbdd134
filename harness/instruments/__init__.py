"""NVIDIA's tools on one kernel: Nsight Compute, compute-sanitizer and nvbench, and what they report."""

from harness.support import submodules

__getattr__, __dir__ = submodules(__name__)
