"""`harness.matmul`: chooses the fastest kernel for a product's shape and GPU, prepares and runs it."""
