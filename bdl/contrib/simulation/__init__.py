"""A run that is calibrated by simulated data."""
