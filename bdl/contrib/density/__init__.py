"""Any log density in place of a network: its parameters are sampled, and judged, by their names."""
