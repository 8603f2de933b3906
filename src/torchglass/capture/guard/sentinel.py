"""Looks at what every op makes, and finds the first that made a number which is not finite.

An op is to blame for a NaN that none of its inputs had. Inputs are looked at only then, so a
healthy pass costs one read of each result that was computed, and none of what was only moved.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from torchglass.capture.guard.arrivals import Arrivals
from torchglass.capture.guard.backward import Backward
from torchglass.capture.guard.desk import Desk
from torchglass.capture.guard.dumping import Kept, keep
from torchglass.capture.guard.evidence import Exhibit, Spot, argument_names, blame, user_source
from torchglass.capture.guard.finiteness import (
    Health,
    is_surely_finite,
    look,
    look_again,
    near_limit,
)
from torchglass.capture.guard.memory import Memory
from torchglass.capture.guard.natures import Nature, nature_of, op_name
from torchglass.capture.guard.scripts import Script
from torchglass.capture.places import tensors_of_call
from torchglass.capture.quiet import is_overheard, quietly
from torchglass.capture.trace.functions import tensors_in
from torchglass.capture.trace.ops import OpEvent
from torchglass.capture.trace.phases import phase_of
from torchglass.records.finding import Finding
from torchglass.records.model import join_path
from torchglass.records.trace import Phase


class Running(NamedTuple):
    """A module call that has not ended."""

    path: str
    number: int
    script: Script | None = None


class Given(NamedTuple):
    """A tensor that an op took, and how it was then."""

    place: str
    tensor: torch.Tensor
    health: Health


_OUTSIDE = Running("", 0)
_SMALL = 1 << 16
"""The elements of a tensor that is copied before it is written over, so that it can be shown."""


class Sentinel:
    """Watches the ops and the module calls of the thread that made it."""

    def __init__(self, desk: Desk, *, backward: bool) -> None:
        self.thread = threading.get_ident()
        self.current: Running = _OUTSIDE
        """The innermost call that is running."""
        self.is_updating = False
        """Whether an optimizer takes its step, whose many writes are not looked at one by one."""
        self.backward = Backward(desk) if backward else None
        self._desk = desk
        self._memory = Memory()
        self._arrivals = Arrivals(desk, self._memory)
        self._paths = {id(module): path for path, module in desk.model.named_modules()}
        self._open: list[Running] = []
        self._numbers: Counter[str] = Counter()
        self._before: dict[int, Health] = {}
        self._copies: dict[int, torch.Tensor] = {}

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        """A call begins; how deep it is."""
        depth = len(self._open)
        path = self._paths.get(id(module))
        if path is None:
            path = join_path(self.current.path, f"<{type(module).__name__}>")
        if not depth:
            self._arrivals.inputs = module, args, kwargs
            self.is_updating = False
            if self.backward is not None:
                self.backward.begin()
        self._numbers[path] += 1
        scripted = isinstance(module, torch.jit.ScriptModule)
        script = Script(module, args, kwargs) if scripted else None
        self.current = Running(path, self._numbers[path], script)
        self._open.append(self.current)
        return depth

    def leave(self, depth: int, output: Any = None, error: BaseException | None = None) -> None:
        """The call at a depth ended, and with it all that are deeper."""
        call = self._open[depth] if depth < len(self._open) else _OUTSIDE
        del self._open[depth:]
        if self.backward is not None and error is None:
            self._claim_rest(call, output)
        self.current = self._open[-1] if depth else _OUTSIDE
        if call.script is not None and error is None:
            self.seen(call.script.as_op(call, output))
        if not depth:
            self._arrivals.inputs = None

    def before_write(self, written: tuple[torch.Tensor, ...]) -> None:
        """Take note of what an op is about to write over."""
        if self.is_updating:
            return
        try:
            with quietly():
                self._before = {id(tensor): self._memory.health(tensor) for tensor in written}
                keeps_all = self._desk.dumper is not None
                self._copies = {
                    id(tensor): tensor.detach().clone()
                    for tensor in written
                    if keeps_all or tensor.numel() <= _SMALL
                }
        except Exception as problem:  # noqa: BLE001 - see Desk.miss
            self._desk.miss(problem)

    def seen(self, event: OpEvent) -> Any:
        """An op ran: look at what it made."""
        if self.is_updating:
            return event.output
        finding = None
        try:
            nature = nature_of(event.function)
            if not self._is_fine(event, nature):
                with quietly():
                    finding = self._judge(event, nature)
            if self.backward is not None and self.backward.has_new:
                with quietly():
                    spot = self._spot(event, "backward")
                    self.backward.claim(event.results, spot, self._keep(event))
        except Exception as problem:  # noqa: BLE001 - see Desk.miss
            self._desk.miss(problem)
        if event.written:
            self._before, self._copies = {}, {}
        if finding is not None:
            self._desk.report(finding)
        return event.output

    def failed(self, event: OpEvent, error: BaseException) -> None:
        """An op raised, which is no matter of ours."""
        self._before, self._copies = {}, {}

    def _is_fine(self, event: OpEvent, nature: Nature) -> bool:
        """Whether nothing is to be said of an op, which is so of nearly all, found out quickly."""
        if nature is Nature.MOVED:
            return not self._memory.any_bad
        output = event.output
        if nature is Nature.UNDEFINED or is_overheard() or not is_surely_finite(output):
            return False
        self._memory.remember(output, Health.FINE)
        return True

    def _judge(self, event: OpEvent, nature: Nature) -> Finding | None:
        if nature is Nature.MOVED:
            if self._memory.any_bad:
                self._pass_on(event)
            return None
        results = event.results
        if nature is Nature.UNDEFINED:
            for tensor in results:
                self._memory.leave_undefined(tensor)
            return None
        health, culprit = Health.FINE, None
        for tensor in results:
            found = look(tensor)
            if found > health:
                health, culprit = found, tensor
            elif not found:
                self._memory.remember(tensor, found)
        return None if culprit is None else self._find_out(event, nature, health, culprit)

    def _pass_on(self, event: OpEvent) -> None:
        """What was only moved is as bad as it was, through the fault of the same op."""
        for given in tensors_in((event.args, dict(event.kwargs))):
            if self._memory.recall(given):
                for tensor in event.results:
                    self._memory.remember(tensor, look_again(tensor), self._memory.maker(given))
                return

    def _find_out(
        self, event: OpEvent, nature: Nature, health: Health, culprit: torch.Tensor
    ) -> Finding | None:
        """Who is to blame for a result, if that is news."""
        given = self._given(event)
        ill = [one for one in given if one.health >= health]
        spot = self._spot(event, phase_of(event.chain))
        is_meant = _is_asked_for(event, nature, health, culprit)
        finding = None
        if ill:
            remaining = (one.tensor for one in ill if not self._is_gone(one))
            finding = self._arrivals.find(remaining, spot)
        elif not is_meant and self._desk.is_news(health, spot):
            finding = self._blame(event, spot, health, culprit, given)
        # A mask may be put over what was NaN before: its Inf is then its own.
        alike = (self._memory.maker(one.tensor) for one in ill if one.health == health)
        maker = next(filter(None, alike), spot.words if is_meant or not ill else "")
        for tensor in event.results:
            self._memory.remember(tensor, look(tensor), maker)
        return finding

    def _given(self, event: OpEvent) -> list[Given]:
        located = (
            (place, tensor)
            for place, tensor in tensors_of_call(event.args, event.kwargs)
            if tensor.dtype.is_floating_point or tensor.dtype.is_complex
        )
        return [
            Given(
                place,
                tensor,
                self._before[id(tensor)]
                if id(tensor) in self._before
                else self._memory.health(tensor),
            )
            for place, tensor in located
        ]

    def _is_gone(self, given: Given) -> bool:
        """Whether the op has written over what it was given."""
        return id(given.tensor) in self._before

    def _spot(self, event: OpEvent, phase: Phase) -> Spot:
        call: Running = event.call
        source = user_source(sys._getframe(1))
        return Spot(op_name(event.function), call.path, call.number, source, phase)

    def _blame(
        self,
        event: OpEvent,
        spot: Spot,
        health: Health,
        culprit: torch.Tensor,
        given: list[Given],
    ) -> Finding:
        names = argument_names(spot.op, [one.place for one in given])
        exhibits = [
            Exhibit(
                name,
                "argument",
                one.tensor,
                maker=self._memory.maker(one.tensor),
                before=self._copies.get(id(one.tensor)),
                is_gone=self._is_gone(one),
            )
            for name, one in zip(names, given, strict=True)
        ]
        result = Exhibit("result", "result", culprit)
        finding = blame(spot, health, result, exhibits, self._desk.held)
        if self._desk.dumper is None or health is Health.NEAR:
            return finding
        return self._desk.dumper.dump(finding, self._keep(event), {})

    def _keep(self, event: OpEvent) -> Kept | None:
        return keep(event, self._copies) if self._desk.dumper is not None else None

    def _claim_rest(self, call: Running, output: Any) -> None:
        """Claim what an autograd Function made: it is no op, and was not seen when it ran."""
        try:
            if self.backward is not None and self.backward.is_open(output):
                source = user_source(sys._getframe(1))
                spot = Spot("", call.path, call.number, source, "backward")
                self.backward.claim(output, spot)
        except Exception as problem:  # noqa: BLE001 - see Desk.miss
            self._desk.miss(problem)


def _is_asked_for(event: OpEvent, nature: Nature, health: Health, culprit: torch.Tensor) -> bool:
    """Whether an Inf, or a number near the end of its type, was written down in the call."""
    if nature is Nature.GIVEN:
        return health is not Health.NAN
    limit = near_limit(culprit.dtype)
    if health is not Health.NEAR or limit is None:
        return False
    numbers = (*event.args, *event.kwargs.values())
    return any(isinstance(number, (int, float)) and abs(number) > limit for number in numbers)
