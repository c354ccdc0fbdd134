"""One verdict on one kernel of a stranger: read, compiled, emulated and run where it can do no harm."""

from harness.support import submodules

__getattr__, __dir__ = submodules(__name__)
