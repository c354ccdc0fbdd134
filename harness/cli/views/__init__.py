"""Text that the commands print: rows, machine code, profiles and other results, laid out for a terminal."""
