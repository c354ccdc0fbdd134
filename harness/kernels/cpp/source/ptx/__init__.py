"""PTX of other compilers as the C++ that computes the same, for guesses to read."""
