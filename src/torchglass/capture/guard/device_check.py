"""The guard on an accelerator: the range of each result stays there, and is read once per pass.

Asking after each op whether its result is finite would make the program wait for the device each
time. Here the smallest and largest value of each result stay on the device. At the end of a forward
they come over in one copy, and at the end of a backward those of the gradients. If one is not
finite, the batch runs again with a check after each op, which names the op and shows its operands.
Where that is not possible, as for a loss outside of the model, the order of the ops says which one
was first.
"""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torchglass.capture.autograd import Gradients, NewNodes
from torchglass.capture.guard.evidence import (
    OpLocation,
    ResultKind,
    ShownTensor,
    arrival,
    blame,
    op_name,
    result_kind,
    user_source,
)
from torchglass.capture.guard.finding_report import FindingReport
from torchglass.capture.guard.op_check import PRODUCTS, CheckedCall, is_single
from torchglass.capture.guard.tensor_health import Health, near_limit
from torchglass.capture.module_calls import ModuleStack
from torchglass.capture.tensor.description import Args, Kwargs, iter_tensors, tensors_of_call
from torchglass.capture.tensor.device_reads import Array, DeviceReads, is_capturing, is_remote
from torchglass.capture.tensor.moments import numbers_of
from torchglass.capture.torch_internals import (
    current_backward,
    foreach_norm,
    is_functorch_wrapped_tensor,
    node_count,
    queue_callback,
)
from torchglass.capture.torch_modes import quietly
from torchglass.capture.trace.op_mode import OpEvent

_MOST_KEPT = 1 << 16
"""Results outside of the model are kept up to this size until they are read."""


class HealthReads:
    """Reads the health of many tensors with one wait."""

    def __init__(self) -> None:
        self._reads = DeviceReads()
        self._found: list[tuple[Any, Health]] = []

    def add(self, tensor: torch.Tensor, site: Any) -> None:
        """Look at a tensor; `site` is what the answer is called by."""
        is_float = tensor.dtype.is_floating_point or tensor.dtype.is_complex
        if not is_float or is_functorch_wrapped_tensor(tensor):
            return
        values = numbers_of(tensor)
        if values is None:
            return
        limit = near_limit(values.dtype) or math.inf
        if values.is_complex():
            values = torch.view_as_real(values.resolve_conj())
        if values.element_size() == 1:
            values = values.float()
        ends = torch.stack(torch.aminmax(values))
        self._reads.later(ends, partial(self._take, site, limit))

    def add_all(self, tensors: Iterable[torch.Tensor], site: Any) -> None:
        """Look at many tensors, as one answer."""
        by_kind: dict[tuple[Any, ...], list[torch.Tensor]] = {}
        for tensor in tensors:
            values = numbers_of(tensor)
            if values is not None and values.is_floating_point():
                by_kind.setdefault((values.device, values.dtype), []).append(values)
        for alike in by_kind.values():
            largest = torch.stack(list(foreach_norm(alike, math.inf)))
            self._reads.later(largest, partial(self._take, site, math.inf))

    def read(self) -> list[tuple[Any, Health]]:
        """The sites that are not finite, in the order of the program; waits once."""
        self._reads.send()
        self._reads.receive(wait=True)
        found, self._found = self._found, []
        return found

    def _take(self, site: Any, limit: float, ends: Array) -> None:
        if (ends != ends).any():
            health = Health.NAN
        else:
            largest = max(abs(float(end)) for end in ends.reshape(-1))
            health = Health.INF if math.isinf(largest) else Health.NEAR
            if largest <= limit and not math.isinf(largest):
                return
        self._found.append((site, health))


class LookedAtOp(NamedTuple):
    """An op whose result was looked at."""

    location: OpLocation
    is_given: bool = False
    """Whether the caller passed the values: an Inf is intended."""
    result: torch.Tensor | None = None
    """Its result, if the op ran outside of the model."""
    is_input: bool = False
    """Whether it is an input of the op instead."""
    is_scaled: bool = False
    """Whether the loss was multiplied by a tensor before, such as the scale of a `GradScaler`."""


