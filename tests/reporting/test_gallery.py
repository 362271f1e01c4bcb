"""Thumbnails and sheets of images."""

import base64
import io
import struct
import zlib

import numpy as np
import pandas as pd
import pytest

from recombine.reporting import figure, gallery, page


def test_a_thumbnail_shows_the_whole_image():
    image_module = pytest.importorskip("PIL.Image", reason="thumbnails need Pillow")
    pixels = np.zeros((200, 400, 3), np.uint8)
    pixels[:, 200:] = 255
    small = gallery.thumbnail(image_module.fromarray(pixels))
    assert len(small) < 4000
    decoded = image_module.open(io.BytesIO(base64.b64decode(small)))
    assert decoded.size == (64, 32)
    gray = np.asarray(decoded.convert("L"), float)
    halves = gray.reshape(32, 2, 32).mean(axis=(0, 2))
    assert halves[0] < 20
    assert halves[1] > 235


def test_a_sheet_shows_the_first_and_the_last_images():
    rows = pd.DataFrame({"image": list("abcdefgh"), "caption": [f"no {i}" for i in range(8)]})
    rows["good"] = [0.0, 1.0, np.nan, 0.0, 0.0, 1.0, 1.0, 1.0]
    sheet = gallery.sheet(rows, "Images", most=4, num_columns=3)
    images, notes = sheet.layout.images, sheet.layout.annotations
    assert [image.source.rpartition(",")[2] for image in images] == ["a", "b", "g", "h"]
    assert [note.text for note in notes] == ["no 0", "no 1", "no 6", "no 7"]
    assert [(int(image.x), int(image.y)) for image in images] == [(0, 0), (1, 0), (2, 0), (0, 1)]
    assert [note.font.color for note in notes] == [figure.COLOURS[1], *[figure.COLOURS[0]] * 3]
    assert sheet.layout.yaxis.range == (2, 0)
    unknown = gallery.sheet(rows.drop(columns="good"), "Images").layout.annotations
    assert {note.font.color for note in unknown} == {figure.INK}
    assert len(unknown) == 8


def test_a_low_sheet_leaves_no_empty_space_on_the_page():
    rows = pd.DataFrame({"image": list("ab"), "caption": ["one", "two"]})
    low = gallery.sheet(rows, "Images")
    assert low.layout.height < 320, "the height that a page reserves for other figures"
    assert f"min-height: {low.layout.height}px" in page._figure(0, "images", low.to_json())


def decode_png(text):
    """The pixels of a PNG file in base64, decoded by the rules of the format."""
    data = base64.b64decode(text)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks = {}
    start = 8
    while start < len(data):
        (size,) = struct.unpack(">I", data[start : start + 4])
        kind = data[start + 4 : start + 8]
        body = data[start + 8 : start + 8 + size]
        (checksum,) = struct.unpack(">I", data[start + 8 + size : start + 12 + size])
        assert checksum == zlib.crc32(kind + body)
        chunks[kind] = body
        start += 12 + size
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    pixels = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8)
    lines = pixels.reshape(height, 1 + 3 * width)
    assert not lines[:, 0].any(), "no filter"
    return lines[:, 1:].reshape(height, width, 3)


def test_images_are_side_by_side():
    images = np.stack([np.full((2, 3, 3), -1.0), np.full((2, 3, 3), 1.7)])
    images[0, 1, 2, 0] = 0
    pixels = decode_png(gallery.png(images))
    assert pixels.shape == (2, 6, 3)
    assert pixels[1, 2].tolist() == [128, 0, 0]
    assert (pixels[:, 3:] == 255).all(), "values above 1 are white"


def test_a_sheet_recognizes_png_and_jpeg():
    rows = pd.DataFrame(
        {"image": [gallery.png(np.zeros((1, 2, 2, 3))), "/9j/4AAQ"], "caption": ["a", "b"]}
    )
    kinds = [
        image.source.partition(";")[0] for image in gallery.sheet(rows, "Images").layout.images
    ]
    assert kinds == ["data:image/png", "data:image/jpeg"]
