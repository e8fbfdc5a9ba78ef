"""Compare finished runs on the same data, a row for each method. See conf/report.yaml."""

from bdl.run.command import run_command

if __name__ == "__main__":
    run_command("report")
