"""How each function of torch maps ranges of positions: the rules of receptive fields.

`RULES` has a rule for each function. A function without one makes what follows unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from torchglass.analyse.op_reach import (
    Operands,
    Reach,
    ReachCall,
    Rule,
    Unknown,
    UnknownReachError,
    adaptive_pool,
    axes_of,
    convolution,
    grouped_channels,
    interpolated,
    no_reach,
    only_operand,
    pool,
    reach_at,
    settings_of,
    transposed_convolution,
    union_of,
)
from torchglass.analyse.signatures import BROADCASTING, CELLS, plain_name
from torchglass.records.trace import OpRecord


def output_reaches(
    op: OpRecord,
    operands: Sequence[list[Reach] | Unknown | None],
    rank: int,
    *,
    exact: bool,
) -> list[list[Reach] | Unknown | None]:
    """The reach of each output of an op along each axis of an input; None: not from the input."""
    count = max(len(op.outputs), 1)
    unknown = next((one for one in operands if isinstance(one, Unknown)), None)
    if unknown is not None:
        return [unknown] * count
    known = [None if one is None or isinstance(one, Unknown) else one for one in operands]
    if all(one is None for one in known):
        return [None] * count
    try:
        made = [
            _along(op, [None if one is None else one[axis] for one in known], exact)
            for axis in range(rank)
        ]
    except (UnknownReachError, ValueError, KeyError, IndexError, TypeError, SyntaxError):
        return [Unknown(f"{op.function} may read any position")] * count
    return [[reaches[index] for reaches in made] for index in range(count)]


def _along(op: OpRecord, operands: Operands, exact: bool) -> list[Reach]:
    if op.kind == "output":
        return [one for one in operands if one is not None]
    if any(operand.writers for operand in op.operands):
        raise UnknownReachError
    name = plain_name(op.function.rpartition(".")[2])
    rule = RULES.get(name)
    if rule is None:
        raise UnknownReachError
    made = rule(ReachCall(op, settings_of(op), exact), operands)
    listed = made if isinstance(made, list) else [made] * max(len(op.outputs), 1)
    for reach, value in zip(listed, op.outputs, strict=True):
        if reach.low.ndim != len(value.spec.shape or ()):
            raise UnknownReachError
    return [reach.compact() for reach in listed]


# Position by position


def _pointwise(call: ReachCall, operands: Operands) -> Reach:
    rank = len(call.made())
    return union_of(one.aligned(rank) for one in operands if one is not None)


# Over whole axes


def _reduced(call: ReachCall, operands: Operands) -> Reach:
    if len(call.op.operands) > 1:
        return _pointwise(call, operands)
    dims = axes_of(call)
    reach = only_operand(operands).over(dims)
    if len(call.made()) == reach.low.ndim:
        return reach
    return reach.map(lambda one: one.squeeze(tuple(dims)))


def _softmax(call: ReachCall, operands: Operands) -> Reach:
    return only_operand(operands).over(axes_of(call))


def _cumulated(call: ReachCall, operands: Operands) -> Reach:
    return _prefix(only_operand(operands), axes_of(call)[0])


def _prefix(reach: Reach, axis: int) -> Reach:
    """What positions see that also see all positions before them."""
    return Reach(np.minimum.accumulate(reach.low, axis), np.maximum.accumulate(reach.high, axis))


def _batch_norm(call: ReachCall, operands: Operands) -> Reach:
    reach = only_operand(operands)
    if call.settings.get("training") or call.settings.get("use_input_stats"):
        is_instance = "use_input_stats" in call.settings
        kept = (0, 1) if is_instance else (1,)
        return reach.over(axis for axis in range(reach.low.ndim) if axis not in kept)
    return reach


def _layer_norm(call: ReachCall, operands: Operands) -> Reach:
    reach = only_operand(operands)
    shape = call.settings["normalized_shape"]
    count = len(shape) if isinstance(shape, tuple) else 1
    return reach.over(range(reach.low.ndim - count, reach.low.ndim))


def _group_norm(call: ReachCall, operands: Operands) -> Reach:
    reach = only_operand(operands).over(range(2, len(call.shape())))
    return grouped_channels(reach, 1, call.settings["num_groups"], call.shape()[1], call.shape()[1])


# Products


def _linear(call: ReachCall, operands: Operands) -> Reach:
    reach = only_operand(operands)
    return reach.over([reach.low.ndim - 1])


def _product(call: ReachCall, operands: Operands) -> Reach:
    """A matrix product, to which `addmm` adds another operand."""
    rank = len(call.made())
    found = []
    for number, reach in enumerate(operands):
        if reach is None:
            continue
        if len(call.shape(number)) < 2:
            raise UnknownReachError
        mixed = {"left": [reach.low.ndim - 1], "right": [reach.low.ndim - 2]}
        found.append(reach.over(mixed.get(call.place(number), [])).aligned(rank))
    return union_of(found)


def _einsum(call: ReachCall, operands: Operands) -> Reach:
    equation = str(next(iter(call.settings.values()))).replace(" ", "")
    read, _, made = equation.partition("->")
    if "." in equation or not made:
        raise UnknownReachError
    found = []
    for letters, reach in zip(read.split(","), operands, strict=True):
        if reach is None:
            continue
        if len(set(letters)) < len(letters):
            raise UnknownReachError
        inner = reach.over(axis for axis, one in enumerate(letters) if one not in made)
        order = [letters.index(one) for one in made if one in letters]
        order += [axis for axis, one in enumerate(letters) if one not in made]
        counts = [inner.low.shape[letters.index(one)] if one in letters else 1 for one in made]
        found.append(inner.map(np.transpose, order).map(np.reshape, counts))
    return union_of(found)


def _attention(call: ReachCall, operands: Operands) -> Reach:
    is_causal = bool(call.settings.get("is_causal"))
    rank = len(call.made())
    found = []
    for number, reach in enumerate(operands):
        if reach is None:
            continue
        place = call.place(number)
        if place == "query":
            found.append(reach.over([rank - 1]))
        elif place == "attn_mask":
            found.append(reach.over([reach.low.ndim - 1]).aligned(rank))
        else:
            seen = reach.over([rank - 1]) if place == "key" else reach
            length = seen.low.shape[rank - 2]
            is_square = call.shape(number)[rank - 2] == call.made()[rank - 2]
            if is_causal and length > 1 and is_square:
                seen = _prefix(seen, rank - 2)
            else:
                seen = seen.over([rank - 2])
            found.append(_heads(seen, rank, call))
    return union_of(found)


def _heads(reach: Reach, rank: int, call: ReachCall) -> Reach:
    """Grouped queries: several query heads read one head of keys."""
    axis = rank - 3
    if axis < 0 or reach.low.shape[axis] in (1, call.made()[axis]):
        return reach
    return reach.map(lambda one: np.repeat(one, call.made()[axis] // one.shape[axis], axis))


def _embedding(call: ReachCall, operands: Operands) -> Reach:
    return only_operand(operands).map(lambda one: one[..., None])


def _recurrent(call: ReachCall, operands: Operands) -> list[Reach]:
    """A whole recurrent layer: each step sees all steps before it."""
    reach = operands[0]
    if reach is None or any(one is not None for one in operands[1:]) or reach.low.ndim != 3:
        raise UnknownReachError
    settings = call.settings
    time = 1 if settings.get("batch_first") else 0
    reach = reach.over([2])
    both = bool(settings.get("bidirectional"))
    steps = reach.over([time]) if both else _prefix(reach, time)
    last = reach.over([time])
    if time:
        last = last.map(lambda one: one.transpose(1, 0, 2))
    return [steps, *[last] * (len(call.op.outputs) - 1)]


def _cell(call: ReachCall, operands: Operands) -> Reach:
    return union_of(one.over([one.low.ndim - 1]) for one in operands if one is not None)


# Moved values


def _reshaped(call: ReachCall, operands: Operands) -> Reach:
    return _reshape(only_operand(operands), call.shape(), call.made())


def _reshape(reach: Reach, old: Sequence[int], new: Sequence[int]) -> Reach:
    """Only axes that are merged or split need their real length."""
    if math.prod(old) == 0:
        raise UnknownReachError
    shape: list[int] = []
    source: list[int] = []
    at = there = 0
    while at < len(old) or there < len(new):
        begin, begin_new = at, there
        left = right = 1
        while at == begin or there == begin_new or left != right:
            if at < len(old) and (left <= right or there == len(new)):
                left *= old[at]
                at += 1
            elif there < len(new):
                right *= new[there]
                there += 1
            else:
                break
            if left == right and (at > begin or there > begin_new):
                break
        is_constant = all(reach.low.shape[axis] == 1 for axis in range(begin, at))
        source += [1 if is_constant else old[axis] for axis in range(begin, at)]
        shape += [1 if is_constant else new[axis] for axis in range(begin_new, there)]
    return reach.map(lambda one: np.broadcast_to(one, source).reshape(shape))


def _transposed(call: ReachCall, operands: Operands) -> Reach:
    rank = len(call.shape())
    first, second = (call.settings[name] % rank for name in ("dim0", "dim1"))
    return only_operand(operands).map(lambda one: one.swapaxes(first, second))


def _permuted(call: ReachCall, operands: Operands) -> Reach:
    rank = len(call.shape())
    values = list(call.settings.values())
    order = values[0] if len(values) == 1 and isinstance(values[0], tuple) else values
    return only_operand(operands).map(lambda one: one.transpose([axis % rank for axis in order]))


def _turned(call: ReachCall, operands: Operands) -> Reach:
    return only_operand(operands).map(lambda one: one.swapaxes(-1, -2))


def _expanded(call: ReachCall, operands: Operands) -> Reach:
    reach = operands[0]
    if reach is None:
        raise UnknownReachError
    return reach.aligned(len(call.made()))


def _indexed(call: ReachCall, operands: Operands) -> Reach:
    reach = only_operand(operands)
    index = call.settings["index"]
    items = list(index) if isinstance(index, tuple) else [index]
    if len(call.op.operands) > 1 or any(isinstance(one, str | tuple) for one in items):
        raise UnknownReachError
    used = sum(one is not None and one is not ... for one in items)
    rest = [slice(None)] * (reach.low.ndim - used)
    at = next((number for number, one in enumerate(items) if one is ...), len(items))
    items[at : at + 1] = rest
    key: list[Any] = []
    axis = 0
    for item in items:
        if item is None:
            key.append(None)
            continue
        is_constant = reach.low.shape[axis] == 1
        if isinstance(item, slice):
            key.append(slice(None) if is_constant else item)
        else:
            key.append(0 if is_constant else item)
        axis += 1
    return reach.map(lambda one: one[tuple(key)])


def _selected(call: ReachCall, operands: Operands) -> Reach:
    reach, axis = only_operand(operands), axes_of(call)[0]
    index = call.settings["index"] if reach.low.shape[axis] > 1 else 0
    return reach.map(lambda one: one.take(index, axis))


def _narrowed(call: ReachCall, operands: Operands) -> Reach:
    axis, start = axes_of(call)[0], call.settings["start"] % call.shape()[axes_of(call)[0]]
    return _part(only_operand(operands), axis, start, call.settings["length"])


def _part(reach: Reach, axis: int, start: int, length: int) -> Reach:
    if reach.low.shape[axis] == 1:
        return reach
    return reach.map(lambda one: one.take(range(start, start + length), axis))


def _split(call: ReachCall, operands: Operands) -> list[Reach]:
    reach = only_operand(operands)
    axis = call.settings.get("dim", 0) % reach.low.ndim
    parts, start = [], 0
    for number in range(len(call.op.outputs)):
        length = call.made(number)[axis]
        parts.append(_part(reach, axis, start, length))
        start += length
    return parts


def _unbound(call: ReachCall, operands: Operands) -> list[Reach]:
    reach = only_operand(operands)
    axis = call.settings.get("dim", 0) % reach.low.ndim
    places = range(len(call.op.outputs))
    is_constant = reach.low.shape[axis] == 1
    return [reach.map(np.take, 0 if is_constant else place, axis) for place in places]


def _joined(call: ReachCall, operands: Operands) -> Reach:
    rank = len(call.made())
    axis = call.settings.get("dim", 0) % rank
    lengths = [call.shape(number)[axis] for number in range(len(operands))]
    return _side_by_side(operands, axis, lengths, rank)


def _stacked(call: ReachCall, operands: Operands) -> Reach:
    rank = len(call.made())
    axis = call.settings.get("dim", 0) % rank
    opened = [
        None if one is None else one.map(lambda values: np.expand_dims(values, axis))
        for one in operands
    ]
    return _side_by_side(opened, axis, [1] * len(opened), rank)


def _side_by_side(operands: Operands, axis: int, lengths: Sequence[int], rank: int) -> Reach:
    counts = [list(one.low.shape) for one in operands if one is not None]
    for count in counts:
        count[axis] = 1
    shape = np.broadcast_shapes(*map(tuple, counts))
    parts = []
    for one, length in zip(operands, lengths, strict=True):
        target = tuple(length if at == axis else count for at, count in enumerate(shape))
        part = one if one is not None else no_reach((1,) * rank)
        parts.append(part.map(np.broadcast_to, target))
    return Reach(
        np.concatenate([part.low for part in parts], axis),
        np.concatenate([part.high for part in parts], axis),
    )


def _padded(call: ReachCall, operands: Operands) -> Reach:
    reach = only_operand(operands)
    pads = call.settings["pad"]
    mode = call.settings.get("mode", "constant")
    for number in range(len(pads) // 2):
        axis = reach.low.ndim - 1 - number
        length = call.shape()[axis]
        index = np.arange(call.made()[axis]) - pads[2 * number]
        if call.exact and mode == "reflect":
            period = max(2 * (length - 1), 1)
            index = (length - 1) - np.abs((index % period) - (length - 1))
        elif call.exact and mode == "replicate":
            index = index.clip(0, length - 1)
        elif mode == "circular":
            index = index % length
        reach = reach_at(reach, axis, index, exact=call.exact)
    return reach


def _rolled(call: ReachCall, operands: Operands) -> Reach:
    reach = only_operand(operands)
    shifts = call.settings["shifts"]
    dims = call.settings["dims"]
    pairs = zip(_listed(shifts), _listed(dims), strict=True)
    for shift, dim in pairs:
        reach = reach.map(np.roll, shift, dim)
    return reach


def _flipped(call: ReachCall, operands: Operands) -> Reach:
    dims = [one for value in call.settings.values() for one in _listed(value)]
    return only_operand(operands).map(np.flip, tuple(dims))


def _listed(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _repeated(call: ReachCall, operands: Operands) -> Reach:
    reach = only_operand(operands).aligned(len(call.made()))
    counts = [one for value in call.settings.values() for one in _listed(value)]
    lengths = zip(counts, reach.low.shape, strict=True)
    tiles = [count if length > 1 else 1 for count, length in lengths]
    return reach.map(lambda one: np.tile(one, tiles))


def _shuffled(call: ReachCall, operands: Operands) -> Reach:
    """Channels become pixels, or the other way round."""
    factor = call.settings["factor"]
    shape, made = call.shape(), call.made()
    if len(shape) != 4:
        raise UnknownReachError
    batch, channels, height, width = made if "unshuffle" not in call.op.function else shape
    if "unshuffle" in call.op.function:
        split = (batch, channels, height // factor, factor, width // factor, factor)
        order = (0, 1, 3, 5, 2, 4)
    else:
        split = (batch, channels, factor, factor, height // factor, width // factor)
        order = (0, 1, 4, 2, 5, 3)
    inner = _reshape(only_operand(operands), shape, split).map(lambda one: one.transpose(order))
    return _reshape(inner, [split[axis] for axis in order], made)


_POINTWISE = (
    f"{BROADCASTING} relu relu6 gelu silu mish tanh sigmoid elu selu celu leaky_relu prelu rrelu "
    "hardswish hardsigmoid hardtanh softplus logsigmoid dropout dropout1d dropout2d dropout3d "
    "alpha_dropout feature_dropout exp log log2 log10 log1p expm1 sqrt rsqrt square abs neg sign "
    "floor ceil round trunc frac sin cos tan asin acos atan sinh cosh erf erfc reciprocal clamp "
    "clamp_min clamp_max clip where masked_fill lerp addcmul addcdiv nan_to_num to type type_as "
    "float half double bfloat16 bool int long contiguous clone detach requires_grad iadd isub imul "
    "itruediv radd rmul rsub rtruediv rpow tril triu logical_not isnan isinf invert positive cpu "
    "cuda threshold tanhshrink softsign softshrink hardshrink"
)
RULES: dict[str, Rule] = {
    name: rule
    for names, rule in (
        (_POINTWISE, _pointwise),
        ("sum mean amax amin max min var std prod logsumexp norm argmax argmin any all", _reduced),
        ("softmax log_softmax", _softmax),
        ("cumsum cumprod", _cumulated),
        ("batch_norm instance_norm", _batch_norm),
        ("layer_norm rms_norm", _layer_norm),
        ("group_norm", _group_norm),
        ("conv1d conv2d conv3d", convolution),
        ("conv_transpose1d conv_transpose2d conv_transpose3d", transposed_convolution),
        ("max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d", pool),
        (
            "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d",
            adaptive_pool,
        ),
        ("adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d", adaptive_pool),
        ("interpolate upsample", interpolated),
        ("linear", _linear),
        ("matmul mm bmm addmm baddbmm", _product),
        ("einsum", _einsum),
        ("scaled_dot_product_attention", _attention),
        ("embedding", _embedding),
        ("lstm", _recurrent),
        (CELLS, _cell),
        ("view reshape flatten unflatten squeeze unsqueeze ravel view_as reshape_as", _reshaped),
        ("transpose swapaxes swapdims", _transposed),
        ("permute", _permuted),
        ("t mT T", _turned),
        ("expand expand_as broadcast_to", _expanded),
        ("getitem", _indexed),
        ("select", _selected),
        ("narrow", _narrowed),
        ("chunk split split_with_sizes", _split),
        ("unbind", _unbound),
        ("cat concat concatenate", _joined),
        ("stack", _stacked),
        ("pad", _padded),
        ("roll", _rolled),
        ("flip", _flipped),
        ("repeat", _repeated),
        ("pixel_shuffle pixel_unshuffle", _shuffled),
    )
    for name in names.split()
}  # fmt: skip
"""How each function maps ranges. A function that is not here makes what follows unknown."""
