"""Textures and surfaces: what they hold, how they are sampled, and the instructions that do it."""
