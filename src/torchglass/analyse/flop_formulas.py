"""The FLOPs of each op, computed from shapes alone.

A multiplication and the addition of its product count as two, as in `torch.utils.flop_counter`.
Only products are counted: an elementwise op or a softmax computes little in comparison.

A formula is called like its op, with the shape of each tensor instead of the tensor, and with
`out_shape`, the shape of the result or a list of shapes. The same formula is used for the function
that people call and for its kernel.

At the end are the kernels that have no products. Those that torch marks as elementwise or as views
need no entry there. The report names a kernel in neither list as not counted.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torchglass.records.trace import OpRecord

Shape = tuple[int, ...]
Formula = Callable[..., int | None]

_ENCODER_WEIGHTS = 12
"""The arguments of the fused encoder layer from the bias of its projection to its last weight."""


def formula_of(name: str) -> Formula | None:
    """The formula of an op by its name in torch: "conv2d", "_int_mm", "matmul_"."""
    return _FORMULAS.get(plain_name(name))


def plain_name(name: str) -> str:
    """The name that all spellings of an op have in common: "_int_mm" and "int_mm" are "intmm"."""
    return name.replace("_", "").lower()


def _matmul(left: Shape, right: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    """Each element of the result is a row by a column, whatever the batch dimensions are."""
    return 2 * math.prod(out_shape) * left[-1]


def _reflected_matmul(right: Shape, left: Shape, *, out_shape: Shape) -> int:
    return _matmul(left, right, out_shape=out_shape)


def _product(left: Shape, right: Shape, *_: Any, **__: Any) -> int:
    """Each (stored) element of the left is multiplied by a row of the right."""
    return 2 * math.prod(left) * right[-1]


def _vector_product(left: Shape, *_: Any, **__: Any) -> int:
    return 2 * math.prod(left)


def _added_product(bias: Shape, left: Shape, right: Shape, *_: Any, **__: Any) -> int:
    return _product(left, right)


def _added_vector_product(bias: Shape, left: Shape, *_: Any, **__: Any) -> int:
    return _vector_product(left)


def _grouped_product(left: Shape, right: Shape, *_: Any, **__: Any) -> int:
    """Each row of the left is multiplied by one group of the right; two stacks are a batch."""
    groups = left[0] if len(left) == len(right) == 3 else 1
    return 2 * groups * left[-2] * left[-1] * right[-1]


def _tensordot(left: Shape, right: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    """Every dimension is in two of the three shapes, so the product of all is the square root."""
    return 2 * math.isqrt(math.prod(left) * math.prod(right) * math.prod(out_shape))


def _linear(input: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    return 2 * math.prod(out_shape) * input[-1]


def _bilinear(
    input1: Shape, input2: Shape, weight: Shape, *_: Any, out_shape: Shape, **__: Any
) -> int:
    return 2 * math.prod(out_shape) * (input1[-1] + 1) * input2[-1]


def _trilinear(
    first: Shape,
    second: Shape,
    third: Shape,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
    **_: Any,
) -> int:
    """Multiplies the first two, sums what the third lacks, then multiplies by the third."""
    expanded = [set(expand1), set(expand2), set(expand3)]
    sizes: dict[int, int] = {}
    for shape, missing in zip((first, second, third), expanded, strict=True):
        count = len(shape) + len(missing)
        sizes.update(zip((dim for dim in range(count) if dim not in missing), shape, strict=True))
    pair = {dim for dim in sizes if dim not in expanded[0] & expanded[1]} | {unroll_dim}
    summed_early = {dim for dim in sumdim if dim in expanded[2]}
    rest = (pair - summed_early) | (sizes.keys() - expanded[2])
    return 2 * sum(math.prod(sizes[dim] for dim in dims) for dims in (pair, rest))


def _convolution(input: Shape, weight: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    """The weight is outputs × inputs per group × kernel: the products per element of the result."""
    return 2 * math.prod(out_shape) * math.prod(weight[1:])


def _transposed_convolution(input: Shape, weight: Shape, *_: Any, **__: Any) -> int:
    """The weight is inputs × outputs per group × kernel: the products per element of the input."""
    return 2 * math.prod(input) * math.prod(weight[1:])


def _any_convolution(
    input: Shape,
    weight: Shape,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    *_: Any,
    out_shape: Shape,
    **__: Any,
) -> int:
    if transposed:
        return _transposed_convolution(input, weight)
    return _convolution(input, weight, out_shape=out_shape)


def _convolution_backward(
    grad_output: Shape,
    input: Shape,
    weight: Shape,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
    **_: Any,
) -> int:
    """The gradients of input and weight each take as many products as the forward."""
    forward = (
        _transposed_convolution(input, weight)
        if transposed
        else _convolution(input, weight, out_shape=grad_output)
    )
    return forward * sum(map(bool, output_mask[:2]))


def _time_convolution(input: Shape, weight: Shape, *_: Any, out_shape: Shape, **__: Any) -> int:
    return 2 * math.prod(out_shape) * math.prod(weight[:2])


def _attention(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """Queries by keys, then the scores by values; a mask does not reduce the count."""
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _attention_backward(
    grad_out: Shape, query: Shape, key: Shape, value: Shape, *_: Any, **__: Any
) -> int:
    """The scores again, then the gradients of the values, scores, queries and keys."""
    return 2 * math.prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])


def _self_attention_layer(
    query: Shape,
    key: Shape,
    value: Shape,
    embed_dim: int,
    num_head: int,
    qkv_weight: Shape,
    qkv_bias: Any,
    proj_weight: Shape,
    *_: Any,
    **__: Any,
) -> int:
    """torch's fused attention: three projections in, attention, one projection out."""
    width = proj_weight[0]
    flops = 0
    for asking, asked in zip(_sequences(query), _sequences(key), strict=True):
        projections = 2 * (math.prod(asking[:-1]) + math.prod(asked[:-1])) * width * width
        flops += 2 * projections + _attention(asking, asked, asked)
    return flops


