"""Why ops reject the contents of tensors: indices, class labels, dtypes and devices."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchglass.analyse.failure.operands import (
    Given,
    Scene,
    Shape,
    Verdict,
    first_of,
    product,
    times,
)


def device(scene: Scene) -> Verdict | None:
    """All tensors of an op are on one device."""
    devices = [given.operand.spec.device for given in scene.given]
    if len(set(devices)) < 2 or "device" not in scene.error:
        return None
    listed = ", ".join(f"{given.name} is on {given.operand.spec.device}" for given in scene.given)
    held = {given.operand.spec.device for given in scene.given if given.is_held}
    home = held.pop() if len(held) == 1 else devices[0]
    strangers = [given for given in scene.given if given.operand.spec.device != home]
    fits = [" and ".join(f'{given.name}.to("{home}")' for given in strangers)]
    if any(given.is_held for given in scene.given):
        fits.append(f'model.to("{strangers[0].operand.spec.device}")')
    if "meta" in devices:
        listed += "; a tensor on meta has a shape and no numbers"
        fits = []
    return Verdict(why=f"the tensors must be on one device: {listed}", fits=tuple(fits))


_ABOUT_DTYPES = re.compile(r"\bd?type\b")
_NO_KERNEL = re.compile(r"not implemented for '\w+'")


def dtype(scene: Scene) -> Verdict | None:
    """The tensors of an op are of one dtype, and of one that it can compute with."""
    dtypes = {given.dtype for given in scene.given}
    if _ABOUT_DTYPES.search(scene.error) and len(dtypes) > 1:
        return _mixed(scene)
    if len(dtypes) != 1:
        return None
    first = scene.given[0]
    if "floating point" in scene.error and not _is_float(first):
        return Verdict(
            why=f"{scene.function} needs floating-point numbers, and {first.name} is {first.dtype}",
            fits=(f"{first.name}.float()",),
        )
    if _NO_KERNEL.search(scene.error):
        return Verdict(
            why=f"torch has no {scene.function} for {first.dtype} on {first.operand.spec.device}"
        )
    return None


def _mixed(scene: Scene) -> Verdict:
    held = {given.dtype for given in scene.given if given.is_held}
    home = held.pop() if len(held) == 1 else scene.given[0].dtype
    strangers = [given for given in scene.given if given.dtype != home]
    fits = [" and ".join(f"{given.name}.to(torch.{home})" for given in strangers)]
    if any(given.is_held for given in scene.given) and all(map(_is_float, strangers)):
        fits.append(f"model.to(torch.{strangers[0].dtype})")
    listed = ", ".join(f"{given.name} is {given.dtype}" for given in scene.given)
    return Verdict(why=f"the tensors must be of one dtype: {listed}", fits=tuple(fits))


def _is_float(given: Given) -> bool:
    return "float" in given.dtype


def _is_integer(given: Given) -> bool:
    return given.dtype in ("int64", "int32", "int16", "int8", "uint8")


def embedding(scene: Scene) -> Verdict | None:
    """Each index is the number of a row of the table."""
    given, weight = scene["indices"], scene["weight"]
    if given is None or weight is None or not weight.shape:
        return None
    if not _is_integer(given):
        return Verdict(
            why=f"an embedding takes indices, so its input must be int64 or int32, "
            f"and it is {given.dtype}",
            fits=(f"{given.name}.long(), if these values are indices",),
        )
    rows = weight.shape[0]
    beyond = _beyond(given, rows)
    if beyond is None:
        return None
    fits = [f"give it indices from 0 to {rows - 1}"]
    if given.stats is not None and given.stats.min >= 0 and not scene.has_worked and scene.owner:
        needed = int(given.stats.max) + 1
        fits.insert(0, f"make the layer an Embedding of at least {needed} rows")
    return Verdict(
        why=f"{scene.subject} has {rows} rows, numbered 0 to {rows - 1}, and {beyond}",
        fits=tuple(fits),
    )


def _beyond(given: Given, count: int) -> str | None:
    """Which values of a tensor are not indices from 0 to `count` - 1."""
    if given.stats is None or (given.stats.min >= 0 and given.stats.max < count):
        return None
    low, high = int(given.stats.min), int(given.stats.max)
    if low < 0 and high >= count:
        return f"{given.name} holds values from {low} to {high}"
    return f"the largest index is {high}" if high >= count else f"the smallest index is {low}"


def one_hot(scene: Scene) -> Verdict | None:
    """Each class is below the number of classes."""
    given = scene["indices"]
    classes = first_of(scene.numbers("num_classes"), -1)
    beyond = _beyond(given, classes) if given is not None and classes > 0 else None
    if given is None or given.stats is None or beyond is None:
        return None
    fits = (f"num_classes={int(given.stats.max) + 1}",) if given.stats.min >= 0 else ()
    return Verdict(
        why=f"num_classes={classes} makes classes 0 to {classes - 1}, and {beyond}", fits=fits
    )


def classes(scene: Scene) -> Verdict | None:
    """A target is the number of a class for each prediction, or as many probabilities."""
    given, target = scene["input"], scene["target"]
    if given is None or target is None or not given.shape:
        return None
    wanted = _target_shape(given.shape)
    if target.shape == given.shape and scene.function == "cross_entropy":
        return None if _is_float(target) else _numbers_for_probabilities(target)
    if target.shape != wanted:
        return _other_targets(given, target, wanted)
    if _is_float(target):
        return Verdict(
            why=f"a target of {times(wanted)} holds class indices, so it must be int64, "
            f"and it is {target.dtype}",
            fits=("target.long(), if these values are class indices",),
        )
    return _class_range(scene, given.shape[min(1, len(given.shape) - 1)], target)


def _target_shape(shape: Shape) -> Shape:
    return () if len(shape) == 1 else (shape[0], *shape[2:])


def _numbers_for_probabilities(target: Given) -> Verdict:
    return Verdict(
        why=f"a target of the input's shape {times(target.shape)} holds probabilities, so it must "
        f"be floating point, and it is {target.dtype}",
        fits=(
            "target.float(), if it holds a probability (or a one) for each class",
            "target.argmax(1), if it is one-hot",
        ),
    )


def _other_targets(given: Given, target: Given, wanted: Shape) -> Verdict:
    shape = given.shape
    fits = []
    if target.shape == (*wanted, 1):
        fits.append(f"target.squeeze(-1) is {times(wanted)}")
    elif target.shape == shape[:-1] and len(shape) > 2:
        fits.append(
            f"the classes seem to stand last; flatten both: input.flatten(0, -2) is "
            f"{times((product(shape[:-1]), shape[-1]))} and target.flatten() {product(shape[:-1])}"
        )
    why = (
        f"for input {times(shape)} ({shape[min(1, len(shape) - 1)]} classes in dimension "
        f"{min(1, len(shape) - 1)}) the target must be {times(wanted)} with class indices, or "
        f"{times(shape)} with probabilities, and it is {times(target.shape)}"
    )
    different = shape[:1] != target.shape[:1] and len(shape) > 1
    sizes = (("input", 0), ("target", 0)) if different and target.shape else ()
    return Verdict(why=why, fits=tuple(fits), sizes=sizes)


def _class_range(scene: Scene, count: int, target: Given) -> Verdict | None:
    ignored = first_of(scene.numbers("ignore_index"), -100)
    stats = target.stats
    # What is ignored may be anything, and hides what else is below 0.
    if stats is None or (stats.max < count and (stats.min >= 0 or int(stats.min) == ignored)):
        return None
    wrong = [int(stats.max)] if stats.max >= count else []
    wrong += [int(stats.min)] if stats.min < 0 and int(stats.min) != ignored else []
    fits = []
    if wrong == [-1]:
        fits.append("ignore_index=-1, if -1 marks what to leave out")
    if stats.min >= 1 and stats.max == count:
        fits.append(f"the classes seem to be counted from 1: target - 1 goes to {count - 1}")
    if stats.min >= 0:
        fits.append(f"predict {int(stats.max) + 1} classes: an input with that many in dimension 1")
    return Verdict(
        why=f"target has class {' and class '.join(map(str, wrong))}, and the valid classes are "
        f"0 to {count - 1}: the input has scores for {count}",
        fits=tuple(fits),
        sizes=(("input", min(1, len(scene.given[0].shape) - 1)),),
    )


def probabilities(scene: Scene) -> Verdict | None:
    """Binary cross entropy compares probabilities."""
    for name in ("input", "target"):
        given = scene[name]
        if given is None or given.stats is None:
            continue
        if given.stats.min < 0 or given.stats.max > 1:
            fits = {
                "input": "binary_cross_entropy_with_logits takes any numbers as scores",
                "target": "a target of probabilities, or of zeros and ones",
            }
            return Verdict(
                why=f"{name} must lie between 0 and 1, and goes from {given.stats.min:.4g} "
                f"to {given.stats.max:.4g}",
                fits=(fits[name],),
            )
    return None


def along_dimension(scene: Scene) -> Verdict | None:
    """Indices along a dimension are below its size."""
    given, index = scene["input"], scene["index"]
    dim = first_of(scene.numbers("dim"), 0)
    if given is None or index is None:
        return None
    if not -len(given.shape) <= dim < len(given.shape):
        return None
    if not _is_integer(index):
        return Verdict(why=f"indices must be integers, and index is {index.dtype}")
    size = given.shape[dim]
    beyond = _beyond(index, size)
    if beyond is None:
        return None
    return Verdict(
        why=f"dimension {dim} of input {times(given.shape)} has the indices 0 to {size - 1}, "
        f"and {beyond}",
        sizes=(("input", dim),),
    )


def indexing(scene: Scene) -> Verdict | None:
    """`x[i, mask, …]`: each index fits the dimension that it stands for."""
    given = scene["input"]
    if given is None:
        return None
    for dim, index in _by_dimension(scene, len(given.shape)):
        if dim >= len(given.shape):
            return Verdict(
                why=f"{times(given.shape)} has {len(given.shape)} dimensions, fewer "
                f"than there are indices"
            )
        size = given.shape[dim]
        of = f"dimension {dim} of {times(given.shape)}"
        if type(index) is int and not -size <= index < size:
            return Verdict(
                why=f"{of} has the indices 0 to {size - 1}, and {index} was asked for",
                sizes=(("input", dim),),
            )
        if isinstance(index, Given):
            verdict = _index_tensor(given, index, dim)
            if verdict is not None:
                return verdict
    return None


def _index_tensor(given: Given, index: Given, dim: int) -> Verdict | None:
    size = given.shape[dim]
    if index.dtype == "bool":
        covered = given.shape[dim : dim + len(index.shape)]
        if index.shape == covered:
            return None
        return Verdict(
            why=f"a mask has the shape of what it selects from: that is {times(covered)} in "
            f"{times(given.shape)}, and the mask is {times(index.shape)}",
            sizes=((index.name, 0),) if index.shape else (),
        )
    stats = index.stats
    if stats is None or (stats.min >= -size and stats.max < size):
        return None
    worst = int(stats.max) if stats.max >= size else int(stats.min)
    return Verdict(
        why=f"dimension {dim} of {times(given.shape)} has the indices 0 to {size - 1}, "
        f"and {index.name} holds {worst}",
        sizes=(("input", dim),),
    )


def _by_dimension(scene: Scene, rank: int) -> Iterator[tuple[int, object]]:
    """The indices of a subscript, each with the dimension that it stands for."""
    indices = _indices(scene)
    taken = sum(_dimensions(index) for index in indices)
    dim = 0
    for index in indices:
        if index is ...:
            dim += max(rank - taken, 0)
            continue
        if _dimensions(index):
            yield dim, index
        dim += _dimensions(index)


def _indices(scene: Scene) -> list[object]:
    whole = scene["index"] or scene.settings.get("index", ())
    found: dict[str, object] = {given.name: given for given in scene.several("index")}
    found |= {name: index for name, index in scene.settings.items() if name.startswith("index[")}
    if found:
        # A list of indices inside the subscript has two brackets, and is one index.
        numbers = {name: int(name[6:-1]) for name in found if name.count("[") == 1}
        return [found[name] for name in sorted(numbers, key=numbers.__getitem__)]
    return list(whole) if isinstance(whole, tuple) else [whole]


def _dimensions(index: object) -> int:
    """How many dimensions of a tensor an index stands for."""
    if index is None or index is ... or isinstance(index, bool):
        return 0
    if isinstance(index, Given) and index.dtype == "bool":
        return len(index.shape)
    return 1
