"""Someone watches a training from inside: what flows, its gradients, its weights."""

from __future__ import annotations

import base64
import copy
import io
import os
import pickle
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchglass as tg
from tests.watched import graph_of, watching
from torchglass import TorchglassWarning, attach, errors, watch


class Net(nn.Module):
    """Two layers with an activation in place between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.act = nn.ReLU(inplace=True)
        self.last = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.act(self.first(x)))
        return result


def backward(loss: torch.Tensor) -> None:
    torch.autograd.backward(loss)


def train(model: nn.Module, steps: int, *args: Any, **kwargs: Any) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(*args, **kwargs).square().mean()
        backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_step_records_inputs_outputs_gradients_and_parameters() -> None:
    model = Net()

    with watching(model) as seen:
        train(model, 2, torch.randn(3, 4))

    of_a_layer = ("weight", "bias", "weight.grad", "bias.grad")
    assert seen.labels == {
        *("input.0", "first.input.0"),
        *(
            f"{place}{quantity}"
            for place in ("first.output", "act.input.0", "act.output", "last.input.0")
            for quantity in ("", ".grad", ".grad_norm")
        ),
        *(f"{place}{of}" for place in ("last.output", "output") for of in ("", ".grad")),
        *("last.output.grad_norm", "output.grad_norm"),
        *(f"{layer}.{name}" for layer in ("first", "last") for name in of_a_layer),
    }
    assert all(seen.steps(label) == [0, 1] for label in seen.labels)


def test_histogram_statistics_use_all_values_and_bins_use_a_sample() -> None:
    model = nn.Linear(50, 60)

    with watching(model, sample_n=100) as seen:
        x = torch.randn(20, 50)
        backward(model(x).sum())

    histogram = seen.histogram("input.0")
    assert histogram.stats.count == x.numel()
    assert histogram.stats.min == x.min().item()
    assert histogram.stats.max == x.max().item()
    assert histogram.stats.mean == pytest.approx(x.mean().item(), abs=1e-6)
    assert histogram.stats.std == pytest.approx(x.std().item(), rel=1e-5)
    assert sum(histogram.counts) == 100


def test_without_sampling_the_bins_have_all_values() -> None:
    model = nn.Linear(50, 60)
    x = torch.randn(20, 50)

    with watching(model, sample_n=None) as seen:
        backward(model(x).sum())

    assert sum(seen.histogram("input.0").counts) == x.numel()


def test_the_input_of_an_in_place_module_is_recorded_before_the_change() -> None:
    model = Net()

    with watching(model) as seen:
        train(model, 1, torch.randn(30, 4))

    assert seen.histogram("act.input.0").stats.min < 0
    assert seen.histogram("act.output").stats.min == 0


class _ChangedBetween(nn.Module):
    """Its hidden values are changed between two layers, in one of several ways."""

    def __init__(self, change: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        self.change(hidden)
        result: torch.Tensor = self.last(hidden)
        return result


@pytest.mark.parametrize(
    "change",
    [
        lambda hidden: hidden.mul_(2),
        lambda hidden: setattr(hidden, "data", hidden.data * 2),
    ],
    ids=["in place", "new data"],
)
def test_a_tensor_that_changes_between_two_modules_is_read_twice(
    change: Callable[[torch.Tensor], object],
) -> None:
    model = _ChangedBetween(change)

    with watching(model) as seen:
        train(model, 1, torch.randn(30, 4))

    before, after = seen.histogram("first.output").stats, seen.histogram("last.input.0").stats
    assert (after.min, after.max) == (2 * before.min, 2 * before.max)
    gradient = seen.histogram("last.input.0.grad").stats
    assert gradient.count == 240
    assert gradient.max > 0


class _ThroughNumpy(nn.Module):
    """Two towers; the values of one leave torch."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.right(right).detach().numpy()
        return self.left(left), torch.from_numpy(features)


