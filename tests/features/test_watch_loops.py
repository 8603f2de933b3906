"""Someone watches a training whose loop is not the usual one."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from tests.watched import watching
from torchglass import TorchglassWarning, watch


def make_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def backward(model: nn.Module) -> None:
    torch.autograd.backward(model(torch.randn(3, 4)).square().mean())


def train(model: nn.Module, *optimizers: Optimizer, steps: int) -> None:
    for _ in range(steps):
        model.zero_grad()
        backward(model)
        for optimizer in optimizers:
            optimizer.step()


def both_halves(model: nn.Sequential) -> Iterator[Optimizer]:
    for layer in (model[0], model[2]):
        yield SGD(layer.parameters(), lr=0.1)


def test_a_step_number_can_be_a_tensor_and_is_not_modified() -> None:
    model, number = make_model(), torch.tensor(7)

    with watching(model) as seen:
        for _ in range(3):
            backward(model)
            seen.watcher.step(number)
            number += 10

    assert number.item() == 37
    assert seen.steps("output") == seen.steps("0.weight") == [7, 17, 27]


@pytest.mark.parametrize("number", [-1, "seven", 2.5])
def test_an_invalid_step_number_is_reported_and_later_steps_are_recorded(number: Any) -> None:
    model = make_model()

    with watching(model, misses="expects an integer of at least 0, not") as seen:
        backward(model)
        seen.watcher.step(number)
        seen.watcher.step(4)
        backward(model)
        seen.watcher.step()

    assert seen.steps("output") == [4, 5]


def test_two_optimizers_count_each_weight_once() -> None:
    model = make_model()
    model.append(nn.Linear(1, 1).requires_grad_(False))

    with watching(model) as seen:
        train(model, *both_halves(model), steps=2)

    assert [seen.histogram("0.weight", step).stats.count for step in range(2)] == [32, 32]
    assert [seen.histogram("2.weight", step).stats.count for step in range(2)] == [8, 8]
    assert seen.histogram("3.weight").stats.count == 1
    assert seen.steps("3.weight") == [0]


def test_two_optimizers_record_nothing_in_skipped_steps() -> None:
    model = make_model()
    optimizers = list(both_halves(model))

    with watching(model, log_freq=2) as seen:
        for _ in range(4):
            for optimizer in optimizers:
                backward(model)
                optimizer.step()

    assert {tuple(seen.steps(label)) for label in seen.labels} == {(0, 2)}


def test_an_optimizer_that_calls_super_step_counts_once() -> None:
    class Child(SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    model = make_model()
    SGD(model.parameters(), lr=0.1)
    optimizer = Child(model.parameters(), lr=0.1)

    with watching(model, log=("params", "updates")) as seen:
        train(model, optimizer, steps=3)

    assert seen.steps("0.weight") == seen.steps("0.weight.update") == [0, 1, 2]
    assert seen.histogram("0.weight", 1).stats.count == 32


def test_steps_are_counted_after_an_optimizer_raised() -> None:
    class Fails(SGD):
        fails = False

        def step(self, closure: Any = None) -> Any:
            if self.fails:
                raise RuntimeError("not now")
            return super().step(closure)

    model = make_model()
    optimizer = Fails(model.parameters(), lr=0.1)

    with watching(model) as seen:
        for fails in (False, True, False, False):
            optimizer.fails = fails
            backward(model)
            try:
                optimizer.step()
            except RuntimeError:
                continue

    assert seen.steps("output") == [0, 1, 2, 3]
    assert seen.steps("0.weight") == [0, 2, 3]


@pytest.mark.parametrize("log_freq", [1, 2])
def test_replaced_parameters_are_recorded_from_then_on(log_freq: int) -> None:
    model = make_model()

    with watching(model, log_freq=log_freq) as seen:
        train(model, SGD(model.parameters(), lr=0.1), steps=2)
        old = weakref.ref(model[0].weight)
        twin = {name: torch.full_like(value, 5) for name, value in model.state_dict().items()}
        model.load_state_dict(twin, assign=True)
        train(model, SGD(model.parameters(), lr=1e-12), steps=2)
        gc.collect()

        assert old() is None

    assert seen.steps("0.weight") == list(range(0, 4, log_freq))
    assert seen.histogram("0.weight", -1).stats.mean == pytest.approx(5)


def test_a_replaced_parameter_is_measured_with_its_new_values() -> None:
    model = nn.Linear(4, 1)

    with watching(model) as seen:
        train(model, SGD(model.parameters(), lr=0.1), steps=1)
        model.weight = nn.Parameter(torch.full((1, 4), 5.0))
        train(model, SGD([model.weight], lr=1e-9), steps=1)

    assert seen.histogram("weight", 1).stats.mean == pytest.approx(5)


def test_a_functional_call_does_not_hide_the_models_parameters() -> None:
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)

    with watching(model) as seen:
        for _ in range(2):
            given = {name: value * 2 for name, value in model.named_parameters()}
            out = torch.func.functional_call(model, given, (torch.randn(3, 4),))
            torch.autograd.backward(out.sum())
            optimizer.step()

    assert seen.steps("weight") == seen.steps("weight.grad") == [0, 1]


def test_the_zero_fraction_covers_all_passes_of_a_step() -> None:
    model = nn.Identity()

    with watching(model, log=("io", "stats")) as seen:
        for values in (torch.zeros(6), torch.ones(2)):
            model(values)
        seen.watcher.step()

    assert seen.values("output.zeros") == [0.75]


def test_the_learning_rates_of_two_optimizers_are_separate_series() -> None:
    model = make_model()
    first = SGD(model[0].parameters(), lr=0.1)
    groups: list[dict[str, Any]] = [{"params": [each]} for each in model[2].parameters()]
    second = SGD(groups, lr=0.2)
    second.param_groups[1]["lr"] = 0.3

    with watching(model, log=("optimizer",)) as seen:
        train(model, first, second, steps=2)

    assert seen.values("lr") == [0.1, 0.1]
    assert seen.values("lr.1") == [0.2, 0.2]
    assert seen.values("lr.2") == [0.3, 0.3]


def test_backwards_are_counted_while_paused() -> None:
    model = make_model()

    with watching(model) as seen:
        for number in range(7):
            if number == 2:
                seen.watcher.pause()
            if number == 5:
                seen.watcher.resume()
            backward(model)

    assert seen.steps("output") == seen.steps("0.weight.grad") == [0, 1, 5, 6]


@pytest.mark.parametrize(
    ("value", "what"),
    [("high", "'high'"), (torch.zeros((), device="meta"), "a tensor on the meta device")],
)
def test_a_logged_value_that_is_not_a_number_is_reported_with_its_name(
    value: Any, what: str
) -> None:
    model = make_model()
    optimizer = SGD(model.parameters(), lr=0.1)

    with watching(model, misses=f"log('loss', …) expects one number, not {what}") as seen:
        backward(model)
        optimizer.step()
        seen.watcher.log("loss", value)
        seen.watcher.log("rest", 1.0)

    assert "loss" not in seen.labels
    assert seen.steps("rest") == seen.steps("0.weight") == [0]


def test_at_most_five_new_problems_are_warned_about() -> None:
    def log_all() -> None:
        for number in (0, 0, 1, 1, 2, 3, 4, 5, 6):
            watcher.log(f"loss.{number}", "high")  # type: ignore[arg-type]

    with (
        watch(make_model(), run_dir=":memory:", verbose=False) as watcher,
        pytest.warns(TorchglassWarning) as told,
    ):
        log_all()

    said = [str(warning.message) for warning in told]
    assert len(said) == 5
    assert all(f"loss.{number}" in text for number, text in enumerate(said))


def test_time_log_can_run_the_model() -> None:
    model = make_model()
    optimizer = SGD(model.parameters(), lr=0.1)

    def ask(asked: nn.Module, step: int) -> float:
        return float(asked(torch.zeros(50, 4)).detach().sum())

    with watching(model, time_log=("answer", ask)) as seen:
        for _ in range(3):
            backward(model)
            optimizer.step()
            seen.watcher.step()

    assert seen.steps("answer") == seen.steps("output") == [0, 1, 2]
    assert seen.histogram("output").stats.count == 3


def test_the_last_optimizer_step_is_written_when_training_pauses() -> None:
    model = make_model()
    asked = threading.Event()

    def ask(model: nn.Module, step: int) -> float:
        asked.set()
        return step

    with watching(model, time_log=("time", ask)) as seen:
        train(model, SGD(model.parameters(), lr=0.1), steps=1)

        assert asked.wait(120)
        seen.watcher.log("loss", 1)

    assert seen.steps("time") == seen.steps("0.weight") == seen.steps("loss") == [0]


@pytest.mark.parametrize("has_optimizer", [False, True])
def test_steps_reduced_over_ranks_are_written_when_they_end(has_optimizer: bool) -> None:
    model = make_model()
    optimizers = [SGD(model.parameters(), lr=0.1)] if has_optimizer else []
    threads = set(threading.enumerate())

    with watching(model, adds_up_ranks=True) as seen:
        train(model, *optimizers, steps=2)

        assert set(threading.enumerate()) <= threads

    assert seen.steps("0.weight") == [0, 1]
