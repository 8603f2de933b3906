"""What is done when nothing happens, and by how many threads."""

from __future__ import annotations

import threading

from torchglass.capture.watch.run_end import IdleFlush


def test_it_is_done_when_the_time_is_up_and_again_after_the_next_start() -> None:
    done = threading.Semaphore(0)
    idleness = IdleFlush(done.release, seconds=0.01)

    for _ in range(3):
        idleness.start()

        assert done.acquire(timeout=120)
    idleness.close()


def test_however_often_it_begins_anew_there_is_one_thread_which_ends() -> None:
    before = set(threading.enumerate())
    idleness = IdleFlush(lambda: None, seconds=600)

    for _ in range(100):
        idleness.stop()
        idleness.start()
    (thread,) = set(threading.enumerate()) - before
    idleness.close()
    idleness.start()

    thread.join(120)
    assert set(threading.enumerate()) <= before


def test_what_was_stopped_is_not_done() -> None:
    done = threading.Event()
    idleness = IdleFlush(done.set, seconds=1.0)

    idleness.start()
    idleness.stop()

    assert not done.wait(1.2)
    idleness.close()
