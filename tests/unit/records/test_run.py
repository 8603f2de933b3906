"""How a run is doing."""

from __future__ import annotations

from torchglass.records.run import RunStatus, worst_status


def test_the_worst_of_several_states_counts() -> None:
    assert worst_status([RunStatus("finished"), RunStatus("running")]) == "running"
