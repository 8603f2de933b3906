from __future__ import annotations

from tests.recorded import histogram
from torchglass.analyse.diagnosis.training_view import SeriesHistory
from torchglass.records.step_points import HistogramTable, PointTable

OUTPUT, EVAL = ("fc", "output"), ("fc", "eval:output")


def points(
    *keys: tuple[str, str], loss: float = 0.0, value: int = 1
) -> PointTable[tuple[str, str]]:
    table = HistogramTable.of([histogram(value)] * len(keys))
    return PointTable(list(keys), table, {("", "loss"): loss})


def test_the_latest_step_is_always_there_and_older_ones_get_fewer() -> None:
    history = SeriesHistory()
    for step in range(1000):
        history.add(step, points(OUTPUT))

        steps = history.tracks()[OUTPUT].steps.tolist()
        assert steps[0] == 0
        assert steps[-1] == step
        assert steps == sorted(set(steps))
    assert len(steps) < 100


def test_a_series_that_was_recorded_once_is_kept() -> None:
    history = SeriesHistory()
    history.add(0, points(OUTPUT, EVAL, value=7))
    for step in range(1, 2000):
        history.add(step, points(OUTPUT))

    evaluated, trained = history.tracks()[EVAL], history.tracks()[OUTPUT]
    assert evaluated.steps.tolist() == [0]
    assert evaluated.column("max").tolist() == [histogram(7).stats.max]
    assert trained.steps[0] == 0
    assert trained.steps[-1] == 1999
    assert len(trained) == len(trained.values)


def test_steps_with_different_series_are_in_order() -> None:
    history = SeriesHistory()
    for step in range(10):
        history.add(step, points(OUTPUT, EVAL, value=step) if step % 3 == 0 else points(OUTPUT))

    tracks = history.tracks()
    assert tracks[OUTPUT].steps.tolist() == list(range(10))
    assert tracks[EVAL].steps.tolist() == [0, 3, 6, 9]


def test_other_modules_in_every_step_take_a_bounded_amount_of_memory() -> None:
    history = SeriesHistory()
    for step in range(2000):
        history.add(step, points(OUTPUT, (f"experts.{step}", "output")))

    tracks = history.tracks()
    assert tracks[OUTPUT].steps[-1] == 1999
    assert len(tracks) < 200


def test_every_logged_value_is_kept_until_there_are_too_many() -> None:
    history = SeriesHistory()
    for step in range(1000):
        history.add(step, points(loss=float(step)))

    loss = history.tracks()["", "loss"]
    assert loss.steps[-100:].tolist() == list(range(900, 1000))
    assert loss.values[:, 0].tolist() == loss.steps.tolist()
    assert len(loss) < 300
