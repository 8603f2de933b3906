"""Why ops reject the contents of tensors: indices, class labels, dtypes and devices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod

from torchglass.analyse.failure.operands import (
    BrokenRule,
    FailedOp,
    Shape,
    TensorArgument,
    first_of,
    text,
)


def device(failed: FailedOp) -> BrokenRule | None:
    """All tensors of an op are on one device."""
    devices = [tensor.operand.spec.device for tensor in failed.tensors]
    if len(set(devices)) < 2 or "device" not in failed.error:
        return None
    listed = ", ".join(
        f"{tensor.name} is on {tensor.operand.spec.device}" for tensor in failed.tensors
    )
    held = {tensor.operand.spec.device for tensor in failed.tensors if tensor.is_held}
    home = held.pop() if len(held) == 1 else devices[0]
    others = [tensor for tensor in failed.tensors if tensor.operand.spec.device != home]
    fits = [" and ".join(f'{tensor.name}.to("{home}")' for tensor in others)]
    if any(tensor.is_held for tensor in failed.tensors):
        fits.append(f'model.to("{others[0].operand.spec.device}")')
    if "meta" in devices:
        listed += "; a tensor on meta has a shape but no values"
        fits = []
    return BrokenRule(why=f"the tensors must be on one device: {listed}", fits=tuple(fits))


_ABOUT_DTYPES = re.compile(r"\bd?type\b")
_NO_KERNEL = re.compile(r"not implemented for '\w+'")


def dtype(failed: FailedOp) -> BrokenRule | None:
    """The tensors of an op have one dtype, which the op supports."""
    dtypes = {tensor.dtype for tensor in failed.tensors}
    if _ABOUT_DTYPES.search(failed.error) and len(dtypes) > 1:
        return _mixed(failed)
    if len(dtypes) != 1:
        return None
    first = failed.tensors[0]
    if "floating point" in failed.error and not _is_float(first):
        return BrokenRule(
            why=f"{failed.function} needs floating-point values, but {first.name} is {first.dtype}",
            fits=(f"{first.name}.float()",),
        )
    if _NO_KERNEL.search(failed.error):
        return BrokenRule(
            why=f"torch has no {failed.function} for {first.dtype} on {first.operand.spec.device}"
        )
    return None


def _mixed(failed: FailedOp) -> BrokenRule:
    held = {tensor.dtype for tensor in failed.tensors if tensor.is_held}
    home = held.pop() if len(held) == 1 else failed.tensors[0].dtype
    others = [tensor for tensor in failed.tensors if tensor.dtype != home]
    fits = [" and ".join(f"{tensor.name}.to(torch.{home})" for tensor in others)]
    if any(tensor.is_held for tensor in failed.tensors) and all(map(_is_float, others)):
        fits.append(f"model.to(torch.{others[0].dtype})")
    listed = ", ".join(f"{tensor.name} is {tensor.dtype}" for tensor in failed.tensors)
    return BrokenRule(why=f"the tensors must have one dtype: {listed}", fits=tuple(fits))


def _is_float(tensor: TensorArgument) -> bool:
    return "float" in tensor.dtype


def _is_integer(tensor: TensorArgument) -> bool:
    return tensor.dtype in ("int64", "int32", "int16", "int8", "uint8")


def embedding(failed: FailedOp) -> BrokenRule | None:
    """Each index is the number of a row of the table."""
    tensor, weight = failed["indices"], failed["weight"]
    if tensor is None or weight is None or not weight.shape:
        return None
    if not _is_integer(tensor):
        return BrokenRule(
            why=f"an embedding expects indices, so its input must be int64 or int32, "
            f"not {tensor.dtype}",
            fits=(f"{tensor.name}.long(), if these values are indices",),
        )
    rows = weight.shape[0]
    beyond = _beyond(tensor, rows)
    if beyond is None:
        return None
    fits = [f"pass indices from 0 to {rows - 1}"]
    if (
        tensor.stats is not None
        and tensor.stats.min >= 0
        and not failed.has_worked
        and failed.owner
    ):
        needed = int(tensor.stats.max) + 1
        fits.insert(0, f"use an Embedding with at least {needed} rows")
    return BrokenRule(
        why=f"{failed.subject} has {rows} rows, numbered 0 to {rows - 1}, but {beyond}",
        fits=tuple(fits),
    )


def _beyond(tensor: TensorArgument, count: int) -> str | None:
    """Which values of a tensor are not indices from 0 to `count` - 1."""
    if tensor.stats is None or (tensor.stats.min >= 0 and tensor.stats.max < count):
        return None
    low, high = int(tensor.stats.min), int(tensor.stats.max)
    if low < 0 and high >= count:
        return f"{tensor.name} has values from {low} to {high}"
    return f"the largest index is {high}" if high >= count else f"the smallest index is {low}"


def one_hot(failed: FailedOp) -> BrokenRule | None:
    """Each class is below the number of classes."""
    tensor = failed["indices"]
    classes = first_of(failed.numbers("num_classes"), -1)
    beyond = _beyond(tensor, classes) if tensor is not None and classes > 0 else None
    if tensor is None or tensor.stats is None or beyond is None:
        return None
    fits = (f"num_classes={int(tensor.stats.max) + 1}",) if tensor.stats.min >= 0 else ()
    return BrokenRule(
        why=f"num_classes={classes} allows classes 0 to {classes - 1}, but {beyond}", fits=fits
    )


def classes(failed: FailedOp) -> BrokenRule | None:
    """A target is a class index for each prediction, or a probability for each class."""
    tensor, target = failed["input"], failed["target"]
    if tensor is None or target is None or not tensor.shape:
        return None
    wanted = _target_shape(tensor.shape)
    if target.shape == tensor.shape and failed.function == "cross_entropy":
        return None if _is_float(target) else _numbers_for_probabilities(target)
    if target.shape != wanted:
        return _other_targets(tensor, target, wanted)
    if _is_float(target):
        return BrokenRule(
            why=f"a target of shape {text(wanted)} contains class indices, so it must be int64, "
            f"not {target.dtype}",
            fits=("target.long(), if these values are class indices",),
        )
    return _class_range(failed, tensor.shape[min(1, len(tensor.shape) - 1)], target)


def _target_shape(shape: Shape) -> Shape:
    return () if len(shape) == 1 else (shape[0], *shape[2:])


def _numbers_for_probabilities(target: TensorArgument) -> BrokenRule:
    return BrokenRule(
        why=f"a target of the input's shape {text(target.shape)} contains probabilities, so "
        f"it must be floating point, not {target.dtype}",
        fits=(
            "target.float(), if it has a probability (or a 1) for each class",
            "target.argmax(1), if it is one-hot",
        ),
    )


def _other_targets(tensor: TensorArgument, target: TensorArgument, wanted: Shape) -> BrokenRule:
    shape = tensor.shape
    fits = []
    if target.shape == (*wanted, 1):
        fits.append(f"target.squeeze(-1) is {text(wanted)}")
    elif target.shape == shape[:-1] and len(shape) > 2:
        fits.append(
            f"the class dimension seems to be last; flatten both: input.flatten(0, -2) is "
            f"{text((prod(shape[:-1]), shape[-1]))} and target.flatten() {prod(shape[:-1])}"
        )
    why = (
        f"for input {text(shape)} ({shape[min(1, len(shape) - 1)]} classes in dimension "
        f"{min(1, len(shape) - 1)}) the target must be {text(wanted)} with class indices, or "
        f"{text(shape)} with probabilities, but it is {text(target.shape)}"
    )
    different = shape[:1] != target.shape[:1] and len(shape) > 1
    sizes = (("input", 0), ("target", 0)) if different and target.shape else ()
    return BrokenRule(why=why, fits=tuple(fits), sizes=sizes)


def _class_range(failed: FailedOp, count: int, target: TensorArgument) -> BrokenRule | None:
    ignored = first_of(failed.numbers("ignore_index"), -100)
    stats = target.stats
    # The ignored class may have any index, and hides other values below 0.
    if stats is None or (stats.max < count and (stats.min >= 0 or int(stats.min) == ignored)):
        return None
    wrong = [int(stats.max)] if stats.max >= count else []
    wrong += [int(stats.min)] if stats.min < 0 and int(stats.min) != ignored else []
    fits = []
    if wrong == [-1]:
        fits.append("ignore_index=-1, if -1 marks targets to ignore")
    if stats.min >= 1 and stats.max == count:
        fits.append(f"the classes seem to be counted from 1: target - 1 goes to {count - 1}")
    if stats.min >= 0:
        fits.append(
            f"predict {int(stats.max) + 1} classes: dimension 1 of input must have that size"
        )
    return BrokenRule(
        why=f"target has class {' and class '.join(map(str, wrong))}, but the valid classes are "
        f"0 to {count - 1}: the input has scores for {count}",
        fits=tuple(fits),
        sizes=(("input", min(1, len(failed.tensors[0].shape) - 1)),),
    )


def probabilities(failed: FailedOp) -> BrokenRule | None:
    """Binary cross entropy compares probabilities."""
    for name in ("input", "target"):
        tensor = failed[name]
        if tensor is None or tensor.stats is None:
            continue
        if tensor.stats.min < 0 or tensor.stats.max > 1:
            fits = {
                "input": "binary_cross_entropy_with_logits accepts any values as scores",
                "target": "a target of probabilities, or of zeros and ones",
            }
            return BrokenRule(
                why=f"{name} must be between 0 and 1, but its values range from "
                f"{tensor.stats.min:.4g} to {tensor.stats.max:.4g}",
                fits=(fits[name],),
            )
    return None


def along_dimension(failed: FailedOp) -> BrokenRule | None:
    """Indices along a dimension are below its size."""
    tensor, index = failed["input"], failed["index"]
    dim = first_of(failed.numbers("dim"), 0)
    if tensor is None or index is None:
        return None
    if not -len(tensor.shape) <= dim < len(tensor.shape):
        return None
    if not _is_integer(index):
        return BrokenRule(why=f"indices must be integers, but index is {index.dtype}")
    size = tensor.shape[dim]
    beyond = _beyond(index, size)
    if beyond is None:
        return None
    return BrokenRule(
        why=f"dimension {dim} of input {text(tensor.shape)} has indices 0 to {size - 1}, "
        f"but {beyond}",
        sizes=(("input", dim),),
    )


def indexing(failed: FailedOp) -> BrokenRule | None:
    """`x[i, mask, …]`: each index fits its dimension."""
    tensor = failed["input"]
    if tensor is None:
        return None
    for dim, index in _by_dimension(failed, len(tensor.shape)):
        if dim >= len(tensor.shape):
            return BrokenRule(
                why=f"{text(tensor.shape)} has {len(tensor.shape)} dimensions, fewer "
                f"than there are indices"
            )
        size = tensor.shape[dim]
        of = f"dimension {dim} of {text(tensor.shape)}"
        if type(index) is int and not -size <= index < size:
            return BrokenRule(
                why=f"{of} has indices 0 to {size - 1}, not {index}",
                sizes=(("input", dim),),
            )
        if isinstance(index, TensorArgument):
            verdict = _index_tensor(tensor, index, dim)
            if verdict is not None:
                return verdict
    return None


def _index_tensor(tensor: TensorArgument, index: TensorArgument, dim: int) -> BrokenRule | None:
    size = tensor.shape[dim]
    if index.dtype == "bool":
        covered = tensor.shape[dim : dim + len(index.shape)]
        if index.shape == covered:
            return None
        return BrokenRule(
            why=f"a mask must have the shape of the dimensions it selects from: {text(covered)} of "
            f"{text(tensor.shape)}, but the mask is {text(index.shape)}",
            sizes=((index.name, 0),) if index.shape else (),
        )
    stats = index.stats
    if stats is None or (stats.min >= -size and stats.max < size):
        return None
    worst = int(stats.max) if stats.max >= size else int(stats.min)
    return BrokenRule(
        why=f"dimension {dim} of {text(tensor.shape)} has indices 0 to {size - 1}, "
        f"but {index.name} has {worst}",
        sizes=(("input", dim),),
    )


def _by_dimension(failed: FailedOp, rank: int) -> Iterator[tuple[int, object]]:
    """The indices of a subscript, each with its dimension."""
    indices = _indices(failed)
    taken = sum(_dimensions(index) for index in indices)
    dim = 0
    for index in indices:
        if index is ...:
            dim += max(rank - taken, 0)
            continue
        if _dimensions(index):
            yield dim, index
        dim += _dimensions(index)


def _indices(failed: FailedOp) -> list[object]:
    whole = failed["index"] or failed.settings.get("index", ())
    found: dict[str, object] = {tensor.name: tensor for tensor in failed.several("index")}
    found |= {name: index for name, index in failed.settings.items() if name.startswith("index[")}
    if found:
        # A list of indices inside the subscript has two brackets, and is one index.
        numbers = {name: int(name[6:-1]) for name in found if name.count("[") == 1}
        return [found[name] for name in sorted(numbers, key=numbers.__getitem__)]
    return list(whole) if isinstance(whole, tuple) else [whole]


def _dimensions(index: object) -> int:
    """How many dimensions of a tensor an index covers."""
    if index is None or index is ... or isinstance(index, bool):
        return 0
    if isinstance(index, TensorArgument) and index.dtype == "bool":
        return len(index.shape)
    return 1
