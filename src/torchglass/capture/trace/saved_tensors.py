"""The saved tensors of a pass by op, as they were when they were produced.

A tensor is copied only when an op is about to write into memory that it spans.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from torchglass.capture.tensor.description import Args, Kwargs, has_memory
from torchglass.capture.tensor.memory_extent import ByMemory, Extent, copy_of, extent_of, storage_of
from torchglass.capture.torch_modes import is_overheard, quietly
from torchglass.capture.trace.op_mode import OpEvent, UnwrappedEvent, results_of
from torchglass.errors import CaptureError
from torchglass.records.trace import OpId, OpRecord


class Rerun(NamedTuple):
    """An event without its module call and call stack, which take much memory."""

    function: Callable[..., Any]
    """The function that ran, under the same autocast if autocast was on."""
    args: Args
    kwargs: Kwargs
    output: Any
    written: tuple[torch.Tensor, ...]

    @property
    def results(self) -> tuple[torch.Tensor, ...]:
        return results_of(self.output, self.written)


class RerunBuilder:
    """Creates them from events. Common values, such as `inplace=False`, are kept once."""

    def __init__(self) -> None:
        self._said: dict[str, Mapping[str, Any]] = {}

    def of(self, event: OpEvent) -> Rerun:
        function = event.function
        if isinstance(event, UnwrappedEvent):
            function = _not_by_itself
        elif event.autocast:
            function = partial(_under, event.autocast, function)
        kwargs = self._once(event.kwargs) if event.kwargs else event.kwargs
        return Rerun(function, event.args, kwargs, event.output, event.written)

    def _once(self, kwargs: Kwargs) -> Mapping[str, Any]:
        if not all(type(value) in _TOLD_BY_REPR for value in kwargs.values()):
            return kwargs
        return self._said.setdefault(repr(kwargs), kwargs)


_TOLD_BY_REPR = (bool, int, float, str, type(None))


def _not_by_itself(*args: Any, **kwargs: Any) -> Any:
    raise CaptureError("it ran under vmap, grad or a similar transform")


def _under(
    autocast: tuple[tuple[str, torch.dtype], ...],
    function: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    with contextlib.ExitStack() as stack:
        for device, dtype in autocast:
            stack.enter_context(torch.autocast(device, dtype, cache_enabled=False))
        return function(*args, **kwargs)


Output = tuple[OpId, int]
"""An op, and the index of an output."""
Key = tuple[int, int]
"""The number of an event, and the index of a result."""


class ByOp(Mapping[Output, torch.Tensor]):
    """What a recorder has by event, here by op; more may be added."""

    def __init__(self, by_event: Mapping[Key, torch.Tensor], events: Mapping[OpId, int]) -> None:
        """`events` has the number of the event of each op that ran."""
        self._by_event = by_event
        self._events = events

    def __getitem__(self, output: Output) -> torch.Tensor:
        op, result = output
        return self._by_event[self._events.get(op, -1), result]

    def __iter__(self) -> Iterator[Output]:
        ops = {event: op for op, event in self._events.items()}
        return ((ops[event], result) for event, result in self._by_event)

    def __len__(self) -> int:
        return len(self._by_event)


class SavedOutputs(Mapping[Output, torch.Tensor]):
    """The tensors that ops created: the events hold them, or copies if they were overwritten.

    Tensors whose memory the model has freed since are left out.
    """

    def __init__(
        self,
        ops: Sequence[OpRecord],
        events: Sequence[Rerun | None],
        given: Mapping[Output, torch.Tensor],
        copies: Mapping[Output, torch.Tensor],
    ) -> None:
        self._ops = ops
        self._events = events
        self._given = given
        self._copies = copies
        self._latest: tuple[int, tuple[torch.Tensor, ...]] = -1, ()
        """The last requested op and all its results: an op may have thousands."""

    def __getitem__(self, output: Output) -> torch.Tensor:
        tensor = self._copies.get(output)
        if tensor is None:
            tensor = self._uncopied(output)
        if tensor is None:
            raise KeyError(output)
        return tensor

    def __iter__(self) -> Iterator[Output]:
        for op in self._ops:
            outputs = ((op.id, result) for result in range(len(op.outputs)))
            yield from (at for at in outputs if at in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _uncopied(self, output: Output) -> torch.Tensor | None:
        op, result = output
        event = self._events[op] if 0 <= op < len(self._events) else None
        tensor = self._given.get(output)
        if event is not None:
            if self._latest[0] != op:
                self._latest = op, event.results
            results = self._latest[1]
            tensor = results[result] if 0 <= result < len(results) else None
        return tensor if tensor is not None and has_memory(tensor) else None


class _Kept(NamedTuple):
    key: Key
    tensor: torch.Tensor


class Originals(dict[int, tuple[torch.Tensor, torch.Tensor]]):
    """Tensors that existed before the pass, by id, each with a copy from before its writes."""

    def before_writes(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor from before the pass, as it was then."""
        _, copy = self.get(id(tensor), (tensor, None))
        return tensor if copy is None else copy_of(copy)


