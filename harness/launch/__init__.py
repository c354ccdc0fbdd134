"""Operands in device memory, and the kernels, cuBLAS and cuBLASLt calls that run on them."""
