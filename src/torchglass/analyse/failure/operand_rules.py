"""Why layers and matrix products reject their operands: sizes that must match."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from math import prod

from torchglass.analyse.failure.operands import (
    BrokenRule,
    FailedOp,
    Shape,
    TensorArgument,
    broadcast,
    first_of,
    sizes_text,
    text,
)


def batch_norm(failed: FailedOp) -> BrokenRule | None:
    """The channels match the running means, and each has several values."""
    tensor = failed["input"]
    held = failed["running_mean"] or failed["weight"]
    if tensor is None or len(tensor.shape) < 2:
        return None
    channels = tensor.shape[1]
    if held is not None and len(held.shape) == 1 and held.shape != (channels,):
        return _channels(failed, held.shape[0], "num_features")
    values = prod(tensor.shape) // max(channels, 1)
    if failed.settings.get("training") is True and values == 1:
        fits = ["use a batch of two or more"]
        if failed["running_mean"] is not None:
            fits.append("call model.eval() first, to use the running statistics")
        return BrokenRule(
            why=f"in training mode {failed.subject} computes mean and variance over the batch, but "
            f"{text(tensor.shape)} has a single value per channel",
            fits=tuple(fits),
        )
    return None


def layer_norm(failed: FailedOp) -> BrokenRule | None:
    """The input ends with the normalized shape."""
    tensor, wanted = failed["input"], failed.numbers("normalized_shape")
    if tensor is None or not tensor.shape or not wanted or tensor.shape[-len(wanted) :] == wanted:
        return None
    count = len(wanted)
    fits = [f"pass an input of shape {text((*tensor.shape[:-count], *wanted))}"]
    if len(tensor.shape) >= count and not failed.has_worked and failed.owner is not None:
        ends = tensor.shape[-count:]
        fits.append(f"use {failed.owner.kind}({ends[0] if count == 1 else ends})")
    which = "the last dimension" if count == 1 else f"the last {count} dimensions"
    return BrokenRule(
        why=f"{failed.subject} normalizes over {sizes_text(wanted)}, which must be {which} of its "
        f"input {text(tensor.shape)}",
        fits=tuple(fits),
        sizes=(("input", -1),),
    )


def group_norm(failed: FailedOp) -> BrokenRule | None:
    """The channels match the weights and are a multiple of the groups."""
    tensor, weight = failed["input"], failed["weight"]
    groups = first_of(failed.numbers("num_groups"), 1)
    if tensor is None or len(tensor.shape) < 2:
        return None
    channels = tensor.shape[1]
    if weight is not None and len(weight.shape) == 1 and weight.shape != (channels,):
        return _channels(failed, weight.shape[0], "num_channels", groups)
    if groups and channels % groups:
        divisors = [count for count in range(1, channels + 1) if channels % count == 0]
        return BrokenRule(
            why=f"{channels} channels of {text(tensor.shape)} cannot be divided into "
            f"{groups} groups",
            fits=(f"a number of groups that divides {channels}: {', '.join(map(str, divisors))}",),
            sizes=(("input", 1),),
        )
    return None


def _channels(failed: FailedOp, wanted: int, setting: str, groups: int = 1) -> BrokenRule:
    tensor = failed["input"]
    assert tensor is not None
    shape = tensor.shape
    found = shape[1]
    fits = [f"pass an input of shape {text((shape[0], wanted, *shape[2:]))}"]
    if shape[-1] == wanted and len(shape) == 3:
        moved = text((shape[0], shape[2], shape[1]))
        fits = [f"the channels seem to be last; input.transpose(1, 2) is {moved}"]
    elif failed.owner is not None and not failed.has_worked and found % groups == 0:
        fits.append(f"use a {failed.owner.kind} with {setting}={found}")
    return BrokenRule(
        why=f"{failed.subject} has {setting}={wanted}, but its input {text(shape)} has {found} "
        f"channels in dimension 1",
        fits=tuple(fits),
        sizes=(("input", 1),),
    )


_RANKS = {"1d": ((2, 3), "N×C or N×C×L"), "2d": ((4,), "N×C×H×W"), "3d": ((5,), "N×C×D×H×W")}


def norm_module(failed: FailedOp) -> BrokenRule | None:
    """A batch norm module checks the number of dimensions first."""
    tensor = next(iter(failed.tensors), None)
    expected = _RANKS.get(failed.function[-2:])
    if tensor is None or expected is None or len(tensor.shape) in expected[0]:
        return None
    rank = len(tensor.shape)
    kind = {2: "BatchNorm1d", 3: "BatchNorm1d", 4: "BatchNorm2d", 5: "BatchNorm3d"}.get(rank, "")
    is_batch_norm = failed.function.startswith("BatchNorm") and kind
    return BrokenRule(
        why=f"{failed.subject} expects {expected[1]}, but got {text(tensor.shape)}, "
        f"which has {rank} dimension{'s' * (rank != 1)}",
        fits=(f"{kind} accepts {text(tensor.shape)}",) if is_batch_norm else (),
    )


def recurrent_module(failed: FailedOp) -> BrokenRule | None:
    """A recurrent module checks the size of its input first."""
    return _module_takes(failed, "weight_ih_l0", "input_size")


def attention_module(failed: FailedOp) -> BrokenRule | None:
    """Attention checks the length of the queries first."""
    return _module_takes(failed, "in_proj_weight", "embed_dim")


def _module_takes(failed: FailedOp, weight: str, setting: str) -> BrokenRule | None:
    """The last dimension of the first input is the last of one of the module's weights."""
    tensor = next(iter(failed.tensors), None)
    held = {slot.name: slot.spec.shape for slot in failed.layer.slots} if failed.layer else {}
    shape = held.get(weight)
    if tensor is None or not tensor.shape or not shape or shape[-1] == tensor.shape[-1]:
        return None
    wanted, found = shape[-1], tensor.shape[-1]
    which = "first input" if len(failed.tensors) > 1 else "input"
    fits = [f"pass an input of shape {text((*tensor.shape[:-1], wanted))}"]
    if not failed.has_worked:
        fits.append(f"use one with {setting}={found}")
    return BrokenRule(
        why=f"{failed.subject} has {setting}={wanted}, but the last dimension of its {which} "
        f"{text(tensor.shape)} is {found}",
        fits=tuple(fits),
        sizes=((tensor.name, -1),),
    )


