"""What the panels are told of a model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.unit.views.tui.runs import Training, tiny
from torchglass.capture.model.structure import read_model
from torchglass.records.model import Module
from torchglass.records.run import Points, RunRecord, Series, SeriesId
from torchglass.views.tui.explorer_state import ExplorerState, count_model
from torchglass.views.tui.tree_columns import BY_ID


@pytest.fixture
def state() -> ExplorerState:
    return ExplorerState(RunRecord(name="run", created_ns=0), tiny())


def module(state: ExplorerState, path: str) -> Module:
    found = state.model.find(path)
    assert found is not None
    return found


def series(number: int, path: str, name: str) -> Series:
    return Series(id=SeriesId(number), path=path, name=name)


@pytest.mark.parametrize(
    ("path", "note"),
    [
        ("embed", "= head.weight"),
        ("head", "= embed.weight"),
        ("last_norm", "↗ norm"),
        ("broken", "! RuntimeError: [/red] extra_repr"),
        ("norm", ""),
    ],
)
def test_a_note_names_unusual_properties(state: ExplorerState, path: str, note: str) -> None:
    state.contents = count_model(state.model)

    assert state.note(module(state, path)) == note


def test_before_counting_there_are_no_counts_or_notes(state: ExplorerState) -> None:
    assert state.counts(state.model.root) is None
    assert state.note(module(state, "broken")) == ""


def test_the_trend_uses_only_parameter_gradients(state: ExplorerState) -> None:
    known = [
        series(0, "head", "weight"),
        series(1, "head", "output.grad"),
        series(2, "head", "weight.grad"),
        series(3, "", "accuracy"),
        series(4, "", "train/loss"),
        series(5, "", "input.0.grad"),
    ]
    state.learn(0, known[:2], [])
    assert not state.has_trends()
    state.learn(0, known[2:], [])

    assert state.has_trends()
    assert state.trend(module(state, "head")) == known[2]
    assert state.trend(state.model.root) is None
    assert state.trend(module(state, "embed")) is None


def test_later_points_are_appended(state: ExplorerState) -> None:
    loss = series(0, "", "loss")
    first = Points(series=loss, steps=np.array([0, 1]), values=np.array([[4.0], [3.0]]))
    later = Points(series=loss, steps=np.array([2]), values=np.array([[2.0]]))

    state.learn(1, [loss], [first])
    state.learn(2, [], [later])

    assert state.values(loss).tolist() == [4.0, 3.0, 2.0]


def test_statistics_series_show_the_standard_deviation() -> None:
    training = Training().train(2)
    state = ExplorerState(training.store.run(), training.model)
    gradient = training.store.series()[1]

    state.learn(1, [gradient], [training.store.points(gradient.id)])

    assert state.values(gradient)[0] == 1.0


def test_a_container_shows_devices_and_dtypes_of_its_descendants() -> None:
    halves = nn.ModuleDict(
        {
            "one": nn.Linear(2, 2),
            "two": nn.Linear(2, 2, device="meta", dtype=torch.float16),
            "many": nn.Sequential(
                nn.BatchNorm1d(2), nn.Linear(2, 2).half(), nn.Linear(2, 2).double()
            ),
        }
    )
    model = read_model(halves)
    state = ExplorerState(RunRecord(name="", created_ns=0), model)
    state.contents = count_model(model)

    def told(path: str) -> tuple[str, str]:
        module = model.find(path)
        assert module is not None
        return BY_ID["device"].plain(state, [module]), BY_ID["dtype"].plain(state, [module])

    assert told("") == ("cpu, meta", "mixed")
    assert told("one") == ("cpu", "float32")
    assert told("two") == ("meta", "float16")
    assert told("many") == ("cpu", "mixed")
    # The counter of a norm is a buffer, and no type of its parameters.
    assert told("many.0") == ("cpu", "float32")
