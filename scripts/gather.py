"""Gather the results of a sweep into one table and one page. See conf/gather.yaml."""

from bdl.run.command import run_command

if __name__ == "__main__":
    run_command("gather")
