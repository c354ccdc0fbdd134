"""Tools for every room, without CUDA: a file cache, whole-file writes, processes and the terminal."""
