"""Which rule a failed op broke: a table from functions to rules."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from torchglass.analyse.failure import operand_rules, shape_rules, value_rules
from torchglass.analyse.failure.operands import Rule, Scene, Verdict, times
from torchglass.analyse.signatures import BROADCASTING, CELLS, LOSSES

_TABLE: tuple[tuple[str, tuple[Rule, ...]], ...] = (
    ("linear", (value_rules.dtype, operand_rules.linear)),
    ("conv1d conv2d conv3d", (operand_rules.convolution,)),
    ("conv_transpose1d conv_transpose2d conv_transpose3d", (operand_rules.convolution,)),
    ("max_pool1d max_pool2d max_pool3d", (operand_rules.pooling,)),
    ("avg_pool1d avg_pool2d avg_pool3d", (operand_rules.pooling,)),
    ("matmul mm bmm addmm baddbmm mv dot", (value_rules.dtype, operand_rules.matrices)),
    ("scaled_dot_product_attention", (operand_rules.attention,)),
    (CELLS, (operand_rules.cell,)),
    ("cat concat concatenate stack", (shape_rules.joining,)),
    (f"{BROADCASTING} where masked_fill {LOSSES}", (shape_rules.broadcasting,)),
    ("binary_cross_entropy", (shape_rules.same_shape, value_rules.probabilities)),
    ("binary_cross_entropy_with_logits", (shape_rules.same_shape,)),
    ("view reshape", (shape_rules.reshaping,)),
    ("expand", (shape_rules.stretching,)),
    ("split split_with_sizes unflatten", (shape_rules.splitting,)),
    ("permute", (shape_rules.permuting,)),
    ("einsum", (shape_rules.sums_of_products,)),
    ("batch_norm instance_norm", (operand_rules.batch_norm,)),
    ("layer_norm rms_norm", (operand_rules.layer_norm,)),
    ("group_norm", (operand_rules.group_norm,)),
    ("BatchNorm1d BatchNorm2d BatchNorm3d", (operand_rules.norm_module,)),
    ("LSTM GRU RNN", (operand_rules.recurrent_module,)),
    ("MultiheadAttention", (operand_rules.attention_module,)),
    ("embedding", (value_rules.embedding,)),
    ("one_hot", (value_rules.one_hot,)),
    ("cross_entropy nll_loss", (value_rules.classes,)),
    ("gather scatter scatter_add index_select", (value_rules.along_dimension,)),
    ("getitem setitem", (value_rules.indexing,)),
)
_RULES: Mapping[str, tuple[Rule, ...]] = {
    function: rules for functions, rules in _TABLE for function in functions.split()
}
_OF_SEVERAL_DTYPES = (
    *("embedding", "one_hot", "cross_entropy", "nll_loss", "gather", "scatter", "scatter_add"),
    *("index_select", "getitem", "setitem", "where"),
)


def judge(scene: Scene) -> Verdict | None:
    """The rule that was broken; None where it is not one that can be proven from the facts."""
    rules = [value_rules.device, *_OF_PYTHON]
    # A sparse or nested tensor, or one of a subclass, has rules of its own.
    if all(given.is_plain for given in scene.given):
        rules += [*_RULES.get(scene.function, ()), shape_rules.dimension]
    if scene.function not in _OF_SEVERAL_DTYPES:
        rules.append(value_rules.dtype)
    verdicts = (rule(scene) for rule in rules)
    return next((verdict for verdict in verdicts if verdict is not None), None)


_NO_ATTRIBUTE = re.compile(r"AttributeError: '(\w+)' object has no attribute '(\w+)'")


def _missing_attribute(scene: Scene) -> Verdict | None:
    """A module that is asked for is there."""
    found = _NO_ATTRIBUTE.match(scene.error)
    if found is None or scene.layer is None or scene.layer.kind != found[1] or not scene.parts:
        return None
    near = difflib.get_close_matches(found[2], scene.parts, n=3, cutoff=0.5)
    return Verdict(
        why=f"{found[1]} has no module, parameter or buffer called {found[2]}; "
        f"it has {', '.join(scene.parts)}",
        fits=tuple(f"self.{name}, which is close to it" for name in near),
    )


_NO_TENSOR = re.compile(r"TypeError: (\w+)\(\): argument '(\w+)'.* must be Tensor, not (\w+)")


def _no_tensor(scene: Scene) -> Verdict | None:
    """What a layer is given is a tensor, and not what holds some."""
    found = _NO_TENSOR.match(scene.error)
    if found is None:
        return None
    kind = "None" if found[3] == "NoneType" else f"a {found[3]}"
    weights = [slot.spec.shape for slot in scene.layer.slots[:1]] if scene.layer else []
    # Of a layer whose weight is a matrix it is known what would fit.
    wanted = weights[0][1] if weights and weights[0] and len(weights[0]) == 2 else None
    fitting = [given for given in scene.given if given.shape[-1:] == (wanted,)]
    return Verdict(
        why=f"{found[1]} takes a tensor as its {found[2]}, and was given {kind}",
        fits=tuple(f"pass {given.name}, which is {times(given.shape)}" for given in fitting),
    )


_OF_PYTHON: tuple[Rule, ...] = (_missing_attribute, _no_tensor)
