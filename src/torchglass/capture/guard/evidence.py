"""Builds a finding from an op whose output is not finite."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from torchglass.analyse.failure.operands import module_name
from torchglass.analyse.nonfinite_cause import share_of_largest
from torchglass.analyse.signatures import argument_name, signature
from torchglass.capture.guard.tensor_health import Health
from torchglass.capture.nested_tensors import named_tensors
from torchglass.capture.tensor.description import describe
from torchglass.capture.tensor.moments import measure
from torchglass.capture.trace.op_mode import user_code
from torchglass.records.findings import Evidence, EvidenceRole, Finding, Severity
from torchglass.records.tensors import Stats
from torchglass.records.trace import Phase, SourceLine

KINDS = {Health.NAN: "nan", Health.INF: "inf", Health.NEAR: "near overflow"}


class Spot(NamedTuple):
    """Where an op ran."""

    op: str
    path: str
    call: int
    source: SourceLine | None
    phase: Phase = "forward"

    @property
    def words(self) -> str:
        """The op, the module and the line: "masked_fill in blocks.0, model.py:12"."""
        file = self.source.file.replace("\\", "/").rpartition("/")[2] if self.source else ""
        line = f", {file}:{self.source.line}" if self.source else ""
        return f"{self.op}{inside(self.path, self.call)}{line}"


def inside(path: str, call: int) -> str:
    """The module of an op, as the end of a sentence."""
    if not call:
        return " outside the model"
    return f" in {module_name(path)}" if path else " in the model itself"


def user_source(frame: types.FrameType | None = None) -> SourceLine | None:
    """The innermost line of the user's that is running."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if user_code((code, 0)) is not None:
            return SourceLine(file=code.co_filename, line=frame.f_lineno, function=code.co_name)
        frame = frame.f_back
    return None


class Held(NamedTuple):
    """Dotted names of the tensors that the model holds, by the id of the tensor."""

    parameters: dict[int, str]
    buffers: dict[int, str]


def held_by(model: nn.Module) -> Held:
    """The names of a model's parameters and buffers."""
    return Held(
        {id(tensor): name for name, tensor in model.named_parameters(remove_duplicate=True)},
        {id(tensor): name for name, tensor in model.named_buffers(remove_duplicate=True)},
    )


