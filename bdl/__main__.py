"""`python -m bdl` is the console command `bdl`."""

from bdl.run.command import main

if __name__ == "__main__":
    main()
