from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from torchglass.errors import collect_as_usual, collect_less, collector_paused


@pytest.fixture(autouse=True)
def _collector_on() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_gc_is_disabled_in_the_block_and_enabled_after() -> None:
    with collector_paused():
        assert not gc.isenabled()

    assert gc.isenabled()


def test_gc_that_was_disabled_stays_disabled() -> None:
    gc.disable()

    with collector_paused():
        pass

    assert not gc.isenabled()


def test_gc_is_enabled_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="ours"), collector_paused():
        raise ValueError("ours")

    assert gc.isenabled()


def test_an_inner_pause_does_not_end_an_outer_one() -> None:
    with collector_paused():
        with collector_paused():
            pass

        assert not gc.isenabled()


@pytest.fixture
def usual() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_the_collector_runs_less_often_until_the_last_of_several_steps_ends(
    usual: tuple[int, int, int],
) -> None:
    collect_less("one")
    collect_less("another")
    collect_less("one")
    assert gc.get_threshold()[0] > usual[0]

    collect_as_usual("one")
    assert gc.get_threshold()[0] > usual[0]

    collect_as_usual("another")
    collect_as_usual("another")
    assert gc.get_threshold() == usual


def test_thresholds_that_the_user_sets_meanwhile_stay(usual: tuple[int, int, int]) -> None:
    collect_less("step")
    gc.set_threshold(123, 4, 5)

    collect_as_usual("step")

    assert gc.get_threshold() == (123, 4, 5)
