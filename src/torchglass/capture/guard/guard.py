"""The with-blocks of guard: every op is checked, or outputs are checked and bad batches rerun.

For a rerun, the random state and the buffers from before the forward are restored, and the forward
runs on the same inputs. Afterwards both are set to their state after the original forward. A
healthy forward costs one read of its outputs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torchglass.capture.guard.device_check import DeviceCheck, HealthReads, looking_at_updates
from torchglass.capture.guard.evidence import OpLocation, ShownTensor, blame, standing, user_source
from torchglass.capture.guard.finding_report import FindingReport, ReportFinding
from torchglass.capture.guard.op_check import OpCheck
from torchglass.capture.guard.tensor_health import Health, look_again
from torchglass.capture.isolated_run import keeping_modules, keeping_random_state, random_state
from torchglass.capture.module_calls import ModuleStack, observe_calls
from torchglass.capture.tensor.description import (
    Args,
    Kwargs,
    NamedTensors,
    named_tensors,
    tensors_of_call,
    version_of,
)
from torchglass.capture.tensor.device_reads import is_capturing, is_remote
from torchglass.capture.torch_modes import (
    fused_paths_kept,
    gradients_set,
    has_compiled,
    mode_on,
    quietly,
    running_uncompiled,
)
from torchglass.capture.trace.op_mode import OpMode
from torchglass.errors import undo_reliably, uninterruptible
from torchglass.records.findings import Finding


@uninterruptible
def checking_updates(op_check: OpCheck, report: FindingReport) -> Iterator[None]:
    """Check the parameters of a model after each step of an optimizer."""

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() != op_check.thread:
            return
        try:
            if report.has_unchecked and not is_held_back(optimizer):
                with quietly():
                    are_finite = not any(spoiled_gradients(optimizer, report))
                report.gradients_used(are_finite=are_finite)
        except Exception as problem:  # noqa: BLE001 - see FindingReport.miss
            report.miss(problem)
        op_check.is_updating = True

    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() != op_check.thread:
            return
        op_check.is_updating = False
        try:
            with quietly():
                finding = _judge(optimizer, report)
            if finding is not None:
                report.add(finding)
        except Exception as problem:  # noqa: BLE001 - see FindingReport.miss
            report.miss(problem)

    with contextlib.ExitStack() as stack:
        stack.callback(register_optimizer_step_pre_hook(before).remove)
        stack.callback(register_optimizer_step_post_hook(after).remove)
        yield


def trained_by(optimizer: Optimizer, report: FindingReport) -> NamedTensors:
    """The parameters of the model that an optimizer changes, by name."""
    names = report.held.parameters
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) in names:
                yield names[id(parameter)], parameter


def spoiled_gradients(optimizer: Optimizer, report: FindingReport) -> NamedTensors:
    """The gradients with NaN or Inf that an optimizer is about to use, by parameter."""
    for name, parameter in trained_by(optimizer, report):
        gradient = parameter.grad
        if gradient is not None and look_again(gradient) > Health.NEAR:
            yield name, gradient


def is_held_back(optimizer: Optimizer) -> bool:
    """Whether a `GradScaler` makes an optimizer skip its step."""
    found: torch.Tensor | None = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found.item())


def _judge(optimizer: Optimizer, report: FindingReport) -> Finding | None:
    """The first parameter that a step made bad although its gradient was finite."""
    for name, parameter in trained_by(optimizer, report):
        health = look_again(parameter)
        if health <= Health.NEAR:
            continue
        gradient = parameter.grad
        is_old = gradient is not None and look_again(gradient) > Health.NEAR
        path = name.rpartition(".")[0]
        location = OpLocation(
            f"{type(optimizer).__name__}.step", path, 0, user_source(), "optimizer"
        )
        if is_old or not report.is_news(health, location._replace(path=name)):
            continue
        shown = [] if gradient is None else [ShownTensor("gradient", "gradient", gradient)]
        result = ShownTensor(name.rpartition(".")[2], "argument", parameter)
        return blame(location, health, result, shown, report.held)
    return None


def guarding(report: FindingReport, *, backward: bool) -> contextlib.AbstractContextManager[object]:
    """Find the origins of NaN and Inf until the block ends, however it ends.

    Compiled modules run as plain Python. A backward is checked if both it and its
    forward run in the block.
    """
    is_on_device = any(is_remote(parameter) for parameter in report.model.parameters())
    check: Any = _checking_on_device if is_on_device else checking_ops
    return cast("contextlib.AbstractContextManager[object]", check(report, backward=backward))


@uninterruptible
def _checking_on_device(report: FindingReport, *, backward: bool) -> Iterator[None]:
    """Ask once per forward and once per backward, and run a bad batch again."""
    output_check = OutputCheck(report, backward=backward, checks_outputs=False)

    def judge_update(optimizer: Optimizer) -> None:
        with quietly():
            finding = _judge(optimizer, report)
        if finding is not None:
            report.add(finding)

    def before_update(optimizer: Optimizer) -> None:
        if report.has_unchecked and not is_held_back(optimizer):
            with quietly():
                are_finite = not any(spoiled_gradients(optimizer, report))
            report.gradients_used(are_finite=are_finite)

    def trained(optimizer: Optimizer) -> list[torch.Tensor]:
        return [parameter for _, parameter in trained_by(optimizer, report)]

    check = DeviceCheck(report, output_check.rerun_latest, judge_update, backward=backward)
    with contextlib.ExitStack() as stack:
        if has_compiled(report.model.modules()):
            stack.enter_context(running_uncompiled())
        stack.enter_context(observe_calls(output_check))
        stack.enter_context(observe_calls(check))
        stack.enter_context(looking_at_updates(check, before_update, trained))
        stack.enter_context(fused_paths_kept())
        with mode_on(OpMode(check)):
            yield
        # What was computed after the last forward and backward.
        check.ask(backward=False)


@uninterruptible
def checking_ops(report: FindingReport, *, backward: bool) -> Iterator[OpCheck]:
    """Check the result of each op when it has run."""
    op_check = OpCheck(report, backward=backward)
    with contextlib.ExitStack() as stack:
        if has_compiled(report.model.modules()):
            stack.enter_context(running_uncompiled())
        stack.enter_context(observe_calls(op_check))
        stack.enter_context(checking_updates(op_check, report))
        stack.enter_context(fused_paths_kept())
        stack.callback(undo_reliably, op_check.forget_waiting)
        stack.enter_context(mode_on(OpMode(op_check)))
        if op_check.backward is not None:
            stack.callback(op_check.backward.end)
        yield op_check


def check(tensor: torch.Tensor, name: str, report: ReportFinding, *, is_known: bool) -> bool:
    """Whether a tensor is finite; reports one that is not, unless its op is known."""
    with quietly():
        health = look_again(tensor)
        if health <= Health.NEAR:
            return True
        finding = standing(name, health, ShownTensor(name, "result", tensor), user_source())
    if not is_known:
        report(finding)
    return False


class ForwardBatch(NamedTuple):
    """A forward that can be run again."""

    args: Args
    kwargs: Kwargs
    versions: tuple[int, ...]
    rewind: contextlib.ExitStack
    """Restores the random state from before the forward."""
    buffers: Mapping[int, torch.Tensor]
    """The buffers from before the forward, by id."""
    gradients: dict[int, torch.Tensor]
    """The gradients of its outputs that have arrived, by the number of the output."""

    @property
    def is_as_it_was(self) -> bool:
        """Whether its inputs have not been overwritten."""
        return self.versions == _versions(self.args, self.kwargs)


def keep_batch(args: Args, kwargs: Kwargs, buffers: Iterable[torch.Tensor]) -> ForwardBatch:
    """What is needed to rerun the forward that is about to begin."""
    kept = {id(buffer): buffer.detach().clone() for buffer in buffers}
    return ForwardBatch(args, kwargs, _versions(args, kwargs), random_state(), kept, {})


class OutputCheck(ModuleStack[nn.Module]):
    """Checks the outputs of a model's outermost calls, and reruns those with NaN or Inf."""

    def __init__(
        self, report: FindingReport, *, backward: bool, checks_outputs: bool = True
    ) -> None:
        super().__init__((), "the guard could not check everything")
        self._report = report
        self._checks_outputs = checks_outputs
        self._outputs: list[torch.Tensor] = []
        """Outputs on a device that are checked together with the gradients."""
        self._backward = backward
        self._is_rerunning = False
        self._batch: ForwardBatch | None = None

    def begin(self, module: nn.Module, args: Args, kwargs: Kwargs) -> nn.Module:
        """Keep what is needed to rerun the model's own call."""
        if module is self._report.model and not self._is_rerunning and not is_capturing():
            if self._outputs and self._batch is not None:
                self._check_outputs(self._batch)
            self._batch = None
            self._batch = keep_batch(args, kwargs, self._report.model.buffers())
        return module

    def end(self, call: nn.Module, output: Any, error: BaseException | None) -> None:
        """Check the output of the outermost call."""
        batch = self._batch
        if self.running or error is not None or self._is_rerunning or batch is None:
            return
        outputs = [tensor for _, tensor in named_tensors(output)]
        near = [tensor for tensor in outputs if not is_remote(tensor)]
        with quietly():
            bad = [tensor for tensor in near if look_again(tensor) > Health.NEAR]
            if not bad and self._backward:
                ask_for_gradients(outputs, batch.gradients)
        if bad and self._checks_outputs:
            self._rerun(batch, bad[0], "the output of the model")
        elif self._checks_outputs and not is_capturing():
            self._outputs = [tensor.detach() for tensor in outputs if is_remote(tensor)]
            is_trained = self._backward and any(tensor.requires_grad for tensor in outputs)
            if self._outputs and not is_trained:
                self._check_outputs(batch)

    def rerun_latest(self, backward: bool) -> bool:
        """Run the latest batch again; returns whether it met values that are not finite."""
        if self._batch is None or not self._batch.is_as_it_was:
            return False
        self._is_rerunning = True
        try:
            return self._run(self._batch, backward)
        finally:
            self._is_rerunning = False

    def _check_outputs(self, batch: ForwardBatch, gradients: Sequence[torch.Tensor] = ()) -> bool:
        """Check outputs and gradients with one wait; returns whether the gradients are finite."""
        outputs, self._outputs = self._outputs, []
        reads = HealthReads()
        with quietly():
            reads.add_all(outputs, "outputs")
            reads.add_all(gradients, "gradients")
            found = {site for site, health in reads.read() if health > Health.NEAR}
        if "outputs" in found:
            self._rerun(batch, outputs[0], "the output of the model")
        return "gradients" not in found

    def missed(self, problem: Exception) -> None:
        self._report.miss(problem)

    def before_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Check the gradients that an optimizer is about to use."""
        try:
            if self._batch is not None and threading.get_ident() == self.thread:
                self.look_at_gradients(optimizer, self._batch)
        except Exception as problem:  # noqa: BLE001 - see FindingReport.miss
            self._report.miss(problem)

    def look_at_gradients(self, optimizer: Optimizer, batch: ForwardBatch) -> None:
        """Rerun the latest batch if a gradient that came from it is not finite."""
        if self._is_rerunning or is_capturing():
            return
        trained = trained_by(optimizer, self._report)
        gradients = [one.grad for _, one in trained if one.grad is not None]
        are_remote = any(is_remote(gradient) for gradient in gradients)
        if are_remote and self._check_outputs(batch, gradients):
            return
        if is_held_back(optimizer):
            return
        with quietly():
            bad = list(spoiled_gradients(optimizer, self._report))
        for name, gradient in bad[:1]:
            self._rerun(batch, gradient, f"the gradient of {name}", backward=True)

    def _rerun(
        self, batch: ForwardBatch, bad: torch.Tensor, what: str, *, backward: bool = False
    ) -> None:
        """Rerun a batch, and report it if the rerun does not find the origin."""
        met, source, health = self._report.met, user_source(), look_again(bad)
        why = "its inputs were overwritten"
        if batch.is_as_it_was:
            why = "rerunning the batch does not reproduce it"
            self._is_rerunning = True
            try:
                self._run(batch, backward)
            finally:
                self._is_rerunning = False
        if self._report.met == met and self._report.is_news(
            health, OpLocation(what, "", 1, source)
        ):
            self._report.add(standing(what, health, ShownTensor(what, "result", bad), source, why))

    def _run(self, batch: ForwardBatch, backward: bool) -> bool:
        model, factors = self._report.model, list(self._report.factors)

        def as_before(buffer: torch.Tensor) -> torch.Tensor:
            return batch.buffers.get(id(buffer), buffer).clone()

        with keeping_random_state(), keeping_modules(model.modules(), {"_buffers": as_before}):
            batch.rewind.pop_all().close()
            has_gradients = backward or torch.is_grad_enabled()
            check = checking_ops(self._report, backward=backward)
            with gradients_set(has_gradients), check as op_check:
                outputs = [
                    tensor for _, tensor in named_tensors(model(*batch.args, **batch.kwargs))
                ]
                if backward:
                    # A new forward forgets what its loss was multiplied by.
                    self._report.factors[:] = factors
                    _differentiate(model, outputs, batch.gradients)
            return op_check.has_met_bad


@uninterruptible
def rerunning(report: FindingReport, *, backward: bool) -> Iterator[None]:
    """Check outputs, and gradients before each update, until the block ends."""
    output_check = OutputCheck(report, backward=backward)
    with contextlib.ExitStack() as stack:
        stack.enter_context(observe_calls(output_check))
        if backward:
            hook = register_optimizer_step_pre_hook(output_check.before_update)
            stack.callback(hook.remove)
        yield


def _versions(args: Args, kwargs: Kwargs) -> tuple[int, ...]:
    return tuple(version_of(tensor) for _, tensor in tensors_of_call(args, kwargs))


def ask_for_gradients(outputs: list[torch.Tensor], into: dict[int, torch.Tensor]) -> None:
    """Keep the gradients of a model's outputs, by output number."""
    for number, tensor in enumerate(outputs):
        # A leaf, such as a parameter that a model returns, would keep the hook.
        if tensor.requires_grad and not tensor.is_leaf:
            tensor.register_hook(partial(_take_gradient, into, number))  # type: ignore[no-untyped-call]


def _take_gradient(
    into: dict[int, torch.Tensor], number: int, gradient: torch.Tensor | None
) -> None:
    if gradient is not None:
        into[number] = gradient.detach()


def _differentiate(
    model: nn.Module, outputs: list[torch.Tensor], gradients: Mapping[int, torch.Tensor]
) -> None:
    """Run the backward from the model's outputs without changing any gradient."""
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    pairs = [(outputs[number], gradient) for number, gradient in gradients.items()]
    if pairs and weights:
        tensors, given = zip(*pairs, strict=True)
        torch.autograd.grad(tensors, weights, given, allow_unused=True)
