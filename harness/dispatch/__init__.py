"""`harness.matmul`: choose the fastest kernel for a product's shape and GPU, prepare it and run it."""

from harness.support import submodules

__getattr__, __dir__ = submodules(__name__)
