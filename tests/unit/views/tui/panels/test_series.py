"""The panels that follow a training: gradient flow and series."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from textual.pilot import Pilot

from tests.unit.views.tui.panels import samples
from tests.unit.views.tui.panels.panel_app import (
    PanelApp,
    catch_up,
    drive,
    module_at,
    seen,
    settle,
    subject_of,
    text_of,
)
from torchglass.records.model import Histogram, Histograms
from torchglass.records.run import Frame
from torchglass.store.readers import MemoryStore
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.panels.series import GradientFlowPanel, SeriesPanel


@pytest.fixture
def run() -> MemoryStore:
    store = samples.store()
    samples.train(store, range(40))
    return store


def line(shown: str, name: str) -> str:
    return next(line for line in shown.splitlines() if name in line)


def length(shown: str, name: str) -> int:
    return line(shown, name).count("━")


def test_each_layer_has_a_bar_for_its_gradient_norm(run: MemoryStore) -> None:
    shown = seen(GradientFlowPanel(subject_of(run)))

    assert shown.splitlines()[0].split() == ["layer", "log", "scale,", "1e-11", "…", "1e-1"]
    assert length(shown, "embed") > length(shown, "blocks.0.fc") > length(shown, "head") > 0


def test_the_norm_covers_all_parameters_of_a_layer(run: MemoryStore) -> None:
    shown = seen(GradientFlowPanel(subject_of(run)))

    # Two parameters with 16 numbers each, whose spread is 1e-4 · exp(-39/20).
    expected = float(np.sqrt(2 * 15) * 1e-4 * np.exp(-39 / 20))
    assert f"{expected:.2e}" in line(shown, "blocks.0.fc")


def test_a_key_switches_to_updates(run: MemoryStore) -> None:
    panel = GradientFlowPanel(subject_of(run))

    shown = seen(panel, press=["space"])

    assert panel.subtitle == "update ratio"
    assert "1.00e-01" in line(shown, "embed")


@pytest.fixture
def flowing(run: MemoryStore) -> MemoryStore:
    """The same with gradients of outputs, those of the head by samples alone."""
    put = run.series("blocks.0", "output.grad", "stats")
    again = run.series("blocks.0", "output.grad_norm", "stats")
    second = run.series("blocks.1", "2:output.0.grad", "stats")
    head = run.series("head", "output.grad_norm", "stats")
    four = samples.stats(0.0, 1.0, count=5)
    samplewise = samples.stats(3.0, 0.0, count=4)
    points = {put: four, again: samplewise, second: four, head: samplewise}
    run.put_frame(Frame(step=40, time_ns=0, points=points))
    return run


def test_a_second_key_press_switches_to_output_gradients(flowing: MemoryStore) -> None:
    panel = GradientFlowPanel(subject_of(flowing))

    shown = seen(panel, press=["space", "space"])

    assert panel.subtitle == "output gradient"
    assert [one.split()[0] for one in shown.lstrip().splitlines()[1:4]] == [
        *("▌blocks.0", "blocks.1", "head"),
    ]
    assert "2.00e+00" in line(shown, "blocks.0")
    assert "6.00e+00" in line(shown, "head")
    assert {one.name for one in flowing.series() if one.id in set(panel.wanted())} >= {
        *("output.grad", "2:output.0.grad", "output.grad_norm"),
    }


def test_a_third_key_press_returns_to_parameters(flowing: MemoryStore) -> None:
    panel = GradientFlowPanel(subject_of(flowing))

    seen(panel, press=["space"] * 3)

    assert panel.subtitle == "gradient norm"


def test_kinds_that_were_not_recorded_are_skipped(run: MemoryStore) -> None:
    panel = GradientFlowPanel(subject_of(run))

    seen(panel, press=["space"] * 2)

    assert panel.subtitle == "gradient norm"


def test_output_gradients_are_shown_first_if_nothing_else_was_recorded() -> None:
    store = samples.store()
    put = store.series("head", "output.grad", "stats")
    store.put_frame(Frame(step=0, time_ns=0, points={put: samples.stats()}))
    panel = GradientFlowPanel(subject_of(store))

    shown = seen(panel)

    assert panel.subtitle == "output gradient"
    assert "head" in shown


def test_layers_can_be_sorted_by_size(run: MemoryStore) -> None:
    gradient = run.series("head", "weight.grad", "stats")
    bad = samples.stats(0.0, 100.0, count=16)
    run.put_frame(Frame(step=40, time_ns=0, points={gradient: bad}))

    shown = seen(GradientFlowPanel(subject_of(run)), press=["s"])

    assert shown.splitlines()[1].lstrip("▌ ").startswith("head")


def test_a_nan_gradient_is_highlighted(run: MemoryStore) -> None:
    series = run.series("head", "weight.grad", "stats")
    run.put_frame(Frame(step=40, time_ns=0, points={series: samples.stats(0.0, 1.0, nan=3)}))
    panel = GradientFlowPanel(subject_of(run))

    shown = seen(panel)

    assert "nan" in line(shown, "head")
    assert ("problem", "nan") in {
        (style, words.strip()) for row in panel.rows for words, style in row.pieces
    }


def test_layers_of_the_selected_module_are_marked_and_can_be_opened(run: MemoryStore) -> None:
    panel = GradientFlowPanel(subject_of(run))
    app = PanelApp(panel, "blocks.1")

    async def story(pilot: Pilot[None]) -> None:
        await pilot.press("enter")

    drive(app, story)

    jumps = [message.path for message in app.heard if isinstance(message, Panel.Jump)]
    assert jumps == ["blocks.1.fc"]
    assert [row.tone for row in panel.rows].count("marked") == 1


def test_only_gradient_and_update_series_are_requested(run: MemoryStore) -> None:
    panel = GradientFlowPanel(subject_of(run))

    wanted = {one.name for one in run.series() if one.id in set(panel.wanted())}

    assert wanted == {"weight.grad", "bias.grad", "weight.update", "bias.update"}


def test_series_are_listed_with_their_latest_values(run: MemoryStore) -> None:
    lines = seen(SeriesPanel(subject_of(run)), "blocks.0.fc").split("\n")

    assert [line.lstrip("▌ ").split()[:2] for line in lines if line.strip()][-4:] == [
        ["weight.grad", "1.42e-05"],
        ["weight.update", "0.0001"],
        ["bias.grad", "1.42e-05"],
        ["bias.update", "0.0001"],
    ]


def test_the_selected_series_has_a_chart(run: MemoryStore) -> None:
    first = seen(SeriesPanel(subject_of(run)), "blocks.0.fc")
    second = seen(SeriesPanel(subject_of(run)), "blocks.0.fc", ["down"])

    assert first.splitlines()[0].startswith(" weight.grad  mean 0  std 1.42e-05")
    assert "step 0 … 39, range, mean ± standard deviation" in first
    assert second.splitlines()[0].strip() == "weight.update  0.0001"
    assert "▄" in second


def test_a_chart_is_labeled_with_its_range(run: MemoryStore) -> None:
    shown = seen(SeriesPanel(subject_of(run)))

    assert shown.splitlines()[0].strip() == "loss  0.02024"
    assert shown.splitlines()[1].split()[0] == "1"
    assert "0.0202 " in shown


def test_new_steps_move_the_chart(run: MemoryStore) -> None:
    state = subject_of(run)
    panel = SeriesPanel(state)
    app = PanelApp(panel)

    async def story(pilot: Pilot[None]) -> None:
        samples.train(run, range(40, 50))
        catch_up(state, run)
        panel.refresh_data()
        await settle(app, pilot)

    drive(app, story)

    assert "step 0 … 49" in text_of(panel.top())


def test_a_module_without_series_says_so(run: MemoryStore) -> None:
    assert "No series recorded for broken." in seen(SeriesPanel(subject_of(run)), "broken")


def test_only_series_of_the_module_are_requested(run: MemoryStore) -> None:
    state = subject_of(run)
    panel = SeriesPanel(state)
    panel.module = module_at(state, "head")

    assert {one.label for one in run.series() if one.id in set(panel.wanted())} == {
        "head.weight.grad",
        "head.weight.update",
    }


def test_percentiles_are_drawn_where_there_are_histograms(run: MemoryStore) -> None:
    state = subject_of(run)
    series = next(one for one in run.series() if one.label == "head.weight.grad")
    wide = Histogram(exponent=0, first=-4, counts=(1,) * 8, stats=samples.stats(0.0, 2.0))
    narrow = replace(wide, counts=(0, 0, 0, 4, 4, 0, 0, 0))
    bins = [wide] * 20 + [narrow] * 20
    state.learn(
        39, [], [], [Histograms(series=series, steps=np.arange(40, dtype=np.int64), bins=bins)]
    )

    percentiles = seen(SeriesPanel(state), "head")
    moments = seen(SeriesPanel(state), "head", ["space"])

    assert "3.6 " in percentiles
    assert "percentiles 5 · 25 · 50 · 75 · 95" in percentiles
    assert "3.6 " not in moments