def input_names(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a module was called with, under the names that its forward has for them."""
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return named_tensors({**dict(enumerate(args)), **kwargs})
    return named_tensors(dict(bound.arguments))


class Exhibit(NamedTuple):
    """A tensor to be shown, before it is described."""

    name: str
    role: EvidenceRole
    tensor: torch.Tensor
    maker: str = ""
    holder: str = ""
    before: torch.Tensor | None = None
    """A copy of it as it was, where one was made."""
    is_gone: bool = False
    """Whether its numbers have been written over."""


def evidence(exhibit: Exhibit, held: Held) -> Evidence:
    """What is to be shown of a tensor."""
    tensor, role, holder = exhibit.tensor, exhibit.role, exhibit.holder
    if role == "argument" and id(tensor) in held.parameters:
        role, holder = "parameter", held.parameters[id(tensor)]
    elif role == "argument" and id(tensor) in held.buffers:
        role, holder = "buffer", held.buffers[id(tensor)]
    seen = exhibit.before if exhibit.is_gone else tensor
    return Evidence(
        name=exhibit.name,
        role=role,
        spec=describe(tensor),
        stats=None if seen is None else measure(seen),
        holder=holder,
        maker=exhibit.maker,
    )


def argument_names(op: str, places: Sequence[str]) -> list[str]:
    """What the arguments at these places are called."""
    names = signature(op)
    return [argument_name(place, names) for place in places]


def first_index(tensor: torch.Tensor, health: Health) -> list[int]:
    """Where the first such value is; nothing for tensors that cannot be searched."""
    test = {Health.NAN: torch.isnan, Health.INF: torch.isinf, Health.NEAR: torch.abs}[health]
    try:
        marks = test(tensor.detach()).reshape(-1)
        place = marks.max(0).indices if health is Health.NEAR else marks.to(torch.uint8).argmax()
        return [int(index) for index in torch.unravel_index(place, tensor.shape)]
    except Exception:  # noqa: BLE001 - sparse, nested and foreign tensors have no such index
        return []


def blame(
    spot: Spot,
    health: Health,
    culprit: Exhibit,
    others: Sequence[Exhibit],
    held: Held,
    facts: Mapping[str, Any] | None = None,
) -> Finding:
    """The finding that an op made a tensor what it is."""
    made = evidence(culprit, held)
    shown = (*(evidence(other, held) for other in others), made)
    return Finding(
        severity=_severity(health),
        kind=KINDS[health],
        message=_made(spot, health, made),
        path=spot.path,
        call=spot.call,
        op=spot.op,
        phase=spot.phase,
        source=spot.source,
        facts={**_facts(made, culprit.tensor, health), **(facts or {})},
        tensors=shown,
    )


def arrival(spot: Spot, health: Health, what: str, culprit: Exhibit, held: Held) -> Finding:
    """The finding that a tensor was not finite when it came; `what` says whence."""
    came = evidence(culprit, held)
    count = counted(came.stats, health)
    return Finding(
        severity=_severity(health),
        kind=KINDS[health],
        message=f"{what.format(count=count)}, first used by {spot.words}",
        path=spot.path,
        call=spot.call,
        phase=spot.phase,
        source=spot.source,
        facts={**_facts(came, culprit.tensor, health), "used_by": spot.op},
        tensors=(came,),
    )


def standing(
    name: str,
    health: Health,
    culprit: Exhibit,
    source: SourceLine | None,
    why: str = "no op was seen to make it",
) -> Finding:
    """The finding that a tensor is not finite, whoever made it so; `why` says why that is open."""
    found = evidence(culprit, Held({}, {}))
    return Finding(
        severity="error",
        kind=KINDS[health],
        message=f"{name} holds {counted(found.stats, health)}, and {why}",
        source=source,
        facts=_facts(found, culprit.tensor, health),
        tensors=(found,),
    )


def noted(finding: Finding, **facts: Any) -> Finding:
    """The finding with more facts."""
    return dataclasses.replace(finding, facts={**finding.facts, **facts})


def counted(stats: Stats | None, health: Health) -> str:
    """How many values are not finite: "3 NaN", "2 NaN and 1 Inf"."""
    if stats is None:
        return "NaN" if health is Health.NAN else "Inf"
    parts = [f"{stats.nan:,} NaN"] if stats.nan else []
    parts += [f"{stats.inf:,} Inf"] if stats.inf else []
    return " and ".join(parts) or ("NaN" if health is Health.NAN else "Inf")


def _severity(health: Health) -> Severity:
    return "warning" if health is Health.NEAR else "error"


def _made(spot: Spot, health: Health, made: Evidence) -> str:
    doer = f"the backward of {spot.op}" if spot.phase == "backward" else spot.op
    where = inside(spot.path, spot.call)
    if health is Health.NEAR and made.stats is not None:
        largest = max(-made.stats.min, made.stats.max)
        share = 100 * share_of_largest(made.spec.dtype, largest)
        dtype = made.spec.dtype
        return f"{doer} reaches {largest:.5g}{where}, {share:.0f}% of what {dtype} can hold"
    among = f" among {made.stats.count:,} values" if made.stats is not None else ""
    of = f" of the gradient of {made.holder}" if made.role == "gradient" and made.holder else ""
    return f"{doer} made {counted(made.stats, health)}{among}{of}{where}"


def _facts(made: Evidence, tensor: torch.Tensor, health: Health) -> dict[str, Any]:
    facts: dict[str, Any] = {"first_index": first_index(tensor, health)}
    if made.stats is not None:
        facts |= {"nan": made.stats.nan, "inf": made.stats.inf, "values": made.stats.count}
    return facts
