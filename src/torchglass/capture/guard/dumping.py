"""The op that is to blame and what it was given, in a file that runs it again without the model.

One safetensors file: the tensors, and in its header the call as JSON. Nothing in it is code; the
function is one of torch's own, by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map_only

from torchglass.capture.guard.evidence import noted
from torchglass.capture.guard.writing import NotWrittenError, Sheet, function_name
from torchglass.capture.tensor.extents import version_of
from torchglass.capture.tensor.files import write_tensors
from torchglass.capture.trace.functions import tensors_in
from torchglass.capture.trace.ops import OpEvent
from torchglass.records.finding import Finding
from torchglass.records.plain import to_plain
from torchglass.records.trace import OpId

NOTE = "torchglass.replay"
GIVEN, GRADIENTS = "given", "gradients"

Gradients = Mapping[int, torch.Tensor]
"""The gradients of an op's results, by the number of the result."""


class Kept(NamedTuple):
    """A call whose tensors are held without their graph, so that it can be run again."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    trained: frozenset[int]
    """The ids of the held tensors whose originals had a gradient to take."""
    versions: Mapping[int, int]
    autocast: tuple[tuple[str, torch.dtype], ...]

    @property
    def is_as_it_was(self) -> bool:
        """Whether nothing has written into its tensors since."""
        held = tensors_in((self.args, dict(self.kwargs)))
        return all(version_of(tensor) == self.versions[id(tensor)] for tensor in held)


def keep(event: OpEvent, copies: Mapping[int, torch.Tensor]) -> Kept:
    """Hold the call of an op; `copies` are of what it has written over, by the id of that."""
    trained = set()
    held: dict[int, torch.Tensor] = {}

    def hold(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in held:
            held[id(tensor)] = copies.get(id(tensor), tensor).detach()
            if tensor.requires_grad:
                trained.add(id(held[id(tensor)]))
        return held[id(tensor)]

    args, kwargs = tree_map_only(torch.Tensor, hold, (event.args, dict(event.kwargs)))
    versions = {id(tensor): version_of(tensor) for tensor in held.values()}
    return Kept(event.function, args, kwargs, frozenset(trained), versions, event.autocast)


class Dumper:
    """Writes culprits into a folder, one file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def dump(self, finding: Finding, kept: Kept | None, gradients: Gradients) -> Finding:
        """The finding with the file's path, or with the reason why there is none."""
        try:
            if kept is None:
                raise NotWrittenError("the op was not seen as a call of a function of torch's")
            if not kept.is_as_it_was:
                raise NotWrittenError("what it was given has been written over since")
            return noted(finding, dump=str(self._write(finding, kept, gradients)))
        except (NotWrittenError, OSError, RuntimeError, TypeError) as problem:
            return noted(finding, not_dumped=str(problem))

    def _write(self, finding: Finding, kept: Kept, gradients: Gradients) -> Path:
        sheet = Sheet()
        call: dict[str, Any] = {
            "function": function_name(kept.function),
            "args": sheet.write(kept.args),
            "kwargs": sheet.write(dict(kept.kwargs)),
            "autocast": [[device, str(dtype)] for device, dtype in kept.autocast],
            "trained": [id(tensor) in kept.trained for tensor in sheet.tensors],
            "finding": to_plain(finding),
        }
        for tensor in sheet.tensors:
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
                raise NotWrittenError(f"an argument is a {type(tensor).__name__}")
        groups = {GIVEN: _keyed(enumerate(sheet.tensors)), GRADIENTS: _keyed(gradients.items())}
        path = self._next_path(finding)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, groups, {NOTE: json.dumps(call)})
        return path

    def _next_path(self, finding: Finding) -> Path:
        """A path that no dump has yet."""
        where = re.sub(r"[^\w.-]+", "_", finding.path) or "model"
        back = "-backward" if finding.phase == "backward" else ""
        name = f"{where}-{finding.op.strip('_')}{back}.safetensors"
        paths = (self._folder / f"{number:03d}-{name}" for number in count(1))
        return next(path for path in paths if not path.exists())


def _keyed(tensors: Iterable[tuple[int, torch.Tensor]]) -> dict[tuple[OpId, int], torch.Tensor]:
    return {(OpId(number), 0): tensor for number, tensor in tensors}
