"""Ranges of input positions that a tensor depends on, and how windows change them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torchglass.analyse.signatures import argument_name, plain_name, signature
from torchglass.records.trace import OpRecord

Places = npt.NDArray[np.int64]
_FAR = 1 << 40
"""The lower end of an empty range; the upper end is its negative."""


@dataclass(frozen=True, slots=True)
class Reach:
    """For each position of a tensor the range of positions of an input, along one axis of it.

    The arrays have as many axes as the tensor. An axis along which nothing changes has length 1.
    """

    low: Places
    high: Places

    @staticmethod
    def of_input(shape: Sequence[int], axis: int) -> Reach:
        """What an input sees of itself along an axis."""
        counts = [-1 if one == axis else 1 for one in range(len(shape))]
        places = np.arange(shape[axis], dtype=np.int64).reshape(counts)
        return Reach(places, places)

    def at(self, position: Sequence[int]) -> range:
        """The range of one position."""
        place = tuple(
            index if count > 1 else 0 for index, count in zip(position, self.low.shape, strict=True)
        )
        return range(int(self.low[place]), int(self.high[place]) + 1)

    def map(self, change: Callable[..., Any], *args: Any) -> Reach:
        """The same change of both ends, which moves values but makes no new ones."""
        return Reach(change(self.low, *args), change(self.high, *args))

    def over(self, axes: Iterable[int]) -> Reach:
        """The union over some axes, which have length 1 then."""
        dims = tuple(axes)
        if not dims:
            return self
        return Reach(self.low.min(dims, keepdims=True), self.high.max(dims, keepdims=True))

    def compact(self) -> Reach:
        """The same with axes of length 1 where nothing changes."""
        found = self
        for axis, count in enumerate(self.low.shape):
            first = found.map(np.take, [0], axis)
            if count > 1 and (found.low == first.low).all() and (found.high == first.high).all():
                found = first
        return found

    def aligned(self, rank: int) -> Reach:
        """With axes of length 1 in front, as in broadcasting."""
        shape = (1,) * (rank - self.low.ndim) + self.low.shape
        return self.map(lambda one: one.reshape(shape))

    def spread(self, axis: int, length: int) -> Reach:
        """With an axis at its real length."""
        if self.low.shape[axis] == length:
            return self
        return self.map(np.repeat, length, axis)


@dataclass(frozen=True, slots=True)
class Unknown:
    """Why it is not known what an op sees."""

    reason: str


class UnknownReachError(Exception):
    """Raised by a rule that does not apply."""


def union_of(reaches: Iterable[Reach]) -> Reach:
    """The ranges that contain all of several."""
    return reduce(lambda a, b: Reach(np.minimum(a.low, b.low), np.maximum(a.high, b.high)), reaches)


def no_reach(shape: Sequence[int]) -> Reach:
    """Empty ranges."""
    return Reach(np.full(shape, _FAR), np.full(shape, -_FAR))


class ReachCall(NamedTuple):
    """An op, while it is applied along one axis of an input."""

    op: OpRecord
    settings: dict[str, Any]
    exact: bool
    """Whether padding is empty; otherwise the input continues beyond its borders."""

    def shape(self, operand: int = 0) -> tuple[int, ...]:
        return tuple(self.op.operands[operand].spec.shape or ())

    def made(self, output: int = 0) -> tuple[int, ...]:
        return tuple(self.op.outputs[output].spec.shape or ())

    def place(self, operand: int) -> str:
        return argument_name(self.op.operands[operand].place, signature(self.op.function))


Operands = Sequence[Reach | None]
Rule = Callable[[ReachCall, Operands], "Reach | list[Reach]"]


_NAMES = {
    "interpolate": "input size scale_factor mode align_corners",
    "upsample": "input size scale_factor mode align_corners",
    "pad": "input pad mode value",
    "roll": "input shifts dims",
    "flip": "input dims",
    "select": "input dim index",
    "narrow": "input dim start length",
    "cumsum": "input dim",
    "logsumexp": "input dim keepdim",
    "norm": "input p dim keepdim",
    "pixel_shuffle": "input factor",
    "pixel_unshuffle": "input factor",
    "scaled_dot_product_attention": "query key value attn_mask dropout_p is_causal scale",
    "sum mean amax amin max min var std prod": "input dim keepdim",
    "lstm": "input hidden weights biases layers dropout train bidirectional batch_first",
}  # fmt: skip
_SIGNATURES = {
    function: tuple(names.split()) for functions, names in _NAMES.items()
    for function in functions.split()
}  # fmt: skip


def settings_of(op: OpRecord) -> dict[str, Any]:
    """The arguments of an op that are not tensors, by name."""
    name = plain_name(op.function)
    names = _SIGNATURES.get(name) or signature(op.function)
    found: dict[str, Any] = {}
    for place, text in op.settings:
        key = place
        if place.isdecimal() and int(place) < len(names) and "*" not in names:
            key = names[int(place)]
        found[key] = _value(text)
    return found


def _value(text: str) -> Any:
    """The value of a setting; slices and Ellipsis included."""
    try:
        return _evaluated(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError):
        return text


def _evaluated(node: ast.expr) -> Any:
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_evaluated(one) for one in node.elts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "slice":
        return slice(*(_evaluated(one) for one in node.args))
    if isinstance(node, ast.Name) and node.id == "Ellipsis":
        return ...
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "Size":
        return _evaluated(node.args[0])
    return ast.literal_eval(node)


def only_operand(operands: Operands) -> Reach:
    """The reach of the first operand; the others must not depend on the input."""
    if operands[0] is None or any(one is not None for one in operands[1:]):
        raise UnknownReachError
    return operands[0]


def axes_of(call: ReachCall, name: str = "dim") -> list[int]:
    """The axes of the input that a setting names; all if it names none."""
    rank = len(call.shape())
    chosen = call.settings.get(name)
    if chosen is None:
        return list(range(rank))
    return [one % rank for one in (chosen if isinstance(chosen, tuple) else (chosen,))]


def grouped_channels(reach: Reach, axis: int, groups: int, inputs: int, outputs: int) -> Reach:
    """Channels see all channels of their group."""
    if groups == 1 or reach.low.shape[axis] == 1:
        return reach.over([axis])
    shape = list(reach.low.shape)
    split = [*shape[:axis], groups, inputs // groups, *shape[axis + 1 :]]
    inner = reach.map(lambda one: one.reshape(split)).over([axis + 1])
    inner = inner.map(lambda one: one.squeeze(axis + 1))
    return inner.map(lambda one: np.repeat(one, outputs // groups, axis))


# Windows


def reach_at(reach: Reach, axis: int, index: Places, *, exact: bool) -> Reach:
    """The reach at some positions along an axis; beyond the borders nothing, or what would be."""
    count = reach.low.shape[axis]
    if count == 1:
        return reach
    inside = index.clip(0, count - 1)
    found = reach.map(lambda one: one.take(inside, axis))
    beyond = (index - inside).reshape([-1 if one == axis else 1 for one in range(reach.low.ndim)])
    if exact:
        return Reach(
            np.where(beyond == 0, found.low, _FAR), np.where(beyond == 0, found.high, -_FAR)
        )
    ends = [one.take([0, count - 1], axis) for one in (reach.low, reach.high)]
    slopes = [np.diff(one, axis=axis) / (count - 1) for one in ends]
    steps = [np.floor(slope * beyond).astype(np.int64) for slope in slopes]
    return Reach(found.low + steps[0], found.high + steps[1])


def _per_axis(value: Any, count: int) -> tuple[Any, ...]:
    return tuple(value) * (count // len(value)) if isinstance(value, tuple) else (value,) * count


def _windows(
    call: ReachCall,
    reach: Reach,
    kernel: Sequence[int],
    *,
    stride: Any,
    padding: Any,
    dilation: Any,
) -> Reach:
    """What windows see along the last axes."""
    count = len(kernel)
    steps, holes = _per_axis(stride, count), _per_axis(dilation, count)
    pads = _per_axis(padding, count)
    for number, size in enumerate(kernel):
        axis = reach.low.ndim - count + number
        made = call.made()[len(call.made()) - count + number]
        pad = pads[number]
        if isinstance(pad, str):
            pad = holes[number] * (size - 1) // 2 if pad == "same" else 0
        starts = np.arange(made) * steps[number] - pad
        reach = union_of(
            reach_at(reach, axis, starts + tap * holes[number], exact=call.exact)
            for tap in range(size)
        )
    return reach


def convolution(call: ReachCall, operands: Operands) -> Reach:
    """Rule of a convolution."""
    weight = call.shape(1)
    kernel = weight[2:]
    settings = call.settings
    reach = _windows(
        call,
        only_operand(operands),
        kernel,
        stride=settings.get("stride", 1),
        padding=settings.get("padding", 0),
        dilation=settings.get("dilation", 1),
    )
    channels = len(call.shape()) - len(kernel) - 1
    groups = settings.get("groups", 1)
    return grouped_channels(reach, channels, groups, call.shape()[channels], weight[0])


def transposed_convolution(call: ReachCall, operands: Operands) -> Reach:
    """Rule of a transposed convolution."""
    weight, settings = call.shape(1), call.settings
    kernel = weight[2:]
    count = len(kernel)
    reach = only_operand(operands)
    steps, pads, holes = (
        _per_axis(settings.get(name, default), count)
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    for number, size in enumerate(kernel):
        axis = reach.low.ndim - count + number
        if reach.low.shape[axis] == 1:
            continue
        places = np.arange(call.made()[len(call.made()) - count + number]) + pads[number]
        reach = union_of(_taps(reach, axis, places, size, (steps[number], holes[number]), call))
    channels = len(call.shape()) - count - 1
    groups = settings.get("groups", 1)
    return grouped_channels(reach, channels, groups, call.shape()[channels], weight[1] * groups)


def _taps(
    reach: Reach, axis: int, places: Places, size: int, grid: tuple[int, int], call: ReachCall
) -> Iterable[Reach]:
    """What each weight of a transposed convolution reads, for all positions of the output."""
    step, hole = grid
    for tap in range(size):
        index, rest = np.divmod(places - tap * hole, step)
        found = reach_at(reach, axis, index, exact=call.exact)
        read = (rest == 0).reshape([-1 if one == axis else 1 for one in range(reach.low.ndim)])
        yield Reach(np.where(read, found.low, _FAR), np.where(read, found.high, -_FAR))


def pool(call: ReachCall, operands: Operands) -> Reach:
    """Rule of a pool with a kernel."""
    settings = call.settings
    count = int(call.op.function.rstrip("d_")[-1])
    kernel = _per_axis(settings["kernel_size"], count)
    return _windows(
        call,
        only_operand(operands),
        kernel,
        stride=settings.get("stride") or kernel,
        padding=settings.get("padding", 0),
        dilation=settings.get("dilation", 1),
    )


def adaptive_pool(call: ReachCall, operands: Operands) -> Reach:
    """Rule of a pool with a given output size."""
    reach = only_operand(operands)
    count = int(call.op.function.rstrip("d_")[-1])
    for axis in range(reach.low.ndim - count, reach.low.ndim):
        length, made = call.shape()[axis], call.made()[axis]
        begins = np.arange(made) * length // made
        ends = -(-(np.arange(made) + 1) * length // made)
        reach = union_of(
            reach_at(reach, axis, np.minimum(begins + tap, ends - 1), exact=call.exact)
            for tap in range(int((ends - begins).max()))
        )
    return reach


def interpolated(call: ReachCall, operands: Operands) -> Reach:
    """Rule of an interpolation."""
    settings = call.settings
    mode = settings.get("mode", "nearest")
    if settings.get("antialias"):
        raise UnknownReachError
    reach = only_operand(operands)
    for axis in range(2, reach.low.ndim):
        length, made = call.shape()[axis], call.made()[axis]
        scale = settings.get("scale_factor")
        if isinstance(scale, tuple):
            scale = scale[axis - 2]
        ratio = length / made if scale is None else 1 / scale
        taps = _source_places(mode, made, length, ratio, bool(settings.get("align_corners")))
        reach = union_of(reach_at(reach, axis, one, exact=True) for one in taps)
    return reach


def _source_places(mode: str, made: int, length: int, ratio: float, aligned: bool) -> list[Places]:
    """The positions that an interpolation reads with a weight that is not 0."""
    places = np.arange(made)
    if mode == "area":
        begins, ends = places * length // made, -(-(places + 1) * length // made)
        most = int((ends - begins).max())
        return [np.minimum(begins + tap, ends - 1) for tap in range(most)]
    if mode in ("nearest", "nearest-exact"):
        shift = 0.5 if mode == "nearest-exact" else 0.0
        found = np.floor((places + shift) * ratio + 1e-9).astype(np.int64)
        return [found.clip(0, length - 1)]
    at = places * ((length - 1) / max(made - 1, 1)) if aligned else (places + 0.5) * ratio - 0.5
    if mode != "bicubic":
        at = at.clip(0)
    base = np.floor(at + 1e-9).astype(np.int64)
    is_between = at - base > 1e-6
    offsets = (-1, 0, 1, 2) if mode == "bicubic" else (0, 1)
    return [np.where(is_between, base + offset, base).clip(0, length - 1) for offset in offsets]
