"""The command `recombine`, also as `python -m recombine`."""

import os
import sys


def main() -> None:
    """Run the command line; the user's mistakes are one line and exit code 2."""
    from recombine.basics.errors import InputError
    from recombine.cli.main import app

    try:
        app(prog_name="recombine")
    except InputError as error:
        sys.stderr.write(f"recombine: {error}\n")
        sys.exit(2)


def command() -> None:
    """The same, for a process of its own, which after Ctrl-C leaves at once."""
    try:
        main()
    except SystemExit as stop:
        if stop.code != 130:
            raise
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(
            130
        )  # XLA may still compile in a thread, which an orderly exit would pull the ground from under


if __name__ == "__main__":
    command()
