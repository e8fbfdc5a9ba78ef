"""Predict the rows of a table with the samples of one or several runs. See conf/predict.yaml."""

from bdl.__main__ import run_command

if __name__ == "__main__":
    run_command("predict")
