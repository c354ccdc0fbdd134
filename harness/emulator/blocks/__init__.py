"""Blocks of threads as they run: fragments that diverge, barriers at which they meet."""
