"""Machine code: disassembled, counted, listed and compared, and held against what a kernel expects of it."""

from harness.support import submodules

__getattr__, __dir__ = submodules(__name__)