def test_a_graph_with_values_from_outside_of_torch_is_recorded() -> None:
    model = _ThroughNumpy()

    with warnings.catch_warnings(), watching(model) as seen:
        warnings.simplefilter("error")
        left, right = model(torch.randn(8, 4), torch.randn(8, 4))
        backward((left * right).sum())

    nodes = seen.graph.nodes
    assert {"left", "right"} <= {node.path for node in nodes}
    assert all(node.parent is None or node.parent < node.id for node in nodes)


def test_io_gradients_match_autograd_despite_in_place_ops() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.conv(x)
            y += x
            return y.relu_()

    model = Block()
    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    made = model.conv(x)
    made.retain_grad()
    backward((made + x).relu().pow(2).sum())
    expected, of_input = cast(torch.Tensor, made.grad), cast(torch.Tensor, x.grad)
    x.grad = None

    with watching(model) as seen:
        backward(model(x).pow(2).sum())

    gradient = seen.histogram("conv.output.grad")
    assert gradient.stats.max == pytest.approx(expected.max().item(), rel=1e-6)
    assert gradient.stats.std == pytest.approx(expected.std().item(), rel=1e-5)
    assert torch.equal(cast(torch.Tensor, x.grad), of_input)
    norms = seen.histogram("conv.output.grad_norm").stats
    lengths = expected.flatten(1).norm(dim=1)
    assert norms.count == 2
    assert norms.min == pytest.approx(lengths.min().item(), rel=1e-5)
    assert norms.max == pytest.approx(lengths.max().item(), rel=1e-5)


def test_tensors_in_keywords_and_containers_have_their_own_series() -> None:
    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, pair: Any, *, mask: torch.Tensor) -> Any:
            return {"logits": self.inner(pair[0]) * mask, "rest": [pair[1]["deep"], None]}

    model = Takes()

    with watching(model) as seen:
        out = model((torch.randn(2, 4), {"deep": torch.ones(3)}), mask=torch.ones(2, 4))
        backward(out["logits"].sum())

    named = {"input.0.0", "input.0.1.deep", "input.mask", "output.logits", "output.rest.0"}
    assert named <= seen.labels
    assert "output.logits.grad" in seen.labels


def test_calls_of_a_shared_module_have_their_own_series_and_share_parameters() -> None:
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer)

    with watching(model) as seen:
        train(model, 1, torch.randn(3, 4))

    assert {"0.output", "0.2:output", "0.2:input.0", "0.2:output.grad"} <= seen.labels
    assert "2.output" not in seen.labels
    assert seen.histogram("0.weight").stats.count == 16


def test_eval_passes_are_separate_series_at_the_preceding_step() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))

    with watching(model, log_freq=2) as seen:
        for step in range(4):
            train(model, 1, torch.randn(8, 4))
            if step % 2:
                model.eval()
                with torch.no_grad():
                    for _ in range(3):
                        model(torch.randn(8, 4))
                model.train()

    assert seen.steps("0.output") == [0, 2]
    assert seen.steps("0.eval:output") == [1, 3]
    # Of three passes in eval every second one is looked at.
    assert seen.histogram("0.eval:output").stats.count == 2 * 8 * 4


def test_an_attached_tensor_is_logged_with_its_gradient() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            main, skip = attach(x, self, "main"), attach(x, self, "skip")
            return cast(torch.Tensor, self.fc(main) + skip)

    model = Residual()
    x = torch.randn(3, 4, requires_grad=True)

    with watching(model) as seen:
        # A leaf would be what it is on both ways, with one gradient.
        backward(model(x.clone()).sum())

    assert {"main", "main.grad", "skip", "skip.grad"} <= seen.labels
    assert seen.histogram("skip.grad").stats.mean == 1
    assert seen.histogram("main.grad").stats.max == pytest.approx(
        model.fc.weight.sum(0).max().item(), rel=1e-5
    )
    assert torch.allclose(cast(torch.Tensor, x.grad), 1 + model.fc.weight.sum(0).expand(3, 4))


def test_attach_is_the_identity_without_a_watcher() -> None:
    model, x = Net(), torch.ones(2)

    assert attach(x, model, "x") is x
    with watching(Net()):
        assert attach(x, model, "x") is x


