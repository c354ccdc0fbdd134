"""Order of a program's operations: streams, events and the host, and what nothing orders."""
