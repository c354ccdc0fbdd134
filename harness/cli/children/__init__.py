"""Verbs whose work is done by other processes: isolated ones, compute-sanitizer, workers on several GPUs."""
