"""Verify the files of a run directory. See conf/verify.yaml."""

from bdl.__main__ import run_command

if __name__ == "__main__":
    run_command("verify")
