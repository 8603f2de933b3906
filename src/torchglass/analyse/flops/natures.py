"""Which kernels take no products, so that nothing is missing where they count as zero.

Those that torch itself marks as elementwise or as views need no name here. A kernel that is named
nowhere is not taken for free: it is better to say that it was not counted.
"""

from __future__ import annotations

import functools
import re


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
