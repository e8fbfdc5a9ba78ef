"""The loss around a trained network, measured by chains that begin there."""
