"""The console command `bdl`, `python -m bdl`, the scripts: a signal ends them in one line from the first import on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ends_in_one_line() -> Iterator[None]:
    """End with status 130 at Ctrl-C and 143 at SIGTERM, also before the modules are there that say what is kept."""
    try:
        from bdl.interrupts import terminable

        with terminable():
            yield
    except KeyboardInterrupt as error:
        from bdl.interrupts import line_of, signal_of

        print(f"bdl: {line_of(error, 'nothing had begun')}", file=sys.stderr)
        sys.exit(128 + (signal_of(error) or 0))


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
