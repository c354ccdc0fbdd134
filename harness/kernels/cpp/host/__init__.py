"""Read the host code of a file: its launches, its tensor maps, and the numbers that it gives names to."""
