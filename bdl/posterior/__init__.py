"""From samples on disk to predictions, diagnostics and a report."""
