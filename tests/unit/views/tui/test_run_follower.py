"""A thread that reads a run for the screen."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from queue import Queue

from tests.unit.views.tui.runs import Training
from torchglass.errors import StoreError
from torchglass.records.run import Reader
from torchglass.store.readers import MemoryStore
from torchglass.views.tui.run_follower import RunFollower, RunUpdate

PATIENCE = 10.0


@contextlib.contextmanager
def following(reader: Reader) -> Iterator[tuple[RunFollower, Queue[RunUpdate]]]:
    news: Queue[RunUpdate] = Queue()
    follower = RunFollower(reader, news.put, interval=0.005)
    thread = threading.Thread(target=follower.follow)
    thread.start()
    try:
        yield follower, news
    finally:
        follower.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def heard(news: Queue[RunUpdate], wanted: Callable[[RunUpdate], bool]) -> RunUpdate:
    while True:
        one = news.get(timeout=PATIENCE)
        if wanted(one):
            return one


def test_existing_steps_are_delivered_first() -> None:
    training = Training().train(3)

    with following(training.store) as (_, news):
        first = news.get(timeout=PATIENCE)

    assert first.step == 2
    assert not first.finished
    assert first.series[0].label == "loss"


def test_only_requested_series_are_read() -> None:
    training = Training().train(3)

    with following(training.store) as (follower, news):
        follower.want([training.loss])
        told = heard(news, lambda one: bool(one.points))

    assert [points.series.id for points in told.points] == [training.loss]
    assert told.points[0].steps.tolist() == [0, 1, 2]


def test_only_new_steps_are_delivered() -> None:
    training = Training().train(3)

    with following(training.store) as (follower, news):
        follower.want([training.loss])
        heard(news, lambda one: bool(one.points))
        training.train(2)
        told = [heard(news, lambda one: bool(one.points))]
        while told[-1].points[0].steps[-1] < 4:
            told.append(heard(news, lambda one: bool(one.points)))

    assert [step for one in told for step in one.points[0].steps] == [3, 4]


def test_a_series_of_a_finished_run_can_still_be_requested() -> None:
    training = Training().train(3)

    with following(training.finish()) as (follower, news):
        heard(news, lambda one: one.finished)
        follower.want([training.gradients[0]])
        told = heard(news, lambda one: bool(one.points))

    assert told.points[0].series.name == "weight.grad"


def test_a_series_added_later_is_delivered() -> None:
    training = Training().train(1)

    with following(training.store) as (_, news):
        heard(news, lambda one: bool(one.series))
        training.store.series("head", "weight.norm")
        told = heard(news, lambda one: bool(one.series))

    assert [series.label for series in told.series] == ["head.weight.norm"]


class Vanishing(MemoryStore):
    """A store whose file goes away."""

    gone = False

    def last_step(self) -> int:
        if self.gone:
            raise StoreError("cannot read demo.glass: disk I/O error")
        return super().last_step()


def test_an_unreadable_run_is_a_problem_and_not_a_crash() -> None:
    training = Training().train(2)
    store = Vanishing(training.store.run())
    store.put_model(training.model)

    with following(store) as (_, news):
        heard(news, lambda one: not one.problem)
        store.gone = True
        told = heard(news, lambda one: bool(one.problem))
        store.gone = False
        again = heard(news, lambda one: not one.problem)

    assert told.problem == "cannot read demo.glass: disk I/O error"
    assert again.step == -1
