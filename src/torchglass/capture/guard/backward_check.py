"""Checks the gradients that every autograd node produces.

A node gets a hook after the op that created it has run, so that a bad gradient names that op's
module and line. No hook is on the model, and the hooks are freed with the graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from torchglass.capture.autograd import (
    Gradients,
    NewNodes,
    is_user_function,
    output_of_node,
    saved_tensors,
)
from torchglass.capture.guard.evidence import OpLocation, ShownTensor, TensorNames, arrival, blame
from torchglass.capture.guard.finding_report import FindingReport
from torchglass.capture.guard.op_dump import OpArguments
from torchglass.capture.guard.tensor_health import Health, look, look_again
from torchglass.capture.tensor.description import NamedTensors, iter_tensors
from torchglass.capture.torch_internals import (
    DisableTorchFunction,
    current_backward,
    node_count,
    node_number,
    running_node,
)
from torchglass.capture.torch_modes import quietly
from torchglass.records.findings import Finding


@dataclasses.dataclass(slots=True)
class NodeOwner:
    """The op or module whose backward a node is."""

    location: OpLocation
    kept: OpArguments | None = None
    """The arguments of the op, if they may be needed again."""
    results: Mapping[tuple[int, int], int] = dataclasses.field(default_factory=dict)
    """The numbers of its results by node and output; only if the arguments are kept."""
    gradients: dict[int, torch.Tensor] = dataclasses.field(default_factory=dict)
    """The gradients of its results that have arrived so far."""


class BackwardCheck:
    """Claims the nodes that ops create, and checks them when they run."""

    def __init__(self, report: FindingReport) -> None:
        self._report = report
        self._made = node_count()
        self._nodes = NewNodes()
        self._task = -1
        self._spoiled = False
        self._is_active = True

    @property
    def has_new(self) -> bool:
        """Whether nodes were created since the last claim."""
        return node_count() != self._made

    def is_open(self, output: Any) -> bool:
        """Whether a result has a node that was not claimed, as after an autograd Function."""
        # Our own mode is on here: through it, reading a tensor takes ten times as long.
        with DisableTorchFunction():
            nodes = [tensor.grad_fn for tensor in iter_tensors(output)]
        return any(node is not None and self._nodes.is_new(node) for node in nodes)

    def begin(self) -> None:
        """Claim only nodes that are created from here on."""
        self._made = node_count()
        self._nodes = NewNodes()

    def claim(self, output: Any, location: OpLocation, kept: OpArguments | None = None) -> None:
        """Hook the new nodes behind a result."""
        claim = NodeOwner(location, kept)
        if kept is not None:
            claim.results = {
                source: number
                for number, tensor in enumerate(iter_tensors(output))
                if (source := output_of_node(tensor)) is not None
            }
        for node in self._nodes.behind(iter_tensors(output)):
            node.register_hook(partial(self._after, _own_claim(node, claim)))
        self._made = node_count()

    def end(self) -> None:
        """Ignore the hooks that are still on graphs."""
        self._is_active = False

    def _after(self, claim: NodeOwner, made: Gradients, given: Gradients) -> None:
        if not self._is_active:
            return
        try:
            with quietly():
                finding = self._judge(claim, made, given)
            if finding is not None:
                self._report.add_gradient(finding)
        except Exception as problem:  # noqa: BLE001 - see FindingReport.miss
            self._report.miss(problem)

    def _judge(self, claim: NodeOwner, made: Gradients, given: Gradients) -> Finding | None:
        if claim.kept is not None:
            _take_gradients(claim, given)
        health, culprit = Health.FINE, None
        for number, gradient in enumerate(made):
            found = Health.FINE if gradient is None else look(gradient)
            if found > health:
                health, culprit = found, number
        if culprit is None:
            return None
        before = max((look_again(one) for one in given if one is not None), default=Health.FINE)
        was_spoiled = self._spoil(health)
        is_of_forward = any(look_again(tensor) >= health for _, tensor in _saved(running_node()))
        if is_of_forward and not self._report.has_waiting:
            # The forward produced it and was already reported.
            return None
        if before < health:
            is_news = self._report.is_news(health, claim.location)
            return self._blame(claim, health, made, given, culprit) if is_news else None
        return None if was_spoiled or before is Health.NEAR else self._arrival(claim, given, before)

    def _spoil(self, health: Health) -> bool:
        """Note that a node produced bad values; returns whether an earlier node did."""
        task = current_backward()
        if task != self._task:
            self._task, self._spoiled = task, False
        before = self._spoiled
        self._spoiled = before or health > Health.NEAR
        return before

    def _arrival(self, claim: NodeOwner, given: Gradients, health: Health) -> Finding | None:
        """A bad gradient that no node produced: the first one was bad, or a sum overflowed."""
        if not self._report.is_news(health, claim.location._replace(source=None)):
            return None
        what = "{count} came with the initial gradient of backward, or from a sum of gradients"
        gradient = next(one for one in given if one is not None and look_again(one) >= health)
        shown = ShownTensor("gradient of the result", "gradient", gradient)
        return arrival(claim.location, health, what, shown, self._report.held)

    def _blame(
        self, claim: NodeOwner, health: Health, made: Gradients, given: Gradients, culprit: int
    ) -> Finding:
        node = running_node()
        gradient = made[culprit]
        assert gradient is not None
        shown = [
            *(
                ShownTensor("gradient of the result", "gradient", one)
                for one in given
                if one is not None
            ),
            *(ShownTensor(name, "saved", tensor) for name, tensor in _saved(node)),
        ]
        held = self._report.held
        result = ShownTensor(
            "gradient produced", "gradient", gradient, holder=_parameter(node, culprit, held)
        )
        facts = {"node": node.name()} if node is not None else {}
        finding = blame(claim.location, health, result, shown, held, facts)
        if self._report.dumper is None or health is Health.NEAR:
            return finding
        return self._report.dumper.dump(finding, claim.kept, claim.gradients)


def _own_claim(node: Any, claim: NodeOwner) -> NodeOwner:
    """Name an autograd Function by its class: no op was seen that created its node."""
    if not is_user_function(node):
        return claim
    return NodeOwner(claim.location._replace(op=type(node).__name__.removesuffix("Backward")))


def _take_gradients(claim: NodeOwner, given: Gradients) -> None:
    node = running_node()
    number = -1 if node is None else node_number(node)
    for place, gradient in enumerate(given):
        result = claim.results.get((number, place))
        if result is not None and gradient is not None:
            claim.gradients[result] = gradient.detach()


def _parameter(node: Any, culprit: int, held: TensorNames) -> str:
    """The name of the parameter that receives a gradient of a node, if one does."""
    after = node.next_functions[culprit][0] if node is not None else None
    return held.parameters.get(id(getattr(after, "variable", None)), "")


def _saved(node: Any) -> NamedTensors:
    """What a built-in node saved in the forward, as far as it can be read."""
    return iter(()) if is_user_function(node) else saved_tensors(node)
