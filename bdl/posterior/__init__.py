"""From samples on disk to predictions, diagnostics, a verdict and a report."""
