"""The command `recombine`, also as `python -m recombine`."""

import sys


def main() -> None:
    """Run the command line; the user's mistakes are one line and exit code 2."""
    from recombine.cli import app
    from recombine.core import InputError

    try:
        app(prog_name="recombine")
    except InputError as error:
        sys.stderr.write(f"recombine: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
