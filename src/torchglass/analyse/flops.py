"""FLOPs per module and per op, added up from the ops that were counted.

A module's total is the work of all that it called. What a checkpoint runs again counts as backward,
where it happens; how much that is stands beside it.

Those that torch itself marks as elementwise or as views need no name here. A kernel that is named
nowhere is not taken for free: it is better to say that it was not counted.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from torchglass.analyse.latency import Latency, ModuleTime, latency
from torchglass.analyse.module_rows import ModuleRow, Sort, check_order, paths_of, ranked, tree
from torchglass.records.measures import CallPath, FlopRecord, FlopStatus, OpFlopRecord
from torchglass.records.model import Model
from torchglass.records.timing import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much was computed in one direction, without and with what was called inside."""

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
    """None where ops were not timed."""

    @property
    def total_flops(self) -> int:
        """Forward and backward together."""
        return self.forward_flops + self.backward_flops

    @property
    def intensity(self) -> float | None:
        """Operations for each byte that it moves."""
        return self.total_flops / self.bytes if self.bytes else None

    @property
    def flops_per_second(self) -> float | None:
        """How fast it went; None where it was not timed."""
        return 1e9 * self.total_flops / self.time_ns if self.time_ns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFlops:
    """What one module computes."""

    path: str | None
    """None for what ran outside of all modules, as a loss does."""
    calls: int = 0
    forward: Amount = field(default_factory=Amount)
    backward: Amount = field(default_factory=Amount)
    recomputed_flops: int = 0
    """What of its backward a checkpoint ran again, all inside included."""
    uncounted_calls: int = 0
    """How many ops in it, all inside included, have no formula."""
    ops: tuple[OpFlops, ...] = ()
    """Its own, without those of what it called; the largest first."""

    @property
    def self_flops(self) -> int:
        """Both directions, without what it called."""
        return self.forward.self_flops + self.backward.self_flops

    @property
    def total_flops(self) -> int:
        """Both directions, with all that it called."""
        return self.forward.total_flops + self.backward.total_flops

    @property
    def total_bytes(self) -> int:
        """What all its ops read and write."""
        return self.forward.total_bytes + self.backward.total_bytes

    @property
    def intensity(self) -> float | None:
        """Operations for each byte that is moved in it."""
        return self.total_flops / self.total_bytes if self.total_bytes else None


class Sums(NamedTuple):
    """The work of a step for each module and each op."""

    modules: Mapping[str, ModuleFlops]
    """All that were called, by path, and the containers of such; the model itself is ""."""
    unattributed: ModuleFlops
    ops: tuple[OpFlops, ...]
    """Over the whole model, the largest first."""


def add_up(work: FlopRecord) -> Sums:
    """The work of a step, added up for each module and each op."""
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
    return Sums(
        modules={
            path: _module(path, calls.get(path, 0), selves[path], totals[path])
            for path in dict.fromkeys([*calls, *totals])
        },
        unattributed=_module(None, 0, own[None], own[None]),
        ops=_ops(work.ops),
    )


def _holders(places: tuple[CallPath, ...], index: int, called: Mapping[str, int]) -> Iterable[str]:
    """The paths whose totals have a part in what runs in a place, each once."""
    found: dict[str, None] = {"": None}
    place: int | None = index
    while place is not None:
        path = places[place].path
        found[path] = None
        above = path.rpartition(".")[0]
        while above:
            # A container that nobody calls, as a ModuleList, has what its modules have.
            if above not in called:
                found[above] = None
            above = above.rpartition(".")[0]
        place = places[place].parent
    return found


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


