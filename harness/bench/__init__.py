"""Verified times: kernels are prepared, checked, sampled in rounds and checked again, a row for each."""
