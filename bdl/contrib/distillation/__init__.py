"""One network in place of the average over many."""
