"""Evaluate the samples of one or several runs as one posterior. See conf/evaluate.yaml."""

from bdl.__main__ import run_command

if __name__ == "__main__":
    run_command("evaluate")
