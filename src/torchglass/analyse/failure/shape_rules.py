"""Why cat, broadcast, reshape, split and permute reject shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod

from torchglass.analyse.failure.operands import (
    BrokenRule,
    FailedOp,
    Shape,
    TensorArgument,
    broadcast,
    first_of,
    text,
)


def joining(failed: FailedOp) -> BrokenRule | None:
    """Concatenated tensors differ in at most one dimension, stacked tensors in none."""
    tensors = failed.several("tensors")
    if len(tensors) < 2:
        return None
    first = tensors[0]
    rank = len(first.shape)
    stacked = failed.function == "stack"
    dim = first_of(failed.numbers("dim"), 0)
    along = None if stacked else dim % rank if rank else 0
    for other in tensors[1:]:
        if len(other.shape) != rank:
            # torch concatenates an empty tensor of one dimension with any other.
            if (0,) in (other.shape, first.shape):
                continue
            return _ranks_differ(failed, first, other)
        if not _joins(first.shape, other.shape, along):
            return _sizes_differ(tensors, other, along)
    return None


def _ranks_differ(failed: FailedOp, first: TensorArgument, other: TensorArgument) -> BrokenRule:
    short, long = sorted((first, other), key=lambda tensor: len(tensor.shape))
    fits = []
    if len(long.shape) - len(short.shape) == 1:
        dim = first_of(failed.numbers("dim"), 0)
        taller = _unsqueezed(short.shape, dim % len(long.shape))
        if _joins(taller, long.shape, None if failed.function == "stack" else dim):
            advice = f"{short.name}.unsqueeze({dim}) is {text(taller)}"
            fits.append(f"add a dimension to the smaller one: {advice}")
    return BrokenRule(
        why=f"{first.name} {text(first.shape)} and {other.name} {text(other.shape)} "
        f"have different numbers of dimensions",
        fits=tuple(fits),
    )


def _sizes_differ(
    tensors: Sequence[TensorArgument], other: TensorArgument, along: int | None
) -> BrokenRule:
    first = tensors[0]
    dims = [d for d in range(len(first.shape)) if d != along and other.shape[d] != first.shape[d]]
    dim = dims[0]
    must = "in every dimension" if along is None else f"except in dimension {along}"
    fits = []
    if along is not None and all(_joins(first.shape, each.shape, dim) for each in tensors):
        fits.append(f"join them along dimension {dim}")
    if sum(not _joins(first.shape, each.shape, along) for each in tensors) == 1:
        wanted = [size if d == along else first.shape[d] for d, size in enumerate(other.shape)]
        fits.append(f"make {other.name} {text(wanted)}")
    return BrokenRule(
        why=f"the tensors must have the same sizes {must}; dimension {dim} is "
        f"{first.shape[dim]} in {first.name} {text(first.shape)} and "
        f"{other.shape[dim]} in {other.name} {text(other.shape)}",
        fits=tuple(fits),
        sizes=((first.name, dim), (other.name, dim)),
    )


def _joins(left: Shape, right: Shape, along: int | None) -> bool:
    """Whether two shapes are equal except in one dimension."""
    if len(left) != len(right):
        return False
    skipped = along % len(left) if along is not None and left else None
    return all(left[dim] == right[dim] for dim in range(len(left)) if dim != skipped)


def broadcasting(failed: FailedOp) -> BrokenRule | None:
    """From the last dimension on, two sizes are equal, or one of them is 1."""
    tensors = failed.tensors[:3]
    shapes = [tensor.shape for tensor in tensors]
    if len(tensors) < 2:
        return None
    common = broadcast(*shapes)
    if common is not None:
        grows = failed.writes and common != shapes[0]
        return _cannot_grow(tensors[0], common) if grows else None
    left, right, place = _clash(tensors)
    return BrokenRule(
        why=f"{left.name} {text(left.shape)} and {right.name} {text(right.shape)} cannot be "
        f"broadcast: {_from_the_end(place)} is {left.shape[-place]} in one and "
        f"{right.shape[-place]} in the other, and neither is 1",
        fits=tuple(_aligned(left, right)) if len(tensors) == 2 else (),
        sizes=((left.name, -place), (right.name, -place)),
    )


def _clash(tensors: Sequence[TensorArgument]) -> tuple[TensorArgument, TensorArgument, int]:
    """The first two tensors that cannot be broadcast, and the dimension, counted from the end."""
    for index, left in enumerate(tensors):
        for right in tensors[index + 1 :]:
            for place in range(1, min(len(left.shape), len(right.shape)) + 1):
                if broadcast(left.shape[-place:][:1], right.shape[-place:][:1]) is None:
                    return left, right, place
    raise ValueError("all of them broadcast")


def _cannot_grow(target: TensorArgument, common: Shape) -> BrokenRule:
    return BrokenRule(
        why=f"an in-place operation keeps the shape of its target, {text(target.shape)}, "
        f"but the result would be {text(common)}",
        fits=("use the operation without the underscore, which returns a new tensor",),
    )


def _aligned(left: TensorArgument, right: TensorArgument) -> Iterator[str]:
    """Ways to let two shapes broadcast without changing a value."""
    for tensor, other in ((left, right), (right, left)):
        shape = tensor.shape
        if len(shape) < len(other.shape):
            for dim in range(1, len(shape) + 1):
                common = broadcast(_unsqueezed(shape, dim), other.shape)
                if common == other.shape:
                    taller = text(_unsqueezed(shape, dim))
                    yield f"{tensor.name}.unsqueeze({dim}) is {taller}; the result {text(common)}"
    if len(left.shape) == len(right.shape) > 1 and left.shape != right.shape:
        turned = (*right.shape[:-2], right.shape[-1], right.shape[-2])
        common = broadcast(left.shape, turned)
        if common is not None:
            yield f"{right.name}.mT is {text(turned)}; the result {text(common)}"


def same_shape(failed: FailedOp) -> BrokenRule | None:
    """Tensors that are compared element by element have the same shape."""
    tensor, target = failed["input"], failed["target"]
    if tensor is None or target is None or tensor.shape == target.shape:
        return None
    fits = []
    for one, other in ((target, tensor), (tensor, target)):
        for dim in range(len(one.shape) + 1):
            if _unsqueezed(one.shape, dim) == other.shape:
                fits.append(f"{one.name}.unsqueeze({dim}) is {text(other.shape)}")
                fits.append(f"{other.name}.squeeze({dim}) is {text(one.shape)}")
                break
    if target.shape == tensor.shape[:-1]:
        fits.append("cross_entropy, if target has one class index for each row")
    return BrokenRule(
        why=f"{failed.function} compares element by element, but input is {text(tensor.shape)} "
        f"and target is {text(target.shape)}",
        fits=tuple(fits),
        sizes=tuple(_first_difference(tensor, target)),
    )


def _first_difference(left: TensorArgument, right: TensorArgument) -> Iterator[tuple[str, int]]:
    for dim, (one, other) in enumerate(zip(left.shape, right.shape, strict=False)):
        if one != other:
            yield left.name, dim
            yield right.name, dim
            return


def reshaping(failed: FailedOp) -> BrokenRule | None:
    """A new shape has as many elements as the old one."""
    tensor, target = failed["input"], failed.numbers("shape")
    if tensor is None or not target:
        return None
    elements = prod(tensor.shape)
    known = prod([size for size in target if size != -1])
    has = f"{text(tensor.shape)} has {elements} elements"
    if target.count(-1) > 1:
        return BrokenRule(
            why=f"only one size can be -1, but {_list(target)} has {target.count(-1)}"
        )
    if -1 in target and (known == 0 or elements % known):
        why = f"{has}, which is not a multiple of {known}: no size fits for -1 in {_list(target)}"
    elif -1 not in target and known != elements:
        why = f"{has}, but {text(target)} has {known}"
    elif "view" in failed.error and "stride" in failed.error:
        return _not_in_one_piece(tensor, target)
    else:
        return None
    return BrokenRule(
        why=why,
        fits=tuple(_reshapes(tensor, target)),
        sizes=tuple((tensor.name, dim) for dim in range(1, len(tensor.shape))),
    )


def _not_in_one_piece(tensor: TensorArgument, target: Shape) -> BrokenRule:
    return BrokenRule(
        why=f"view does not copy, but the values of this {text(tensor.shape)} are not in "
        f"the memory order that {_list(target)} needs, for example after a transpose",
        fits=(f"{tensor.name}.reshape{_list(target)}, which copies if needed",),
    )


def _reshapes(tensor: TensorArgument, target: Shape) -> Iterator[str]:
    """Similar shapes that have the right number of elements."""
    shape = tensor.shape
    elements = prod(shape)
    fitting: dict[Shape, Shape] = {}
    if len(target) == 2 and len(shape) > 1:
        fitting[shape[0], prod(shape[1:])] = (shape[0], -1)
    for dim in range(len(target)):
        others = prod([size for i, size in enumerate(target) if i != dim and size != -1])
        is_free = -1 not in target or target[dim] == -1
        if is_free and others and elements % others == 0:
            sizes = (*target[:dim], elements // others, *target[dim + 1 :])
            fitting.setdefault(sizes, sizes)
    for sizes, asked in fitting.items():
        # A view of the same shape may be impossible if the values are not in order.
        yield f"{tensor.name}.reshape{_list(asked)} is {text(sizes)}"


def stretching(failed: FailedOp) -> BrokenRule | None:
    """Only dimensions of size 1 can be expanded."""
    tensor, target = failed["input"], failed.numbers("shape")
    if tensor is None or not target:
        return None
    shape = tensor.shape
    if len(target) < len(shape):
        return BrokenRule(
            why=f"expand needs a size for each of the {len(shape)} dimensions of {text(shape)}, "
            f"but got {len(target)}: {_list(target)}",
        )
    if -1 in target[: len(target) - len(shape)]:
        return BrokenRule(
            why=f"-1 keeps a size, but {text(shape)} has no dimension at the -1 in {_list(target)}"
        )
    for place in range(1, len(shape) + 1):
        if target[-place] not in (shape[-place], -1) and shape[-place] != 1:
            kept = (*target[:-place], -1, *target[len(target) - place + 1 :])
            return BrokenRule(
                why=f"expand works only on dimensions of size 1; {_from_the_end(place)} of "
                f"{text(shape)} is {shape[-place]} and cannot become {target[-place]}",
                fits=(f"keep that size: {tensor.name}.expand{_list(kept)}",),
                sizes=(("input", -place),),
            )
    return None


def splitting(failed: FailedOp) -> BrokenRule | None:
    """The parts add up to the whole."""
    tensor, sizes = failed["input"], failed.numbers("sizes")
    dim = first_of(failed.numbers("dim"), 0)
    if tensor is None or len(sizes) < 2 or not -len(tensor.shape) <= dim < len(tensor.shape):
        return None
    whole = tensor.shape[dim]
    if failed.function == "unflatten":
        if -1 in sizes or prod(sizes) == whole:
            return None
        why = f"{'·'.join(map(str, sizes))} = {prod(sizes)}"
    elif sum(sizes) != whole:
        why = f"{' + '.join(map(str, sizes))} = {sum(sizes)}"
    else:
        return None
    return BrokenRule(
        why=f"{why}, but dimension {dim} of {text(tensor.shape)} is {whole}",
        sizes=(("input", dim),),
    )


def permuting(failed: FailedOp) -> BrokenRule | None:
    """Each dimension is named once."""
    tensor, dims = failed["input"], failed.numbers("dims")
    if tensor is None or not dims or len(dims) == len(tensor.shape):
        return None
    return BrokenRule(
        why=f"permute names {len(dims)} dimensions, {_list(dims)}, "
        f"but {text(tensor.shape)} has {len(tensor.shape)}"
    )


_OUT_OF_RANGE = re.compile(r"Dimension out of range .*\[(-?\d+), (-?\d+)\], but got (-?\d+)")


def dimension(failed: FailedOp) -> BrokenRule | None:
    """A named dimension exists."""
    found = _OUT_OF_RANGE.search(failed.error)
    if found is None or not failed.tensors:
        return None
    low, high, asked = found.groups()
    shape = failed.tensors[0].shape
    return BrokenRule(
        why=f"{text(shape)} has {len(shape)} dimension{'s' * (len(shape) != 1)}, so "
        f"{failed.function} accepts dimensions {low} to {high}, not {asked}",
    )


def sums_of_products(failed: FailedOp) -> BrokenRule | None:
    """A letter of an einsum always has the same size."""
    equation = failed.settings.get("equation")
    tensors = failed.several("operands")
    if not isinstance(equation, str) or "." in equation:
        return None
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if len(terms) != len(tensors):
        return BrokenRule(why=f'"{equation}" has {len(terms)} operands, but got {len(tensors)}')
    sizes: dict[str, tuple[TensorArgument, int]] = {}
    for term, tensor in zip(terms, tensors, strict=True):
        if len(term) != len(tensor.shape):
            return BrokenRule(
                why=f'"{term}" of "{equation}" has {len(term)} dimensions, '
                f"but its operand {text(tensor.shape)} has {len(tensor.shape)}"
            )
        for dim, letter in enumerate(term):
            first, place = sizes.setdefault(letter, (tensor, dim))
            if broadcast((first.shape[place],), (tensor.shape[dim],)) is None:
                return BrokenRule(
                    why=f'{letter} in "{equation}" is {first.shape[place]} in {first.name} '
                    f"{text(first.shape)} and {tensor.shape[dim]} in {tensor.name} "
                    f"{text(tensor.shape)}",
                    sizes=((first.name, place), (tensor.name, dim)),
                )
    return None


def _unsqueezed(shape: Shape, dim: int) -> Shape:
    return (*shape[:dim], 1, *shape[dim:])


def _from_the_end(place: int) -> str:
    return "the last dimension" if place == 1 else f"dimension -{place}"


def _list(sizes: Sequence[int]) -> str:
    return f"({', '.join(map(str, sizes))})"
