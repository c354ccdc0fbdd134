"""Tuning: a search of a kernel's parameter space for its fastest parameters, with a journal to resume from."""
