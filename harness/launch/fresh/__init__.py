"""New data for every timed launch, and the verification of every result that was computed from it."""
