"""Calibrate a run by simulated data. See conf/calibrate.yaml."""

from bdl.__main__ import run_command

if __name__ == "__main__":
    run_command("calibrate")
