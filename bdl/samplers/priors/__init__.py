"""Priors over flat parameters, and what they are made of."""
