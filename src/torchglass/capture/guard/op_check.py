"""Checks the output of every op, and finds the first one that is not finite.

An op is to blame for a NaN that none of its inputs had. Inputs are read only in that case, so a
healthy pass reads each computed result once, and never reads what was only copied or viewed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from torchglass.capture.guard.backward_check import BackwardCheck
from torchglass.capture.guard.evidence import (
    OpLocation,
    ResultKind,
    ShownTensor,
    argument_names,
    blame,
    op_name,
    result_kind,
    user_source,
)
from torchglass.capture.guard.finding_report import BadInputs, FindingReport, News, discard
from torchglass.capture.guard.op_dump import OpArguments, keep_arguments
from torchglass.capture.guard.tensor_health import (
    Health,
    KnownHealth,
    is_surely_finite,
    look,
    look_again,
    near_limit,
)
from torchglass.capture.module_calls import ModuleStack
from torchglass.capture.tensor.description import Args, Kwargs, iter_tensors, tensors_of_call
from torchglass.capture.torch_internals import current_scale
from torchglass.capture.torch_modes import is_overheard, quietly
from torchglass.capture.trace.op_mode import OpEvent, phase_of
from torchglass.records.findings import Finding
from torchglass.records.trace import Phase


class ScriptCall(NamedTuple):
    """A scripted module and its arguments."""

    module: nn.Module
    args: Args
    kwargs: Kwargs

    def as_op(self, call: Any, output: Any) -> OpEvent:
        """The call as if it were one op that also takes the parameters and buffers."""
        held = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return OpEvent(script, self.args, {**self.kwargs, **held}, output, call, (), 0, 0, (), "")


def script(*args: Any, **kwargs: Any) -> Any:
    """Stands for a scripted module; only the module can run it."""
    raise NotImplementedError("a script is run by its module")


class CheckedCall(NamedTuple):
    """A module call that has not ended."""

    path: str
    number: int
    script: ScriptCall | None = None


class OpInput(NamedTuple):
    """An input of an op, and its health before the op."""

    place: str
    tensor: torch.Tensor
    health: Health


class PendingFinding(NamedTuple):
    """A finding that is reported only if the bad values reach an output."""

    finding: Finding
    call: CheckedCall
    causes: tuple[str, ...]
    """The ops that produced its bad inputs."""
    news: News | None


_OUTSIDE = CheckedCall("", 0)
# Needed for every op or call, and reading an Enum member takes fifteen times as long as a name.
_MOVED, _UNDEFINED, _FINE = ResultKind.MOVED, ResultKind.UNDEFINED, Health.FINE
_ScriptModule = torch.jit.ScriptModule
PRODUCTS = frozenset({"mul", "__mul__", "__rmul__", "multiply"})
_SMALL = 1 << 16
"""Tensors up to this size are copied before they are overwritten, so that they can be shown."""


class OpCheck(ModuleStack[CheckedCall]):
    """Checks the results of this thread's ops, and knows their module calls."""

    current: CheckedCall

    def __init__(self, report: FindingReport, *, backward: bool) -> None:
        super().__init__(
            report.model.named_modules(), "the guard could not check everything", _OUTSIDE
        )
        self.is_updating = False
        """Whether an optimizer is stepping: its many writes are not checked one by one."""
        self.backward = BackwardCheck(report) if backward else None
        self._report = report
        self._known = KnownHealth()
        self._bad_inputs = BadInputs(report, self._known)
        self._before: dict[int, Health] = {}
        self._copies: dict[int, torch.Tensor] = {}
        self._waiting: dict[str, PendingFinding] = {}
        """By the description of the op."""

    def begin(self, module: nn.Module, args: Args, kwargs: Kwargs) -> CheckedCall:
        if not self.running:
            self._bad_inputs.inputs = module, args, kwargs
            self._report.factors.clear()
            self.is_updating = False
            if self.backward is not None:
                self.backward.begin()
        path = self.locate(module) or ""
        script = ScriptCall(module, args, kwargs) if isinstance(module, _ScriptModule) else None
        return CheckedCall(path, self.count(path), script)

    def end(self, call: CheckedCall, output: Any, error: BaseException | None) -> None:
        """Report the pending findings that are in the output of a call."""
        if error is None:
            if self.backward is not None:
                self._claim_rest(call, output)
            if self._waiting:
                self._report_all(self._left_with(output))
            if call.script is not None:
                self.seen(call.script.as_op(call, output))
        if not self.running:
            self._bad_inputs.inputs = None

    def missed(self, problem: Exception) -> None:
        self._report.miss(problem)

    def before_write(self, written: tuple[torch.Tensor, ...]) -> None:
        """Note the health of what an op is about to overwrite."""
        if self.is_updating:
            return
        try:
            with quietly():
                self._before = {id(tensor): self._known.health(tensor) for tensor in written}
                keeps_all = self._report.dumper is not None
                self._copies = {
                    id(tensor): tensor.detach().clone()
                    for tensor in written
                    if keeps_all or tensor.numel() <= _SMALL
                }
        except Exception as problem:  # noqa: BLE001 - see FindingReport.miss
            self._report.miss(problem)

    def seen(self, event: OpEvent) -> Any:
        """Check the results of an op."""
        if self.is_updating:
            return event.output
        findings: Sequence[Finding] = ()
        try:
            if not event.call.number and op_name(event.function) in PRODUCTS:
                self._report.factors += filter(is_single, event.args)
            kind = result_kind(event.function)
            if not self._is_fine(event, kind):
                with quietly():
                    findings = self._judge(event, kind)
            if self.backward is not None and self.backward.has_new:
                with quietly():
                    location = self._spot(event, "backward")
                    self.backward.claim(event.results, location, self._keep(event))
        except Exception as problem:  # noqa: BLE001 - see FindingReport.miss
            self._report.miss(problem)
        if event.written:
            self._before, self._copies = {}, {}
        if findings:
            self._report_all(findings)
        return event.output

    def failed(self, event: OpEvent, error: BaseException) -> None:
        self._before, self._copies = {}, {}

    def _is_fine(self, event: OpEvent, kind: ResultKind) -> bool:
        """A quick check whether an op is healthy, which nearly all are."""
        if kind is _MOVED:
            return not self._known.any_bad
        output = event.output
        if kind is _UNDEFINED or is_overheard() or not is_surely_finite(output):
            return False
        self._known.remember(output, _FINE)
        return True

    def _report_all(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            self._report.add(finding)

    @property
    def has_met_bad(self) -> bool:
        """Whether a value was not finite, reported or not."""
        return self._known.any_bad

    def forget_waiting(self) -> None:
        """Discard the findings that have reached no output."""
        for waiting in self._waiting.values():
            discard(waiting.finding)
        self._waiting.clear()

    def _judge(self, event: OpEvent, kind: ResultKind) -> Sequence[Finding]:
        if kind is ResultKind.MOVED:
            if self._known.any_bad:
                self._pass_on(event)
            return ()
        results = event.results
        if kind is ResultKind.UNDEFINED:
            for tensor in results:
                self._known.leave_undefined(tensor)
            return ()
        health, culprit = Health.FINE, None
        for tensor in results:
            found = look(tensor)
            if found > health:
                health, culprit = found, tensor
            elif not found:
                self._known.remember(tensor, found)
        return () if culprit is None else self._find_out(event, kind, health, culprit)

    def _pass_on(self, event: OpEvent) -> None:
        """A result that was only copied is as bad as the input, and the same op is to blame."""
        for given in iter_tensors((event.args, dict(event.kwargs))):
            if self._known.recall(given):
                for tensor in event.results:
                    self._known.remember(tensor, look_again(tensor), self._known.maker(given))
                return

    def _find_out(
        self, event: OpEvent, kind: ResultKind, health: Health, culprit: torch.Tensor
    ) -> Sequence[Finding]:
        """The findings about a bad result, if they are new."""
        given = self._given(event)
        ill = self._ill(given, health)
        location = self._spot(event, phase_of(event.chain))
        is_meant = _is_asked_for(event, kind, health, culprit)
        findings: Sequence[Finding] = ()
        if self._is_checked_later(event, given):
            pass
        elif ill:
            findings = self._brought(ill, location, event, culprit)
        elif not is_meant and self._report.is_news(health, location):
            findings = self._made(event, location, health, culprit, given)
        # A mask may cover an earlier NaN: its Inf is then its own.
        alike = (self._known.maker(one.tensor) for one in ill if one.health == health)
        maker = next(filter(None, alike), location.words if is_meant or not ill else "")
        for tensor in event.results:
            self._known.remember(tensor, look(tensor), maker)
        return findings

    def _ill(self, given: list[OpInput], health: Health) -> list[OpInput]:
        """The inputs that were already bad, or had the Inf that the NaN came from."""
        ill = [one for one in given if one.health >= health]
        if ill or health is not Health.NAN:
            return ill
        infinite = [one for one in given if one.health is Health.INF and not self._is_gone(one)]
        return [one for one in infinite if self._bad_inputs.are_behind(one.tensor)]

    def _brought(
        self, ill: list[OpInput], location: OpLocation, event: OpEvent, culprit: torch.Tensor
    ) -> Sequence[Finding]:
        """The findings about an op's bad inputs."""
        findings = []
        for one in ill:
            waiting = self._waiting.get(self._known.maker(one.tensor))
            if waiting is not None and (culprit.requires_grad or waiting.call not in self.running):
                findings += self._released(self._known.maker(one.tensor))
        remaining = (one.tensor for one in ill if not self._is_gone(one))
        found = self._bad_inputs.find(remaining, location)
        return findings if found is None else [*findings, found]

    def _made(
        self,
        event: OpEvent,
        location: OpLocation,
        health: Health,
        culprit: torch.Tensor,
        given: list[OpInput],
    ) -> Sequence[Finding]:
        """The findings about an op's results; without a gradient they wait for an output."""
        finding = self._blame(event, location, health, culprit, given)
        causes = tuple(filter(None, (self._known.maker(one.tensor) for one in given)))
        may_be_discarded = (
            health is not Health.NEAR
            and event.call.number > 0
            and not culprit.requires_grad
            and not any(map(self._is_held, event.results))
        )
        if not may_be_discarded:
            return [*(each for cause in causes for each in self._released(cause)), finding]
        waiting = PendingFinding(finding, event.call, causes, self._report.take_back())
        self._report.has_waiting = True
        old = self._waiting.get(location.words)
        if old is not None:
            discard(old.finding)
        self._waiting[location.words] = waiting
        return ()

    def _released(self, maker: str) -> list[Finding]:
        """A pending finding, after its causes; empty if there is none."""
        waiting = self._waiting.pop(maker, None)
        if waiting is None:
            return []
        self._report.tell(waiting.news)
        before = [each for cause in waiting.causes for each in self._released(cause)]
        return [*before, waiting.finding]

    def _left_with(self, output: Any) -> Sequence[Finding]:
        """The pending findings whose tensors are in the output of a call."""
        findings = []
        try:
            with quietly():
                for tensor in iter_tensors(output):
                    if self._known.health(tensor) > Health.NEAR:
                        maker = self._known.maker(tensor)
                        # A tensor written through a view has no known producer.
                        for each in [maker] if maker else list(self._waiting):
                            findings += self._released(each)
        except Exception as problem:  # noqa: BLE001 - see FindingReport.miss
            self._report.miss(problem)
        return findings

    def _is_held(self, tensor: torch.Tensor) -> bool:
        """Whether the model holds a tensor, so that what is written into it stays."""
        held = self._report.held
        return id(tensor) in held.parameters or id(tensor) in held.buffers

    def _is_checked_later(self, event: OpEvent, given: list[OpInput]) -> bool:
        """Whether an op works on scaled gradients, as unscaling does: the scaler checks these."""
        if event.call.number or not self._report.scalers():
            return False
        scales = {id(current_scale(scaler)) for scaler in self._report.scalers()}
        gradients = {id(each.grad) for each in self._report.model.parameters()}
        return self._report.has_unchecked or any(
            id(one.tensor) in scales or (id(one.tensor) in gradients and one.health > Health.NEAR)
            for one in given
        )

    def _given(self, event: OpEvent) -> list[OpInput]:
        located = (
            (place, tensor)
            for place, tensor in tensors_of_call(event.args, event.kwargs)
            if tensor.dtype.is_floating_point or tensor.dtype.is_complex
        )
        return [
            OpInput(
                place,
                tensor,
                self._before[id(tensor)]
                if id(tensor) in self._before
                else self._known.health(tensor),
            )
            for place, tensor in located
        ]

    def _is_gone(self, given: OpInput) -> bool:
        """Whether the op has overwritten its input."""
        return id(given.tensor) in self._before

    def _spot(self, event: OpEvent, phase: Phase) -> OpLocation:
        call: CheckedCall = event.call
        source = user_source(sys._getframe(1))
        return OpLocation(op_name(event.function), call.path, call.number, source, phase)

    def _blame(
        self,
        event: OpEvent,
        location: OpLocation,
        health: Health,
        culprit: torch.Tensor,
        given: list[OpInput],
    ) -> Finding:
        names = argument_names(location.op, [one.place for one in given])
        shown = [
            ShownTensor(
                name,
                "argument",
                one.tensor,
                maker=self._known.maker(one.tensor),
                before=self._copies.get(id(one.tensor)),
                is_gone=self._is_gone(one),
            )
            for name, one in zip(names, given, strict=True)
        ]
        result = ShownTensor("result", "result", culprit)
        finding = blame(location, health, result, shown, self._report.held)
        if self._report.dumper is None or health is Health.NEAR:
            return finding
        return self._report.dumper.dump(finding, self._keep(event), {})

    def _keep(self, event: OpEvent) -> OpArguments | None:
        return keep_arguments(event, self._copies) if self._report.dumper is not None else None

    def _claim_rest(self, call: CheckedCall, output: Any) -> None:
        """Claim the nodes of an autograd Function, which was not seen as an op."""
        try:
            if self.backward is not None and self.backward.is_open(output):
                source = user_source(sys._getframe(1))
                location = OpLocation("", call.path, call.number, source, "backward")
                self.backward.claim(output, location)
        except Exception as problem:  # noqa: BLE001 - see FindingReport.miss
            self._report.miss(problem)


def is_single(argument: object) -> bool:
    """Whether an argument is a tensor of one value without a gradient, like a loss scale."""
    return (
        isinstance(argument, torch.Tensor)
        and not argument.requires_grad
        and argument.layout is torch.strided
        and argument.numel() == 1
    )


def _is_asked_for(event: OpEvent, kind: ResultKind, health: Health, culprit: torch.Tensor) -> bool:
    """Whether the caller passed the Inf, or a number near the limit of its type."""
    if kind is ResultKind.GIVEN:
        return health is not Health.NAN
    limit = near_limit(culprit.dtype)
    if health is not Health.NEAR or limit is None:
        return False
    numbers = (*event.args, *event.kwargs.values())
    return any(isinstance(number, (int, float)) and abs(number) > limit for number in numbers)
