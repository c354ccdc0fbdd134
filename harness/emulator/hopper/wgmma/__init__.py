"""Products that a warpgroup begins together."""