def linear(failed: FailedOp) -> BrokenRule | None:
    """The last dimension of the input is the number of features."""
    tensor, weight = failed["input"], failed["weight"]
    if tensor is None or weight is None or len(weight.shape) != 2 or not tensor.shape:
        return None
    out, wanted = weight.shape
    found = tensor.shape[-1]
    if found == wanted:
        return None
    other = () if failed.owner else (f"use a weight of shape {text((out, found))}",)
    if _may_change(failed, "Linear"):
        other = (f"use Linear({found}, {out})",)
    fitting = f"pass an input of shape {text((*tensor.shape[:-1], wanted))}"
    return BrokenRule(
        why=f"{failed.subject} expects {wanted} features in the last dimension of its input, "
        f"but that dimension is {found}",
        fits=(*(tuple(_rearranged(tensor, wanted)) or (fitting,)), *other),
        sizes=(("input", -1),),
    )


def _rearranged(tensor: TensorArgument, wanted: int) -> Iterator[str]:
    """Ways to bring the expected size to the end of a shape without changing a value."""
    shape = tensor.shape
    for start in range(1, len(shape) - 1):
        if prod(shape[start:]) == wanted:
            flat = text((*shape[:start], wanted))
            yield f"flatten it first: {tensor.name}.flatten({start}) is {flat}"
    if len(shape) > 1 and shape[-2] == wanted:
        turned = text((*shape[:-2], shape[-1], wanted))
        yield f"transpose it: {tensor.name}.transpose(-2, -1) is {turned}"


