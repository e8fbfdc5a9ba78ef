"""Gradients of mini-batches with control variates."""
