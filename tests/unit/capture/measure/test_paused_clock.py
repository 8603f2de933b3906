from __future__ import annotations

from tests.sleepers import FakeClock
from torchglass.capture.measure.devices import StandingClock


def test_no_time_passes_in_a_block_or_a_nested_block() -> None:
    time = FakeClock()
    clock = StandingClock(time.mark)
    start = clock.now()

    time.sleep(3)
    with clock:
        time.sleep(100)
        with clock:
            time.sleep(200)
        time.sleep(400)
    time.sleep(4)

    assert clock.now() - start == 7