class LookedAtUpdate(NamedTuple):
    """An optimizer whose parameters were looked at after a step."""

    optimizer: weakref.ref[Optimizer]


Rerun = Callable[[bool], bool]
"""Runs the latest batch again under a check of each op, with its backward or without.

Returns whether the rerun met values that are not finite, reported or not.
"""


class DeviceCheck(ModuleStack[CheckedCall]):
    """Looks at the result of every op, and asks once per forward and once per backward."""

    current: CheckedCall

    def __init__(
        self,
        report: FindingReport,
        rerun: Rerun,
        judge_update: Callable[[Optimizer], None],
        *,
        backward: bool,
    ) -> None:
        modules = report.model.named_modules()
        super().__init__(modules, "the guard could not check everything", CheckedCall("", 0))
        self.is_off = False
        """Whether nothing is looked at, as while an optimizer steps or a batch runs again."""
        self._report = report
        self._rerun = rerun
        self._judge_update = judge_update
        self._is_backward = backward
        self._health = HealthReads()
        self._accepted: set[tuple[OpLocation, Health]] = set()
        """What a rerun has found to be intended, as the Inf of a mask."""
        self._nodes = NewNodes()
        self._made = node_count()
        self._backward = -1
        self._has_gone_back = False

    def begin(self, module: nn.Module, args: Args, kwargs: Kwargs) -> CheckedCall:
        if not self.running:
            self._report.factors.clear()
            self._has_gone_back = False
            self._nodes, self._made = NewNodes(), node_count()
        path = self.locate(module) or ""
        return CheckedCall(path, self.count(path))

    def end(self, call: CheckedCall, output: Any, error: BaseException | None) -> None:
        """Read the health of a forward after its outermost call."""
        if error is None and not self.running and not self.is_off:
            self.ask(backward=False)

    def missed(self, problem: Exception) -> None:
        self._report.miss(problem)

    def before_write(self, written: tuple[torch.Tensor, ...]) -> None:
        """What is about to be overwritten was looked at when it was computed."""

    def failed(self, event: OpEvent, error: BaseException) -> None:
        """An op that raised has no result."""

    def seen(self, event: OpEvent) -> Any:
        """Look at the results of an op."""
        if self.is_off or is_capturing():
            return event.output
        try:
            if not event.call.number and op_name(event.function) in PRODUCTS:
                self._report.factors += filter(is_single, event.args)
            kind = result_kind(event.function)
            if kind in (ResultKind.COMPUTED, ResultKind.GIVEN):
                with quietly():
                    self._look(event, kind)
            if self._is_backward and node_count() != self._made:
                with quietly():
                    self._claim(event)
        except Exception as problem:  # noqa: BLE001 - see FindingReport.miss
            self._report.miss(problem)
        return event.output

    def look_at_update(self, optimizer: Optimizer, parameters: Sequence[torch.Tensor]) -> None:
        """Look at what an optimizer has just written; the answer comes with the next forward."""
        if not is_capturing():
            with quietly():
                self._health.add_all(parameters, LookedAtUpdate(weakref.ref(optimizer)))

    def ask(self, *, backward: bool) -> None:
        """Read what was looked at, and find the origin if something is not finite."""
        if is_capturing():
            return
        with quietly():
            bad = [
                (site, health) for site, health in self._health.read() if self._is_new(site, health)
            ]
        ops = [(site, health) for site, health in bad if isinstance(site, LookedAtOp)]
        for site, _ in bad:
            if isinstance(site, LookedAtUpdate) and (optimizer := site.optimizer()) is not None:
                self._judge_update(optimizer)
        inside = [(site, health) for site, health in ops if site.location.call]
        if inside:
            self._find_inside(inside, backward=backward)
        elif ops and not (ops[0][0].is_scaled and self._report.scalers()):
            # What overflows because of a scale is checked by the scaler.
            self._tell(*ops[0])

    def _find_inside(self, bad: list[tuple[LookedAtOp, Health]], *, backward: bool) -> None:
        met = self._report.met
        self.is_off = True
        try:
            is_there = self._rerun(backward)
        finally:
            self.is_off = False
        if self._report.met != met:
            return
        if is_there:
            self._accepted.update((site.location, health) for site, health in bad)
        else:
            self._tell(*bad[0])

    def _is_new(self, site: LookedAtOp | LookedAtUpdate, health: Health) -> bool:
        if isinstance(site, LookedAtUpdate):
            return health > Health.NEAR
        is_intended = site.is_given and health is not Health.NAN
        return not is_intended and (site.location, health) not in self._accepted

    def _tell(self, site: LookedAtOp, health: Health) -> None:
        """Report an op that cannot be run again."""
        location = site.location
        if not self._report.is_news(health, location):
            return
        result = site.result
        if result is None:
            result = torch.full((), math.nan if health is Health.NAN else math.inf, device="cpu")
        held = self._report.held
        with quietly():
            shown = ShownTensor("result", "result", result)
            if site.is_input:
                words = "{count} came from a tensor created before the guard"
                finding = arrival(location, health, words, shown, held)
            else:
                finding = blame(location, health, shown, [], held)
        self._report.add(finding)

    def _look(self, event: OpEvent, kind: ResultKind) -> None:
        call: CheckedCall = event.call
        is_outside, is_scaled = not call.number, bool(self._report.factors)
        if is_outside and is_scaled and self._has_gone_back:
            # Unscaling: a `GradScaler` checks these itself.
            return
        source = user_source() if is_outside else None
        location = OpLocation(op_name(event.function), call.path, call.number, source)
        if is_outside:
            for _, tensor in tensors_of_call(event.args, event.kwargs):
                if tensor.grad_fn is None and is_remote(tensor):
                    site = LookedAtOp(location, False, tensor.detach(), True, is_scaled)
                    self._health.add(tensor, site)
        for tensor in event.results:
            kept = tensor.detach() if is_outside and tensor.numel() <= _MOST_KEPT else None
            is_given = kind is ResultKind.GIVEN
            self._health.add(tensor, LookedAtOp(location, is_given, kept, False, is_scaled))

    def _claim(self, event: OpEvent) -> None:
        """Look at the gradients that the new nodes behind a result will compute."""
        call: CheckedCall = event.call
        location = OpLocation(op_name(event.function), call.path, call.number, None, "backward")
        for node in self._nodes.behind(iter_tensors(event.results)):
            node.register_hook(partial(self._after_node, location))
        self._made = node_count()

    def _after_node(self, location: OpLocation, made: Gradients, given: Gradients) -> None:
        if self.is_off or is_capturing():
            return
        try:
            if current_backward() != self._backward:
                self._backward = current_backward()
                queue_callback(self._backward_ended)
            with quietly():
                for gradient in made:
                    if gradient is not None:
                        self._health.add(gradient, LookedAtOp(location))
        except Exception as problem:  # noqa: BLE001 - see FindingReport.miss
            self._report.miss(problem)

    def _backward_ended(self) -> None:
        self._backward, self._has_gone_back = -1, True
        if not self.is_off:
            try:
                self.ask(backward=True)
            except Exception as problem:  # noqa: BLE001 - see FindingReport.miss
                self._report.miss(problem)


@contextlib.contextmanager
def looking_at_updates(
    check: DeviceCheck,
    before: Callable[[Optimizer], None],
    trained: Callable[[Optimizer], list[Any]],
) -> Iterator[None]:
    """Look at the parameters after each step of an optimizer, and at nothing while it steps."""
    thread = threading.get_ident()

    def pre(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() == thread:
            before(optimizer)
            check.is_off = True

    def post(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() == thread:
            check.is_off = False
            check.look_at_update(optimizer, trained(optimizer))

    with contextlib.ExitStack() as stack:
        stack.callback(register_optimizer_step_pre_hook(pre).remove)
        stack.callback(register_optimizer_step_post_hook(post).remove)
        yield