def _encoder_layer(
    src: Shape,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Shape,
    qkv_bias: Any,
    proj_weight: Shape,
    *rest: Any,
    **_: Any,
) -> int:
    """torch's fused encoder layer: attention and two linear layers."""
    attention = _self_attention_layer(
        src, src, src, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight
    )
    # After the weights comes a mask, which may have two dimensions like them.
    linears = sum(math.prod(weight) for weight in _matrices(rest[:_ENCODER_WEIGHTS]))
    return attention + 2 * linears * sum(math.prod(part[:-1]) for part in _sequences(src))


def _recurrent(input: Shape, *rest: Any, **__: Any) -> int:
    """Each weight matrix once for each step of each sequence; the weights are the last list."""
    lists = [argument for argument in rest if _is_list_of_shapes(argument)]
    return 2 * math.prod(input[:-1]) * sum(map(math.prod, _matrices(lists[-1])))


def _recurrent_backward(input: Shape, *rest: Any, **__: Any) -> int:
    return 2 * _recurrent(input, *rest)


def _recurrent_cell(input: Shape, hx: Any, w_ih: Shape, w_hh: Shape, *_: Any, **__: Any) -> int:
    return 2 * math.prod(input[:-1]) * (math.prod(w_ih) + math.prod(w_hh))


def _recurrent_layer(input: Shape, weight0: Shape, weight1: Shape, *_: Any, **__: Any) -> int:
    return _recurrent_cell(input, None, weight0, weight1)


def _recurrent_layer_backward(
    input: Shape, weight1: Shape, weight2: Shape, *_: Any, **__: Any
) -> int:
    """All gradients, even if that of the input is not needed."""
    return 2 * _recurrent_cell(input, None, weight1, weight2)


def _einsum(equation: Any, *operands: Any, out_shape: Shape) -> int | None:
    """Two operands: one product per combination of the letters that are kept or shared.

    Letters that only one operand has are summed first; without a shared sum there are no additions.
    With more operands the count depends on their order, which is not known here.
    """
    shapes = operands[0] if len(operands) == 1 and _is_list_of_shapes(operands[0]) else operands
    if not isinstance(equation, str) or len(shapes) > 2:
        return None
    if len(shapes) == 1:
        return 0
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    names = [list(_dimensions(*pair)) for pair in zip(inputs.split(","), shapes, strict=True)]
    sizes: dict[str, int] = {}
    for named in names:
        for letter, size in named:
            sizes[letter] = max(size, sizes.get(letter, 1))
    left, right = ({letter for letter, _ in named} for named in names)
    every = [letter for named in names for letter, _ in named]
    dots = {letter for letter in sizes if letter.startswith(".")}
    kept = dots | set(result) if arrow else {one for one in every if every.count(one) == 1} | dots
    if not (left & right) - kept:
        return 0
    return 2 * math.prod(sizes[letter] for letter in sizes if letter in kept | (left & right))


def _dimensions(letters: str, shape: Shape) -> Iterator[tuple[str, int]]:
    """The letters of an operand with their sizes; an ellipsis is numbered from the end."""
    before, dots, after = letters.partition("...")
    hidden = len(shape) - len(before) - len(after)
    middle = [f".{hidden - place}" for place in range(hidden)] if dots else []
    return zip([*before, *middle, *after], shape, strict=True)


