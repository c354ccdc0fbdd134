"""Problems of kernels that nobody has described: their arguments are guesses, and there is no reference."""
