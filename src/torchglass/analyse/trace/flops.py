"""How much an op computes: its floating-point operations, read off the shapes of a record.

A multiplication and the addition of its product count as two, as in `torch.utils.flop_counter`.
Only products are counted: what an elementwise op or a softmax computes is small beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from torchglass.records.trace import Op

Shape = tuple[int, ...]
Formula = Callable[[Op], int | None]


def flops(op: Op) -> int | None:
    """The operations of an op; 0 for one without products, None where they cannot be told."""
    if op.kind != "op" or op.type not in _FORMULAS:
        return 0
    try:
        return _FORMULAS[op.type](op)
    except (IndexError, ValueError):
        return None


def _product(op: Op) -> int:
    """Of matrices, with any batch dimensions: each element of the result is a row by a column."""
    left = _shapes(op)[0]
    return 2 * math.prod(_made(op)) * left[-1]


def _added_product(op: Op) -> int:
    """The same for `addmm(bias, left, right)`."""
    return 2 * math.prod(_made(op)) * _shapes(op)[1][-1]


def _linear(op: Op) -> int:
    return 2 * math.prod(_made(op)) * _shapes(op)[0][-1]


def _bilinear(op: Op) -> int:
    left, right = _shapes(op)[:2]
    return 2 * math.prod(_made(op)) * (left[-1] + 1) * right[-1]


def _convolution(op: Op) -> int:
    """The weight is outputs × inputs of a group × kernel: what each element of the result takes."""
    weight = _shapes(op)[1]
    return 2 * math.prod(_made(op)) * math.prod(weight[1:])


def _transposed_convolution(op: Op) -> int:
    """The weight is inputs × outputs of a group × kernel: what each element of the input gives."""
    given, weight = _shapes(op)[:2]
    return 2 * math.prod(given) * math.prod(weight[1:])


def _attention(op: Op) -> int:
    """Queries by keys, and what comes of it by values."""
    query, key, value = _shapes(op)[:3]
    heads = math.prod(query[:-2])
    return 2 * heads * query[-2] * key[-2] * (query[-1] + value[-1])


def _recurrent(op: Op) -> int:
    """Each weight matrix once for each step of each sequence."""
    given = _shapes(op)[0]
    weights = [shape for shape in _parameter_shapes(op) if len(shape) == 2]
    return 2 * math.prod(given[:-1]) * sum(map(math.prod, weights))


def _encoder_layer(op: Op) -> int:
    """torch's fused encoder layer: four projections, attention, and two linear layers."""
    batch, length, width = _shapes(op)[0]
    weights = [shape for shape in _parameter_shapes(op) if len(shape) == 2]
    attention = 2 * batch * length * length * 2 * width
    return 2 * batch * length * sum(map(math.prod, weights)) + attention


def _einsum(op: Op) -> int | None:
    """One product for each way to choose all the letters."""
    equation = dict(op.settings).get("0", "").strip("'\"").replace(" ", "")
    inputs = equation.partition("->")[0].split(",")
    shapes = _shapes(op)
    if "." in equation or len(inputs) != len(shapes) or len(inputs) < 2:
        return 0 if len(inputs) == 1 else None
    sizes: dict[str, int] = {}
    for letters, shape in zip(inputs, shapes, strict=True):
        sizes.update(zip(letters, shape, strict=True))
    return 2 * math.prod(sizes.values())


def _shapes(op: Op) -> Sequence[Shape]:
    return [operand.spec.shape or () for operand in op.operands]


def _parameter_shapes(op: Op) -> Sequence[Shape]:
    return [operand.spec.shape or () for operand in op.operands if operand.parameter]


def _made(op: Op) -> Shape:
    return op.outputs[0].spec.shape or ()


_FORMULAS: Mapping[str, Formula] = {
    **dict.fromkeys(("matmul", "rmatmul", "mm", "bmm", "mv", "dot", "inner", "vdot"), _product),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "addmv"), _added_product),
    **dict.fromkeys(("linear", "lineardynamic"), _linear),
    "bilinear": _bilinear,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), _convolution),
    **dict.fromkeys(
        ("convtranspose1d", "convtranspose2d", "convtranspose3d"), _transposed_convolution
    ),
    "scaleddotproductattention": _attention,
    **dict.fromkeys(("lstm", "gru", "rnntanh", "rnnrelu"), _recurrent),
    **dict.fromkeys(("lstmcell", "grucell", "rnntanhcell", "rnnrelucell"), _recurrent),
    "transformerencoderlayerfwd": _encoder_layer,
    "einsum": _einsum,
}
