"""The tensors of a pass by op, found where the pass has them instead of listed once more."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

import torch

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
    """The tensors that ops made, where the events hold them; copies of those written over later."""

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

    def __getitem__(self, output: Output) -> torch.Tensor:
        if output not in self:
            raise KeyError(output)
        op, result = output
        event = self._events[op]
        if event is None:
            return self._given[output]
        return self._copies[output] if output in self._copies else event.results[result]

    def __contains__(self, output: object) -> bool:
        match output:
            case (int(op), int(result)) if 0 <= op < len(self._events):
                event = self._events[op]
                return output in self._given if event is None else 0 <= result < len(event.results)
        return False

    def __iter__(self) -> Iterator[Output]:
        for op in self._ops:
            outputs = ((op.id, result) for result in range(len(op.outputs)))
            yield from (at for at in outputs if self._events[op.id] or at in self._given)

    def __len__(self) -> int:
        return sum(1 for _ in self)
