"""Watching an emulated launch: hazards, races and other findings, and counts of executions and requests."""
