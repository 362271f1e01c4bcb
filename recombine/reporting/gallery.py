"""Images as base64 text for a table, and a figure with many of them."""

from __future__ import annotations

import base64
import io
import math
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from recombine.reporting import figure

if TYPE_CHECKING:  # imported where a figure is made: training needs no plotly
    import plotly.graph_objects as go

SIDE = 64  # pixels of a thumbnail
JPEG_QUALITY = 80  # 1 to 3 kB per thumbnail
PNG_PREFIX = "iVBOR"  # the beginning of a PNG file in base64
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
ROW_PIXELS = 150


def thumbnail(image: Any, side: int = SIDE) -> str:
    """A small copy of a Pillow image, as a JPEG file in base64."""
    small = image.convert("RGB")
    small.thumbnail((side, side))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=JPEG_QUALITY)
    return base64.b64encode(buffer.getvalue()).decode()


def png(images: np.ndarray) -> str:
    """Images (number, height, width, 3) from -1 to 1, side by side, as a PNG file in base64.

    It does not need Pillow.
    """
    levels = (np.concatenate(images, axis=1) + 1) * 127.5
    pixels = np.clip(levels, 0, 255).round().astype(np.uint8)
    height, width, _ = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)  # 0: the row has no filter
    chunks = (
        _png_chunk(b"IHDR", header)
        + _png_chunk(b"IDAT", zlib.compress(rows, 9))
        + _png_chunk(b"IEND", b"")
    )
    return base64.b64encode(PNG_SIGNATURE + chunks).decode()


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    length = struct.pack(">I", len(data))
    checksum = struct.pack(">I", zlib.crc32(kind + data))
    return length + kind + data + checksum


def sheet(
    rows: pd.DataFrame, title: str, most: int = 24, num_columns: int = 6, tall: float = 0.6
) -> go.Figure:
    """Draw images with captions, in the order of the rows.

    The columns are `image` (base64) and `caption`. The optional column `good` (true, false, or NaN
    for unknown) selects the color of a caption. Of more than `most` rows, the first and the last
    are drawn. An image takes at most the fraction `tall` of the height of its row.
    """
    if len(rows) > most:
        num_first = most // 2
        rows = pd.concat([rows.head(num_first), rows.tail(most - num_first)])
    num_rows = max(1, math.ceil(len(rows) / num_columns))
    drawn = figure.blank(title, "", "", legend=False)
    axis = {"visible": False, "showgrid": False, "zeroline": False, "fixedrange": True}
    drawn.update_xaxes(range=[0, num_columns], **axis)
    drawn.update_yaxes(range=[num_rows, 0], **axis)
    height = 70 + ROW_PIXELS * num_rows
    drawn.update_layout(height=height, margin={"l": 10, "r": 10, "t": 50, "b": 10})
    drawn.add_scatter(x=[], y=[])  # plotly makes the axes only if there is a trace
    for i, row in enumerate(rows.to_dict("records")):
        row_number, column_number = divmod(i, num_columns)
        _add_image(drawn, row, column_number + 0.03, row_number, tall)
    return drawn


def _add_image(drawn: go.Figure, row: dict[Any, Any], left: float, top: float, tall: float) -> None:
    """Draw an image and its caption below, with the upper left corner here."""
    file_type = "png" if row["image"].startswith(PNG_PREFIX) else "jpeg"
    drawn.add_layout_image(
        source=f"data:image/{file_type};base64,{row['image']}",
        sizex=0.94,
        sizey=tall,
        xref="x",
        yref="y",
        x=left,
        y=top + 0.02,
    )
    good = row.get("good", math.nan)
    color = figure.INK if pd.isna(good) else figure.COLOURS[0 if good else 1]
    drawn.add_annotation(
        text=row["caption"],
        showarrow=False,
        font={"size": 10, "color": color},
        xref="x",
        yref="y",
        x=left,
        y=top + tall + 0.04,
        xanchor="left",
        yanchor="top",
        align="left",
    )
