"""The channels of an activation, or the heads of an attention, as a grid of pictures."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from torchglass.analyse.pixels import enlarge, half_blocks, paint, png, scale_of, sheet
from torchglass.errors import LookupFailedError
from torchglass.tables.export import File, in_its_folder

if TYPE_CHECKING:
    from torchglass.results.op import Op

Maps = npt.NDArray[np.float64]
_PIXELS = 640
_MOST_TEXT_MAPS = 64
_RESET = "\x1b[0m"
ATTENTION = "scaled_dot_product_attention"
_PLANE = 2


class FeatureMaps:
    """Pictures of one tensor, side by side: print it, save it as PNG, or show it in a notebook.

    Negative values are blue and positive ones red if there are both; NaN is magenta. Cells without
    a picture are transparent.
    """

    def __init__(self, title: str, maps: Maps, note: str = "") -> None:
        self.title = title
        self.maps = maps
        """The values, as maps × height × width."""
        self.note = note
        """How the values were computed, if they are not the tensor itself."""
        self.scale = scale_of(list(maps))
        """The values at the ends of the colors, the same for all maps."""

    def __len__(self) -> int:
        return len(self.maps)

    def to_png(self) -> bytes:
        """All maps as a PNG, in a grid that is about square."""
        pictures = [paint(one, self.scale) for one in self.maps]
        height, width = pictures[0].shape
        across = max(math.ceil(math.sqrt(len(pictures) * height / width)), 1)
        grid = sheet(pictures, across * (width + 1))
        return png(enlarge(grid, _PIXELS, _PIXELS))

    def save(self, file: File) -> None:
        """Write all maps to a PNG file.

        Args:
            file: Its path; folders are created.
        """
        in_its_folder(file).write_bytes(self.to_png())

    def text(self, width: int = 80) -> str:
        """The maps in the colors of a terminal, this many cells wide.

        Args:
            width: Columns of the terminal.
        """
        pictures = [paint(one, self.scale) for one in self.maps[:_MOST_TEXT_MAPS]]
        step = max(math.ceil(pictures[0].shape[1] / width), 1)
        grid = sheet([one[::step, ::step] for one in pictures], width)
        lines = ["".join(map(_cell, row)) + _RESET for row in half_blocks(grid)]
        rest = len(self.maps) - len(pictures)
        more = [f"… and {rest:,} more"] if rest > 0 else []
        return "\n".join([self.heading, *lines, *more])

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<FeatureMaps {self.heading}>"

    def _repr_png_(self) -> bytes:
        return self.to_png()

    @property
    def heading(self) -> str:
        """The number and size of the maps, their range of values, and how they were computed."""
        count, height, width = self.maps.shape
        note = f" ({self.note})" if self.note else ""
        return (
            f"{self.title}: {count:,} of {height}×{width}, "
            f"{self.scale.low:.3g} to {self.scale.high:.3g}{note}"
        )


def _cell(colors: tuple[str, str]) -> str:
    """The upper and the lower half of a terminal cell."""
    above, below = colors
    if not above and not below:
        return f"{_RESET} "
    if not above:
        return f"{_RESET}\x1b[38;2;{_rgb(below)}m▄"
    back = f"\x1b[48;2;{_rgb(below)}m" if below else _RESET
    return f"{back}\x1b[38;2;{_rgb(above)}m▀"


def _rgb(color: str) -> str:
    return ";".join(str(int(color[at : at + 2], 16)) for at in (1, 3, 5))


def feature_maps(op: Op, sample: int) -> FeatureMaps:
    """The output of an op for one sample: its channels as pictures, or itself as one matrix."""
    tensor = _saved(op, op.tensor)
    if tensor.ndim < _PLANE:
        shape = tuple(tensor.shape)
        raise LookupFailedError(f"{op.label} is not a picture: its shape is {shape}")
    if tensor.ndim > _PLANE:
        tensor = tensor[_index(op, sample, len(tensor))]
    values = _values(op, tensor)
    return FeatureMaps(op.label, values.reshape(-1, *values.shape[-2:]))


def attention_maps(op: Op, sample: int) -> FeatureMaps:
    """The weights of an attention for one sample, a map for each head."""
    if op.function != ATTENTION:
        if "softmax" in op.function and len(op.shape or ()) > _PLANE:
            return feature_maps(op, sample)
        raise LookupFailedError(
            f"{op.label} is not an attention op. Attention ops are those whose function is "
            f"{ATTENTION} or softmax."
        )
    query, key = _operand(op, "0", "query"), _operand(op, "1", "key")
    if query is None or key is None:
        raise LookupFailedError(f"the query and key of {op.label} are not in the trace")
    if key.ndim > _PLANE and key.shape[-3] != query.shape[-3]:
        # Grouped queries: several query heads share a key head.
        key = key.repeat(query.shape[-3] // key.shape[-3], axis=-3)
    scale = float(_setting(op, "scale", "6", str(1 / math.sqrt(query.shape[-1]))))
    scores = query @ np.swapaxes(key, -1, -2) * scale
    if _setting(op, "is_causal", "5", "False") == "True":
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    mask = _mask(op)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    if weights.ndim > _PLANE + 1:
        weights = weights[_index(op, sample, len(weights))]
    note = "recomputed from query and key: the fused kernel does not keep the weights"
    return FeatureMaps(op.label, weights.reshape(-1, *weights.shape[-2:]), note)


def _operand(op: Op, place: str, name: str) -> npt.NDArray[Any] | None:
    """The values of an argument of an op; None if no op of the trace made it."""
    found = next((one for one in op.record.operands if one.place in (place, name)), None)
    if found is None or found.op is None:
        return None
    # Query and key may be two outputs of the same op.
    values = _values(op.trace.ops[found.op], op.trace.saved_tensors.get((found.op, found.output)))
    return values.astype(bool) if found.spec.dtype == "bool" else values


def _mask(op: Op) -> npt.NDArray[Any] | None:
    mask = _operand(op, "3", "attn_mask")
    if mask is None and _setting(op, "attn_mask", "3", "None") != "None":
        raise LookupFailedError(f"the mask of {op.label} was not made by an op of the trace")
    return mask


def _setting(op: Op, name: str, place: str, default: str) -> str:
    found = op.settings.get(name, op.settings.get(place, default))
    return default if found == "None" else found


def _index(op: Op, sample: int, count: int) -> int:
    if not -count <= sample < count:
        raise LookupFailedError(f"{op.label} has {count} samples, so there is no sample {sample}")
    return sample


def _values(op: Op, tensor: Any) -> Maps:
    values: Maps = np.array(_saved(op, tensor).detach().double().cpu().tolist())
    return values


def _saved(op: Op, tensor: Any) -> Any:
    if tensor is None:
        raise LookupFailedError(
            f"the tensor of {op.label} was not saved; trace it with save='all' or by its name"
        )
    return tensor