class Snapshots:
    """The results of a growing list of events, which hold the tensors themselves.

    The index by memory is built at the first write. `held` returns the tensors that existed before
    the pass: the model's own.
    """

    def __init__(
        self, events: Sequence[Any], held: Callable[[], Iterable[torch.Tensor]] = tuple
    ) -> None:
        self._events = events
        self._held = held
        self._indexed = 0
        self._unwritten: dict[int, list[_Kept]] = {}
        self._written: dict[int, ByMemory[_Kept]] = {}
        self.overwritten: dict[Key, torch.Tensor] = {}
        """Copies of the results that were overwritten later."""
        self.originals = Originals()
        self.lazy: dict[int, torch.Tensor] = {}
        """Tensors that had no shape before the pass gave them one, by id."""

    def note_lazy(self, tensors: Iterable[torch.Tensor]) -> None:
        """Remember the tensors that have no shape yet."""
        self.lazy.update((id(tensor), tensor) for tensor in tensors if is_lazy(tensor))

    def before_write(self, written: Sequence[torch.Tensor]) -> None:
        """Copy the results that a write into these tensors would change."""
        if is_overheard():
            with quietly():
                self._save(written)
        else:
            self._save(written)

    def _save(self, written: Sequence[torch.Tensor]) -> None:
        self._index()
        for tensor in written:
            storage = storage_of(tensor)
            if storage is not None:
                self._copy_originals(tensor, storage)
                if storage in self._unwritten and _fills_its_storage(tensor):
                    self._copy_all(storage)
                elif (extent := extent_of(tensor)) is not None:
                    self._copy_results(extent)
            else:
                self.note_lazy((tensor,))

    def _copy_all(self, storage: int) -> None:
        for key, tensor in self._unwritten[storage]:
            self.overwritten[key] = copy_of(tensor)
        self._unwritten[storage] = []

    def _copy_results(self, extent: Extent) -> None:
        if extent.storage in self._unwritten:
            results = self._written[extent.storage] = ByMemory()
            for kept in self._unwritten.pop(extent.storage):
                _add(results, kept)
        if extent.storage in self._written:
            for kept in self._written[extent.storage].take(extent, extent.meets):
                self.overwritten[kept.key] = copy_of(kept.tensor)

    def _copy_originals(self, tensor: torch.Tensor, storage: int) -> None:
        owners = self._held_by_storage.get(storage, ())
        if not owners and storage not in self._unwritten and storage not in self._written:
            owners = (tensor,)
        for owner in owners:
            if id(owner) not in self.originals and not is_lazy(owner):
                self.originals[id(owner)] = owner, copy_of(owner)

    @cached_property
    def _held_by_storage(self) -> dict[int, tuple[torch.Tensor, ...]]:
        held: dict[int, tuple[torch.Tensor, ...]] = {}
        for tensor in self._held():
            storage = storage_of(tensor)
            if storage is not None:
                held[storage] = (*held.get(storage, ()), tensor)
        return held

    def _index(self) -> None:
        for event in range(self._indexed, len(self._events)):
            for number, tensor in enumerate(self._events[event].results):
                storage = storage_of(tensor)
                if storage is None:
                    continue
                kept = _Kept((event, number), tensor)
                if storage in self._written:
                    _add(self._written[storage], kept)
                else:
                    self._unwritten.setdefault(storage, []).append(kept)
        self._indexed = len(self._events)


def _fills_its_storage(tensor: torch.Tensor) -> bool:
    """Whether a write into a tensor replaces all of its storage."""
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        return False
    return tensor.nbytes == tensor.untyped_storage().nbytes()


def _add(memory: ByMemory[_Kept], kept: _Kept) -> None:
    extent = extent_of(kept.tensor)
    if extent is not None:
        memory.add(extent, kept)
