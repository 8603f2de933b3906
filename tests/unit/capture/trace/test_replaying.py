"""A record that is not true is found out."""

from __future__ import annotations

import torch
from torch import nn

import torchglass as tg


class _Choosing(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.ones(3, dtype=torch.bool), x * 2, y * 2)


def test_a_saved_value_that_was_changed_is_the_first_disagreement() -> None:
    trace = tg.trace(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)), torch.ones(2, 3))
    tanh = trace["tanh"]
    with torch.no_grad():
        assert tanh.tensor is not None
        tanh.tensor.add_(0.5)

    validation = trace.validate()

    assert not validation
    assert trace[validation.differing[0].op] is tanh
    assert validation.differing[0].reason == "values differ by up to 0.5"


def test_an_argument_that_changes_nothing_is_not_proven_to_be_a_parent() -> None:
    trace = tg.trace(_Choosing(), torch.ones(3), torch.ones(3))

    validation = trace.validate()

    assert validation
    (doubt,) = validation.unproven
    assert (trace[doubt.op].label, doubt.reason) == ("where_1_5", "another right changes nothing")


def test_edges_are_taken_for_real_where_nothing_shall_be_changed() -> None:
    trace = tg.trace(_Choosing(), torch.ones(3), torch.ones(3))

    assert trace.validate(perturb=False).unproven == ()


class _Drawing(nn.Module):
    def __init__(self, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.generator = generator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bernoulli(x.sigmoid(), generator=self.generator) + torch.randn(3)


def test_an_op_that_does_not_take_any_number_is_replayed_although_its_edge_is_not_proven() -> None:
    validation = tg.trace(_Drawing(), torch.ones(3)).validate()

    assert validation
    assert validation.skipped == ()


def test_a_generator_of_the_user_s_is_not_drawn_from() -> None:
    generator = torch.Generator()
    trace = tg.trace(_Drawing(generator), torch.ones(3))
    state = generator.get_state()

    validation = trace.validate()

    assert torch.equal(generator.get_state(), state)
    assert [trace[doubt.op].label for doubt in validation.skipped] == ["bernoulli_1_2"]


class _Mapping(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mapped: torch.Tensor = torch.vmap(lambda row: (row + 1) * 2, in_dims=1)(x)
        return mapped * 3


def test_what_ran_under_a_transform_is_skipped_and_not_doubted() -> None:
    trace = tg.trace(_Mapping(), torch.ones(3, 5))

    validation = trace.validate()

    assert validation
    assert [trace[doubt.op].label for doubt in validation.skipped] == ["add_1_1", "mul_1_2"]


class _Counting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = torch.tensor(3)
        before = count + 1
        count.add_(1)
        return x + count + before


def test_a_number_that_the_pass_counts_up_is_replayed_from_where_it_began() -> None:
    with tg.tracing(_Counting(), level="aten") as trace:
        _Counting()(torch.ones(3))

    assert trace.validate()
