import typing

from beartype import beartype
from jaxtyping import install_import_hook


def typecheck(function):
    # Not a part's __init__: a user's mistake there has to come out as the part's own InputError, in tests too.
    return function if function.__name__ == "__init__" else beartype(function)


# Before any test imports a part: shapes and types in these folders are then checked at every call.
FOLDERS = ("families", "encodings", "models", "diagnostics")
install_import_hook([f"recombine.{folder}" for folder in FOLDERS], f"{__name__}.typecheck")

from recombine import core  # noqa: E402

# The checker asks isinstance(value, Family), which a protocol only answers when it is marked so.
for protocol in (core.Family, core.Support, core.Encoding, core.Model, core.Lab, core.Diagnostic, core.Recipe):
    typing.runtime_checkable(protocol)
