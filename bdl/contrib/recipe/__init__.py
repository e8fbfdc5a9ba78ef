"""Samplers made from the matrices D and Q of the complete recipe."""
