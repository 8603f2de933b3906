"""Running the op of a dump again, alone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torchglass.capture.forward.keeping import gradients_set, keeping_random_state
from torchglass.capture.guard.dumping import GIVEN, GRADIENTS, NOTE
from torchglass.capture.guard.evidence import KINDS, Exhibit, Held, argument_names, evidence
from torchglass.capture.guard.finiteness import look_again
from torchglass.capture.guard.writing import function_of, read
from torchglass.capture.places import tensors_of_call
from torchglass.capture.tensor.files import SavedTensors, read_note
from torchglass.capture.trace.functions import tensors_in
from torchglass.errors import StoreError, TargetError, TorchglassError
from torchglass.records.finding import Finding, Replay
from torchglass.records.plain import from_plain

_NOBODYS = Held({}, {})


def replay(path: Path) -> Replay:
    """Run the op of a dump on what it was given, and say whether it does the same again."""
    note = read_note(path, NOTE)
    if note is None:
        raise TargetError(f"{path} has no operation to rerun: it was not written by tg.guard")
    try:
        return _replayed(path, json.loads(note))
    except TorchglassError:
        raise
    except Exception as error:
        raise StoreError(
            f"{path} is corrupt, or its op cannot run here: {type(error).__name__}: {error}"
        ) from error


def _replayed(path: Path, call: Mapping[str, Any]) -> Replay:
    finding = from_plain(Finding, call["finding"])
    given = _numbered(SavedTensors(path, GIVEN))
    with keeping_random_state(), gradients_set(True):
        leaves = [
            given[number].requires_grad_(trained) for number, trained in enumerate(call["trained"])
        ]
        made = _made(call, leaves, _numbered(SavedTensors(path, GRADIENTS)))
    # An op that writes in place was given copies, so these are as they were.
    args, kwargs = read(call["args"], leaves), read(call["kwargs"], leaves)
    located = list(tensors_of_call(args, kwargs))
    names = argument_names(finding.op, [place for place, _ in located])
    shown = [
        *(
            Exhibit(name, "argument", tensor)
            for name, (_, tensor) in zip(names, located, strict=True)
        ),
        *made,
    ]
    kinds = {KINDS.get(look_again(exhibit.tensor)) for exhibit in made}
    return Replay(
        finding=finding,
        tensors=tuple(evidence(exhibit, _NOBODYS) for exhibit in shown),
        reproduced=finding.kind in kinds,
    )


def _made(
    call: Mapping[str, Any], leaves: list[torch.Tensor], gradients: Mapping[int, torch.Tensor]
) -> list[Exhibit]:
    """What an op makes of tensors: its results or, on the way back, their gradients."""
    copies = [leaf.clone() for leaf in leaves]
    args, kwargs = read(call["args"], copies), read(call["kwargs"], copies)
    with contextlib.ExitStack() as stack:
        for device, dtype in call["autocast"]:
            kind = getattr(torch, dtype.removeprefix("torch."))
            stack.enter_context(torch.autocast(device, kind, cache_enabled=False))
        output = function_of(call["function"])(*args, **kwargs)
    # What returns nothing, as `x[0] = 1` does, has changed what it was given.
    results = list(tensors_in(output)) or copies
    if not gradients:
        return [Exhibit("result", "result", tensor.detach()) for tensor in results]
    trained = [leaf for leaf in leaves if leaf.requires_grad]
    pairs = [(results[number], gradient) for number, gradient in gradients.items()]
    tensors, given = zip(*pairs, strict=True)
    back = torch.autograd.grad(tensors, trained, given, allow_unused=True)
    return [Exhibit("gradient made", "gradient", gradient) for gradient in filter(_is_there, back)]


def _is_there(gradient: torch.Tensor | None) -> bool:
    return gradient is not None


def _numbered(saved: SavedTensors) -> dict[int, torch.Tensor]:
    return {int(op): saved[op, output] for op, output in saved}