def _sequences(shape: Any) -> Sequence[Shape]:
    """The parts of a batch: those of a nested tensor differ in length."""
    return shape if _is_list_of_shapes(shape) else [shape]


def _matrices(arguments: Sequence[Any]) -> list[Shape]:
    return [shape for shape in arguments if isinstance(shape, tuple) and len(shape) == 2]


def _is_list_of_shapes(argument: Any) -> bool:
    return (
        isinstance(argument, (list, tuple))
        and bool(argument)
        and all(isinstance(part, tuple) for part in argument)
    )


def _table(entries: Mapping[str, Formula]) -> dict[str, Formula]:
    return {
        plain_name(name): formula for names, formula in entries.items() for name in names.split()
    }


_FORMULAS = _table(
    {
        "matmul __matmul__ inner": _matmul,
        "__rmatmul__": _reflected_matmul,
        "mm bmm _int_mm _scaled_mm _scaled_mm_v2 _sparse_mm hspmm": _product,
        "mv dot vdot": _vector_product,
        "addmm baddbmm addbmm _addmm_activation sspaddmm _sparse_addmm": _added_product,
        "addmv": _added_vector_product,
        "_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2": _grouped_product,
        "tensordot": _tensordot,
        "linear linear_dynamic linear_relu linear_relu_dynamic linear_dynamic_fp16": _linear,
        "mkldnn_linear _weight_int8pack_mm _weight_int4pack_mm _linear_pointwise": _linear,
        "_weight_int4pack_mm_for_cpu _mixed_dtypes_linear": _linear,
        "bilinear": _bilinear,
        "_trilinear": _trilinear,
        "conv1d conv2d conv3d conv1d_relu conv2d_relu conv3d_relu": _convolution,
        "cudnn_convolution cudnn_convolution_relu mkldnn_convolution": _convolution,
        "miopen_convolution _conv_depthwise2d conv_depthwise3d slow_conv3d_forward": _convolution,
        "_slow_conv2d_forward slow_conv_dilated2d slow_conv_dilated3d": _convolution,
        "cudnn_convolution_add_relu miopen_convolution_relu": _convolution,
        "miopen_convolution_add_relu": _convolution,
        "miopen_depthwise_convolution _mps_convolution _convolution_pointwise": _convolution,
        "conv_transpose1d conv_transpose2d conv_transpose3d": _transposed_convolution,
        "cudnn_convolution_transpose miopen_convolution_transpose": _transposed_convolution,
        "slow_conv_transpose2d slow_conv_transpose3d": _transposed_convolution,
        "convolution _convolution convolution_overrideable": _any_convolution,
        "convolution_backward convolution_backward_overrideable": _convolution_backward,
        "conv_tbc": _time_convolution,
        "scaled_dot_product_attention _scaled_dot_product_flash_attention": _attention,
        "_scaled_dot_product_flash_attention_for_cpu": _attention,
        "_scaled_dot_product_efficient_attention": _attention,
        "_scaled_dot_product_cudnn_attention": _attention,
        "_scaled_dot_product_fused_attention_overrideable": _attention,
        "_scaled_dot_product_attention_math_for_mps": _attention,
        "_scaled_dot_product_flash_attention_backward": _attention_backward,
        "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
        "_scaled_dot_product_efficient_attention_backward": _attention_backward,
        "_scaled_dot_product_cudnn_attention_backward": _attention_backward,
        "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
        "_native_multi_head_attention": _self_attention_layer,
        "_transformer_encoder_layer_fwd": _encoder_layer,
        "lstm gru rnn_tanh rnn_relu _cudnn_rnn miopen_rnn": _recurrent,
        "_cudnn_rnn_backward miopen_rnn_backward": _recurrent_backward,
        "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell": _recurrent_cell,
        "mkldnn_rnn_layer": _recurrent_layer,
        "mkldnn_rnn_layer_backward": _recurrent_layer_backward,
        "einsum": _einsum,
    }
)


def flops_of_op(op: OpRecord) -> int | None:
    """The FLOPs of an op; 0 for one without products, None if they are not known."""
    formula = formula_of(op.type) if op.kind == "op" else None
    if formula is None:
        return 0
    positional, named = _arguments(op)
    made = [value.spec.shape or () for value in op.outputs]
    try:
        return formula(*positional, **named, out_shape=made[0] if len(made) == 1 else made)
    except (IndexError, TypeError, ValueError):
        # A record has the arguments of the call, without defaults that the formula may need.
        return None


