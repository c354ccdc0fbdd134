"""What a call of `harness.matmul` asks for beside a product: batches, a bias, an activation, a precision."""
