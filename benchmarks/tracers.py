"""How each contender traces a forward, and what it then holds."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from benchmarks.measure import storage_bytes
from benchmarks.models import Subject
from benchmarks.rows import OURS, TORCHLENS

if TYPE_CHECKING:
    from torchglass.results.trace import Trace


class Tracer(Protocol):
    """A contender."""

    def trace(self, subject: Subject) -> Any:
        """One forward, everything saved, with the options that a user has who names none."""

    def work_out(self, trace: Any) -> int:
        """Have all labels, loops and lookups found, and say how many ops there are."""

    def saved(self, trace: Any) -> list[torch.Tensor]:
        """The tensors that the trace holds."""


class _Torchglass:
    def trace(self, subject: Subject) -> Trace:
        import torchglass as tg

        return tg.trace(subject.model, *subject.inputs)

    def work_out(self, trace: Trace) -> int:
        assert trace[0].lookup_keys
        return len(trace)

    def saved(self, trace: Trace) -> list[torch.Tensor]:
        return list(trace.saved_tensors.values())


class _TorchLens:
    def trace(self, subject: Subject) -> Any:
        return import_module("torchlens").trace(subject.model, subject.inputs)

    def work_out(self, trace: Any) -> int:
        return len(trace)

    def saved(self, trace: Any) -> list[torch.Tensor]:
        return [op.out for op in trace if isinstance(op.out, torch.Tensor)]


def tracer(contender: str) -> Tracer:
    """The contender of a name."""
    tracers: dict[str, type[Tracer]] = {OURS: _Torchglass, TORCHLENS: _TorchLens}
    return tracers[contender]()


def bytes_of(tensors: Iterable[torch.Tensor], subject: Subject) -> int:
    """The memory that tensors take, but for that of the model and of its inputs."""
    besides = (*subject.model.parameters(), *subject.model.buffers(), *tree_leaves(subject.inputs))
    return storage_bytes(tensors, besides)


def results_kept(subject: Subject, *, copies: bool) -> object:
    """The least that saving every result takes: a forward whose results are held.

    With `copies` also what its in-place ops write over, as it was before.
    """
    kept = _Kept(copies=copies)
    with kept:
        subject.forward()
    return kept.tensors


def necessary_bytes(subject: Subject) -> int:
    """What saving every result takes at least: their storages, and what was overwritten in them."""
    seen = _Results()
    with seen:
        subject.forward()
    return bytes_of(seen.results, subject) + seen.overwritten_bytes


class _Kept(TorchFunctionMode):
    """Holds what the ops of a block made, and works nothing out."""

    def __init__(self, *, copies: bool) -> None:
        super().__init__()
        self.tensors: list[Any] = []
        self._copies = copies

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._copies and (kwargs.get("inplace") or func.__name__ in _IN_PLACE):
            self.tensors.append(args[0].clone())
        output = func(*args, **kwargs)
        self.tensors.append(output)
        return output


_IN_PLACE = frozenset({"__iadd__", "__setitem__"})
"""The in-place ops of the models that are traced here, but for those that an argument tells."""


class _Results(TorchFunctionMode):
    """Holds what the ops of a block made, and adds up what they wrote over."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[torch.Tensor] = []
        self.overwritten_bytes: int = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = [(tensor, tensor._version) for tensor in _tensors((args, kwargs))]
        output = func(*args, **(kwargs or {}))
        self.results += _tensors(output)
        self.overwritten_bytes += sum(
            tensor.nbytes for tensor, version in given if tensor._version != version
        )
        return output


def _tensors(nest: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(nest) if isinstance(leaf, torch.Tensor)]
