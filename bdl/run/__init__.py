"""What the commands of bdl do, and `bdl.sample` and `bdl.report`, which need no configuration."""
