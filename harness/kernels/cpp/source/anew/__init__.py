"""Texts that are written anew, so that each of their kernels has a name and a type: lambdas and overloads."""
