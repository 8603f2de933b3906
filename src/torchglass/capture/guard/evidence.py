"""Builds findings about ops whose outputs are not finite, and says which ops can be to blame."""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import nn

from torchglass.analyse.failure.operands import module_name
from torchglass.analyse.nonfinite_cause import share_of_largest
from torchglass.analyse.signatures import argument_name, signature
from torchglass.capture.guard.tensor_health import Health
from torchglass.capture.tensor.description import (
    describe,
)
from torchglass.capture.tensor.moments import measure
from torchglass.capture.trace.op_mode import user_code
from torchglass.records.findings import Evidence, EvidenceRole, Finding
from torchglass.records.model import Stats
from torchglass.records.trace import Phase, SourceLine

KINDS = {Health.NAN: "nan", Health.INF: "inf", Health.NEAR: "near overflow"}


class OpLocation(NamedTuple):
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
    """The innermost running line of the user's code."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if user_code((code, 0)) is not None:
            return SourceLine(file=code.co_filename, line=frame.f_lineno, function=code.co_name)
        frame = frame.f_back
    return None


class TensorNames(NamedTuple):
    """Dotted names of the tensors that the model holds, by the id of the tensor."""

    parameters: dict[int, str]
    buffers: dict[int, str]


def tensor_names(model: nn.Module) -> TensorNames:
    """The names of a model's parameters and buffers."""
    return TensorNames(
        {id(tensor): name for name, tensor in model.named_parameters(remove_duplicate=True)},
        {id(tensor): name for name, tensor in model.named_buffers(remove_duplicate=True)},
    )


class ShownTensor(NamedTuple):
    """A tensor that a finding will show."""

    name: str
    role: EvidenceRole
    tensor: torch.Tensor
    maker: str = ""
    holder: str = ""
    before: torch.Tensor | None = None
    """A copy from before the op, if there is one."""
    is_gone: bool = False
    """Whether it has been overwritten."""


def evidence(shown: ShownTensor, held: TensorNames) -> Evidence:
    """The description of a tensor in a finding."""
    tensor, role, holder = shown.tensor, shown.role, shown.holder
    if role == "argument" and id(tensor) in held.parameters:
        role, holder = "parameter", held.parameters[id(tensor)]
    elif role == "argument" and id(tensor) in held.buffers:
        role, holder = "buffer", held.buffers[id(tensor)]
    seen = shown.before if shown.is_gone else tensor
    return Evidence(
        name=shown.name,
        role=role,
        spec=describe(tensor),
        stats=None if seen is None else measure(seen),
        holder=holder,
        maker=shown.maker,
    )


def argument_names(op: str, places: Sequence[str]) -> list[str]:
    """The names of the arguments at these positions."""
    names = signature(op)
    return [argument_name(place, names) for place in places]


def first_index(tensor: torch.Tensor, health: Health) -> list[int]:
    """The index of the first bad value; empty for tensors that cannot be searched."""
    test = {Health.NAN: torch.isnan, Health.INF: torch.isinf, Health.NEAR: torch.abs}[health]
    try:
        marks = test(tensor.detach()).reshape(-1)
        place = marks.max(0).indices if health is Health.NEAR else marks.to(torch.uint8).argmax()
        return [int(index) for index in torch.unravel_index(place, tensor.shape)]
    except Exception:  # noqa: BLE001 - sparse, nested and foreign tensors have no such index
        return []


def blame(
    location: OpLocation,
    health: Health,
    culprit: ShownTensor,
    others: Sequence[ShownTensor],
    held: TensorNames,
    facts: Mapping[str, Any] | None = None,
) -> Finding:
    """The finding that an op produced a bad tensor."""
    made = evidence(culprit, held)
    shown = (*(evidence(other, held) for other in others), made)
    message = _made(location, health, made)
    found = _finding(location, health, message, culprit.tensor, shown, facts or {})
    return dataclasses.replace(found, op=location.op)


def arrival(
    location: OpLocation, health: Health, what: str, culprit: ShownTensor, held: TensorNames
) -> Finding:
    """The finding that a tensor was bad before an op used it; `what` says where it came from."""
    came = evidence(culprit, held)
    count = counted(came.stats, health)
    message = f"{what.format(count=count)}, first used by {location.words}"
    facts = {"used_by": location.op}
    return _finding(location, health, message, culprit.tensor, (came,), facts)


def standing(
    name: str,
    health: Health,
    culprit: ShownTensor,
    source: SourceLine | None,
    why: str = "no op was seen to produce it",
) -> Finding:
    """The finding that a tensor is not finite; `why` says why no op is named."""
    found = evidence(culprit, TensorNames({}, {}))
    message = f"{name} contains {counted(found.stats, health)}, and {why}"
    return _finding(OpLocation("", "", 0, source), health, message, culprit.tensor, (found,), {})


def _finding(
    location: OpLocation,
    health: Health,
    message: str,
    culprit: torch.Tensor,
    shown: tuple[Evidence, ...],
    facts: Mapping[str, Any],
) -> Finding:
    """The finding about the last of the shown tensors."""
    return Finding(
        severity="warning" if health is Health.NEAR else "error",
        kind=KINDS[health],
        message=message,
        path=location.path,
        call=location.call,
        phase=location.phase,
        source=location.source,
        facts={**_facts(shown[-1], culprit, health), **facts},
        tensors=shown,
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


def _made(location: OpLocation, health: Health, made: Evidence) -> str:
    doer = f"the backward of {location.op}" if location.phase == "backward" else location.op
    where = inside(location.path, location.call)
    if health is Health.NEAR and made.stats is not None:
        largest = max(-made.stats.min, made.stats.max)
        share = 100 * share_of_largest(made.spec.dtype, largest)
        dtype = made.spec.dtype
        return f"{doer} reaches {largest:.5g}{where}, {share:.0f}% of the {dtype} maximum"
    among = f" among {made.stats.count:,} values" if made.stats is not None else ""
    of = f" of the gradient of {made.holder}" if made.role == "gradient" and made.holder else ""
    return f"{doer} produced {counted(made.stats, health)}{among}{of}{where}"


def _facts(made: Evidence, tensor: torch.Tensor, health: Health) -> dict[str, Any]:
    facts: dict[str, Any] = {"first_index": first_index(tensor, health)}
    if made.stats is not None:
        facts |= {"nan": made.stats.nan, "inf": made.stats.inf, "values": made.stats.count}
    return facts


class ResultKind(Enum):
    """Where the values of a function's results come from."""

    COMPUTED = "it computes them: it is to blame for NaN and Inf that no input had"
    MOVED = "they are values of its inputs, or bounded: it never produces NaN"
    GIVEN = "the caller passed them: an Inf is intended, as in a mask"
    UNDEFINED = "they are uninitialized memory"


def _words(text: str) -> frozenset[str]:
    """The words of a text without its comment lines."""
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
    # Always finite.
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
def result_kind(function: Any) -> ResultKind:
    """The kind of a torch function."""
    name = op_name(function)
    if name in _MOVED:
        return ResultKind.MOVED
    if name in _GIVEN:
        return ResultKind.GIVEN
    return ResultKind.UNDEFINED if name in _UNDEFINED else ResultKind.COMPUTED


@functools.lru_cache(maxsize=4096)
def op_name(function: Any) -> str:
    """torch's name of a function; of an overload "aten.sqrt.default" it is "sqrt"."""
    schema = getattr(function, "_schema", None)
    if schema is not None:
        return str(schema.name).rpartition("::")[2]
    name: str = getattr(function, "__name__", "") or type(function).__name__
    return name
