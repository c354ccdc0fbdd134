"""Launches of several kernels one after the other, on the same buffers, as host code makes them."""
