"""Verify the files of a run directory. See conf/verify.yaml."""

from bdl.run.command import run_command

if __name__ == "__main__":
    run_command("verify")