def test_several_passes_before_one_backward_are_merged_into_one_step() -> None:
    model = nn.Linear(4, 2)

    with watching(model, sample_n=None) as seen:
        first, second = model(torch.randn(3, 4)), model(torch.randn(5, 4))
        backward(first.sum() + second.sum())

    assert seen.steps("output") == [0]
    assert seen.histogram("output").stats.count == 2 * 8
    assert sum(seen.histogram("output.grad").counts) == 2 * 8


def test_accumulated_gradients_are_one_step() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with watching(model) as seen:
        for _ in range(2):
            for _ in range(3):
                backward(model(torch.randn(5, 4)).sum())
            optimizer.step()
            optimizer.zero_grad()

    assert seen.steps("output") == seen.steps("weight") == [0, 1]
    assert seen.histogram("output.grad").stats.count == 3 * 10
    assert seen.histogram("weight.grad").stats.max != 0


def test_each_backward_is_a_step_without_an_optimizer() -> None:
    model = nn.Linear(4, 2)

    with watching(model, log_freq=2) as seen:
        for _ in range(5):
            backward(model(torch.randn(5, 4)).sum())

    assert seen.steps("output") == seen.steps("weight.grad") == [0, 2, 4]


def test_two_backwards_through_one_pass_are_two_steps_without_an_optimizer() -> None:
    model = nn.Linear(4, 2)

    with watching(model) as seen:
        loss = model(torch.randn(5, 4)).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    assert seen.steps("output") == [0]
    assert seen.steps("output.grad") == seen.steps("weight.grad") == [0, 1]


def test_an_optimizer_closure_belongs_to_the_step_it_updates() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x = torch.randn(8, 4)

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        backward(loss)
        return cast(float, loss.item())

    with watching(model) as seen:
        for _ in range(2):
            optimizer.step(closure)  # type: ignore[no-untyped-call]

    assert seen.steps("output") == seen.steps("weight") == [0, 1]


def test_two_adversarial_networks_can_be_watched_together() -> None:
    maker, judge = nn.Linear(2, 4), nn.Linear(4, 1)
    of_maker = torch.optim.SGD(maker.parameters(), lr=0.1)
    of_judge = torch.optim.SGD(judge.parameters(), lr=0.1)

    with watching(maker) as seen_maker, watching(judge) as seen_judge:
        for _ in range(3):
            of_judge.zero_grad()
            fake = maker(torch.randn(5, 2))
            backward(judge(fake.detach()).mean() - judge(torch.randn(5, 4)).mean())
            of_judge.step()
            of_maker.zero_grad()
            backward(-judge(fake).mean())
            of_maker.step()

    assert seen_maker.steps("output") == seen_maker.steps("weight.grad") == [0, 1, 2]
    assert seen_judge.steps("weight") == [0, 1, 2]
    assert seen_judge.steps("output") == [0, 1, 2, 3]
    assert seen_judge.histogram("output", 1).stats.count == 15


def test_recursion_and_changing_control_flow_are_merged_in_the_graph() -> None:
    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.even = nn.Linear(4, 4)
            self.odd = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, depth: int) -> torch.Tensor:
            if depth == 0:
                return x
            x = self.even(x) if depth % 2 == 0 else self.odd(x)
            return cast(torch.Tensor, self(x, depth - 1))

    model = Changing()

    with watching(model) as seen:
        for depth in (1, 2, 1, 2, 2):
            backward(model(torch.randn(3, 4), depth).sum())

    graph = seen.graph
    counts = {
        (node.path, node.number, node.parent is None): node.count
        for node in graph.nodes
        if node.kind == "call"
    }
    assert graph.passes == 5
    assert counts["", 1, True] == 5
    assert counts["even", 1, False] == 3
    assert {"even.output", "odd.output", "2:output", "3:output"} <= seen.labels


