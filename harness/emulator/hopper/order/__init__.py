"""Races: vector clocks, the accesses to shared memory, and reports in words."""