def convolution(failed: FailedOp) -> BrokenRule | None:
    """The channels come before the spatial dimensions, and are as many as the layer takes."""
    tensor, weight = failed["input"], failed["weight"]
    if tensor is None or weight is None or len(weight.shape) < 3:
        return None
    places = len(weight.shape) - 2
    if len(tensor.shape) not in (places + 1, places + 2):
        return _needs_places(failed, tensor, places)
    groups = first_of(failed.numbers("groups"), 1)
    if weight.shape[0] % groups:
        return BrokenRule(
            why=f"the {weight.shape[0]} kernels of {failed.subject} cannot be divided "
            f"into groups={groups}: {weight.shape[0]} is not a multiple of {groups}"
        )
    transposed = "transpose" in failed.function
    wanted = weight.shape[0] if transposed else weight.shape[1] * groups
    channels = len(tensor.shape) - places - 1
    if tensor.shape[channels] != wanted:
        return _needs_channels(failed, tensor, channels, wanted)
    return None if transposed else _needs_room(failed, tensor, weight.shape[2:])


def _needs_places(failed: FailedOp, tensor: TensorArgument, places: int) -> BrokenRule:
    letters = ("L", "H×W", "D×H×W")[places - 1]
    return BrokenRule(
        why=f"{failed.subject} expects N×C×{letters} (or C×{letters} without a batch), "
        f"but its input has {_dimensions(tensor.shape)}: {text(tensor.shape)}"
    )


def _needs_channels(
    failed: FailedOp, tensor: TensorArgument, channels: int, wanted: int
) -> BrokenRule:
    shape = tensor.shape
    found = shape[channels]
    fits = []
    if shape[-1] == wanted:
        order = (*range(channels), len(shape) - 1, *range(channels, len(shape) - 1))
        moved = text([shape[place] for place in order])
        dims = ", ".join(map(str, order))
        fits.append(f"the channels seem to be last; {tensor.name}.permute({dims}) is {moved}")
    if channels == 1 and shape[0] == wanted:
        fits.append(f"the channels seem to be first; {tensor.name}.transpose(0, 1) swaps them")
    if channels == 0 and wanted == 1:
        taller = text((found, 1, *shape[1:]))
        fits.append(f"if {found} is the batch, {tensor.name}.unsqueeze(1) is {taller}")
    if not fits:
        fitting = text((*shape[:channels], wanted, *shape[channels + 1 :]))
        fits.append(f"pass an input of shape {fitting}")
        owner = failed.owner
        if owner is not None and _may_change(failed, "Conv") and "groups" not in owner.extra:
            fits.append(f"use a {owner.kind} with in_channels={found}")
    unbatched = f" ({len(shape)} dimensions are one image without a batch)" * (channels == 0)
    return BrokenRule(
        why=f"{failed.subject} expects {wanted} channel{_s(wanted)}, "
        f"but its input {text(shape)} has {found} in dimension {channels}{unbatched}",
        fits=tuple(fits),
        sizes=(("input", channels),),
    )


