"""What the commands `train` and `evaluate` do."""
