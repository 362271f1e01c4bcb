"""The command `recombine`, also available as `python -m recombine`."""

import errno
import os
import sys

EXIT_CODE_CTRL_C = 130
EXIT_CODE_SIGTERM = 143


def main() -> None:
    """Run the command line. An `InputError` prints one line and gives exit code 2."""
    from recombine.basics.errors import InputError
    from recombine.cli.main import app

    try:
        app(prog_name="recombine")
    except InputError as error:
        _refuse(error)
    except MemoryError as error:
        reason = f" ({error})" if str(error) else ""
        remedy = "use less data, or a machine with more memory"
        _refuse(InputError(f"there is not enough memory for this{reason}: {remedy}"))
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        message = f"cannot use the path {error.filename} ({error.strerror}): choose a shorter one"
        _refuse(InputError(message))


def _refuse(error: Exception) -> None:
    sys.stderr.write(f"recombine: {error}\n")
    sys.exit(2)


def command() -> None:
    """Run the command line in a process of its own, which ends immediately after Ctrl-C."""
    try:
        main()
    except SystemExit as stop:
        if stop.code not in (EXIT_CODE_CTRL_C, EXIT_CODE_SIGTERM):
            raise
        _exit_now(int(stop.code))
    except KeyboardInterrupt:  # a second Ctrl-C, while the first one was handled
        sys.stderr.write("recombine: stopped; run the same command to continue\n")
        _exit_now(EXIT_CODE_CTRL_C)


def _exit_now(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    # Not an orderly exit: XLA may still be compiling in a thread, and would crash.
    os._exit(code)


if __name__ == "__main__":
    command()
