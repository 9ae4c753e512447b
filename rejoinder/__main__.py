"""`python -m rejoinder`: the command line."""

from rejoinder.cli import main

if __name__ == "__main__":
    main(prog_name="rejoinder")
