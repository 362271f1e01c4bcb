"""Columns of probes, layer by layer: experiments on decodability share these functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from recombine.experiments.claim import Frame

LAYER = r"code|pre\d+|hidden\d+|output"


def probe_column(probe: str, layer: str, side: str = "test") -> str:
    """The column with the R2 of a probe of a layer, by default on held-out combinations."""
    return f"{probe}/{layer}/{side}/r2"


def probed_layers(frame: Frame, probe: str) -> dict[str, str]:
    """The layers that a probe was fitted to, by column, in the order of the network."""
    pattern = re.compile(rf"{re.escape(probe)}/({LAYER})/test/r2")
    matches = [pattern.fullmatch(str(column)) for column in frame]
    layers = {match[0]: match[1] for match in matches if match}
    return dict(sorted(layers.items(), key=lambda item: _position(item[1])))


def _position(layer: str) -> tuple[int, int, bool]:
    """A sort key: the code, then pre0, hidden0, pre1, hidden1, …, then the output."""
    if layer == "code":
        return (0, 0, False)
    if layer == "output":
        return (2, 0, False)
    return (1, int(re.sub(r"\D", "", layer)), layer.startswith("hidden"))


def by_layer(frame: Frame, keep: list[str], probe: str) -> Any:
    """One row per run and layer, with the columns `keep`, `layer` and `decodability r2`."""
    return melt_layers(frame, keep, probed_layers(frame, probe), "decodability r2")


def melt_layers(frame: Frame, keep: list[str], layers: Mapping[str, str], value: str) -> Any:
    """One row per run and layer, with the columns `keep`, `layer` and the one named by `value`.

    `layers` has the name of the layer by column. Rows without a value are left out.
    """
    long: Any = frame.melt(keep, list(layers), "layer", value).dropna(subset=[value])
    return long.assign(layer=pd.Categorical(long["layer"].map(layers), list(layers.values())))
