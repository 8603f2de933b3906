"""Who created the nodes of autograd, noted before they are created and afterwards."""

from __future__ import annotations

import weakref

import torch

from torchglass.capture.autograd import (
    UNNUMBERED,
    GradientHook,
    HookHandles,
    NewNodes,
    NodeCreators,
    leaves_among,
    node_name,
    nodes_behind,
    saved_tensors,
)


def number_of(tensor: torch.Tensor) -> int:
    assert tensor.grad_fn is not None
    return tensor.grad_fn._sequence_nr()


def test_a_node_belongs_to_the_current_creator() -> None:
    x = torch.ones(2, requires_grad=True)
    before = number_of(x * 2)
    creators: NodeCreators[str] = NodeCreators()

    creators.begin("encoder")
    first = x.exp()
    creators.begin("decoder")
    second, third = first.sin(), first.cos()

    assert creators.find(before) is None
    assert [creators.find(number_of(one)) for one in (first, second, third)] == [
        "encoder",
        "decoder",
        "decoder",
    ]


def test_new_nodes_belong_to_the_creator_reported_afterwards() -> None:
    x = torch.ones(2, requires_grad=True)
    before = number_of(x * 2)
    creators: NodeCreators[str] = NodeCreators()

    first = x.exp()
    assert creators.has_new
    creators.created("encoder")
    creators.created("nobody")
    second = first.sin()
    creators.created("decoder")
    after = first.cos()

    found = [creators.find(number_of(one)) for one in (first, second)]
    assert found == ["encoder", "decoder"]
    assert creators.find(before) is None
    assert creators.find(number_of(after)) is None


def test_an_accumulate_grad_node_has_no_creator() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    assert y.grad_fn is not None
    adds, _ = y.grad_fn.next_functions[0]
    creators: NodeCreators[str] = NodeCreators()

    assert adds is not None
    assert adds._sequence_nr() == UNNUMBERED
    assert creators.find(UNNUMBERED) is None


def test_each_new_node_is_found_once_and_older_nodes_are_skipped() -> None:
    x = torch.ones(2, requires_grad=True)
    older = x.exp()
    new = NewNodes()
    first = older.sin()
    second = first.cos()

    names = [node_name(node) for node in new.behind([second])]

    assert names == ["CosBackward0", "SinBackward0"]
    assert list(new.behind([second, first.tanh()])) != []
    assert list(new.behind([second])) == []


def test_a_graph_walk_visits_every_node_once_and_finds_the_leaves() -> None:
    x = torch.ones(2, requires_grad=True)
    hidden = x.exp()

    nodes = list(nodes_behind([hidden.sin() + hidden.cos()]))

    names = [node_name(reached.node) for reached in nodes]
    assert sorted(names) == [
        "AccumulateGrad",
        "AddBackward0",
        "CosBackward0",
        "ExpBackward0",
        "SinBackward0",
    ]
    assert leaves_among(nodes) == [x]


def test_saved_tensors_have_names_and_overwritten_ones_are_skipped() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.exp()

    assert [(name, tensor.tolist()) for name, tensor in saved_tensors(y.grad_fn)] == [
        ("result", y.tolist())
    ]
    y.mul_(2)
    exp = y.grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    assert list(saved_tensors(exp)) == []


class Receiver:
    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.taken: list[list[float]] = []
        self.problems: list[Exception] = []

    def take_gradient(self, hook: GradientHook, gradient: torch.Tensor) -> None:
        if self.fails:
            raise ValueError("ours")
        self.taken.append(gradient.tolist())

    def notice_backward(self) -> None:
        raise AssertionError

    def gradient_missed(self, problem: Exception) -> None:
        self.problems.append(problem)


def test_a_gradient_hook_reports_and_never_raises() -> None:
    good, bad, gone = Receiver(), Receiver(fails=True), Receiver()
    x = torch.ones(2, requires_grad=True)
    y = x * 3
    for receiver in (good, bad, gone):
        y.register_hook(GradientHook(weakref.ref(receiver), y, y._version))  # type: ignore[no-untyped-call]
    del receiver, gone

    torch.autograd.backward(y.sum())

    assert good.taken == [[1.0, 1.0]]
    assert [str(problem) for problem in bad.problems] == ["ours"]


def test_hook_handles_of_freed_nodes_are_dropped_and_others_removed() -> None:
    runs: list[str] = []
    handles = HookHandles()
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    assert y.grad_fn is not None
    handles.around(y.grad_fn, lambda _: runs.append("before"), lambda *_: runs.append("after"))
    torch.autograd.backward(y.sum(), retain_graph=True)
    assert runs == ["before", "after"]

    handles.drop_freed()
    handles.remove()
    torch.autograd.backward(y.sum())
    assert runs == ["before", "after"]
