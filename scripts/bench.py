"""Measures speed, or runs another benchmark by its name: see scripts/benchmarks/speed, and `bench.py table --help`."""

from tools.command import run_named

if __name__ == "__main__":
    run_named("benchmarks", otherwise="speed")
