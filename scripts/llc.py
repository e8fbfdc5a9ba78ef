"""The local learning coefficient of a run's trained network. See conf/llc.yaml."""

from bdl.__main__ import run_command

if __name__ == "__main__":
    run_command("llc")
