"""Textures and surfaces that a kernel is given: which they are, and what they hold."""
