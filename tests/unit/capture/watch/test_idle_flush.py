"""What is done when nothing happens, and by how many threads."""

from __future__ import annotations

import threading

from torchglass.capture.watch.run_end import IdleFlush


def test_an_idle_flush_runs_after_its_timeout_and_after_each_restart() -> None:
    done = threading.Semaphore(0)
    idleness = IdleFlush(done.release, seconds=0.01)

    for _ in range(3):
        idleness.start()

        assert done.acquire(timeout=120)
    idleness.close()


def test_restarting_an_idle_flush_uses_one_thread_that_ends() -> None:
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


def test_a_stopped_idle_flush_does_not_run() -> None:
    done = threading.Event()
    idleness = IdleFlush(done.set, seconds=1.0)

    idleness.start()
    idleness.stop()

    assert not done.wait(1.2)
    idleness.close()
