"""Memory as other blocks see it: stores that come late, and loads that come early."""
