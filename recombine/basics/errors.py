"""Errors that the user can fix."""

MAX_LENGTH = 600  # characters of a message: it may quote long input


class InputError(ValueError):
    """A mistake in the user's input, in one line that says what is wrong and what to do."""

    def __str__(self) -> str:
        line = " ".join(super().__str__().splitlines())
        if len(line) <= MAX_LENGTH:
            return line
        half = MAX_LENGTH // 2
        return f"{line[:half]} … {line[-half:]}"


def require(condition: bool, message: str) -> None:
    """Raise an `InputError` with this message unless the condition is true."""
    if not condition:
        raise InputError(message)
