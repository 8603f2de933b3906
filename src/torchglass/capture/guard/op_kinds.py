"""What a function can be blamed for, by its name."""

from __future__ import annotations

import functools
from enum import Enum
from typing import Any


class Nature(Enum):
    """Where the numbers of a function's results come from."""

    COMPUTED = "it computes: what is not finite in them and was so in no input, it has made"
    MOVED = "they are numbers of its inputs, or bounded whatever those are: it makes no NaN"
    GIVEN = "the caller wrote them down: an Inf among them is meant, as in a mask"
    UNDEFINED = "they are what was in memory"


def _words(text: str) -> frozenset[str]:
    """The words of a text, but for the lines that begin with #."""
    lines = (line for line in text.splitlines() if not line.strip().startswith("#"))
    return frozenset(" ".join(lines).split())


_MOVED = _words(
    """
    # Views and copies.
    view view_as reshape reshape_as flatten unflatten ravel transpose t adjoint permute
    movedim moveaxis swapaxes swapdims squeeze unsqueeze expand expand_as broadcast_to
    broadcast_tensors split split_with_sizes tensor_split chunk unbind select narrow diagonal
    unfold unsafe_chunk unsafe_split __getitem__ index_select gather take take_along_dim
    embedding cat concat concatenate stack hstack vstack dstack column_stack repeat tile
    repeat_interleave roll flip fliplr flipud rot90 contiguous clone detach detach_ alias
    pixel_shuffle pixel_unshuffle channel_shuffle tril triu diag diagonal_scatter
    masked_select view_as_real view_as_complex real imag __get__ conj resolve_conj resolve_neg
    double cpu cuda
    # Choices among the inputs.
    max min amax amin aminmax maximum minimum fmax fmin sort topk kthvalue median mode cummax
    cummin max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices
    max_pool3d_with_indices adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
    # Bounded, or no further from zero than the input.
    relu relu_ relu6 hardtanh hardtanh_ sigmoid sigmoid_ tanh tanh_ hardsigmoid hardsigmoid_
    erf abs abs_ neg neg_ positive sign round floor ceil trunc nan_to_num nan_to_num_
    # Numbers that are finite by what they are.
    zeros zeros_like zero_ ones ones_like eye arange linspace rand rand_like randn randn_like
    randint randint_like randperm bernoulli bernoulli_ uniform_ normal_ multinomial one_hot
    new_zeros new_ones heaviside
    """
)
_GIVEN = _words(
    """
    full full_like new_full fill_ masked_fill masked_fill_ where __setitem__ index_fill
    index_fill_ scalar_tensor tensor as_tensor new_tensor asarray from_numpy pad
    constant_pad_nd threshold threshold_ clamp clamp_
    clamp_min clamp_max clip fill
    """
)
_UNDEFINED = _words(
    """
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided new resize_
    resize_as_ set_
    """
)


@functools.lru_cache(maxsize=4096)
def nature_of(function: Any) -> Nature:
    """What is known of a function of torch."""
    name = op_name(function)
    if name in _MOVED:
        return Nature.MOVED
    if name in _GIVEN:
        return Nature.GIVEN
    return Nature.UNDEFINED if name in _UNDEFINED else Nature.COMPUTED


@functools.lru_cache(maxsize=4096)
def op_name(function: Any) -> str:
    """torch's name of a function; of an overload "aten.sqrt.default" it is "sqrt"."""
    schema = getattr(function, "_schema", None)
    if schema is not None:
        return str(schema.name).rpartition("::")[2]
    name: str = getattr(function, "__name__", "") or type(function).__name__
    return name
