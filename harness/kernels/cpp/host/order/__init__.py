"""Read what host code does, one thing after the other: launches, copies, calls of libraries."""
