"""What the samples of a run follow, measured by exact gradients: no thermostat and no batch noise has a part in it."""
