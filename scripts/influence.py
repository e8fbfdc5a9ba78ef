"""The training rows that help and harm the predictions of a run most. See conf/influence.yaml."""

from bdl.__main__ import run_command

if __name__ == "__main__":
    run_command("influence")