def _needs_room(
    failed: FailedOp, tensor: TensorArgument, kernel: Sequence[int]
) -> BrokenRule | None:
    """The kernel must fit into the padded input."""
    places = len(kernel)
    padding = _each(failed.numbers("padding") or (0,), places)
    dilation = _each(failed.numbers("dilation") or (1,), places)
    if isinstance(failed.settings.get("padding"), str):
        return None
    spans = [d * (size - 1) + 1 for d, size in zip(dilation, kernel, strict=True)]
    rooms = [size + 2 * pad for size, pad in zip(tensor.shape[-places:], padding, strict=True)]
    if all(span <= room for span, room in zip(spans, rooms, strict=True)):
        return None
    wrong = next(i for i in range(places) if spans[i] > rooms[i])
    lacking = [
        max(pad, pad + (span - room + 1) // 2)
        for pad, span, room in zip(padding, spans, rooms, strict=True)
    ]
    padded = f" ({sizes_text(rooms)} with padding)" if any(padding) else ""
    needed = [max(1, span - 2 * pad) for span, pad in zip(spans, padding, strict=True)]
    return BrokenRule(
        why=f"the window of {failed.subject} covers {sizes_text(spans)}, "
        f"but its input is only {sizes_text(tensor.shape[-places:])}{padded}",
        fits=(
            f"pass an input of at least {sizes_text(needed)}",
            f"pad it: padding={tuple(lacking) if places > 1 else lacking[0]} is enough",
        ),
        sizes=(("input", wrong - places),),
        least_side=max(needed) if len(tensor.shape) == 4 else None,
    )


def pooling(failed: FailedOp) -> BrokenRule | None:
    """The window must fit into the padded input."""
    tensor, kernel = failed["input"], failed.numbers("kernel_size")
    places = int(failed.function[-2])
    if tensor is None or not kernel or len(tensor.shape) not in (places + 1, places + 2):
        return None
    verdict = _needs_room(failed, tensor, _each(kernel, places))
    if verdict is None:
        return None
    # Padding of a pool is limited to half its window, so it may not be enough.
    return dataclasses.replace(verdict, fits=verdict.fits[:1])


def matrices(failed: FailedOp) -> BrokenRule | None:
    """The last dimension of the left is the second to last of the right."""
    left, right = failed["left"], failed["right"]
    if left is None or right is None or not left.shape or not right.shape:
        return None
    wanted = {"mm": 2, "addmm": 2, "bmm": 3, "baddbmm": 3}.get(failed.function)
    for tensor in (left, right):
        if wanted is not None and len(tensor.shape) != wanted:
            return BrokenRule(
                why=f"{failed.function} expects tensors with {wanted} dimensions, but "
                f"{tensor.name} has {_dimensions(tensor.shape)}: {text(tensor.shape)}",
                fits=("use matmul (the @ operator)",)
                if _multiplies(left.shape, right.shape) and "add" not in failed.function
                else (),
            )
    if failed.function == "dot" and left.shape != right.shape:
        return BrokenRule(
            why=f"dot expects two vectors of equal length, but these are {text(left.shape)} and "
            f"{text(right.shape)}",
            sizes=(("left", -1), ("right", -1)),
        )
    inner = -1 if len(right.shape) == 1 else -2
    which = "only" if inner == -1 else "second to last"
    if left.shape[-1] != right.shape[inner]:
        return BrokenRule(
            why=f"the last dimension of left must equal the {which} dimension of right, but "
            f"they are {left.shape[-1]} in {text(left.shape)} and {right.shape[inner]} in "
            f"{text(right.shape)}",
            fits=tuple(_turned(left.shape, right.shape)) if "add" not in failed.function else (),
            sizes=(("left", -1), ("right", inner)),
        )
    batches = _batches(left, right, stretched="bmm" not in failed.function)
    return batches or _added(failed["input"], left, right)


def _batches(
    left: TensorArgument, right: TensorArgument, *, stretched: bool = True
) -> BrokenRule | None:
    """Batches of matrices have the same size; one of them may be 1 if it is `stretched`."""
    one, other = left.shape[:-2], right.shape[:-2]
    common = broadcast(one, other)
    if one == other or (stretched and common is not None):
        return None
    return BrokenRule(
        why=f"the batches do not match: {sizes_text(one)} of {left.name} {text(left.shape)} "
        f"and {sizes_text(other)} of {right.name} {text(right.shape)}",
        fits=("use matmul (the @ operator), which broadcasts a batch of 1",) if common else (),
        sizes=((left.name, 0), (right.name, 0)),
    )


def _added(
    tensor: TensorArgument | None, left: TensorArgument, right: TensorArgument
) -> BrokenRule | None:
    """What is added to a product can be broadcast to its shape."""
    result = _multiplies(left.shape, right.shape)
    if tensor is None or result is None or broadcast(tensor.shape, result) == result:
        return None
    return BrokenRule(
        why=f"left @ right is {text(result)}, but input {text(tensor.shape)} cannot be "
        f"broadcast to that"
    )


def _turned(left: Shape, right: Shape) -> Iterator[str]:
    """Which operands would multiply if transposed or swapped."""
    turned_left, turned_right = _transposed(left), _transposed(right)
    trials = (
        ("transpose the right one", "left", left, "right.mT", turned_right),
        ("transpose the left one", "left.mT", turned_left, "right", right),
        ("swap them", "right", right, "left", left),
    )
    for advice, first, first_shape, second, second_shape in trials:
        result = _multiplies(first_shape, second_shape) if first_shape and second_shape else None
        if result is not None:
            yield f"{advice}: {first} @ {second} is {text(result)}"


def _transposed(shape: Shape) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2]) if len(shape) > 1 else ()


