"""Limits on what a file may declare, checked before memory is taken for it.

A file of a few kilobytes can declare arrays of terabytes. The limit is the memory of this machine,
or `$RECOMBINE_MAX_BYTES`.
"""

import math
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from recombine.basics.errors import InputError, require

FALLBACK_BYTES = 2**36  # if the memory of the machine is not known
CELL_BYTES = 8  # of a number in a table


def max_bytes() -> int:
    """The largest size that a file may declare."""
    text = os.environ.get("RECOMBINE_MAX_BYTES", "")
    if text:
        require(text.isdigit(), f"RECOMBINE_MAX_BYTES={text} must be a whole number of bytes")
        return int(text)
    names = ("SC_PHYS_PAGES", "SC_PAGE_SIZE")
    if set(names) <= set(getattr(os, "sysconf_names", ())):
        return math.prod(map(os.sysconf, names))
    return FALLBACK_BYTES


def check_parquet(path: Path, metadata: Any) -> None:
    """Refuse a Parquet file that declares more than the limit. `metadata` is its footer.

    It does not know how often each text occurs: `parquet_reader` counts that.
    """
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    uncompressed = sum(max(group.total_byte_size, 0) for group in groups)
    num_rows = max(metadata.num_rows, sum(group.num_rows for group in groups))
    cells = 0
    for i in range(metadata.num_columns):
        num_values = sum(group.column(i).num_values for group in groups)  # lists have several a row
        cell_bytes = max(CELL_BYTES, metadata.schema.column(i).length or 0)
        cells += max(num_rows, num_values) * cell_bytes
    require_below(path, max(uncompressed, cells))


def check_npz(path: Path) -> None:
    """Refuse a .npz file whose arrays declare another size than their data, or more than the limit.

    Raises a `ValueError` if it is no such file.
    """
    total = 0
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            total += info.file_size
            require_below(path, total)
            with archive.open(info) as member:
                major, _ = np.lib.format.read_magic(member)
                read_header = np.lib.format.read_array_header_1_0
                if major > 1:
                    read_header = np.lib.format.read_array_header_2_0
                shape, _, dtype = read_header(member)
                declared = math.prod(shape) * dtype.itemsize
                held = info.file_size - member.tell()
            require(
                dtype.hasobject or declared == held,
                f"the array {info.filename!r} in {path} declares {declared:,} bytes and has "
                f"{held:,}: save the file again",
            )


def require_below(path: Path, declared: int) -> None:
    """Refuse a file that declares more bytes than the limit."""
    limit = max_bytes()
    if declared > limit:
        raise InputError(
            f"{path} declares {declared:,} bytes, and the limit is {limit:,} (the memory of this "
            "machine): use a smaller file, or set RECOMBINE_MAX_BYTES"
        )
