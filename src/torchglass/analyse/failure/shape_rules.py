"""Why cat, broadcast, reshape, split and permute reject shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torchglass.analyse.failure.operands import (
    Given,
    Scene,
    Shape,
    Verdict,
    broadcast,
    first_of,
    product,
    times,
)


def joining(scene: Scene) -> Verdict | None:
    """Tensors that are joined differ in one dimension at most; those that are stacked in none."""
    tensors = scene.several("tensors")
    if len(tensors) < 2:
        return None
    first = tensors[0]
    rank = len(first.shape)
    stacked = scene.function == "stack"
    dim = first_of(scene.numbers("dim"), 0)
    along = None if stacked else dim % rank if rank else 0
    for other in tensors[1:]:
        if len(other.shape) != rank:
            # Of all tensors, an empty one of one dimension goes with any others.
            if (0,) in (other.shape, first.shape):
                continue
            return _ranks_differ(scene, first, other)
        if not _joins(first.shape, other.shape, along):
            return _sizes_differ(tensors, other, along)
    return None


def _ranks_differ(scene: Scene, first: Given, other: Given) -> Verdict:
    short, long = sorted((first, other), key=lambda given: len(given.shape))
    fits = []
    if len(long.shape) - len(short.shape) == 1:
        dim = first_of(scene.numbers("dim"), 0)
        taller = _unsqueezed(short.shape, dim % len(long.shape))
        if _joins(taller, long.shape, None if scene.function == "stack" else dim):
            advice = f"{short.name}.unsqueeze({dim}) is {times(taller)}"
            fits.append(f"give the smaller one a dimension: {advice}")
    return Verdict(
        why=f"{first.name} {times(first.shape)} and {other.name} {times(other.shape)} "
        f"have different numbers of dimensions",
        fits=tuple(fits),
    )


def _sizes_differ(tensors: Sequence[Given], other: Given, along: int | None) -> Verdict:
    first = tensors[0]
    dims = [d for d in range(len(first.shape)) if d != along and other.shape[d] != first.shape[d]]
    dim = dims[0]
    must = "in every dimension" if along is None else f"but in dimension {along}, where they join"
    fits = []
    if along is not None and all(_joins(first.shape, each.shape, dim) for each in tensors):
        fits.append(f"join them along dimension {dim}")
    if sum(not _joins(first.shape, each.shape, along) for each in tensors) == 1:
        wanted = [size if d == along else first.shape[d] for d, size in enumerate(other.shape)]
        fits.append(f"make {other.name} {times(wanted)}")
    return Verdict(
        why=f"the tensors must have the same sizes {must}; dimension {dim} is "
        f"{first.shape[dim]} in {first.name} {times(first.shape)} and "
        f"{other.shape[dim]} in {other.name} {times(other.shape)}",
        fits=tuple(fits),
        sizes=((first.name, dim), (other.name, dim)),
    )


def _joins(left: Shape, right: Shape, along: int | None) -> bool:
    """Whether two shapes are the same but for one dimension."""
    if len(left) != len(right):
        return False
    skipped = along % len(left) if along is not None and left else None
    return all(left[dim] == right[dim] for dim in range(len(left)) if dim != skipped)


def broadcasting(scene: Scene) -> Verdict | None:
    """Compared from the last dimension, sizes are equal, or one of them is 1."""
    tensors = scene.given[:3]
    shapes = [given.shape for given in tensors]
    if len(tensors) < 2:
        return None
    common = broadcast(*shapes)
    if common is not None:
        grows = scene.writes and common != shapes[0]
        return _cannot_grow(tensors[0], common) if grows else None
    left, right, place = _clash(tensors)
    return Verdict(
        why=f"{left.name} {times(left.shape)} and {right.name} {times(right.shape)} cannot be "
        f"stretched to one shape: {_from_the_end(place)} is {left.shape[-place]} in one and "
        f"{right.shape[-place]} in the other, and neither is 1",
        fits=tuple(_aligned(left, right)) if len(tensors) == 2 else (),
        sizes=((left.name, -place), (right.name, -place)),
    )


def _clash(tensors: Sequence[Given]) -> tuple[Given, Given, int]:
    """The first two tensors that cannot be stretched to each other, and how far from the end."""
    for index, left in enumerate(tensors):
        for right in tensors[index + 1 :]:
            for place in range(1, min(len(left.shape), len(right.shape)) + 1):
                if broadcast(left.shape[-place:][:1], right.shape[-place:][:1]) is None:
                    return left, right, place
    raise ValueError("all of them go together")


def _cannot_grow(target: Given, common: Shape) -> Verdict:
    return Verdict(
        why=f"an in-place operation keeps the shape of what it writes into, {times(target.shape)}, "
        f"and the result here would be {times(common)}",
        fits=("use the operation that makes a new tensor, without the underscore",),
    )


def _aligned(left: Given, right: Given) -> Iterator[str]:
    """What lets two shapes broadcast without changing a number of either."""
    for given, other in ((left, right), (right, left)):
        shape = given.shape
        if len(shape) < len(other.shape):
            for dim in range(1, len(shape) + 1):
                common = broadcast(_unsqueezed(shape, dim), other.shape)
                if common == other.shape:
                    taller = times(_unsqueezed(shape, dim))
                    yield f"{given.name}.unsqueeze({dim}) is {taller}; the result {times(common)}"
    if len(left.shape) == len(right.shape) > 1 and left.shape != right.shape:
        turned = (*right.shape[:-2], right.shape[-1], right.shape[-2])
        common = broadcast(left.shape, turned)
        if common is not None:
            yield f"{right.name}.mT is {times(turned)}; the result {times(common)}"


def same_shape(scene: Scene) -> Verdict | None:
    """What is compared number by number has one shape."""
    given, target = scene["input"], scene["target"]
    if given is None or target is None or given.shape == target.shape:
        return None
    fits = []
    for one, other in ((target, given), (given, target)):
        for dim in range(len(one.shape) + 1):
            if _unsqueezed(one.shape, dim) == other.shape:
                fits.append(f"{one.name}.unsqueeze({dim}) is {times(other.shape)}")
                fits.append(f"{other.name}.squeeze({dim}) is {times(one.shape)}")
                break
    if target.shape == given.shape[:-1]:
        fits.append("cross_entropy, if target holds one class index for each row")
    return Verdict(
        why=f"{scene.function} compares element by element, and input is {times(given.shape)} "
        f"while target is {times(target.shape)}",
        fits=tuple(fits),
        sizes=tuple(_first_difference(given, target)),
    )


def _first_difference(left: Given, right: Given) -> Iterator[tuple[str, int]]:
    for dim, (one, other) in enumerate(zip(left.shape, right.shape, strict=False)):
        if one != other:
            yield left.name, dim
            yield right.name, dim
            return


def reshaping(scene: Scene) -> Verdict | None:
    """A new shape has as many elements as the old one."""
    given, target = scene["input"], scene.numbers("shape")
    if given is None or not target:
        return None
    elements = product(given.shape)
    known = product([size for size in target if size != -1])
    has = f"{times(given.shape)} has {elements} elements"
    if target.count(-1) > 1:
        return Verdict(why=f"only one size can be left to be found, and {_list(target)} leaves two")
    if -1 in target and (known == 0 or elements % known):
        why = f"{has}, which is not a multiple of {known}: no size fits for -1 in {_list(target)}"
    elif -1 not in target and known != elements:
        why = f"{has}, and {times(target)} has {known}"
    elif "view" in scene.error and "stride" in scene.error:
        return _not_in_one_piece(given, target)
    else:
        return None
    return Verdict(
        why=why,
        fits=tuple(_reshapes(given, target)),
        sizes=tuple((given.name, dim) for dim in range(1, len(given.shape))),
    )


def _not_in_one_piece(given: Given, target: Shape) -> Verdict:
    return Verdict(
        why=f"view makes no copies, and the numbers of this {times(given.shape)} do not lie in "
        f"memory in the order that {_list(target)} would need, as after a transpose",
        fits=(f"{given.name}.reshape{_list(target)}, which copies where it must",),
    )


def _reshapes(given: Given, target: Shape) -> Iterator[str]:
    """Shapes near the one that was asked for which have the right number of elements."""
    shape = given.shape
    elements = product(shape)
    fitting: dict[Shape, Shape] = {}
    if len(target) == 2 and len(shape) > 1:
        fitting[shape[0], product(shape[1:])] = (shape[0], -1)
    for dim in range(len(target)):
        others = product([size for i, size in enumerate(target) if i != dim and size != -1])
        is_free = -1 not in target or target[dim] == -1
        if is_free and others and elements % others == 0:
            sizes = (*target[:dim], elements // others, *target[dim + 1 :])
            fitting.setdefault(sizes, sizes)
    for sizes, asked in fitting.items():
        # A view of the same shape may be impossible where the numbers are not in order.
        yield f"{given.name}.reshape{_list(asked)} is {times(sizes)}"


def stretching(scene: Scene) -> Verdict | None:
    """Only dimensions of size 1 can be expanded."""
    given, target = scene["input"], scene.numbers("shape")
    if given is None or not target:
        return None
    shape = given.shape
    if len(target) < len(shape):
        return Verdict(
            why=f"expand needs a size for each of the {len(shape)} dimensions of {times(shape)}, "
            f"and got {len(target)}: {_list(target)}",
        )
    if -1 in target[: len(target) - len(shape)]:
        return Verdict(
            why=f"-1 keeps a size, and {_list(target)} has it where {times(shape)} has no dimension"
        )
    for place in range(1, len(shape) + 1):
        if target[-place] not in (shape[-place], -1) and shape[-place] != 1:
            kept = (*target[:-place], -1, *target[len(target) - place + 1 :])
            return Verdict(
                why=f"expand stretches dimensions of size 1 only; {_from_the_end(place)} of "
                f"{times(shape)} is {shape[-place]} and cannot become {target[-place]}",
                fits=(f"keep that size: {given.name}.expand{_list(kept)}",),
                sizes=(("input", -place),),
            )
    return None


def splitting(scene: Scene) -> Verdict | None:
    """The parts add up to the whole."""
    given, sizes = scene["input"], scene.numbers("sizes")
    dim = first_of(scene.numbers("dim"), 0)
    if given is None or len(sizes) < 2 or not -len(given.shape) <= dim < len(given.shape):
        return None
    whole = given.shape[dim]
    if scene.function == "unflatten":
        if -1 in sizes or product(sizes) == whole:
            return None
        why = f"{'·'.join(map(str, sizes))} = {product(sizes)}"
    elif sum(sizes) != whole:
        why = f"{' + '.join(map(str, sizes))} = {sum(sizes)}"
    else:
        return None
    return Verdict(
        why=f"{why}, and dimension {dim} of {times(given.shape)} is {whole}",
        sizes=(("input", dim),),
    )


def permuting(scene: Scene) -> Verdict | None:
    """Each dimension is named once."""
    given, dims = scene["input"], scene.numbers("dims")
    if given is None or not dims or len(dims) == len(given.shape):
        return None
    return Verdict(
        why=f"permute names {len(dims)} dimensions, {_list(dims)}, "
        f"and {times(given.shape)} has {len(given.shape)}"
    )


_OUT_OF_RANGE = re.compile(r"Dimension out of range .*\[(-?\d+), (-?\d+)\], but got (-?\d+)")


def dimension(scene: Scene) -> Verdict | None:
    """A dimension that is named is there."""
    found = _OUT_OF_RANGE.search(scene.error)
    if found is None or not scene.given:
        return None
    low, high, asked = found.groups()
    shape = scene.given[0].shape
    return Verdict(
        why=f"{times(shape)} has {len(shape)} dimension{'s' * (len(shape) != 1)}, so "
        f"{scene.function} can name {low} to {high}, and dimension {asked} was asked for",
    )


def sums_of_products(scene: Scene) -> Verdict | None:
    """A letter of an einsum stands for one size."""
    equation = scene.settings.get("equation")
    tensors = scene.several("operands")
    if not isinstance(equation, str) or "." in equation:
        return None
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if len(terms) != len(tensors):
        return Verdict(
            why=f'"{equation}" speaks of {len(terms)} operands, and {len(tensors)} were given'
        )
    sizes: dict[str, tuple[Given, int]] = {}
    for term, given in zip(terms, tensors, strict=True):
        if len(term) != len(given.shape):
            return Verdict(
                why=f'"{term}" of "{equation}" stands for {len(term)} dimensions, '
                f"and its operand {times(given.shape)} has {len(given.shape)}"
            )
        for dim, letter in enumerate(term):
            first, place = sizes.setdefault(letter, (given, dim))
            if broadcast((first.shape[place],), (given.shape[dim],)) is None:
                return Verdict(
                    why=f'{letter} in "{equation}" is {first.shape[place]} in {first.name} '
                    f"{times(first.shape)} and {given.shape[dim]} in {given.name} "
                    f"{times(given.shape)}",
                    sizes=((first.name, place), (given.name, dim)),
                )
    return None


def _unsqueezed(shape: Shape, dim: int) -> Shape:
    return (*shape[:dim], 1, *shape[dim:])


def _from_the_end(place: int) -> str:
    return "the last dimension" if place == 1 else f"dimension -{place}"


def _list(sizes: Sequence[int]) -> str:
    return f"({', '.join(map(str, sizes))})"
