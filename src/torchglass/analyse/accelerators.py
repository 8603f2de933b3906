"""Accelerators by name: the least time of a step on one, and the memory per rank on many.

An op takes at least as long as its products take at the peak rate, and at least as long as its
operands take to cross the memory bus once. The larger of the two is its bound. The bounds of all
ops add up, because eager ops run one after another (a roofline).

The memory per rank is an upper bound, because it counts gradients and activations at
their largest, although these do not occur at the same time. What each way does:

ddp     every rank keeps everything, and a second copy of the gradients in communication buckets
        (none with gradient_as_bucket_view=True).
fsdp    weights, gradients and optimizer state are split evenly (FULL_SHARD, ZeRO-3). While a block
        runs its weights are gathered, those of the next block ahead of time, and its gradients are
        whole until they are reduced.
tensor  weights with two or more dimensions are split evenly; others stay whole. Activations are
        between whole and evenly split, depending on where the split is: here they are whole.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torchglass.analyse.memory import MemoryReport
from torchglass.errors import TargetError
from torchglass.records.measures import FlopRecord, OpFlopRecord
from torchglass.records.model import holders_of

_GB = 1 << 30
_TERA = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """What the data sheet of an accelerator says.

    Args:
        name: Its name in reports.
        memory_bytes: The size of its memory.
        bandwidth: Memory bandwidth in bytes per second.
        flops: Peak rate of dense products in FLOP/s, by precision: "fp32", "tf32", "bf16", "fp16",
            "fp8".
        source: Where the figures are published.

    Example:
        >>> Accelerator(name="A", memory_bytes=2**34, bandwidth=1e12, flops={"fp32": 2e13}).name
        'A'
    """

    name: str
    memory_bytes: int
    bandwidth: float
    flops: Mapping[str, float]
    source: str = ""

    def rate(self, precision: str) -> float:
        """Its peak rate in a precision; raises if it has no figure for that."""
        if precision not in self.flops:
            raise TargetError(
                f"{self.name} has no rate for {precision}; it has {', '.join(self.flops)}"
            )
        return self.flops[precision]


def _device(
    name: str, gigabytes: int, gigabytes_per_second: float, source: str, **teraflops: float
) -> Accelerator:
    rates = {precision: rate * _TERA for precision, rate in teraflops.items()}
    return Accelerator(
        name=name,
        memory_bytes=gigabytes * _GB,
        bandwidth=gigabytes_per_second * 1e9,
        flops=rates,
        source=source.format(name.split(maxsplit=1)[0]),
    )


_NVIDIA = "NVIDIA {} Tensor Core GPU data sheet"
_AMD = "AMD Instinct {} accelerator data sheet"
_ADA = "NVIDIA Ada architecture white paper"
_AMPERE = "NVIDIA GA102 architecture white paper"
ACCELERATORS: Mapping[str, Accelerator] = {
    "t4": _device("T4", 16, 320, _NVIDIA, fp32=8.1, fp16=65),
    "v100": _device("V100 SXM2 32 GB", 32, 900, _NVIDIA, fp32=15.7, fp16=125),
    "a10": _device("A10", 24, 600, _NVIDIA, fp32=31.2, tf32=62.5, bf16=125, fp16=125),
    "a100-40": _device(
        "A100 SXM 40 GB", 40, 1555, _NVIDIA, fp32=19.5, tf32=156, bf16=312, fp16=312
    ),
    "a100": _device("A100 SXM 80 GB", 80, 2039, _NVIDIA, fp32=19.5, tf32=156, bf16=312, fp16=312),
    "l4": _device("L4", 24, 300, _NVIDIA, fp32=30.3, tf32=60, bf16=121, fp16=121, fp8=242.5),
    "l40s": _device("L40S", 48, 864, _NVIDIA, fp32=91.6, tf32=183, bf16=362, fp16=362, fp8=733),
    "h100": _device(
        "H100 SXM", 80, 3350, _NVIDIA, fp32=67, tf32=494.5, bf16=989.5, fp16=989.5, fp8=1979
    ),
    "h200": _device(
        "H200 SXM", 141, 4800, _NVIDIA, fp32=67, tf32=494.5, bf16=989.5, fp16=989.5, fp8=1979
    ),
    "rtx3090": _device("RTX 3090", 24, 936, _AMPERE, fp32=35.6, tf32=35.6, bf16=71, fp16=71),
    "rtx4090": _device(
        "RTX 4090", 24, 1008, _ADA, fp32=82.6, tf32=82.6, bf16=165.2, fp16=165.2, fp8=330.3
    ),
    "mi250x": _device("MI250X", 128, 3277, _AMD, fp32=47.9, bf16=383, fp16=383),
    "mi300x": _device(
        "MI300X", 192, 5300, _AMD, fp32=163.4, tf32=653.7, bf16=1307.4, fp16=1307.4, fp8=2614.9
    ),
}
"""Dense rates, without sparsity. Rates of half precision accumulate in float32."""


def accelerator_named(device: str | Accelerator) -> Accelerator:
    """The accelerator with a name, in any spelling: "A100", "a100-80GB", "RTX 4090"."""
    if isinstance(device, Accelerator):
        return device
    key = re.sub(r"[\s_]", "", str(device).lower()).removeprefix("nvidia").removesuffix("gb")
    key = {"a100-80": "a100", "a100sxm": "a100", "v100-32": "v100", "h100-80": "h100"}.get(key, key)
    if key not in ACCELERATORS:
        raise TargetError(
            f"{device!r} is not a known accelerator. Known: {', '.join(ACCELERATORS)}. "
            "For another one pass tg.Accelerator(name=…, memory_bytes=…, bandwidth=…, flops=…)."
        )
    return ACCELERATORS[key]


_SIZE = re.compile(r"([\d.]+)\s*([kmgt]?)i?b?", re.IGNORECASE)


def memory_size(text: str | int) -> int:
    """Bytes of a size such as "24GB" (1 GB = 2^30 bytes), of a number, or of an accelerator."""
    if not isinstance(text, str):
        return int(text)
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        try:
            return accelerator_named(text).memory_bytes
        except TargetError:
            raise TargetError(
                f"{text!r} is not a size of memory. Use 24GB, a number of bytes, or one of "
                f"{', '.join(ACCELERATORS)}."
            ) from None
    return int(float(found[1]) * 1024 ** " kmgt".index(found[2].lower() or " "))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Work of a step, and the least time that it takes on an accelerator."""

    forward_flops: int = 0
    backward_flops: int = 0
    bytes: int = 0
    """All operands read and all results written once."""
    forward_s: float = 0.0
    backward_s: float = 0.0
    bandwidth_s: float = 0.0
    """The part of the time in which ops are limited by memory bandwidth, not by arithmetic."""

    @property
    def flops(self) -> int:
        """Forward and backward."""
        return self.forward_flops + self.backward_flops

    @property
    def seconds(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCost:
    """The cost of one module: alone, and with all modules below it."""

    path: str | None
    """None for what ran outside of all modules, such as a loss."""
    own: StepCost = StepCost()
    total: StepCost = StepCost()


class StepCosts(NamedTuple):
    """The cost of a step by module."""

    modules: Mapping[str, ModuleCost]
    unattributed: ModuleCost


def step_costs(work: FlopRecord, device: Accelerator, precision: str) -> StepCosts:
    """The least time that each module of a step takes on an accelerator."""
    rate = device.rate(precision)
    own: dict[int | None, list[OpFlopRecord]] = defaultdict(list)
    for op in work.ops:
        own[op.place].append(op)
    called = {place.path for place in work.places}
    selves: dict[str, list[OpFlopRecord]] = defaultdict(list)
    totals: dict[str, list[OpFlopRecord]] = defaultdict(list)
    for index, place in enumerate(work.places):
        selves[place.path] += own[index]
        for path in holders_of(work.places, index, called):
            totals[path] += own[index]
    loose = _cost(own[None], rate, device.bandwidth)
    modules = {
        path: ModuleCost(
            path=path,
            own=_cost(selves[path], rate, device.bandwidth),
            total=_cost(totals[path], rate, device.bandwidth),
        )
        for path in dict.fromkeys(["", *called, *totals])
    }
    return StepCosts(modules, ModuleCost(path=None, own=loose, total=loose))


def _cost(ops: Iterable[OpFlopRecord], rate: float, bandwidth: float) -> StepCost:
    flops = {True: 0, False: 0}
    seconds = {True: 0.0, False: 0.0}
    moved, waits = 0, 0.0
    for op in ops:
        forward = op.stage == "forward"
        arithmetic, transfer = op.flops / rate, op.bytes / bandwidth
        flops[forward] += op.flops
        seconds[forward] += max(arithmetic, transfer)
        moved += op.bytes
        waits += transfer if transfer > arithmetic else 0.0
    return StepCost(
        forward_flops=flops[True],
        backward_flops=flops[False],
        bytes=moved,
        forward_s=seconds[True],
        backward_s=seconds[False],
        bandwidth_s=waits,
    )


Strategy = Literal["ddp", "fsdp", "tensor"]
_FIXED = frozenset({"parameter", "buffer", "optimizer", "gradient"})
_GATHERED = 2
"""Blocks whose weights FSDP keeps whole at one time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """The memory of one rank."""

    strategy: Strategy
    world_size: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    """Activations, temporaries and inputs at the peak, for the batch of one rank."""
    gathered_bytes: int = 0
    """Whole weights and gradients of the blocks that run, or communication buckets."""

    @property
    def total_bytes(self) -> int:
        """The sum of all parts."""
        return (
            self.parameter_bytes
            + self.gradient_bytes
            + self.optimizer_bytes
            + self.activation_bytes
            + self.gathered_bytes
        )


def rank_memory(
    report: MemoryReport, blocks: Sequence[str], world_size: int
) -> Iterator[RankMemory]:
    """The memory of a rank for each way to spread the step of a report over ranks."""
    sizes = report.sizes
    fixed = sizes.get("buffer", 0)
    working = sum(one.bytes for one in report.peak_holders if one.kind not in _FIXED) + fixed
    parameters = sizes.get("parameter", 0)
    gradients, state = sizes.get("gradient", 0), sizes.get("optimizer", 0)
    yield RankMemory(
        strategy="ddp",
        world_size=world_size,
        parameter_bytes=parameters,
        gradient_bytes=gradients,
        optimizer_bytes=state,
        activation_bytes=working,
        gathered_bytes=gradients if world_size > 1 else 0,
    )
    whole = largest_block(report, blocks)
    yield RankMemory(
        strategy="fsdp",
        world_size=world_size,
        parameter_bytes=_part(parameters, world_size),
        gradient_bytes=_part(gradients, world_size),
        optimizer_bytes=_part(state, world_size),
        activation_bytes=working,
        gathered_bytes=(_GATHERED * whole + whole) if world_size > 1 and gradients else 0,
    )
    yield RankMemory(
        strategy="tensor",
        world_size=world_size,
        parameter_bytes=_split(report, "parameter", world_size),
        gradient_bytes=_split(report, "gradient", world_size),
        optimizer_bytes=_split(report, "optimizer", world_size),
        activation_bytes=working,
    )


def largest_block(report: MemoryReport, blocks: Sequence[str]) -> int:
    """The weights of the largest block that FSDP wraps; what is in no block is one more."""
    sizes: Counter[str] = Counter()
    for block in report.footprint.blocks:
        if block.kind == "parameter" and block.spec.device == report.device:
            sizes[next((one for one in blocks if _is_below(block.path, one)), "")] += block.bytes
    return max(sizes.values(), default=0)


def _is_below(path: str | None, block: str) -> bool:
    return path is not None and (path == block or path.startswith(f"{block}."))


def _split(report: MemoryReport, kind: str, world_size: int) -> int:
    blocks = (one for one in report.footprint.blocks if one.kind == kind)
    return sum(
        _part(one.bytes, world_size) if len(one.spec.shape or ()) > 1 else one.bytes
        for one in blocks
        if one.spec.device == report.device
    )


def _part(size: int, world_size: int) -> int:
    return -(-size // world_size)
