"""The tensors of a pass by op, found where the pass has them instead of listed once more."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

import torch

from torchglass.capture.tensor.extents import has_memory
from torchglass.capture.trace.remaking import Key
from torchglass.capture.trace.reruns import Rerun
from torchglass.records.trace import Op, OpId

Output = tuple[OpId, int]
"""An op, and which of its outputs."""


class Ran:
    """The ops that ran, and the numbers of their events. Both rise, so either finds the other."""

    def __init__(self) -> None:
        self.ops = array("i")
        self._events = array("i")

    def add(self, op: OpId, event: int) -> None:
        """Note the next op."""
        self.ops.append(op)
        self._events.append(event)

    def op(self, event: int) -> OpId:
        """The op of an event."""
        return OpId(self.ops[bisect_left(self._events, event)])

    def event(self, op: OpId) -> int:
        """The event of an op; -1 for one that did not run."""
        place = bisect_left(self.ops, op)
        is_there = place < len(self.ops) and self.ops[place] == op
        return self._events[place] if is_there else -1


class ByOp(Mapping[Output, torch.Tensor]):
    """What a recorder has by event, and may still be given, by op."""

    def __init__(self, by_event: Mapping[Key, torch.Tensor], ran: Ran) -> None:
        self._by_event = by_event
        self._ran = ran

    def __getitem__(self, output: Output) -> torch.Tensor:
        op, result = output
        return self._by_event[self._ran.event(op), result]

    def __contains__(self, output: object) -> bool:
        match output:
            case (int(op), int(result)):
                return (self._ran.event(OpId(op)), result) in self._by_event
        return False

    def __iter__(self) -> Iterator[Output]:
        return ((self._ran.op(event), result) for event, result in self._by_event)

    def __len__(self) -> int:
        return len(self._by_event)


class Saved(Mapping[Output, torch.Tensor]):
    """The tensors that ops made, where the events hold them; copies of those written over later.

    One whose memory the model has freed meanwhile is none of them.
    """

    def __init__(
        self,
        ops: Sequence[Op],
        events: Sequence[Rerun | None],
        given: Mapping[Output, torch.Tensor],
        copies: Mapping[Output, torch.Tensor],
    ) -> None:
        self._ops = ops
        self._events = events
        self._given = given
        self._copies = copies
        self._latest: tuple[int, tuple[torch.Tensor, ...]] = -1, ()
        """The op that was asked for last and all its results: an op may have thousands."""

    def __getitem__(self, output: Output) -> torch.Tensor:
        if output in self._copies:
            return self._copies[output]
        tensor = self._uncopied(output)
        if tensor is None:
            raise KeyError(output)
        return tensor

    def __contains__(self, output: object) -> bool:
        match output:
            case (int(op), int(result)):
                at = OpId(op), result
                return at in self._copies or self._uncopied(at) is not None
        return False

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