def test_modules_are_recorded_when_forward_is_called_directly() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    with watching(model) as seen:
        backward(model.forward(torch.randn(3, 4)).sum())  # type: ignore[no-untyped-call]

    assert {"0.output", "0.output.grad", "1.output", "0.weight.grad"} <= seen.labels
    assert "output" not in seen.labels


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_recomputation_is_counted_once(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            self.head = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = checkpoint(self.block, x, use_reentrant=reentrant)
            return cast(torch.Tensor, self.head(hidden))

    model = Checkpointed()

    with watching(model, sample_n=None) as seen:
        train(model, 2, torch.randn(3, 4, requires_grad=True))

    assert seen.steps("block.0.output") == [0, 1]
    assert seen.histogram("block.0.output").stats.count == 12
    assert sum(seen.histogram("block.0.output.grad").counts) == 12
    assert not any(name.startswith("2:") for _, name in seen.places)


@pytest.mark.usefixtures("scalers_freed")
def test_gradients_of_a_scaled_loss_are_logged_unscaled() -> None:
    model = nn.Linear(4, 2)
    x = torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    with watching(model) as seen:
        for use in (False, True):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(x).float().square().mean()
            if use:
                backward(cast(torch.Tensor, scaler.scale(loss)))
                scaler.step(optimizer)
                scaler.update()
            else:
                backward(loss)
                optimizer.step()

    for label in ("output.grad", "output.grad_norm", "weight.grad"):
        plain, scaled = seen.histogram(label, 0), seen.histogram(label, 1)
        assert scaled.stats.max == pytest.approx(plain.stats.max, rel=1e-2), label
    assert seen.values("grad_scale") == [1024.0]


@pytest.mark.usefixtures("scalers_freed")
def test_the_grad_scaler_of_another_model_changes_no_gradient() -> None:
    mine, other = nn.Linear(4, 2), nn.Linear(4, 2)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.0) for model in (other, mine)]
    scalers = [torch.amp.GradScaler("cpu", init_scale=scale) for scale in (1024.0, 512.0)]
    x = torch.randn(8, 4)

    with watching(mine) as seen:
        for model, optimizer, scaler in zip((other, mine), optimizers, scalers, strict=True):
            backward(cast(torch.Tensor, scaler.scale(model(x).sum())))
            scaler.step(optimizer)
            scaler.update()
        backward(mine(x).sum())
        optimizers[1].step()

    assert seen.values("grad_scale") == [512.0]
    for index in (0, 1):
        assert seen.histogram("output.grad", index).stats.max == 1
        assert seen.histogram("output.grad_norm", index).stats.max == pytest.approx(2**0.5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # torch's own
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # dynamo's own
def test_a_compiled_submodule_is_one_call_and_the_rest_is_recorded() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    model[1] = torch.compile(model[1], backend="eager")  # type: ignore[assignment]

    with watching(model) as seen:
        train(model, 2, torch.randn(3, 4))

    assert {"0.output", "1.output", "1.output.grad", "1._orig_mod.0.weight.grad"} <= seen.labels
    assert "1._orig_mod.0.output" not in seen.labels
    assert [(one.kind, one.path) for one in seen.findings] == [("compiled", "1")]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # torch's own
def test_a_model_compiled_while_watched_is_recorded_as_one_call() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    with watching(model) as seen:
        compiled = torch.compile(model, backend="eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            backward(compiled(torch.randn(3, 4)).sum())
            optimizer.step()

    assert {"output", "output.grad", "0.weight.grad"} <= seen.labels


def test_updates_are_relative_to_the_previous_weights() -> None:
    model = nn.Linear(4, 1, bias=False)
    before = model.weight.detach().clone()

    with watching(model, log=["updates"]) as seen:
        train(model, 1, torch.randn(8, 4))

    moved = (model.weight - before).norm() / before.norm()
    assert seen.values("weight.update") == [pytest.approx(moved.item(), rel=1e-5)]


def test_updates_of_zero_weights_have_no_ratio() -> None:
    model = nn.Linear(3, 2)
    nn.init.zeros_(model.bias)
    nn.init.constant_(model.weight, 1e-30)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with watching(model, log=["updates"]) as seen:
        for _ in range(3):
            optimizer.zero_grad()
            backward(model(torch.ones(5, 3)).sum())
            optimizer.step()

    assert seen.steps("bias.update") == seen.steps("weight.update") == [1, 2]
    assert seen.values("bias.update") == pytest.approx([1, 0.5])
    assert seen.values("weight.update") == pytest.approx([1, 0.5])


def test_optimizer_state_and_learning_rate_are_logged_on_request() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.25)

    with watching(model, log=["optimizer"]) as seen:
        backward(model(torch.randn(3, 4)).sum())
        optimizer.step()

    assert {"weight.exp_avg", "weight.exp_avg_sq", "bias.exp_avg", "lr"} <= seen.labels
    assert seen.values("lr") == [0.25]


def test_the_zero_fraction_is_logged_on_request() -> None:
    model = nn.Sequential(nn.Linear(4, 400), nn.ReLU())
    x = torch.randn(8, 4)
    zeros = (model(x) == 0).float().mean().item()

    with watching(model, log=["io", "stats"]) as seen:
        backward(model(x).sum())

    assert seen.values("1.output.zeros") == [pytest.approx(zeros)]


def test_output_images_are_recorded_on_request() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Flatten(), nn.Linear(3 * 64, 5))

    with watching(model, log=["activations"]) as seen:
        train(model, 2, torch.randn(2, 1, 8, 8))

    pictures = {picture.path: picture for picture in seen.activations.maps}
    conv, head = pictures["0"], pictures["2"]
    assert (conv.rows, conv.columns, conv.tiles, conv.step) == (16, 16, 2, 1)
    assert len(base64.b64decode(conv.pixels)) == 256
    assert conv.low < conv.high
    assert (head.rows, head.columns, head.tiles) == (2, 5, 1)


