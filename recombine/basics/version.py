"""The version, and where the package and its checkout lie."""

from pathlib import Path

__version__ = "0.1.0"
PACKAGE = Path(__file__).resolve().parent.parent
CHECKOUT = (
    PACKAGE.parent
)  # where this code is part of a clone; elsewhere the folder that it is installed in