class FlopReport:
    """What each module and op of a model computes in one step.

    A multiplication and the addition of its product are two operations, and one MAC. Matrix
    products, convolutions and attention are counted, and all that is made of them. What an
    elementwise op, a norm, a softmax or a pooling computes is not.
    """

    def __init__(self, model: Model, work: FlopRecord, timing: Timing | None = None) -> None:
        self.model = model
        self.work = work
        self.timing = timing

    @cached_property
    def _sums(self) -> Sums:
        return add_up(self.work)

    @cached_property
    def latency(self) -> Latency | None:
        """What each module took; None where it was not timed."""
        return None if self.timing is None else latency(self.timing)

    @property
    def rows(self) -> Mapping[str, ModuleFlops]:
        """What each module that ran computes, by its path; the model itself is ""."""
        return self._sums.modules

    @property
    def root(self) -> ModuleFlops:
        """What the whole model computes."""
        return self.rows[""]

    @property
    def unattributed(self) -> ModuleFlops:
        """What ran outside of all modules, as a loss does."""
        return self._sums.unattributed

    @property
    def ops(self) -> tuple[OpFlops, ...]:
        """What each op computes over the whole model, the largest first."""
        return self._sums.ops

    @property
    def free(self) -> tuple[OpFlops, ...]:
        """The ops that have no products, and so count as nothing."""
        return tuple(op for op in self.ops if op.nature == "free")

    @property
    def uncounted(self) -> tuple[OpFlops, ...]:
        """The ops that compute something and have no formula, those that take most first."""
        found = (op for op in self.ops if op.nature == "uncounted")
        return tuple(sorted(found, key=lambda op: (-(op.time_ns or 0), -op.calls)))

    @property
    def is_lower_bound(self) -> bool:
        """Whether some ops have no formula, so that there is more than was counted."""
        return bool(self.uncounted)

    @property
    def total_flops(self) -> int:
        """All that the step computes."""
        return self.forward_flops + self.backward_flops

    @property
    def total_macs(self) -> int:
        """The same in multiplications, each with its addition."""
        return self.total_flops // 2

    @property
    def forward_flops(self) -> int:
        """What the forward and the loss compute."""
        return self.root.forward.total_flops + self.unattributed.forward.total_flops

    @property
    def backward_flops(self) -> int:
        """What the backward computes, with what a checkpoint runs again in it."""
        return self.root.backward.total_flops + self.unattributed.backward.total_flops

    @property
    def recomputed_flops(self) -> int:
        """What of the backward is a forward run again, because of a checkpoint."""
        return self.root.recomputed_flops + self.unattributed.recomputed_flops

    @property
    def total_bytes(self) -> int:
        """What all ops read and write, as if nothing stayed in a cache."""
        return self.root.total_bytes + self.unattributed.total_bytes

    @property
    def intensity(self) -> float | None:
        """Operations for each byte that is moved."""
        return self.total_flops / self.total_bytes if self.total_bytes else None

    @property
    def flops_per_second(self) -> float | None:
        """How fast the model computed; None where it was not timed."""
        return self.speed(self.root)

    @property
    def uncounted_share(self) -> float | None:
        """What share of the time the uncounted ops took; None where it was not measured."""
        return self.share(self.uncounted)

    def share(self, ops: Iterable[OpFlops]) -> float | None:
        """What share of the time some ops took; None where ops were not timed."""
        if not self.work.total_ns:
            return None
        return sum(op.time_ns or 0 for op in ops) / self.work.total_ns

    def time_ns(self, module: ModuleFlops) -> int | None:
        """What a module took with all that it called; None where it was not timed."""
        if self.latency is None:
            return None
        if module.path is None:
            return self.latency.unattributed.total_ns
        return self.latency.modules.get(module.path, ModuleTime(path="")).total_ns

    def speed(self, module: ModuleFlops) -> float | None:
        """The operations a second of a module; None where it was not timed."""
        time_ns = self.time_ns(module)
        return 1e9 * module.total_flops / time_ns if time_ns else None


def flop_rows(
    found: FlopReport, *, depth: int | None = None, sort: Sort | None = None
) -> list[ModuleRow[ModuleFlops]]:
    """A line for each module: as a tree, or with `sort="self"` in one list, the largest first.

    With `sort="total"` the largest of the siblings comes first.
    """
    check_order(sort, depth)
    rest = found.unattributed
    if sort == "self":
        every = [one for one in (*found.rows.values(), rest) if one.self_flops]
        return ranked(every, found.model, lambda one: one.self_flops, depth)
    every = [
        found.rows.get(path, ModuleFlops(path=path)) for path in paths_of(found.model, found.rows)
    ]
    if rest.total_flops or rest.uncounted_calls:
        every.append(rest)
    return tree(every, found.model, _total if sort == "total" else None, depth)


def _total(module: ModuleFlops) -> int:
    return module.total_flops
