"""Images as text for a table, and a sheet of them, those first that are expected to fail first."""

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
QUALITY = 80  # of its JPEG: 1 to 3 kB
PNG = "iVBOR"  # how one begins in base64


def thumbnail(image: Any, side: int = SIDE) -> str:
    """A picture of Pillow's, made small, as a JPEG in base64."""
    small = image.convert("RGB")
    small.thumbnail((side, side))
    kept = io.BytesIO()
    small.save(kept, "JPEG", quality=QUALITY)
    return base64.b64encode(kept.getvalue()).decode()


def png(images: np.ndarray) -> str:
    """Images of numbers from -1 to 1, side by side, as a PNG in base64; needs no Pillow."""
    pixels = np.clip((np.concatenate(images, axis=1) + 1) * 127.5, 0, 255).round().astype(np.uint8)
    height, width, _ = pixels.shape
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)

    def part(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = part(b"IHDR", header) + part(b"IDAT", zlib.compress(lines, 9)) + part(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + parts).decode()


def sheet(
    rows: pd.DataFrame, title: str, most: int = 24, num_columns: int = 6, tall: float = 0.6
) -> go.Figure:
    """Draw rows with `image` (base64) and `caption` in their order; of more than `most`, the first and last halves.

    A column `good` gives the captions their colour: true, false, or unknown where it is NaN. Images may take the share
    `tall` of a line's height.
    """
    half = most // 2
    kept = rows if len(rows) <= most else pd.concat([rows.head(half), rows.tail(most - half)])
    lines = max(1, math.ceil(len(kept) / num_columns))
    drawn = figure.blank(title, "", "", legend=False)
    axis = {"visible": False, "showgrid": False, "zeroline": False, "fixedrange": True}
    drawn.update_xaxes(range=[0, num_columns], **axis).update_yaxes(range=[lines, 0], **axis)
    drawn.update_layout(height=70 + 150 * lines, margin={"l": 10, "r": 10, "t": 50, "b": 10})
    drawn.add_scatter(x=[], y=[])  # without a trace no axis is made, and nothing has a place
    for place, row in enumerate(kept.to_dict("records")):
        down, across = divmod(place, num_columns)
        corner = {"xref": "x", "yref": "y", "x": across + 0.03, "y": down + 0.02}
        source = (
            f"data:image/{'png' if row['image'].startswith(PNG) else 'jpeg'};base64,{row['image']}"
        )
        drawn.add_layout_image(source=source, sizex=0.94, sizey=tall, **corner)
        good = row.get("good", math.nan)
        colour = figure.INK if pd.isna(good) else figure.COLOURS[0 if good else 1]
        note: dict[str, Any] = corner | {
            "y": down + tall + 0.04,
            "xanchor": "left",
            "yanchor": "top",
            "align": "left",
        }
        drawn.add_annotation(
            text=row["caption"], showarrow=False, font={"size": 10, "color": colour}, **note
        )
    return drawn
