from __future__ import annotations

from tests import make
from torchglass.analyse.trace import TraceStructure
from torchglass.records.trace import OpId

BRANCHING = (
    make.op(0, "x", kind="input"),
    make.op(1, "relu", 0),
    make.op(2, "mul", 0),
    make.op(3, "add", 1, 2),
    make.op(4, "", 3, kind="output"),
)


def test_parents_children_and_siblings_are_distinguished() -> None:
    anatomy = TraceStructure(make.trace(BRANCHING))

    assert anatomy.children == ((1, 2), (3,), (3,), (4,), ())
    assert anatomy.siblings(OpId(1)) == (2,)
    assert anatomy.spouses(OpId(1)) == (2,)
    assert anatomy.siblings(OpId(3)) == ()


def test_an_op_that_uses_one_result_twice_is_one_child_and_not_its_own_sibling() -> None:
    anatomy = TraceStructure(make.trace([make.op(0, "x", kind="input"), make.op(1, "mul", 0, 0)]))

    assert anatomy.children == ((1,), ())
    assert anatomy.siblings(OpId(1)) == ()
    assert not anatomy.is_branching


def test_a_chain_is_feedforward_without_branching() -> None:
    chain = [make.op(0, "x", kind="input"), make.op(1, "relu", 0), make.op(2, "tanh", 1)]

    anatomy = TraceStructure(make.trace(chain))

    assert (anatomy.loops, anatomy.is_branching) == (1, False)


def test_loops_and_branches_are_detected() -> None:
    steps = [make.op(step, "relu", *range(max(0, step - 2), step), site=7) for step in range(5)]

    anatomy = TraceStructure(make.trace(steps))

    assert (anatomy.loops, anatomy.is_branching) == (5, True)
    assert anatomy.layers["relu_1_0"] == anatomy.layers["relu_1"] == (0, 1, 2, 3, 4)


def test_the_modules_of_an_op_are_outermost_first_and_its_outputs_innermost_first() -> None:
    made = [make.value(2, op=1)]
    calls = [
        make.call(0, outputs=made),
        make.call(1, "block", parent=0, outputs=made),
        make.call(2, "block.fc", parent=1, outputs=made),
    ]
    anatomy = TraceStructure(
        make.trace([make.op(0, "x", kind="input"), make.op(1, "linear", 0, call=2)], calls)
    )

    assert [call.path for call in anatomy.modules(OpId(1))] == ["block", "block.fc"]
    assert [call.path for call in anatomy.output_of(OpId(1))] == ["block.fc", "block"]
    assert anatomy.output_of(OpId(0)) == ()
    assert anatomy.ops_of_call[calls[1].id] == (1,)


def test_a_call_is_numbered_if_its_module_ran_several_times() -> None:
    calls = [make.call(0), make.call(1, "a", parent=0), make.call(2, "b", parent=0)]
    calls.append(make.call(3, "b", parent=0, number=2))
    anatomy = TraceStructure(make.trace((), calls))

    assert [anatomy.call_name(call) for call in calls] == ["", "a", "b:1", "b:2"]


def test_a_parameter_used_by_several_ops_is_listed_once() -> None:
    weight = {"fc.weight": (3, 4)}
    ops = [make.op(0, "linear", parameters=weight), make.op(1, "linear", 0, parameters=weight)]

    anatomy = TraceStructure(make.trace(ops))

    assert {name: spec.shape for name, spec in anatomy.parameters.items()} == {"fc.weight": (3, 4)}


def test_distances_give_the_shortest_and_the_longest_path() -> None:
    anatomy = TraceStructure(
        make.trace(
            [
                make.op(0, "x", kind="input"),
                make.op(1, "relu", 0),
                make.op(2, "add", 0, 1),
                make.op(3, "zeros"),
                make.op(4, "", 2, kind="output"),
            ]
        )
    )

    assert anatomy.distances_from_input == ((0, 0), (1, 1), (1, 2), None, (2, 3))
    assert anatomy.distances_from_output == ((2, 3), (2, 2), (1, 1), None, (0, 0))
