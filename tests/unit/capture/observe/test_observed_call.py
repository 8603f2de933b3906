from __future__ import annotations

from torchglass.capture.observe.observed_call import ModuleHistory, ObservedCall, nearest_around
from torchglass.capture.tensor_reader import StatisticsReader


def history(path: str) -> ModuleHistory:
    return ModuleHistory(0, path, "Linear", StatisticsReader("shapes").finish, keep=2)


def chain(parent: ObservedCall | None, *paths: str) -> list[ObservedCall]:
    made = []
    for path in paths:
        parent = ObservedCall(history(path), parent, forward_pass=1)
        made.append(parent)
    return made


def test_the_common_parent_of_two_calls_is_the_innermost() -> None:
    root, block, left = chain(None, "", "block", "block.left")
    right, deep = chain(block, "block.right", "block.right.deep")
    (other,) = chain(None, "other")

    assert nearest_around(left, deep) is block
    assert nearest_around(deep, right) is right
    assert nearest_around(left, left) is left
    assert nearest_around(root, deep) is root
    assert nearest_around(deep, other) is None


def test_costs_of_a_call_are_charged_to_all_enclosing_calls() -> None:
    root, block, leaf = chain(None, "", "block", "block.leaf")

    leaf.charge_time(5)
    block.charge_time(2)
    leaf.charge_bytes(-8)

    assert [call.backward.total_ns for call in (root, block, leaf)] == [7, 7, 5]
    assert [call.backward.self_ns for call in (root, block, leaf)] == [0, 2, 5]
    assert [call.backward.added_bytes for call in (root, block, leaf)] == [-8, -8, -8]


def test_only_the_latest_calls_are_kept() -> None:
    calls = history("")

    for number in range(50):
        call = ObservedCall(calls, None, number)
        call.start_ns, call.total_ns, call.error = number, 1, ""
        calls.add(call)

    assert [call.number for call in calls.kept] == [49, 50]
    assert (calls.begun, calls.statistics().totals.calls) == (50, 50)
