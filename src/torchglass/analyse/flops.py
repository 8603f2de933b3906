"""FLOPs per module and per op, added up from the ops that were counted; and which ops are free.

A module's total includes inner calls. What checkpointing recomputes counts as backward.

Kernels that torch marks as elementwise or as views need no entry in the list of free kernels. The
report names a kernel in no list as not counted.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torchglass.records.measures import CallPath, FlopRecord, FlopStatus, OpFlopRecord
from torchglass.records.model import paths_above


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """FLOPs and bytes of one direction, without and with inner calls."""

    self_flops: int = 0
    total_flops: int = 0
    self_bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFlops:
    """What all calls of one op computed."""

    op: str
    """torch's name with its namespace: "aten.addmm"."""
    nature: FlopStatus
    calls: int
    forward_flops: int = 0
    backward_flops: int = 0
    bytes: int = 0
    time_ns: int | None = None
    """None if ops were not timed."""

    @property
    def total_flops(self) -> int:
        """Forward and backward together."""
        return self.forward_flops + self.backward_flops

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte read and written."""
        return self.total_flops / self.bytes if self.bytes else None

    @property
    def flops_per_second(self) -> float | None:
        """Its speed; None if it was not timed."""
        return 1e9 * self.total_flops / self.time_ns if self.time_ns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFlops:
    """What one module computes."""

    path: str | None
    """None for what ran outside of all modules, such as a loss."""
    calls: int = 0
    forward: Amount = field(default_factory=Amount)
    backward: Amount = field(default_factory=Amount)
    recomputed_flops: int = 0
    """The part of its backward that checkpointing recomputed, inner calls included."""
    uncounted_calls: int = 0
    """Calls of ops without a formula, inner calls included."""
    ops: tuple[OpFlops, ...] = ()
    """Its own, without those of inner calls; the largest first."""

    @property
    def self_flops(self) -> int:
        """Both directions, without inner calls."""
        return self.forward.self_flops + self.backward.self_flops

    @property
    def total_flops(self) -> int:
        """Both directions, inner calls included."""
        return self.forward.total_flops + self.backward.total_flops

    @property
    def total_bytes(self) -> int:
        """What all its ops read and write."""
        return self.forward.total_bytes + self.backward.total_bytes

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte read and written."""
        return self.total_flops / self.total_bytes if self.total_bytes else None


class FlopSums(NamedTuple):
    """The FLOPs of a step for each module and each op."""

    modules: Mapping[str, ModuleFlops]
    """All modules that were called and their containers, by path; the model itself is ""."""
    unattributed: ModuleFlops
    ops: tuple[OpFlops, ...]
    """Over the whole model, the largest first."""


def add_up(work: FlopRecord) -> FlopSums:
    """The FLOPs of a step, added up for each module and each op."""
    own: dict[int | None, list[OpFlopRecord]] = defaultdict(list)
    for op in work.ops:
        own[op.place].append(op)
    calls: dict[str, int] = {"": 0}
    for place in work.places:
        calls[place.path] = calls.get(place.path, 0) + place.calls
    selves: dict[str, list[OpFlopRecord]] = defaultdict(list)
    totals: dict[str, list[OpFlopRecord]] = defaultdict(list)
    for index, place in enumerate(work.places):
        selves[place.path] += own[index]
        for path in _holders(work.places, index, calls):
            totals[path] += own[index]
    return FlopSums(
        modules={
            path: _module(path, calls.get(path, 0), selves[path], totals[path])
            for path in dict.fromkeys([*calls, *totals])
        },
        unattributed=_module(None, 0, own[None], own[None]),
        ops=_ops(work.ops),
    )


def _holders(places: tuple[CallPath, ...], index: int, called: Mapping[str, int]) -> Iterable[str]:
    """The paths whose totals include what runs at a call path, each once."""
    found = [""]
    place: int | None = index
    while place is not None:
        path = places[place].path
        # A container that is never called, such as a ModuleList, adds up its modules.
        found += [path, *(above for above in paths_above(path) if above not in called)]
        place = places[place].parent
    return dict.fromkeys(found)


def _module(
    path: str | None, calls: int, selves: list[OpFlopRecord], totals: list[OpFlopRecord]
) -> ModuleFlops:
    return ModuleFlops(
        path=path,
        calls=calls,
        forward=_amount(selves, totals, backward=False),
        backward=_amount(selves, totals, backward=True),
        recomputed_flops=sum(op.flops for op in totals if op.stage == "recompute"),
        uncounted_calls=sum(op.calls for op in totals if op.nature == "uncounted"),
        ops=_ops(selves),
    )


def _amount(selves: list[OpFlopRecord], totals: list[OpFlopRecord], *, backward: bool) -> Amount:
    own = [op for op in selves if (op.stage != "forward") == backward]
    every = [op for op in totals if (op.stage != "forward") == backward]
    return Amount(
        self_flops=sum(op.flops for op in own),
        total_flops=sum(op.flops for op in every),
        self_bytes=sum(op.bytes for op in own),
        total_bytes=sum(op.bytes for op in every),
    )


def _ops(work: Iterable[OpFlopRecord]) -> tuple[OpFlops, ...]:
    groups: dict[tuple[str, FlopStatus], list[OpFlopRecord]] = defaultdict(list)
    for op in work:
        groups[op.op, op.nature].append(op)
    found = [
        OpFlops(
            op=name,
            nature=nature,
            calls=sum(op.calls for op in group),
            forward_flops=sum(op.flops for op in group if op.stage == "forward"),
            backward_flops=sum(op.flops for op in group if op.stage != "forward"),
            bytes=sum(op.bytes for op in group),
            time_ns=_time(group),
        )
        for (name, nature), group in groups.items()
    ]
    return tuple(sorted(found, key=lambda op: (-op.total_flops, -op.bytes)))


def _time(group: Iterable[OpFlopRecord]) -> int | None:
    times = [op.time_ns for op in group if op.time_ns is not None]
    return sum(times) if times else None


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
