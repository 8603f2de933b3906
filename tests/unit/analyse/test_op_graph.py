from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from tests import make
from torchglass.analyse.op_graph import fold
from torchglass.analyse.trace import Lookup, OpLabels
from torchglass.errors import LookupFailedError, ViewError
from torchglass.records.trace import (
    CallId,
    CallRecord,
    Edge,
    Graph,
    Node,
    NodeId,
    Operand,
    OpId,
    OpRecord,
    Repetition,
    TraceRecord,
)


def edges(graph: Graph) -> set[tuple[str | None, str | None]]:
    return {(name_of(graph, edge.source), name_of(graph, edge.target)) for edge in graph.edges}


def names(graph: Graph) -> list[str]:
    return [node.name for node in graph.leaves]


def name_of(graph: Graph, id: NodeId | None) -> str | None:
    return None if id is None else graph.nodes[id].name


def node(graph: Graph, name: str) -> Node:
    return next(node for node in graph.leaves if node.name == name)


def box_of(graph: Graph, name: str) -> str | None:
    return name_of(graph, node(graph, name).parent)


def edge(graph: Graph, source: str, target: str) -> Edge:
    ends = node(graph, source).id, node(graph, target).id
    return next(edge for edge in graph.edges if (edge.source, edge.target) == ends)


def chain(*functions: str, **fields: Any) -> list[OpRecord]:
    """An input, ops that each use the one before, and an output."""
    last = len(functions) + 1
    return [
        make.op(0, "x", kind="input"),
        *(make.op(place, name, place - 1, **fields) for place, name in enumerate(functions, 1)),
        make.op(last, "", last - 1, kind="output"),
    ]


def blocks(count: int) -> TraceRecord:
    """Blocks of two linears and a residual, one after the other, as a transformer has them."""
    ops = [make.op(0, "x", kind="input")]
    calls = [make.call(0)]
    for block in range(count):
        call, start = len(calls), len(ops)
        calls.append(make.call(call, f"h.{block}", parent=0, outputs=[(2, 3)]))
        calls.append(make.call(call + 1, f"h.{block}.mlp", parent=call, outputs=[(2, 3)]))
        weights: Sequence[dict[str, tuple[int, ...]]] = [
            {f"h.{block}.mlp.{name}.weight": (3, 3)} for name in ("up", "down")
        ]
        inside, around = CallId(call + 1), CallId(call)
        ops += (
            make.op(start, "linear", start - 1, parameters=weights[0], call=inside),
            make.op(start + 1, "linear", start, parameters=weights[1], call=inside),
            make.op(start + 2, "add", start - 1, start + 1, call=around),
        )
    ops.append(make.op(len(ops), "", len(ops) - 1, kind="output"))
    return make.trace(ops, calls)


def recurrent(steps: int) -> TraceRecord:
    """`x = relu(fc(x))` in a loop, with a module call for each linear."""
    ops = [make.op(0, "x", kind="input")]
    calls = [make.call(0)]
    for step in range(steps):
        calls.append(make.call(len(calls), "fc", parent=0, number=step + 1))
        start = len(ops)
        weight = {"fc.weight": (3, 3)}
        inside = CallId(len(calls) - 1)
        ops.append(make.op(start, "linear", start - 1, parameters=weight, call=inside))
        ops.append(make.op(start + 1, "relu", start, call=CallId(0), site=1))
    ops.append(make.op(len(ops), "", len(ops) - 1, kind="output"))
    return make.trace(ops, calls)


def shifted(op: OpRecord) -> OpRecord:
    """The same op one place later in the pass."""
    operands = tuple(
        replace(operand, op=None if operand.op is None else OpId(operand.op + 1))
        for operand in op.operands
    )
    return replace(op, id=OpId(op.id + 1), site=op.site + 1, operands=operands)


def test_ops_are_nodes_and_tensors_are_edges() -> None:
    graph = fold(make.trace(chain("linear", "relu")))

    assert names(graph) == ["input_1_0", "linear_1_1", "relu_1_2", "output_1_3"]
    assert [node.kind for node in graph.leaves] == ["input", "op", "op", "output"]
    assert edges(graph) == {
        ("input_1_0", "linear_1_1"),
        ("linear_1_1", "relu_1_2"),
        ("relu_1_2", "output_1_3"),
    }


