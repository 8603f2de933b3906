"""Memory: what it takes to measure the memory of a step, and to predict that of a large model."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.cases import beside_baseline
from benchmarks.fresh import FreshError, fresh
from benchmarks.measure import Times, in_turns, times_baseline
from benchmarks.models import GPT_2, MLP, RESNET18, Scale, Spec, build
from benchmarks.rows import OURS, Case, Effort, Reading, Topic

_RAW = "alone"
_PROFILER = "torch.profiler"
_MEM_TRACKER = "MemTracker"

LLAMA_70B = {
    "layers": 80,
    "width": 8192,
    "heads": 64,
    "groups": 8,
    "inner": 28672,
    "words": 128256,
    "length": 2048,
}
_SMALL_LLAMA = {
    "layers": 2,
    "width": 64,
    "heads": 8,
    "groups": 2,
    "inner": 96,
    "words": 50,
    "length": 16,
}


class Attention(nn.Module):
    """Causal attention in which several heads share their keys and values."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.size = width // heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, groups * self.size, bias=False)
        self.value = nn.Linear(width, groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(
            _turned(q, *turn), _turned(k, *turn), v, is_causal=True, enable_gqa=True
        )
        output: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return output


class FeedForward(nn.Module):
    """Two layers, the inner one gated."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return output


class Layer(nn.Module):
    """A layer of Llama."""

    def __init__(self, width: int, heads: int, groups: int, inner: int) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(width)
        self.attention = Attention(width, heads, groups)
        self.norm2 = nn.RMSNorm(width)
        self.mlp = FeedForward(width, inner)

    def forward(self, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), turn)
        output: torch.Tensor = x + self.mlp(self.norm2(x))
        return output


class Llama(nn.Module):
    """A model of the shape of Llama 3."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(
        self, layers: int, width: int, heads: int, groups: int, inner: int, words: int, length: int
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads, groups, inner) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.register_buffer("cos", torch.ones(length, width // heads))
        self.register_buffer("sin", torch.zeros(length, width // heads))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x, (self.cos, self.sin))
        output: torch.Tensor = self.head(self.norm(x))
        return output


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def predict_llama(sizes: dict[str, int], optimizer: str | None = None) -> dict[str, Any]:
    """Build a Llama in bfloat16 that holds nothing, and predict the memory of its training step."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from torchglass.api.measure import memory

    start = time.process_time()
    torch.set_default_dtype(torch.bfloat16)
    with FakeTensorMode():
        model = Llama(**sizes)
        tokens = torch.empty(1, sizes["length"], dtype=torch.long)
    taken = memory(model, tokens, optimizer=optimizer)
    return {
        "cpu_seconds": time.process_time() - start,
        "resident_bytes": _most_resident_bytes(),
        "parameters_bytes": taken.parameters_bytes,
        "gradients_bytes": taken.gradients_bytes,
        "optimizer_bytes": taken.optimizer_bytes,
        "activations_bytes": taken.activations_bytes,
        "peak_bytes": taken.peak_bytes,
    }


def _most_resident_bytes() -> int:
    """The most that this process has had in memory."""
    # `ru_maxrss` begins at what the process had that started this one.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def measure_step(spec: Spec, rounds: int, *, tracker: bool = True) -> Times:
    """A step of forward and backward, with a look at all storages."""
    from torch.distributed._tools.mem_tracker import MemTracker

    from torchglass.capture.measure.memory_recorder import MemoryRecorder

    subject = build(spec)
    modules = list(subject.model.named_modules())

    def plain() -> None:
        torch.autograd.backward(subject.forward().sum())

    def seen() -> None:
        recorder = MemoryRecorder(modules)
        with recorder.watching("forward"):
            output = subject.forward()
        with recorder.watching("backward"):
            torch.autograd.backward(output.sum())
        recorder.log.close()

    def profiled() -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, profile_memory=True):
            plain()

    def tracked() -> None:
        mem_tracker = MemTracker()
        mem_tracker.track_external(subject.model)
        with mem_tracker:
            plain()

    runs: dict[str, Callable[[], None]] = {_RAW: plain, OURS: seen, _PROFILER: profiled}
    if tracker:
        runs[_MEM_TRACKER] = tracked
    return times_baseline(in_turns(runs, rounds), _RAW)


def _step_case(name: str, scale: Scale, *, tracker: bool = True) -> Case:
    def measure(effort: Effort) -> dict[str, Reading]:
        others = (OURS, _PROFILER, *([_MEM_TRACKER] if tracker else []))
        spec, rounds = scale.at(effort), effort.rounds
        return beside_baseline(
            _RAW, others, measure_step, spec=spec, rounds=rounds, tracker=tracker
        )

    return Case(f"memory of a step, {name}", measure)


def _llama_case(name: str, key: str, unit: str, scale: float, goal: float) -> Case:
    def measure(effort: Effort) -> dict[str, Reading]:
        sizes = _SMALL_LLAMA if effort.quick else LLAMA_70B
        try:
            found = fresh(predict_llama, sizes=sizes, optimizer="adamw")
        except FreshError as problem:
            return {OURS: Reading(unit=unit, why_not=f"failed: {problem}")}
        return {OURS: Reading(unit=unit, samples=(found[key] / scale,))}

    return Case(name, measure, goal)


TOPIC = Topic(
    name="memory",
    title="Memory",
    about=(
        "CPU time as a multiple of a plain step of forward and backward, to attribute its "
        "memory; then the cost of building a 70B Llama without memory and predicting a "
        "training step with AdamW. torch.profiler records allocations and does not know "
        "modules. MemTracker is torch.distributed's."
    ),
    cases=[
        _step_case("ResNet-18", RESNET18),
        _step_case("GPT-2-small-like", GPT_2),
        # MemTracker takes a minute for each step of this one.
        _step_case("MLP of 1000", MLP, tracker=False),
        _llama_case("CPU time to predict a 70B Llama", "cpu_seconds", "s", 1, 15),
        _llama_case("resident memory for it", "resident_bytes", "MB", 1e6, 1000),
    ],
)
