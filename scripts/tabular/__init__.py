"""The parts of `scripts/experiment.py tables`: public tables, methods, proper scores, and ranks over tables."""