def _arguments(op: OpRecord) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of the call, with shapes in place of the tensors."""
    found: dict[str, Any] = {}
    for operand in op.operands:
        _put(found, operand.place.split("."), operand.spec.shape or ())
    for place, text in op.settings:
        _put(found, place.split("."), _value(text))
    positional = [name for name in found if name.isdigit()]
    last = max(map(int, positional), default=-1)
    named = {name: _listed(value) for name, value in found.items() if not name.isdigit()}
    return [_listed(found.get(str(place))) for place in range(last + 1)], named


def _put(found: dict[str, Any], parts: list[str], value: Any) -> None:
    """Put an argument at its position, inside nested lists if it was in some."""
    *outer, name = parts
    for part in outer:
        inner = found.setdefault(part, {})
        if not isinstance(inner, dict):
            return
        found = inner
    found.setdefault(name, value)


def _listed(value: Any) -> Any:
    return [_listed(part) for part in value.values()] if isinstance(value, Mapping) else value


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


@functools.lru_cache(maxsize=4096)
def is_free(name: str) -> bool:
    """Whether a kernel has no products, by its name: "native_layer_norm_backward" has none."""
    bare = name.strip("_")
    for pattern in _VARIANTS:
        bare = re.sub(pattern, "", bare).strip("_")
    return bare in _FREE or _FREE_FAMILIES.fullmatch(bare) is not None


_VARIANTS = (
    r"^(native|cudnn|miopen|fused|thnn_fused|unsafe|amp)_",
    r"(_(backward|double_backward|backward_data|forward|jvp|copy|helper|impl))+$",
    r"(_(legit|functional))+$",
)

_FREE_FAMILIES = re.compile(
    r"""
      (mkldnn_)?(adaptive_|fractional_|quantized_)?(avg|max)_(un)?pool\w*
    | (batch|group|instance|layer|rms|quantized_batch)_norm\w*
    | (upsample|grid_sampler|embedding|index|scatter|unique|histogram|philox|nested|resize)\w*
    | (new|empty|full|ones|zeros|rand|normal|uniform)\w*
    | (reflection|replication|constant)_pad\w*
    | (fake_)?quantize_\w+
    | (to|q|functional|convert|foreach(?!_mm)|record_function|pixel)_\w+
    | (sparse_)?(coo|csr|compressed)_\w+
    | (adam|adamw|sgd|adagrad|moving_avg_obs)\w*
    | (view|select|slice|(un)?squeeze|unfold|diagonal|split|unbind|expand|permute)\w*
    | (mkldnn_)?(transpose|reshape|reorder)\w*
    | \w+_(window|loss|loss2d|like|indices|sparse_to_sparse)
    """,
    re.VERBOSE,
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FREE = _words(
    """
    add_relu addr abs copysign eq floor_divide gcd ge gt heaviside irshift lcm le lt ne rsub xlogy
    elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu log_sigmoid mish prelu_kernel
    rrelu_with_noise softplus softshrink threshold
    softmax log_softmax masked_softmax safe_softmax dropout masked_scale fill_mem_eff_dropout_mask
    binary_cross_entropy binary_cross_entropy_with_logits

    all amax amin aminmax any argmax argmin count_nonzero cummax cummin cumprod cumsum dist
    linalg_vector_norm linalg__powsum logcumsumexp logsumexp max mean median min mode nanmedian
    nansum norm prod renorm segment_reduce std std_mean sum trace var var_mean weight_norm_interface
    bincount bucketize hash_tensor histc isin kthvalue nonzero nonzero_static searchsorted sort topk
    linalg_cross lu_unpack

    alias as_strided detach lift lift_fresh narrow t values coalesce coalesced
    block_diag cat channel_shuffle chunk_cat clone col2im conj copy copy_from copy_from_and_resize
    diag_embed flip gather im2col lazy_clone masked_fill masked_index masked_index_put_accumulate
    masked_scatter masked_select neg_view pack_padded_sequence padded_dense_to_jagged
    jagged_to_padded_dense put repeat repeat_interleave roll rot90 stack take tril triu
    sparse_broadcast_to sparse_log_softmax sparse_mask sparse_mask_projection sparse_resize
    sparse_resize_and_clear sparse_softmax sparse_sum spdiags to foreach indices as_strided_scatter

    arange complex efficientzerotensor eye fill from_file linspace logspace make_dep_token polar
    range scalar_tensor set zero fft_fftfreq fft_rfftfreq
    bernoulli binomial cauchy dirichlet_grad exponential geometric log_normal multinomial poisson
    random sample_dirichlet standard_gamma standard_gamma_grad init_dropout_state

    dequantize int_repr make_per_channel_quantized_tensor make_per_tensor_quantized_tensor
    cslt_compress dyn_quant_pack_4bit_weight rnn_flatten_weight transform_bias_rescale_qkv
    lstm_cell gru_cell
    fw_primal make_dual is_all_true is_any_true pin_memory update_scale
    assert_async assert_tensor_metadata assert_scalar
    """
)
