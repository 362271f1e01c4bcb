"""Images as text for a table, and a picture of many of them in a row of rows."""

import base64
import math
import struct
import zlib
from typing import Any

import numpy as np
import pandas as pd

from recombine import figure


def png(images: np.ndarray) -> str:
    """Images from -1 to 1, side by side, as a PNG in base64."""
    pixels = np.clip((np.concatenate(images, axis=1) + 1) * 127.5, 0, 255).round().astype(np.uint8)
    height, width, _ = pixels.shape
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = part(b"IHDR", header) + part(b"IDAT", zlib.compress(lines, 9)) + part(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + parts).decode()


def sheet(rows: Any, title: str, most: int = 24, columns: int = 4) -> Any:
    """Images of combinations, those first that are expected to fail first: the first and the last half of `most`.

    Rows have `combination`, `images`, `expected` and `right`; a mark says whether the images came out right.
    """
    half = most // 2
    kept = rows if len(rows) <= most else pd.concat([rows.head(half), rows.tail(most - half)])
    lines = math.ceil(len(kept) / columns)
    drawn = figure.blank(title, "", "", legend=False)
    axis = {"visible": False, "showgrid": False, "zeroline": False}
    drawn.update_xaxes(range=[0, columns], **axis).update_yaxes(range=[lines, 0], **axis)
    drawn.update_layout(height=60 + 78 * lines)
    for place, row in enumerate(kept.to_dict("records")):
        down, across = divmod(place, columns)
        drawn.add_layout_image(
            source="data:image/png;base64," + row["images"],
            xref="x", yref="y", x=across + 0.02, y=down + 0.05, sizex=0.96, sizey=0.5,
        )  # fmt: skip
        colour = figure.COLOURS[0] if row["right"] >= 0.5 else figure.COLOURS[1]
        told = f"{row['combination']}<br>{row['right']:.0%} right, expected failure {row['expected']:.2f}"
        note = {"x": across + 0.02, "y": down + 0.58, "xanchor": "left", "yanchor": "top", "align": "left"}
        drawn.add_annotation(text=told, showarrow=False, font={"size": 10, "color": colour}, **note)
    return drawn
