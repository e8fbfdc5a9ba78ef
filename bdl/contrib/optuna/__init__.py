"""Sweeps in which Optuna chooses the trials."""
