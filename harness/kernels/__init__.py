"""Kernel files: found, read, checked and compiled for an architecture; no GPU is needed."""
