"""The text of a file: its declarations, its macros that make kernels, and what is cut out for its errors."""