@pytest.mark.parametrize("passes", [1, 2])
def test_images_of_the_last_pass_are_kept_if_nothing_else_is_logged(passes: int) -> None:
    model = nn.Conv2d(1, 3, 3)

    with watching(model, log=["activations"]) as seen:
        for _ in range(passes):
            model(torch.randn(2, 1, 8, 8))

    assert seen.activations.maps[0].path == ""


def test_time_log_records_a_custom_time() -> None:
    model = nn.Linear(4, 2)
    model.current_epoch = 7  # type: ignore[assignment]

    with watching(model, time_log=("epoch", lambda module, step: module.current_epoch)) as seen:
        train(model, 2, torch.randn(3, 4))

    assert seen.values("epoch") == [7.0, 7.0]


def test_an_invalid_time_log_is_refused_at_once() -> None:
    with pytest.raises(
        errors.TargetError, match="time_log must be a name and a function of model and step"
    ):
        watch(nn.Linear(2, 1), time_log=cast(Any, "step"), run_dir=":memory:")


def test_the_repr_of_a_watcher_has_model_step_and_destination() -> None:
    model = Net()

    with watching(model) as seen:
        train(model, 2, torch.randn(3, 4))

        assert repr(seen.watcher) == "<watcher of Net: at step 1, recorded in memory>"


def test_nothing_is_recorded_while_paused_but_steps_are_counted() -> None:
    model = nn.Linear(4, 2)

    with watching(model) as seen:
        train(model, 1, torch.randn(3, 4))
        seen.watcher.pause()
        train(model, 2, torch.randn(3, 4))
        seen.watcher.resume()
        train(model, 1, torch.randn(3, 4))

    assert seen.steps("output") == seen.steps("weight") == [0, 3]


def test_only_the_graph_is_recorded_if_log_is_empty() -> None:
    model = Net()

    with watching(model, log=[]) as seen:
        train(model, 2, torch.randn(3, 4))

    assert not seen.labels
    assert [node.path for node in seen.graph.nodes if node.kind == "call"] == [
        *("", "first", "act", "last")
    ]


def test_the_graph_has_the_extra_repr_of_modules() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, (3, 5), bias=False))

    with watching(model) as seen:
        backward(model(torch.randn(1, 3, 8, 8)).sum())

    (conv,) = (node for node in seen.graph.nodes if node.path == "0")
    facts = {"0": "3", "1": "8", "kernel_size": "(3, 5)", "stride": "(1, 1)", "bias": "False"}
    assert conv.facts == facts
    assert conv.outputs[0].shape == (1, 8, 6, 4)


