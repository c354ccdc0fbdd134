"""One verdict on one kernel of a stranger: read, compiled, emulated and run where it can do no harm."""
