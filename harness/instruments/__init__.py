"""NVIDIA's tools on one kernel: Nsight Compute, compute-sanitizer and nvbench, and what they report."""
