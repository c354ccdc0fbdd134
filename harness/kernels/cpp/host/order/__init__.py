"""What host code does one after the other: launches, copies and calls of libraries, on which buffers."""
