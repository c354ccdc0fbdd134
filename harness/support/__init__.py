"""Helpers without CUDA for every room: a cache, whole-file writes, processes, other programs, the terminal."""
