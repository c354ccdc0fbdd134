"""Machine code: disassembled, counted, listed and compared, and held against what a kernel expects of it."""
