"""The console command `bdl`, `python -m bdl`, and the scripts: Ctrl-C is one line from the first import on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ends_in_one_line() -> Iterator[None]:
    """End with status 130 at Ctrl-C, also before the modules are there that say what is kept."""
    try:
        yield
    except KeyboardInterrupt:
        print("bdl: interrupted; nothing had begun", file=sys.stderr)
        sys.exit(130)


def main() -> None:
    """The console command `bdl`."""
    with ends_in_one_line():
        from bdl.run.command import main

        main()


def run_command(name: str) -> None:
    """A command with the overrides in sys.argv, as the script of its name carries it out."""
    with ends_in_one_line():
        from bdl.run.command import run_command

        run_command(name)


if __name__ == "__main__":
    main()
