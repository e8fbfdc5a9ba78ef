"""Sample the posterior of a network, keep the samples, evaluate them and write a report. See conf/train.yaml."""

from bdl.__main__ import run_command

if __name__ == "__main__":
    run_command("train")
