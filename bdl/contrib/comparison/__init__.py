"""Runs side by side: a row for each method, with means over seeds."""
