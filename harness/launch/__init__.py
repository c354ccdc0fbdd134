"""Operands in device memory, and the kernels, cuBLAS and cuBLASLt calls that run on them."""

from harness.support import submodules

__getattr__, __dir__ = submodules(__name__)
