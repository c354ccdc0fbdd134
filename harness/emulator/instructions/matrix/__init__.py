"""Matrices among the lanes of a warp: mma.sync, wmma, ldmatrix."""
