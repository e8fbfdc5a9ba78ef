"""`python -m bdl` is the console command `bdl`."""

from __future__ import annotations

from bdl.run.command import main

if __name__ == "__main__":
    main()
