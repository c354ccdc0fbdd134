"""Measured rows kept and compared: record files, tables, explanations, claims and exports."""