def test_an_operation_without_a_gradient_does_not_cut_the_graph() -> None:
    class Rounds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.Linear(4, 4)
            self.embed = nn.Embedding(9, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tokens = self.before(x).argmax(dim=-1)
            return cast(torch.Tensor, self.embed(tokens))

    model = Rounds()

    with watching(model) as seen:
        backward(model(torch.randn(3, 4)).sum())

    assert ("before", "embed") in edges(seen.graph)


class TwoInputs(nn.Module):
    """Two ways that meet only at the end, and a mask that not every pass has."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)

    def forward(
        self, idx: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        hidden = self.left(idx)
        if mask is not None:
            hidden = hidden * mask
        return cast(torch.Tensor, (hidden - self.right(targets)).square().sum())


def flow_of_inputs(graph: Any) -> set[tuple[str, str]]:
    names = {node.id: node.facts.get("argument", node.name) for node in graph.nodes}
    sources = {node.id for node in graph.nodes if node.kind == "input" and node.parent == 0}
    return {(names[e.source], names[e.target]) for e in graph.edges if e.source in sources}


@pytest.mark.parametrize(
    "views",
    [
        lambda batch: (batch[:, :-1], batch[:, 1:]),
        lambda batch: (batch[:, :4], batch[:, 1:5]),
        lambda batch: batch[:, :4].chunk(2),
        lambda batch: (batch[::2, :4], batch[1::2, :4]),
        lambda batch: (batch[0, :4].expand(2, 4), batch[1, 1:].expand(2, 4)),
        lambda batch: batch[:, :4].unbind(0)[:2],
    ],
)
def test_views_of_one_batch_are_separate_inputs(views: Any) -> None:
    model = TwoInputs()
    idx, targets = views(torch.randn(4, 5))

    with watching(model) as seen:
        backward(model(idx, targets))

    assert flow_of_inputs(seen.graph) == {("idx", "left"), ("targets", "right")}
    assert flow_of_inputs(graph_of(tg.trace(model, idx, targets))) == {
        ("idx", "left"),
        ("targets", "right"),
    }


@pytest.mark.parametrize(
    "split",
    [
        lambda x: x.chunk(2, dim=-1),
        lambda x: x.split([4, 4], dim=-1),
        lambda x: (x[..., :4], x[..., 4:]),
        lambda x: x.unflatten(-1, (2, 4)).unbind(-2),
        lambda x: torch.tensor_split(x, 2, dim=-1),
    ],
)
def test_parts_of_one_tensor_have_separate_edges_inside_a_module(split: Any) -> None:
    class Splits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide = nn.Linear(4, 8)
            self.two = TwoInputs()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return cast(torch.Tensor, self.two(*split(self.wide(x))))

    model = Splits()

    with watching(model) as seen:
        backward(model(torch.randn(3, 4)))

    for graph in (seen.graph, graph_of(tg.trace(model, torch.randn(3, 4)))):
        names = {node.id: node.name for node in graph.nodes}
        inputs = {
            node.id: node.facts["argument"]
            for node in graph.nodes
            if node.kind == "input" and node.path == "two"
        }
        ways = {(inputs[e.source], names[e.target]) for e in graph.edges if e.source in inputs}
        assert ways == {("idx", "left"), ("targets", "right")}


def test_a_tensor_passed_only_in_a_later_pass_is_in_the_graph() -> None:
    model = TwoInputs()
    x = torch.randn(3, 4)

    with watching(model) as seen:
        backward(model(x, x + 1))
        backward(model(x, x + 1))
        backward(model(x, x + 1, mask=torch.ones(3, 4)))

    assert "input.mask" in seen.labels
    assert {node.name for node in seen.graph.nodes if node.kind == "input"} == {"0", "1", "mask"}


@pytest.mark.parametrize("blocks", [4, 12])
def test_residual_connections_around_blocks_are_one_edge_each(blocks: int) -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(blocks))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = x + block(x)
            return x

    model = Residual()

    with watching(model) as seen:
        backward(model(torch.randn(3, 4)).sum())

    assert len(seen.graph.edges) == 3 * blocks + 1
    in_order = [node.kind for node in seen.graph.nodes if node.kind in ("call", "op")]
    assert in_order == ["call", *["call", "op"] * blocks]


def edges(graph: Any) -> set[tuple[str, str]]:
    """The edges by the names of their ends."""
    names = {node.id: node.path if node.kind == "call" else node.kind for node in graph.nodes}
    return {(names[edge.source], names[edge.target]) for edge in graph.edges}


def test_a_watched_model_can_be_copied_and_saved_mid_step_without_hooks() -> None:
    model = Net()

    with watching(model) as seen:
        out = model(torch.randn(3, 4))
        twin = copy.deepcopy(model)
        pickle.dumps(model)
        torch.save(model, io.BytesIO())
        twin(torch.randn(3, 4))
        backward(out.sum())

    assert seen.histogram("output").stats.count == 6


def test_a_module_replaced_later_is_recorded_under_its_path() -> None:
    model = Net()

    with watching(model) as seen:
        train(model, 1, torch.randn(3, 4))
        model.last = nn.Linear(8, 5)
        train(model, 1, torch.randn(3, 4))

    assert seen.histogram("last.output", 1).stats.count == 15


def test_non_finite_values_are_counted_and_do_not_stop_training() -> None:
    model = nn.Linear(4, 4)

    with watching(model) as seen:
        for value in (1.0, float("inf"), float("nan"), 3e38):
            x = torch.full((2, 4), value)
            backward(model(x).sum())

    assert seen.histogram("input.0", 1).stats.inf == 8
    assert seen.histogram("input.0", 1).counts == ()
    assert seen.histogram("input.0", 2).stats.nan == 8
    assert seen.histogram("input.0", 3).stats.max == pytest.approx(3e38)


def test_a_spike_of_five_percent_stays_visible_beside_a_narrow_bulk() -> None:
    values = torch.randn(2000) * 1e-4
    values[::20] = 5.0
    model = nn.Identity()

    with watching(model, log=["io"]) as seen:
        model(values)

    histogram = seen.histogram("output")
    width = 2.0**histogram.exponent
    filled = [
        (histogram.first + index) * width for index, count in enumerate(histogram.counts) if count
    ]
    assert any(low <= 5.0 < low + width for low in filled)
    assert any(abs(low) <= width for low in filled)


def test_one_outlier_does_not_blur_the_others() -> None:
    values = torch.randn(1000)
    values[500] = 1e6
    model = nn.Identity()

    with watching(model, log=["io"], sample_n=None) as seen:
        model(values)

    histogram = seen.histogram("output")
    assert len([count for count in histogram.counts if count]) > 10
    assert sum(histogram.counts) == 999
    assert histogram.stats.max == 1e6


def test_nan_dead_units_and_vanishing_gradients_are_found_with_their_series() -> None:
    first = nn.Linear(4, 40)
    nn.init.constant_(first.bias, -100.0)
    model = nn.Sequential(first, nn.ReLU(), nn.Linear(40, 1))

    with watching(model) as seen:
        train(model, 4, torch.randn(8, 4))
        backward(model(torch.full((8, 4), float("nan"))).sum())

    found = {(finding.kind, finding.path, finding.step) for finding in seen.findings}
    assert ("dead-units", "1", 2) in found
    (dead,) = (one for one in seen.findings if one.kind == "dead-units")
    assert any(one.startswith("No gradient reaches `0.weight`") for one in dead.consequences)
    (nan, *_) = (one for one in seen.findings if one.kind == "nan")
    assert (nan.facts["series"], nan.step) == ("input.0", 4)


def test_an_unknown_log_kind_error_lists_the_kinds() -> None:
    with pytest.raises(
        errors.TargetError, match=r"log has 'grads'; what can be logged: io, io_grad"
    ):
        watch(Net(), log=["grads"], run_dir=":memory:")


def test_an_unknown_backend_error_lists_the_backends() -> None:
    with pytest.raises(
        errors.TargetError, match=r"backend must be one of standalone, .*, not 'tensorbored'"
    ):
        watch(Net(), backend="tensorbored", run_dir=":memory:")


@pytest.mark.parametrize("port", [-1, 70_000, "5000"])
def test_an_invalid_port_error_names_the_valid_range(port: Any) -> None:
    with pytest.raises(errors.TargetError, match=f"from 1 to 65535, or 0 .* not {port!r}"):
        watch(Net(), standalone_port=port, run_dir=":memory:")


def test_unneeded_compatibility_parameters_are_reported_as_ineffective(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watcher = watch(Net(), disable_inplace=True, ignore_io_grad_classes=[Net], run_dir=":memory:")
    watcher.close()

    said = capsys.readouterr().err
    assert "disable_inplace has no effect" in said
    assert "ignore_io_grad_classes has no effect" in said


def test_a_user_exception_propagates_and_the_next_pass_is_recorded() -> None:
    model = Net()

    with watching(model) as seen:
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            model(torch.randn(3, 5))
        train(model, 1, torch.randn(3, 4))

    assert seen.histogram("last.output").stats.count == 6


def test_a_user_mode_does_not_see_torchglass_ops() -> None:
    from torch.overrides import TorchFunctionMode

    names: list[str] = []

    class Listening(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    model = nn.Linear(4, 2)
    x = torch.randn(3, 4)
    with Listening():
        model(x)
    plain = list(names)
    names.clear()

    with watching(model):
        # The first pass is traced.
        model(x)
        with Listening():
            model(x)

    assert names == plain


def test_an_error_in_time_log_is_a_warning_and_the_rest_is_recorded() -> None:
    model = nn.Linear(4, 2)

    def fail(module: nn.Module, step: int) -> float:
        raise ZeroDivisionError(f"no time at step {step}")

    watcher = watch(model, run_dir=":memory:", time_log=("epoch", fail))
    train(model, 1, torch.randn(3, 4))
    with pytest.warns(TorchglassWarning, match="ZeroDivisionError: no time at step 0"):
        watcher.close()


def test_after_an_error_in_time_log_the_next_step_is_complete() -> None:
    model = nn.Linear(4, 2)

    def fail_at_first(module: nn.Module, step: int) -> float:
        return 1 / step

    with watching(model, time_log=("pace", fail_at_first), misses="division by zero") as seen:
        train(model, 3, torch.randn(3, 4))

    assert seen.steps("pace") == [1, 2]
    assert seen.steps("output") == [0, 1, 2]


def test_an_unreadable_output_leaves_no_mode_active() -> None:
    class Thing:
        pass

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            return {"gone": weakref.proxy(Thing()), "out": self.layer(x)}

    model = Odd()
    with watch(model, run_dir=":memory:", verbose=False) as watcher:
        for _ in range(3):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TorchglassWarning)
                model(torch.ones(1, 2))["out"].sum().backward()
                watcher.step()
            assert torch._C._len_torch_function_stack() == 0


FORK_WHILE_TRAINING = """
import os, signal, sys, threading
import torch, torchglass as tg

class Net(torch.nn.Sequential):
    def forward(self, x, is_child=False):
        # No operation of torch: after a fork they may wait for ever, with or without us.
        return x if is_child else super().forward(x)

model = Net(*(torch.nn.Linear(8, 8) for _ in range(8)))
inputs = torch.ones(4, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watcher = tg.watch(model, save=sys.argv[1], verbose=False)
is_over = threading.Event()

def train():
    while not is_over.is_set():
        model(inputs).sum().backward()
        optimizer.step()
        watcher.log("loss", 1.0)

thread = threading.Thread(target=train, daemon=True)
thread.start()
for _ in range(20):
    child = os.fork()
    if not child:
        signal.alarm(20)
        watcher.log("acc", 1.0)
        model(inputs, is_child=True)
        watcher.step()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
is_over.set()
thread.join()
watcher.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.slow
def test_a_forked_child_does_not_wait_for_a_training_thread(tmp_path: Path) -> None:
    path = tmp_path / "run.glass"
    command = [sys.executable, "-W", "ignore", "-c", FORK_WHILE_TRAINING, str(path)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})

    with tg.open(path) as run:
        assert "loss" in run
        assert "acc" not in run
