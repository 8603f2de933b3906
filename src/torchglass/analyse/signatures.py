"""Argument names of torch's functions, and the settings of a module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchglass.records.trace import OpRecord

REST = "*"
"""Ends a signature whose last argument may be variadic: `x.view(2, 3)` is `x.view((2, 3))`."""

BROADCASTING = (
    "add sub subtract mul multiply div divide true_divide truediv floor_divide floordiv remainder "
    "fmod mod pow maximum minimum max min fmax fmin atan2 eq ne lt le gt ge logical_and logical_or "
    "logical_xor bitwise_and bitwise_or bitwise_xor and or xor copysign hypot rsub"
)
LOSSES = "mse_loss l1_loss smooth_l1_loss huber_loss kl_div"
CELLS = "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell"

_SIGNATURES = {
    function: tuple(names.split())
    for functions, names in (
        ("linear", "input weight bias"),
        ("bilinear", "left right weight bias"),
        ("conv1d conv2d conv3d", "input weight bias stride padding dilation groups"),
        (
            "conv_transpose1d conv_transpose2d conv_transpose3d",
            "input weight bias stride padding output_padding groups dilation",
        ),
        ("max_pool1d max_pool2d max_pool3d", "input kernel_size stride padding dilation ceil_mode"),
        ("avg_pool1d avg_pool2d avg_pool3d", "input kernel_size stride padding ceil_mode"),
        ("matmul mm bmm mv dot", "left right"),
        ("addmm baddbmm", "input left right"),
        ("scaled_dot_product_attention", "query key value attn_mask"),
        ("lstm gru rnn_tanh rnn_relu", "input hidden"),
        (CELLS, "input hidden weight_ih weight_hh bias_ih bias_hh"),
        ("cat concat concatenate stack", "tensors dim"),
        ("hstack vstack dstack", "tensors"),
        (BROADCASTING, "left right"),
        ("where", "condition left right"),
        ("masked_fill", "input mask value"),
        ("addcmul addcdiv", "input tensor1 tensor2"),
        ("lerp", "start end weight"),
        ("dropout feature_dropout alpha_dropout", "input p training inplace"),
        ("softmax log_softmax sum mean amax amin argmax argmin var std prod", "input dim"),
        ("flatten", "input start_dim end_dim"),
        ("squeeze unsqueeze unbind", "input dim"),
        ("chunk", "input chunks dim"),
        ("clamp", "input min max"),
        ("view reshape expand", f"input shape {REST}"),
        ("permute", f"input dims {REST}"),
        ("transpose", "input dim0 dim1"),
        ("split split_with_sizes", "input sizes dim"),
        ("unflatten", "input dim sizes"),
        ("einsum", f"equation operands {REST}"),
        ("embedding", "indices weight"),
        ("one_hot", "indices num_classes"),
        ("gather", "input dim index"),
        ("scatter scatter_add", "input dim index src"),
        ("index_select", "input dim index"),
        ("getitem", "input index"),
        ("setitem", "input index value"),
        ("batch_norm instance_norm", "input running_mean running_var weight bias training"),
        ("layer_norm rms_norm", "input normalized_shape weight bias"),
        ("group_norm", "input num_groups weight bias"),
        ("cross_entropy nll_loss", "input target weight size_average ignore_index"),
        (f"{LOSSES} binary_cross_entropy binary_cross_entropy_with_logits", "input target"),
    )
    for function in functions.split()
}


def signature(function: str) -> Sequence[str]:
    """The argument names of a function in order, as far as known."""
    return _SIGNATURES.get(plain_name(function), ())


def plain_name(function: str) -> str:
    """A function's name without the underscores of operators and in-place ops."""
    bare = function.strip("_")
    in_place = function.startswith("__i") and bare[1:] in _SIGNATURES
    return bare[1:] if in_place else bare


def settings_text(op: OpRecord) -> str:
    """An op's arguments that are not tensors, as written in a call."""
    names = signature(op.function)
    return ", ".join(_setting(place, text, names) for place, text in op.settings)


def _setting(place: str, text: str, names: Sequence[str]) -> str:
    number = int(place) if place.isdecimal() else None
    if number is not None and (number >= len(names) or REST in names):
        return text
    return f"{argument_name(place, names)}={text}"


def argument_name(place: str, names: Sequence[str] = ()) -> str:
    """The name of an argument, or its number if the signature is not known."""
    head, *inner = place.split(".")
    if head.isdecimal():
        number = int(head)
        if names[-1:] == (REST,) and number >= len(names) - 2:
            return f"{names[-2]}[{'.'.join(inner) or number - len(names) + 2}]"
        unnamed = "input" if number == 0 else f"argument {number + 1}"
        head = names[number] if number < len(names) else unnamed
    return head + "".join(f"[{part}]" for part in inner)


def facts_of(extra: str) -> dict[str, str]:
    """The settings in a module's `extra_repr`, by name; unnamed ones are numbered.

    >>> facts_of("3, 64, kernel_size=(7, 7), bias=False")
    {'0': '3', '1': '64', 'kernel_size': '(7, 7)', 'bias': 'False'}
    """
    facts: dict[str, str] = {}
    for part in split_settings(extra.replace("\n", ",")):
        name, equals, value = part.partition("=")
        if equals and name.strip().isidentifier():
            facts[name.strip()] = value.strip()
        else:
            facts[str(len(facts))] = part
    return facts


def split_settings(extra: str) -> Iterator[str]:
    """The parts of a text between commas that are not in brackets."""
    part, depth = "", 0
    for char in extra:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth <= 0:
            if part.strip():
                yield part.strip()
            part = ""
        else:
            part += char
    if part.strip():
        yield part.strip()
