"""Runs an experiment of scripts/experiments by its name: python scripts/experiment.py continual --help."""

from tools.command import run_named

if __name__ == "__main__":
    run_named("experiments")
