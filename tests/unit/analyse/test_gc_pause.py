from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from torchglass.errors import collector_paused


@pytest.fixture(autouse=True)
def _collector_on() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_the_collector_rests_in_the_block_and_goes_on_after_it() -> None:
    with collector_paused():
        assert not gc.isenabled()

    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()

    with collector_paused():
        pass

    assert not gc.isenabled()


def test_it_goes_on_after_an_error() -> None:
    with pytest.raises(ValueError, match="ours"), collector_paused():
        raise ValueError("ours")

    assert gc.isenabled()


def test_an_inner_pause_does_not_end_an_outer_one() -> None:
    with collector_paused():
        with collector_paused():
            pass

        assert not gc.isenabled()
