"""Tuning: search a kernel's parameters for the fastest ones, with a journal to resume from."""
