"""One network in place of the samples of a run. See conf/distil.yaml."""

from bdl.__main__ import run_command

if __name__ == "__main__":
    run_command("distil")
