"""Integers: arithmetic, bit fields, carries, dot products and video instructions."""
