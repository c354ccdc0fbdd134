"""`harness.matmul`: choose the fastest kernel for a product's shape and GPU, prepare it and run it."""