@pytest.mark.parametrize("options", [{}, {"fold_repeats": False}, {"depth": 1}])
def test_every_node_name_is_a_key_of_the_trace(options: dict[str, Any]) -> None:
    trace = blocks(4)
    made_by = {call.id: OpId(3 * (call.id - 1) // 2 + 3) for call in trace.calls if call.id}
    calls = [
        replace(call, outputs=(make.value(2, 3, op=made_by.get(call.id, 1)),))
        for call in trace.calls
    ]
    lookup = Lookup(trace.ops, calls, OpLabels(trace.ops))

    graph = fold(replace(trace, calls=tuple(calls)), **options)

    for name in (*names(graph), *(box.name for box in graph.boxes)):
        lookup.find(name)


def test_a_module_with_a_single_op_has_no_box() -> None:
    calls = [make.call(0), make.call(1, "fc", parent=0)]
    ops = chain("linear", call=CallId(1))

    graph = fold(make.trace(ops, calls), make.model({"children": {"fc": {"class": "a.Linear"}}}))

    assert graph.boxes == ()
    assert node(graph, "linear_1_1").module == "fc"
    assert node(graph, "linear_1_1").detail.class_name == "Linear"


def test_modules_with_several_ops_are_nested_boxes() -> None:
    graph = fold(blocks(1))

    assert [(box.name, name_of(graph, box.parent)) for box in graph.boxes] == [
        ("h.0", None),
        ("h.0.mlp", "h.0"),
    ]
    assert box_of(graph, "linear_1_1") == "h.0.mlp"
    assert box_of(graph, "add_1_3") == "h.0"
    assert box_of(graph, "output_1_4") is None


def test_several_roots_are_boxes_and_one_is_not() -> None:
    calls = [make.call(0, number=1), make.call(1, number=2)]
    ops = [
        make.op(0, "x", kind="input"),
        make.op(1, "sin", 0, call=CallId(0)),
        make.op(2, "cos", 1, call=CallId(0)),
        make.op(3, "sin", 2, call=CallId(1)),
        make.op(4, "cos", 3, call=CallId(1)),
    ]

    graph = fold(make.trace(ops, calls))

    assert [box.name for box in graph.boxes] == ["Net:1", "Net:2"]


def test_views_are_hidden_and_edges_pass_through_them() -> None:
    graph = fold(make.trace(chain("linear", "transpose", "contiguous", "view", "softmax")))

    assert names(graph) == ["input_1_0", "linear_1_1", "softmax_1_5", "output_1_6"]
    assert ("linear_1_1", "softmax_1_5") in edges(graph)


def test_views_are_shown_on_demand() -> None:
    graph = fold(make.trace(chain("linear", "view")), hide_views=False)

    assert "view_1_2" in names(graph)


def test_views_are_shown_if_there_are_no_other_ops() -> None:
    graph = fold(make.trace(chain("view", "permute")))

    assert names(graph) == ["input_1_0", "view_1_1", "permute_1_2", "output_1_3"]


def test_indexing_by_a_tensor_is_not_a_view() -> None:
    ops = [
        make.op(0, "x", kind="input"),
        make.op(1, "topk", 0),
        make.op(2, "__getitem__", 0, 1),
    ]

    assert "getitem_1_2" in names(fold(make.trace(ops)))


def test_a_viewed_parameter_belongs_to_the_op_after_the_view() -> None:
    ops = [
        make.op(0, "x", kind="input"),
        make.op(1, "t", parameters={"weight": (3, 2)}),
        make.op(2, "matmul", 0, 1),
    ]

    graph = fold(make.trace(ops))

    assert list(node(graph, "matmul_1_2").detail.parameters) == ["weight"]


def test_a_tensor_written_through_a_view_has_all_writers_as_sources() -> None:
    spec = make.spec(2, 3)
    operand = Operand(place="0", spec=spec, op=OpId(1), writers=(OpId(2), OpId(3)))
    ops = [
        make.op(0, "x", kind="input"),
        make.op(1, "mul", 0),
        make.op(2, "add_", 1, writes=True),
        make.op(3, "sub_", 1, writes=True),
        replace(make.op(4, "sin"), operands=(operand,)),
    ]

    graph = fold(make.trace(ops))

    assert {source for source, target in edges(graph) if target == "sin_1_4"} == {
        "mul_1_1",
        "add_1_2",
        "sub_1_3",
    }


def test_arguments_are_labeled_if_their_order_matters() -> None:
    ops = [
        make.op(0, "x", kind="input"),
        make.op(1, "sin", 0),
        make.op(2, "sub", 0, 1),
        make.op(3, "add", 1, 2),
        make.op(4, "scaled_dot_product_attention", 1, 2, 3),
        make.op(5, "my_op", 3, 4),
    ]

    graph = fold(make.trace(ops))

    assert edge(graph, "input_1_0", "sub_1_2").arguments == ("left",)
    assert edge(graph, "sin_1_1", "sub_1_2").arguments == ("right",)
    assert edge(graph, "sub_1_2", "add_1_3").arguments == ()
    assert edge(graph, "sin_1_1", "scaleddotproductattention_1_4").arguments == ("query",)
    assert edge(graph, "add_1_3", "myop_1_5").arguments == ("input",)


def test_several_parts_of_one_tensor_are_one_edge() -> None:
    ops = [
        make.op(0, "x", kind="input"),
        make.op(1, "linear", 0),
        make.op(2, "chunk", 1),
        make.op(3, "scaled_dot_product_attention", 2, 2, 2),
    ]

    graph = fold(make.trace(ops))

    merged = edge(graph, "linear_1_1", "scaleddotproductattention_1_3")
    assert merged.arguments == ("query", "key", "value")
    assert merged.tensors == 1


def test_the_tensors_of_a_list_are_numbered() -> None:
    spec = make.spec(2, 3)
    listed = tuple(Operand(place=f"0.{i}", spec=spec, op=OpId(i)) for i in range(2))
    ops = [
        make.op(0, "x", kind="input"),
        make.op(1, "sin", 0),
        replace(make.op(2, "cat"), operands=listed),
    ]

    graph = fold(make.trace(ops))

    assert edge(graph, "sin_1_1", "cat_1_2").arguments == ("tensors[1]",)


def test_modules_at_the_depth_limit_are_collapsed() -> None:
    trace = blocks(2)

    graph = fold(trace, depth=1)

    closed = node(graph, "h.1")
    assert names(graph) == ["input_1_0", "h.0", "h.1", "output_1_7"]
    assert closed.kind == "call"
    assert closed.detail.op_count == 3
    assert list(closed.detail.parameters) == ["h.1.mlp.up.weight", "h.1.mlp.down.weight"]
    assert edges(graph) == {("input_1_0", "h.0"), ("h.0", "h.1"), ("h.1", "output_1_7")}


def test_a_depth_of_two_collapses_modules_inside_the_boxes() -> None:
    graph = fold(blocks(1), depth=2)

    assert [box.name for box in graph.boxes] == ["h.0"]
    assert box_of(graph, "h.0.mlp") == "h.0"
    assert ("h.0.mlp", "add_1_3") in edges(graph)


def test_tensors_between_collapsed_modules_are_counted() -> None:
    calls = [make.call(0), make.call(1, "a", parent=0), make.call(2, "b", parent=0)]
    ops = [
        make.op(0, "x", kind="input"),
        make.op(1, "sin", 0, call=CallId(1)),
        make.op(2, "cos", 0, call=CallId(1)),
        make.op(3, "exp", 1, call=CallId(2)),
        make.op(4, "mul", 3, 2, call=CallId(2)),
    ]

    graph = fold(make.trace(ops, calls), depth=1)

    assert edge(graph, "a", "b").tensors == 2


def test_a_module_of_one_op_stays_that_op_at_any_depth() -> None:
    calls = [make.call(0), make.call(1, "fc", parent=0)]

    graph = fold(make.trace(chain("linear", call=CallId(1)), calls), depth=1)

    assert node(graph, "linear_1_1").kind == "op"


def test_rolled_passes_of_a_layer_are_one_node() -> None:
    graph = fold(recurrent(4), mode="rolled")

    assert names(graph) == ["input_1_0", "linear_1_1", "relu_1_2", "output_1_3"]
    assert node(graph, "linear_1_1").detail.repetition == Repetition(passes=4)


def test_rolled_edges_name_their_passes_only_if_passes_differ() -> None:
    graph = fold(recurrent(4), mode="rolled")

    first = edge(graph, "input_1_0", "linear_1_1")
    inner = edge(graph, "linear_1_1", "relu_1_2")
    back = edge(graph, "relu_1_2", "linear_1_1")
    last = edge(graph, "relu_1_2", "output_1_3")
    assert (first.out_passes, first.in_passes) == ((), (1,))
    assert (inner.out_passes, inner.in_passes) == ((), ())
    assert (back.out_passes, back.in_passes) == ((1, 2, 3), (2, 3, 4))
    assert (last.out_passes, last.in_passes) == ((4,), ())


def test_a_rolled_collapsed_module_that_feeds_itself_has_a_self_edge() -> None:
    calls = [make.call(0), *(make.call(n, "cell", parent=0, number=n) for n in (1, 2))]
    ops = [make.op(0, "x", kind="input")]
    for step in (1, 2):
        weight = {"cell.weight": (3, 3)}
        start = len(ops)
        ops.append(
            make.op(start, "linear", start - 1, parameters=weight, call=CallId(step), site=1)
        )
        ops.append(make.op(start + 1, "tanh", start, call=CallId(step), site=2))

    graph = fold(make.trace(ops, calls), mode="rolled", depth=1)

    assert node(graph, "cell").detail.repetition.passes == 2
    assert node(graph, "cell").detail.op_count == 2
    assert edge(graph, "cell", "cell").in_passes == (2,)


def test_unrolled_each_pass_is_a_node() -> None:
    graph = fold(recurrent(3))

    assert [name for name in names(graph) if name.startswith("linear")] == [
        "linear_1_1:1",
        "linear_1_1:2",
        "linear_1_1:3",
    ]


def test_identical_blocks_are_drawn_once() -> None:
    graph = fold(blocks(12))

    assert graph.boxes[0].name == "h.0"
    assert graph.boxes[0].detail.repetition == Repetition(times=12, until="h.11")
    assert names(graph) == ["input_1_0", "linear_1_1", "linear_2_2", "add_1_3", "output_1_37"]
    assert edges(graph) == {
        ("input_1_0", "linear_1_1"),
        ("linear_1_1", "linear_2_2"),
        ("linear_2_2", "add_1_3"),
        ("input_1_0", "add_1_3"),
        ("add_1_3", "output_1_37"),
    }


def test_identical_collapsed_blocks_are_one_node() -> None:
    graph = fold(blocks(12), depth=1)

    assert names(graph) == ["input_1_0", "h.0", "output_1_37"]
    assert node(graph, "h.0").detail.repetition == Repetition(times=12, until="h.11")
    assert node(graph, "h.0").detail.op_count == 3


def test_blocks_of_different_shape_are_not_folded() -> None:
    trace = blocks(7)
    odd_one = CallId(7)
    ops = [
        replace(op, outputs=(make.value(9, 9),)) if op.call == odd_one else op for op in trace.ops
    ]

    graph = fold(replace(trace, ops=tuple(ops)))

    assert [box.detail.repetition.times for box in graph.boxes if box.module.count(".") == 1] == [
        3,
        1,
        3,
    ]


def test_blocks_with_different_inputs_are_not_folded() -> None:
    trace = blocks(4)
    from_the_input = make.op(10, "linear", 0, parameters={"h.3.mlp.up.weight": (3, 3)})
    astray = replace(trace.ops[10], operands=from_the_input.operands)

    graph = fold(replace(trace, ops=(*trace.ops[:10], astray, *trace.ops[11:])))

    assert graph.boxes[0].detail.repetition == Repetition(times=3, until="h.2")


def test_a_block_whose_result_is_used_later_ends_its_group() -> None:
    trace = blocks(6)
    third = next(op.id for op in trace.ops if op.call == CallId(5) and op.function == "add")
    gathering = make.op(19, "cat", third, 18)

    graph = fold(replace(trace, ops=(*trace.ops[:19], gathering)))

    assert [
        box.detail.repetition.until for box in graph.boxes if box.detail.repetition.times > 1
    ] == ["h.2", "h.5"]
    assert {source for source, target in edges(graph) if target == "cat_1_19"} == {
        "add_1_3",
        "add_4_12",
    }


def test_returned_results_do_not_unfold_blocks() -> None:
    trace = blocks(4)
    outputs = [make.op(13 + k, str(k), 3 * (k + 1), kind="output") for k in range(4)]

    graph = fold(replace(trace, ops=(*trace.ops[:13], *outputs)))

    assert graph.boxes[0].detail.repetition.times == 4
    assert ("add_1_3", "output_2_14") in edges(graph)


def test_passes_of_a_loop_are_not_folded_like_blocks() -> None:
    graph = fold(recurrent(12))

    assert len(graph.leaves) == 26


def test_repeated_neighbors_without_a_parent_module_get_a_box() -> None:
    calls = [make.call(0), *(make.call(n + 1, str(n), parent=0) for n in range(8))]
    ops = [make.op(0, "x", kind="input")]
    for layer in range(8):
        function = "relu" if layer % 2 else "linear"
        weights = {} if layer % 2 else {f"{layer}.weight": (3, 3)}
        ops.append(make.op(layer + 1, function, layer, parameters=weights, call=CallId(layer + 1)))

    graph = fold(make.trace(ops, calls))

    assert [(box.name, box.detail.repetition.times) for box in graph.boxes] == [
        ("linear_1_1 … relu_4_8", 4)
    ]
    assert [node.parent for node in graph.leaves[1:]] == [graph.boxes[0].id] * 2


def test_short_repeats_are_not_folded() -> None:
    graph = fold(make.trace(chain("linear", "relu", "linear", "relu")))

    assert graph.boxes == ()


def test_a_mask_used_by_all_blocks_does_not_unfold_them() -> None:
    trace = blocks(3)
    mask = make.op(0, "mask", kind="input")
    operand = Operand(place="1", spec=make.spec(2, 3), op=OpId(0))
    ops = [mask, *(shifted(op) for op in trace.ops)]
    ops = [
        replace(op, operands=(*op.operands, operand)) if op.function == "linear" else op
        for op in ops
    ]

    graph = fold(replace(trace, ops=tuple(ops)))

    assert graph.boxes[0].detail.repetition.times == 3
    assert ("input_1_0", "linear_1_2") in edges(graph)


def test_focus_draws_one_module_and_its_neighbors_as_stubs() -> None:
    graph = fold(blocks(3), focus="h.1")

    kinds = {node.name: node.kind for node in graph.leaves}
    assert kinds == {
        "linear_3_4": "op",
        "linear_4_5": "op",
        "add_2_6": "op",
        "add_1_3": "stub",
        "linear_5_7": "stub",
        "add_3_9": "stub",
    }
    assert [box.name for box in graph.boxes] == ["h.1", "h.1.mlp"]
    assert graph.pass_info.focus == "h.1"


def test_depth_counts_from_the_focus() -> None:
    graph = fold(blocks(2), focus="h.1", depth=1)

    assert node(graph, "h.1.mlp").kind == "call"


def test_one_call_of_a_module_can_be_in_focus() -> None:
    graph = fold(recurrent(3), focus="fc:2")

    assert [node.name for node in graph.leaves if node.kind == "op"] == ["linear_1_1:2"]


def test_an_invalid_focus_lists_the_modules_that_ran() -> None:
    with pytest.raises(LookupFailedError, match=r"no module 'h\.9' ran .* h\.1"):
        fold(blocks(2), focus="h.9")


def test_nodes_that_do_not_depend_on_an_input_are_marked() -> None:
    ops = [make.op(0, "x", kind="input"), make.op(1, "arange"), make.op(2, "add", 0, 1)]

    graph = fold(make.trace(ops))

    assert [node.detail.from_input for node in graph.leaves] == [True, False, True]


def test_buffers_are_nodes_on_demand() -> None:
    buffer = Operand(place="1", spec=make.spec(3), buffer="norm.mean")
    ops = chain("batch_norm")
    ops[1] = replace(ops[1], operands=(*ops[1].operands, buffer))

    assert "norm.mean" not in names(fold(make.trace(ops)))
    shown = fold(make.trace(ops), show_buffers=True)
    assert node(shown, "norm.mean").kind == "buffer"
    assert ("norm.mean", "batchnorm_1_1") in edges(shown)


def test_the_num_batches_tracked_update_is_hidden() -> None:
    counter = Operand(place="0", spec=make.spec(), buffer="norm.num_batches_tracked")
    counting = replace(make.op(1, "add_", writes=True), operands=(counter,))
    ops = [make.op(0, "x", kind="input"), counting, make.op(2, "batch_norm", 0)]

    assert "add_1_1" not in names(fold(make.trace(ops)))
    assert "add_1_1" in names(fold(make.trace(ops), show_buffers=True))


def test_an_op_with_several_outputs_is_one_node() -> None:
    made = (make.value(2, 7, 16, place="0"), make.value(1, 2, 16, place="1"))
    ops = [
        make.op(0, "x", kind="input"),
        make.op(1, "lstm", 0, outputs=made),
        make.op(2, "", 1, kind="output"),
    ]

    graph = fold(make.trace(ops))

    assert [spec.shape for spec in node(graph, "lstm_1_1").outputs] == [(2, 7, 16), (1, 2, 16)]


def test_the_op_that_raised_is_drawn_with_its_inputs() -> None:
    calls = [make.call(0), make.call(1, "fc", parent=0)]
    ops = chain("relu", call=CallId(0))[:-1]
    raised = make.op(2, "linear", 1, parameters={"fc.weight": (3, 9)}, call=CallId(1))
    trace = make.trace(ops, calls, error="RuntimeError: no fit", failed=raised)

    graph = fold(trace)

    failure = graph.leaves[-1]
    assert failure.kind == "failure"
    assert failure.detail.failed
    assert failure.module == "fc"
    assert list(failure.detail.parameters) == ["fc.weight"]
    assert ("relu_1_1", failure.name) in edges(graph)
    assert graph.pass_info.error == "RuntimeError: no fit"


def test_an_error_between_ops_is_marked_in_the_module_where_it_was_raised() -> None:
    calls = [make.call(0), make.call(1, "done", parent=0, outputs=[(2, 3)]), make.call(2, "head")]
    calls[2] = replace(calls[2], parent=CallId(0))
    ops = chain("relu", call=CallId(1))[:-1]

    graph = fold(make.trace(ops, calls, error="KeyError: 'x'"))

    assert graph.leaves[-1].module == "head"
    assert ("relu_1_1", graph.leaves[-1].name) in edges(graph)


def test_a_collapsed_module_that_raised_is_marked() -> None:
    calls = [make.call(0), make.call(1, "a", parent=0)]
    ops = chain("sin", "cos", call=CallId(1))[:-1]
    raised = make.op(3, "linear", 2, call=CallId(1))

    graph = fold(make.trace(ops, calls, error="boom", failed=raised), depth=1)

    assert [(node.name, node.detail.failed) for node in graph.leaves] == [
        ("input_1_0", False),
        ("a", True),
    ]


def test_the_cost_of_a_node_sums_all_ops_it_represents() -> None:
    trace = blocks(4)
    timed = [replace(op, start_ns=0, end_ns=10) if op.kind == "op" else op for op in trace.ops]
    flops = {OpId(op.id): 5 for op in timed if op.function == "linear"}

    graph = fold(replace(trace, ops=tuple(timed)), flops=flops)

    linear = node(graph, "linear_1_1")
    assert linear.detail.cost.time_ns == 40
    assert linear.detail.cost.parameters == 36
    assert linear.detail.cost.bytes == 4 * 24
    assert linear.detail.cost.flops == 20
    assert graph.pass_info.cost.time_ns == 120
    assert graph.pass_info.cost.parameters == 72


def test_a_trace_without_ops_is_an_empty_graph() -> None:
    graph = fold(make.trace([]))

    assert (graph.nodes, graph.edges, graph.boxes) == ((), (), ())


def test_invalid_options_list_the_valid_ones() -> None:
    trace = make.trace(chain("relu"))

    with pytest.raises(ViewError, match="'rolled' or 'unrolled', not 'flat'"):
        fold(trace, mode=cast("Any", "flat"))
    with pytest.raises(ViewError, match="depth must be 1 or more"):
        fold(trace, depth=0)


def test_a_thousand_identical_layers_are_folded_quickly() -> None:
    ops = [make.op(0, "x", kind="input")]
    calls: list[CallRecord] = [make.call(0)]
    for layer in range(1000):
        calls.append(make.call(layer + 1, str(layer), parent=0))
        weight = {f"{layer}.weight": (3, 3)}
        ops.append(make.op(layer + 1, "linear", layer, parameters=weight, call=CallId(layer + 1)))

    graph = fold(make.trace(ops, calls))

    assert [(box.name, box.detail.repetition.times) for box in graph.boxes] == [("0", 1000)]
