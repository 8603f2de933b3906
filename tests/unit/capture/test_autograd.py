"""Whose the nodes of autograd are, told before they are made and afterwards."""

from __future__ import annotations

import torch

from torchglass.capture.autograd import UNNUMBERED, LateNodeCreators, NodeCreators


def number_of(tensor: torch.Tensor) -> int:
    assert tensor.grad_fn is not None
    return tensor.grad_fn._sequence_nr()


def test_a_node_is_whose_turn_it_was() -> None:
    x = torch.ones(2, requires_grad=True)
    before = number_of(x * 2)
    makers: NodeCreators[str] = NodeCreators()

    makers.begin("encoder")
    first = x.exp()
    makers.begin("decoder")
    second, third = first.sin(), first.cos()

    assert makers.find(before) is None
    assert [makers.find(number_of(one)) for one in (first, second, third)] == [
        "encoder",
        "decoder",
        "decoder",
    ]


def test_a_node_is_whose_turn_has_ended_since() -> None:
    x = torch.ones(2, requires_grad=True)
    before = number_of(x * 2)
    makers: LateNodeCreators[str] = LateNodeCreators()

    first = x.exp()
    assert makers.has_new
    makers.end("encoder")
    makers.end("nobody")
    second = first.sin()
    makers.end("decoder")
    after = first.cos()

    found = [makers.find(number_of(one)) for one in (first, second)]
    assert found == ["encoder", "decoder"]
    assert makers.find(before) is None
    assert makers.find(number_of(after)) is None


def test_what_adds_to_a_leaf_was_made_by_nobody() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    assert y.grad_fn is not None
    adds, _ = y.grad_fn.next_functions[0]
    makers: LateNodeCreators[str] = LateNodeCreators()

    assert adds is not None
    assert adds._sequence_nr() == UNNUMBERED
    assert makers.find(UNNUMBERED) is None
