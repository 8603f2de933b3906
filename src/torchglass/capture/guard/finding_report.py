"""Reports findings, each position once; finds inputs that were NaN or Inf before any op ran."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from torchglass.capture.guard.evidence import (
    OpLocation,
    ShownTensor,
    TensorNames,
    arrival,
    tensor_names,
)
from torchglass.capture.guard.op_dump import Dumper
from torchglass.capture.guard.tensor_health import Health, KnownHealth, look_again
from torchglass.capture.tensor.description import Args, Kwargs, tensors_by_argument
from torchglass.capture.torch_internals import current_backward, current_scale
from torchglass.capture.watch.optimizers import find_optimizers
from torchglass.errors import Fence, TorchglassError
from torchglass.records.findings import Finding

ReportFinding = Callable[[Finding], None]
"""Receives each finding, and may raise to stop the run."""
News = tuple[Health, OpLocation]
"""What is reported once."""


class FindingReport:
    """What the checks of forward and backward share: which findings were reported, and how."""

    def __init__(
        self,
        model: nn.Module,
        on_finding: ReportFinding,
        *,
        allow: Iterable[str] = (),
        dumper: Dumper | None = None,
        repeat: bool = False,
    ) -> None:
        """`allow` names ops and modules that are never to blame.

        Each position is reported once, or with `repeat` every time.
        """
        self.model = model
        self._on_finding = on_finding
        self.dumper = dumper
        self._allow = frozenset(allow)
        self._repeat = repeat
        self.met = 0
        """How often NaN or Inf was found, reported or not."""
        self._told: set[News] = set()
        self._latest: News | None = None
        self._raised: int | None = None
        self._fence = Fence("the guard could not check everything")
        self.has_waiting = False
        """Whether a finding of a forward waits until it reaches an output."""
        self.factors: list[torch.Tensor] = []
        """The one-value tensors that something was multiplied by since the last forward began."""
        self._scalers: list[Any] = []
        self._unchecked: Finding | None = None
        self._unchecked_task = -1

    @property
    def held(self) -> TensorNames:
        return tensor_names(self.model)

    def add(self, finding: Finding) -> None:
        """Report a finding; the report may raise."""
        try:
            self._on_finding(finding)
        except TorchglassError as error:
            # Not the error itself: it keeps the user's frames alive.
            self._raised = id(error)
            raise

    def add_gradient(self, finding: Finding) -> None:
        """Report a finding of a backward, unless a `GradScaler` checks the gradients.

        Scaled gradients overflow by design: the scaler then skips the step of the optimizer. If an
        optimizer steps anyway, `gradients_used` reports what was held back here.
        """
        if not self.scalers():
            self.add(finding)
            return
        self.take_back()
        task = current_backward()
        if finding.severity == "error" and task != self._unchecked_task:
            self._unchecked, self._unchecked_task = finding, task

    @property
    def has_unchecked(self) -> bool:
        """Whether gradients overflowed and no scaler has checked them yet."""
        return self._unchecked is not None

    def gradients_used(self, *, are_finite: bool) -> None:
        """An optimizer is about to use the gradients, so no scaler has skipped its step."""
        finding, self._unchecked = self._unchecked, None
        if finding is not None and not are_finite:
            self.add(finding)
        elif finding is not None:
            discard(finding)

    def scalers(self) -> list[Any]:
        """The gradient scalers whose scale the loss was multiplied by."""
        if not self.factors:
            return []
        found = [scaler for scaler in self._scalers if self._has_scaled(scaler)]
        if not found:
            self._scalers = find_optimizers(lambda _: False).scalers
            found = [scaler for scaler in self._scalers if self._has_scaled(scaler)]
        return found

    def _has_scaled(self, scaler: Any) -> bool:
        scale = current_scale(scaler)
        # Several losses are multiplied by copies of the scale.
        return scale is not None and any(
            factor is scale or float(factor) == float(scale) for factor in self.factors
        )

    def take_back(self) -> News | None:
        """Mark the latest finding as not reported; returns it, or None if it was not new."""
        if self._latest is not None:
            self._told.discard(self._latest)
        return self._latest

    def tell(self, news: News | None) -> None:
        """Mark the finding that was taken back as reported."""
        if news is not None:
            self._told.add(news)

    def is_news(self, health: Health, location: OpLocation) -> bool:
        """Whether a finding is new; from now on it counts as reported."""
        if location.op in self._allow or (location.path and location.path in self._allow):
            return False
        self.met += health is not Health.NEAR
        key = health, location._replace(call=0)
        is_new = key not in self._told
        self._told.add(key)
        self._latest = key if is_new else None
        return is_new or (self._repeat and health is not Health.NEAR)

    def miss(self, problem: Exception) -> None:
        """Warn of an error of ours, which never stops the user's run.

        What the report raised on purpose is raised again.
        """
        if id(problem) == self._raised and isinstance(problem, TorchglassError):
            raise problem
        self._fence.caught(problem)


def discard(finding: Finding) -> None:
    """Delete the dump of a finding that is not reported."""
    if "dump" in finding.facts:
        Path(finding.facts["dump"]).unlink(missing_ok=True)


ModuleInputs = tuple[nn.Module, Args, Kwargs]
"""A module and its arguments."""


class _Source(NamedTuple):
    """A tensor that existed before any op, and the start of a message about it."""

    name: str
    words: str
    tensor: torch.Tensor


class BadInputs:
    """Finds inputs, parameters and buffers that were bad before any op, each once."""

    def __init__(self, report: FindingReport, known: KnownHealth) -> None:
        self._report = report
        self._known = known
        self._names: set[str] = set()
        """The names of all bad tensors found."""
        self.inputs: ModuleInputs | None = None
        """The arguments of the outermost running call."""

    def are_behind(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor with Inf existed before any op, and is not a mask."""
        known = self._known.recall(tensor)
        if known is not None and self._known.maker(tensor) not in self._names:
            return False
        source = self._source_of(tensor, Health.INF)
        return _is_trained(source.tensor) or not _looks_like_a_mask(source.tensor, Health.INF)

    def find(self, ill: Iterable[torch.Tensor], location: OpLocation) -> Finding | None:
        """The finding that one of these tensors was bad before any op used it."""
        for tensor in ill:
            if self._known.recall(tensor) is not None:
                continue
            health = look_again(tensor)
            source = self._source_of(tensor, health)
            self._known.remember(tensor, health, source.name)
            self._names.add(source.name)
            if health is Health.NEAR or self._known.is_undefined(tensor):
                continue
            if not _is_trained(source.tensor) and _looks_like_a_mask(source.tensor, health):
                continue
            if self._report.is_news(health, OpLocation(source.name, "", 0, None)):
                shown = ShownTensor(source.name, "argument", source.tensor)
                return arrival(location, health, source.words, shown, self._report.held)
        return None

    def _source_of(self, tensor: torch.Tensor, health: Health) -> _Source:
        """The tensor itself, or the one that it was copied or viewed from."""
        sources = list(self._sources())
        for source in sources:
            if source.tensor is tensor:
                return source
        for source in sources:
            if look_again(source.tensor) >= health:
                return source
        return _Source("a tensor", "{count} came from a tensor created before the guard", tensor)

    def _sources(self) -> Iterator[_Source]:
        if self.inputs is not None:
            for name, tensor in tensors_by_argument(*self.inputs):
                yield _Source(f"input {name}", f"{{count}} came in with input {name}", tensor)
        for name, parameter in self._report.model.named_parameters():
            yield _Source(name, f"parameter {name} contains {{count}}", parameter)
        for name, buffer in self._report.model.named_buffers():
            yield _Source(name, f"buffer {name} contains {{count}}", buffer)


def _is_trained(tensor: torch.Tensor) -> bool:
    """Whether it is a trained weight: a frozen parameter may be a mask."""
    return isinstance(tensor, nn.Parameter) and tensor.requires_grad


def _looks_like_a_mask(tensor: torch.Tensor, health: Health) -> bool:
    """Whether it has −Inf, but neither NaN nor +Inf."""
    return health is Health.INF and not bool(torch.isposinf(tensor.detach()).any())
