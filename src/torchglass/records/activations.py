"""Small pictures of what modules put out."""

from __future__ import annotations

from dataclasses import dataclass

from torchglass.records.tensors import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureMap:
    """A part of one output as shades of grey: of images the first channels, side by side."""

    path: str
    name: str
    """That of the series of the same values: "output", "eval:output.0"."""
    step: int
    spec: TensorSpec
    """Of the whole output."""
    low: float
    """What black stands for."""
    high: float
    """What white stands for."""
    rows: int
    columns: int
    pixels: str
    """A byte for each pixel, row by row, in base64."""
    tiles: int = 1
    """How many maps lie side by side in each row of maps."""


@dataclass(frozen=True, kw_only=True)
class Activations:
    """The latest pictures of a run, in the order in which their modules ran."""

    maps: tuple[FeatureMap, ...] = ()
