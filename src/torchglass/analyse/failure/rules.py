"""Which rule a failed op broke: a table from functions to rules."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from torchglass.analyse.failure import operand_rules, shape_rules, value_rules
from torchglass.analyse.failure.operands import BrokenRule, FailedOp, Rule, text
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
_MIXED_DTYPES = (
    *("embedding", "one_hot", "cross_entropy", "nll_loss", "gather", "scatter", "scatter_add"),
    *("index_select", "getitem", "setitem", "where"),
)


def find_broken_rule(failed: FailedOp) -> BrokenRule | None:
    """The broken rule; None if the facts prove none."""
    rules = [value_rules.device, *_PYTHON_RULES]
    # A sparse or nested tensor, or one of a subclass, has rules of its own.
    if all(tensor.is_plain for tensor in failed.tensors):
        rules += [*_RULES.get(failed.function, ()), shape_rules.dimension]
    if failed.function not in _MIXED_DTYPES:
        rules.append(value_rules.dtype)
    verdicts = (rule(failed) for rule in rules)
    return next((verdict for verdict in verdicts if verdict is not None), None)


_NO_ATTRIBUTE = re.compile(r"AttributeError: '(\w+)' object has no attribute '(\w+)'")


def _missing_attribute(failed: FailedOp) -> BrokenRule | None:
    """An attribute of a module must exist."""
    found = _NO_ATTRIBUTE.match(failed.error)
    if found is None or failed.layer is None or failed.layer.kind != found[1] or not failed.parts:
        return None
    near = difflib.get_close_matches(found[2], failed.parts, n=3, cutoff=0.5)
    return BrokenRule(
        why=f"{found[1]} has no module, parameter or buffer called {found[2]}; "
        f"it has {', '.join(failed.parts)}",
        fits=tuple(f"self.{name}, which is close to it" for name in near),
    )


_NO_TENSOR = re.compile(r"TypeError: (\w+)\(\): argument '(\w+)'.* must be Tensor, not (\w+)")


def _not_a_tensor(failed: FailedOp) -> BrokenRule | None:
    """The argument of a layer must be a tensor, not a container of tensors."""
    found = _NO_TENSOR.match(failed.error)
    if found is None:
        return None
    kind = "None" if found[3] == "NoneType" else f"a {found[3]}"
    weights = [slot.spec.shape for slot in failed.layer.slots[:1]] if failed.layer else []
    # A weight that is a matrix tells the size that the input must have.
    wanted = weights[0][1] if weights and weights[0] and len(weights[0]) == 2 else None
    fitting = [tensor for tensor in failed.tensors if tensor.shape[-1:] == (wanted,)]
    return BrokenRule(
        why=f"{found[1]} takes a tensor as its {found[2]}, and was given {kind}",
        fits=tuple(f"pass {tensor.name}, which is {text(tensor.shape)}" for tensor in fitting),
    )


_PYTHON_RULES: tuple[Rule, ...] = (_missing_attribute, _not_a_tensor)
