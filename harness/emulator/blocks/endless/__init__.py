"""Hangs: loops that never end, and threads that keep each other in theirs."""
