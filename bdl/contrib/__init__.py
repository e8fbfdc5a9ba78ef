"""What builds on the core of bdl, and what the core never imports. CONTRIBUTING.md says what belongs here."""
