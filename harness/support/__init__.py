"""Helpers that need no CUDA, for every room: a cache, files, processes, other programs and the terminal."""
