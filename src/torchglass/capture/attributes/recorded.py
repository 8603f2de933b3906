"""What went into and came out of each module of a traced pass, where its tensors were saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from torchglass.records.model import join_path
from torchglass.records.trace import Call, OpId, Trace, Value

Tensors = Mapping[tuple[OpId, int], torch.Tensor]


def recorded_tensors(trace: Trace, tensors: Tensors) -> dict[str, dict[str, torch.Tensor]]:
    """For the path of each module the tensors of its last call, by what they are to it.

    They are named as series are: `input.0`, `input.mask`, `output`, `output.0`.
    """
    found: dict[str, dict[str, torch.Tensor]] = {}
    for call in trace.calls:
        known = dict(_of_call(trace, call, tensors))
        if known:
            found[call.path] = known
    return found


def _of_call(trace: Trace, call: Call, tensors: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
    for side, values in (("input", call.inputs), ("output", call.outputs)):
        for value in values:
            tensor = _saved(trace, value, tensors)
            if tensor is not None:
                yield join_path(side, value.place), tensor


def _saved(trace: Trace, value: Value, tensors: Tensors) -> torch.Tensor | None:
    """The tensor of a value: the output of its op that has the same shape and memory."""
    if value.op is None:
        return None
    for number, output in enumerate(trace.ops[value.op].outputs):
        if output.spec == value.spec and output.memory == value.memory:
            return tensors.get((value.op, number))
    return None
