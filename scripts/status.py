"""Say how runs and the jobs of sweeps stand. See conf/status.yaml."""

from bdl.__main__ import run_command

if __name__ == "__main__":
    run_command("status")
