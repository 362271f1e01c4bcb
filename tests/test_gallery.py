"""Thumbnails and sheets of images."""

import base64
import io

import numpy as np
import pandas as pd
import pytest

from recombine import figure, gallery, report


def test_a_thumbnail_is_a_small_picture_of_the_whole():
    image_module = pytest.importorskip("PIL.Image", reason="thumbnails need Pillow, which comes with the extra torch")
    pixels = np.zeros((200, 400, 3), np.uint8)
    pixels[:, 200:] = 255
    small = gallery.thumbnail(image_module.fromarray(pixels))
    assert len(small) < 4000
    back = image_module.open(io.BytesIO(base64.b64decode(small)))
    assert back.size == (64, 32)
    halves = np.asarray(back.convert("L"), float).reshape(32, 2, 32).mean(axis=(0, 2))
    assert halves[0] < 20
    assert halves[1] > 235


def test_a_sheet_shows_both_ends_in_order_and_in_place():
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


def test_no_blank_room_is_left_below_a_single_line_on_the_page():
    rows = pd.DataFrame({"image": list("ab"), "caption": ["one", "two"]})
    low = gallery.sheet(rows, "Images")
    assert low.layout.height < 320  # what pages keep free for a figure of unknown height
    assert f"min-height: {low.layout.height}px" in report._figure(0, "images", low.to_json())
