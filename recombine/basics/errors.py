"""The user's mistakes: one line that says what to do instead."""


class InputError(ValueError):
    """The user's mistake, in one line that says what to do instead."""

    def __str__(self) -> str:
        line = " ".join(super().__str__().splitlines())  # it may quote whatever the user wrote
        return line if len(line) <= 600 else f"{line[:300]} … {line[-300:]}"


def require(condition: bool, message: str) -> None:
    """Raise an `InputError` with this message unless the condition holds."""
    if not condition:
        raise InputError(message)
