"""How a run is doing."""

from __future__ import annotations

from torchglass.records.run import RunStatus, worst_status


def test_of_many_states_the_worst_counts() -> None:
    assert worst_status([RunStatus("finished"), RunStatus("running")]) == "running"
