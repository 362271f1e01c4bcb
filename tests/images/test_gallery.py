import base64
import struct
import zlib

import numpy as np
import pandas as pd

from recombine.images import gallery


def read(text):
    """The pixels of a PNG, by its own rules."""
    data, parts, place = base64.b64decode(text), {}, 8
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    while place < len(data):
        (size,) = struct.unpack(">I", data[place : place + 4])
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + size]
        assert struct.unpack(">I", data[place + 8 + size : place + 12 + size])[0] == zlib.crc32(kind + body)
        parts[kind], place = body, place + 12 + size
    width, height = struct.unpack(">II", parts[b"IHDR"][:8])
    lines = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not lines[:, 0].any(), "no filter"
    return lines[:, 1:].reshape(height, width, 3)


def test_images_stand_side_by_side():
    images = np.stack([np.full((2, 3, 3), -1.0), np.full((2, 3, 3), 1.7)])
    images[0, 1, 2, 0] = 0
    pixels = read(gallery.png(images))
    assert pixels.shape == (2, 6, 3)
    assert pixels[1, 2].tolist() == [128, 0, 0]
    assert (pixels[:, 3:] == 255).all(), "what is brighter than white is white"


def test_a_sheet_shows_both_ends_and_marks_what_failed():
    image = gallery.png(np.zeros((1, 2, 2, 3)))
    rows = pd.DataFrame(
        {"combination": [f"c{i}" for i in range(40)], "expected": np.linspace(2, 0, 40), "right": np.linspace(0, 1, 40)}
    ).assign(images=image)
    drawn = gallery.sheet(rows, "Title")
    told = [note.text for note in drawn.layout.annotations]
    assert len(told) == len(drawn.layout.images) == 24
    assert told[0].startswith("c0<br>0% right, expected failure 2.00")
    assert told[-1].startswith("c39<br>100% right")
    assert "c20" not in " ".join(told)
    colours = [note.font.color for note in drawn.layout.annotations]
    assert colours[0] != colours[-1]
    assert len(gallery.sheet(rows.head(3), "Title").layout.images) == 3
