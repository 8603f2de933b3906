"""A planted bug is one edit of a correct port; an edit without effect is another correct port."""

from __future__ import annotations

import importlib
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

ARCHITECTURES = ("gpt", "llama", "bert", "vit", "resnet", "unet", "gru", "t5", "swin", "moe")
"""The last three were written when the rules were done, which then named 20 of their 32 bugs in
float32 and 13 in bfloat16. The rules that replaced them were written with them in view."""
_FOLDER = Path(__file__).parent / "models"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One edit of a port, and the lines that are right answers; none for a correct port."""

    name: str
    old: str
    new: str
    at: tuple[str, ...] = ()
    """Parts of the line of the port that first computes something wrong; with no part, the edited
    line."""
    missing: str = ""
    """A part of the line of the reference that the port has no counterpart of."""
    is_same: bool = False
    """Whether it computes the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A reference and a port of it."""

    architecture: str
    edit: Edit

    @property
    def name(self) -> str:
        return f"{self.architecture}: {self.edit.name}"


@dataclass(frozen=True, kw_only=True)
class Models:
    """What a case compares."""

    reference: nn.Module
    port: nn.Module
    inputs: tuple[Any, ...]


def all_cases() -> list[Case]:
    """The ports as they are, and all edits of them."""
    unchanged = Edit(name="port", old="", new="", is_same=True)
    return [
        Case(architecture=one, edit=edit)
        for one in ARCHITECTURES
        for edit in (unchanged, *_edits(one))
    ]


def _edits(architecture: str) -> Sequence[Edit]:
    found: Sequence[Edit] = _module(architecture).EDITS
    return found


def _module(architecture: str) -> Any:
    return importlib.import_module(f"benchmarks.divergence.models.{architecture}")


def build(case: Case, seed: int = 0) -> Models:
    """The models of a case, with weights of which no two are alike."""
    module = _module(case.architecture)
    torch.manual_seed(seed)
    reference = module.Reference().eval()
    with torch.no_grad():
        for tensor in (*reference.parameters(), *reference.buffers()):
            if tensor.is_floating_point():
                tensor.mul_(1 + 0.2 * torch.rand_like(tensor))
                tensor.add_(0.2 * torch.rand_like(tensor) - 0.1)
    port = _edited(case)["Port"](reference).eval()
    return Models(reference=reference, port=port, inputs=module.inputs())


def _edited(case: Case) -> dict[str, Any]:
    """The module of an architecture with one line of its port changed, lines as in its text."""
    file = f"<{case.name}>"
    text = _text(case)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": f"port_of_{case.architecture}"}
    exec(compile(text, file, "exec"), names)
    return names


def _text(case: Case) -> str:
    text = (_FOLDER / f"{case.architecture}.py").read_text()
    head, port, body = text.partition("class Port")
    # The edits themselves are written in the same file, below.
    body, rest, tail = body.partition("EDITS")
    if case.edit.old and body.count(case.edit.old) != 1:
        raise ValueError(
            f"{case.name}: {case.edit.old!r} is {body.count(case.edit.old)} times there"
        )
    return head + port + body.replace(case.edit.old, case.edit.new) + rest + tail


def is_right(case: Case, found: Any) -> bool:
    """Whether a divergence names a line that first computes something wrong."""
    edit = case.edit
    if found is None or edit.is_same:
        return found is None and edit.is_same
    wanted = edit.at or tuple(edit.new.strip().splitlines())
    if edit.missing and edit.missing in _line(found.a):
        return True
    return any(part in line for part in wanted for line in [_line(found.b)])


def _line(op: Any) -> str:
    if op is None or op.source is None:
        return ""
    return linecache.getline(op.source.file, op.source.line)


def chosen(only: Sequence[str] | None) -> Iterator[Case]:
    """The cases whose names have one of these parts."""
    for case in all_cases():
        if not only or any(part in case.name for part in only):
            yield case
