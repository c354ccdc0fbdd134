"""Moves, conversions and the packing of narrow types."""
