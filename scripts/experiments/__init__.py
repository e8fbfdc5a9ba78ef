"""What bdl's own methods gain and cost, by which defaults and pages decide: scripts/experiment.py runs them by name."""
