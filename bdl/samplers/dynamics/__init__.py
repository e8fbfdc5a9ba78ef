"""Dynamics: the ways in which θ moves."""
