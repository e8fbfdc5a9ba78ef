"""The certificate of a run: its last samples go on by exact HMC, and what changes is told."""
