"""The version of the package, and the folders of the package and of its git checkout."""

from pathlib import Path

__version__ = "0.1.0"
PACKAGE = Path(__file__).resolve().parent.parent
CHECKOUT = PACKAGE.parent  # the git checkout, or site-packages where the package is installed