def _multiplies(left: Shape, right: Shape) -> Shape | None:
    """The shape of a matrix product; None if the shapes do not fit."""
    if len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
        return None
    batch = broadcast(left[:-2], right[:-2])
    return None if batch is None else (*batch, left[-2], right[-1])


def attention(failed: FailedOp) -> BrokenRule | None:
    """Queries and keys have the same length, and there is a value for each key."""
    query, key, value = failed["query"], failed["key"], failed["value"]
    if query is None or key is None or value is None:
        return None
    if any(len(tensor.shape) < 2 for tensor in (query, key, value)):
        return None
    if query.shape[-1] != key.shape[-1]:
        return BrokenRule(
            why=f"queries and keys must have the same size in the last dimension, but have "
            f"{query.shape[-1]} and {key.shape[-1]}",
            sizes=(("query", -1), ("key", -1)),
        )
    if key.shape[-2] != value.shape[-2]:
        return BrokenRule(
            why=f"each key needs a value, but there are {key.shape[-2]} keys and "
            f"{value.shape[-2]} values",
            sizes=(("key", -2), ("value", -2)),
        )
    return _batches(query, key) or _batches(query, value)


def cell(failed: FailedOp) -> BrokenRule | None:
    """A recurrent cell expects inputs and states of its sizes."""
    return _features(failed, "input", "weight_ih") or _features(failed, "hidden", "weight_hh")


def _features(failed: FailedOp, name: str, weight_name: str) -> BrokenRule | None:
    found = failed[name] or failed[f"{name}[0]"]
    weight = failed[weight_name]
    if found is None or weight is None or not found.shape or len(weight.shape) != 2:
        return None
    wanted = weight.shape[1]
    if found.shape[-1] == wanted:
        return None
    setting = f"{name}_size"
    change = () if failed.has_worked else (f"use one with {setting}={found.shape[-1]}",)
    return BrokenRule(
        why=f"{failed.subject} has {setting}={wanted}, "
        f"but the last dimension of its {name} {text(found.shape)} is {found.shape[-1]}",
        fits=(f"pass an input of shape {text((*found.shape[:-1], wanted))}", *change),
        sizes=((found.name, -1),),
    )


def _may_change(failed: FailedOp, kind: str) -> bool:
    """Whether it is a layer of torch that did not work earlier in the pass."""
    owner = failed.owner
    return (
        owner is not None
        and not failed.has_worked
        and owner.class_name.startswith("torch.nn.")
        and owner.kind.startswith(kind)
    )


def _each(numbers: Sequence[int], places: int) -> tuple[int, ...]:
    return tuple(numbers) if len(numbers) == places else (numbers[0],) * places


def _dimensions(shape: Shape) -> str:
    return f"{len(shape)} dimension{_s(len(shape))}"


def _s(count: int) -> str:
    return "" if count == 1 else "s"
