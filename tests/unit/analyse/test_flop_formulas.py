"""The formulas of kernels that a machine without the device cannot run."""

from __future__ import annotations

from typing import Any

import pytest

from torchglass.analyse.flop_formulas import formula_of, is_free

WEIGHTS = [(12, 3), (12, 4), (12,), (12,)]

KERNELS: dict[str, tuple[list[Any], Any, int]] = {
    "_cudnn_rnn": ([(7, 5, 3), WEIGHTS, 4, None, (1, 5, 4)], [], 2 * 35 * (36 + 48)),
    "_cudnn_rnn_backward": ([(7, 5, 3), WEIGHTS, 4, None], [], 4 * 35 * (36 + 48)),
    "cudnn_convolution": ([(2, 4, 5), (6, 4, 3)], (2, 6, 3), 2 * 36 * 12),
    "conv_tbc": ([(5, 2, 4), (3, 4, 6)], (3, 2, 6), 2 * 36 * 12),
    "_scaled_mm": ([(3, 4), (4, 5), (1,), (1,)], (3, 5), 120),
    "_scaled_grouped_mm": ([(2, 3, 4), (2, 4, 5)], (2, 3, 5), 240),
    "_scaled_dot_product_efficient_attention": (
        [(2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 6)],
        [(2, 3, 5, 6), ()],
        2 * 6 * 5 * 7 * (8 + 6),
    ),
    "_scaled_dot_product_cudnn_attention_backward": (
        [(2, 3, 5, 6), (2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 6)],
        [],
        2 * 6 * 5 * 7 * (3 * 8 + 2 * 6),
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_flops_of_a_kernel_follow_from_its_shapes(name: str) -> None:
    arguments, made, expected = KERNELS[name]
    formula = formula_of(name)

    assert formula is not None
    assert formula(*arguments, out_shape=made) == expected


def test_a_formula_is_found_for_any_spelling_of_an_op() -> None:
    assert formula_of("_int_mm") is formula_of("intmm") is not None
    assert formula_of("__matmul__") is formula_of("matmul") is not None
    assert formula_of("mul") is None


@pytest.mark.parametrize(
    "name",
    [
        *("native_layer_norm_backward", "_softmax", "max_pool2d_with_indices"),
        *("_to_copy", "embedding_dense_backward", "_foreach_add_", "_fused_adamw_", "cumsum"),
    ],
)
def test_ops_without_products_have_zero_flops(name: str) -> None:
    assert is_free(name)


@pytest.mark.parametrize(
    "name",
    [
        *("_fft_r2c", "linalg_qr", "_cdist_forward", "cholesky", "_foreach_mm", "quantized_lstm"),
        *("_efficient_attention_forward", "affine_grid_generator", "an_op_of_tomorrow"),
    ],
)
def test_an_unknown_op_is_not_assumed_to_be_free(name: str) -> None:
    assert not is_free(name)
