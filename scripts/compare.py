"""Compare runs side by side, a row for each method. See conf/compare.yaml."""

from bdl.__main__ import run_command

if __name__ == "__main__":
    run_command("compare")
