from __future__ import annotations

from torchglass.capture.observe.module_call import Call, Home, nearest_around


def chain(parent: Call | None, *paths: str) -> list[Call]:
    made = []
    for path in paths:
        parent = Call(Home(0, path, "Linear", keep=2), parent, forward_pass=1)
        made.append(parent)
    return made


def test_the_call_around_two_is_the_innermost_one_that_both_lie_in() -> None:
    root, block, left = chain(None, "", "block", "block.left")
    right, deep = chain(block, "block.right", "block.right.deep")
    (other,) = chain(None, "other")

    assert nearest_around(left, deep) is block
    assert nearest_around(deep, right) is right
    assert nearest_around(left, left) is left
    assert nearest_around(root, deep) is root
    assert nearest_around(deep, other) is None


def test_what_is_charged_to_a_call_is_charged_to_all_around_it() -> None:
    root, block, leaf = chain(None, "", "block", "block.leaf")

    leaf.charge_time(5)
    block.charge_time(2)
    leaf.charge_bytes(-8)

    assert [call.backward_ns for call in (root, block, leaf)] == [7, 7, 5]
    assert [call.backward_self_ns for call in (root, block, leaf)] == [0, 2, 5]
    assert [call.backward_bytes for call in (root, block, leaf)] == [-8, -8, -8]


def test_only_the_latest_calls_are_held() -> None:
    home = Home(0, "", "Linear", keep=2)

    for number in range(5):
        home.add(Call(home, None, number))

    assert [call.number for call in home.calls] == [4, 5]
    assert home.begun == 5
