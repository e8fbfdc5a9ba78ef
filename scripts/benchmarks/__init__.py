"""Measurements of speed and memory, and bdl beside other libraries: scripts/bench.py runs them by name."""
