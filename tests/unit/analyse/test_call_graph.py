from __future__ import annotations

import dataclasses

import pytest

from tests import make
from torchglass.analyse.call_graph import call_graph, union
from torchglass.analyse.signatures import facts_of
from torchglass.records.trace import CallRecord, Graph, OpId, TraceRecord


def call(
    id: int,
    path: str,
    parent: int | None = 0,
    *,
    number: int = 1,
    inputs: tuple[int, ...] = (),
    outputs: tuple[int, ...] = (),
) -> CallRecord:
    """A call that took what some ops made, and gave what others made."""
    return make.call(
        id,
        path,
        parent=parent,
        number=number,
        inputs=[make.value(2, 3, place=str(at), op=op) for at, op in enumerate(inputs)],
        outputs=[
            make.value(2, 3, place=str(at) if len(outputs) > 1 else "", op=op)
            for at, op in enumerate(outputs)
        ],
    )


def chain() -> TraceRecord:
    """x goes through a and b, with an op between them, and past both by an addition."""
    return make.trace(
        [
            make.op(0, "x", kind="input"),
            make.op(1, "linear", 0, call=1),
            make.op(2, "relu", 1, call=0),
            make.op(3, "linear", 2, call=2),
            make.op(4, "add", 3, 0, call=0),
            make.op(5, "", 4, kind="output"),
        ],
        [
            call(0, "", None, inputs=(0,), outputs=(4,)),
            call(1, "a", inputs=(0,), outputs=(1,)),
            call(2, "b", inputs=(2,), outputs=(3,)),
        ],
    )


def edges(graph: Graph) -> set[tuple[str, str]]:
    def name(node: int) -> str:
        one = graph.nodes[node]
        return (
            f"{one.path}:{one.number}" if one.kind == "call" else f"{one.kind} {one.name}".strip()
        )

    return {(name(edge.source), name(edge.target)) for edge in graph.edges}


def test_data_flows_between_calls_through_omitted_ops() -> None:
    graph = call_graph(chain())

    assert edges(graph) == {
        ("input 0", "a:1"),
        ("a:1", "b:1"),
        ("b:1", "op add"),
        ("input 0", "op add"),
        ("op add", "output"),
    }


def test_a_call_precedes_its_contents() -> None:
    graph = call_graph(chain())

    assert [(node.kind, node.path, node.parent) for node in graph.nodes] == [
        ("call", "", None),
        ("input", "", 0),
        ("output", "", 0),
        ("call", "a", 0),
        ("call", "b", 0),
        ("op", "", 0),
    ]
    assert [node.id for node in graph.nodes] == [0, 1, 2, 3, 4, 5]


def residuals(blocks: int, *, join: str = "add") -> TraceRecord:
    """Blocks whose results are added to what they were given, outside of them."""
    ops, calls, last = [make.op(0, "x", kind="input")], [call(0, "", None, inputs=(0,))], 0
    for at in range(blocks):
        first = len(ops)
        ops.append(make.op(first, "linear", last, call=at + 1, start_ns=10 * first))
        ops.append(make.op(first + 1, join, last, first, call=0, start_ns=10 * first + 10))
        block = call(at + 1, f"blocks.{at}", inputs=(last,), outputs=(first,))
        calls.append(dataclasses.replace(block, start_ns=10 * first, end_ns=10 * first + 10))
        last = first + 1
    calls[0] = dataclasses.replace(calls[0], outputs=(make.value(2, 3, op=last),))
    return make.trace(ops, calls)


@pytest.mark.parametrize("join", ["add", "__mul__", "cat", "lerp"])
@pytest.mark.parametrize("blocks", [4, 12, 48])
def test_residual_connections_need_one_edge_per_block(blocks: int, join: str) -> None:
    graph = call_graph(residuals(blocks, join=join))

    assert len(graph.edges) == 3 * blocks + 1
    inside = [node.kind for node in graph.nodes if node.kind in ("call", "op")]
    assert inside == ["call", *["call", "op"] * blocks]


def test_an_op_with_an_unused_result_is_omitted() -> None:
    trace = residuals(2)
    unused = make.op(len(trace.ops), "add", 1, 2, call=0)

    graph = call_graph(dataclasses.replace(trace, ops=(*trace.ops, unused)))

    assert graph == call_graph(trace)


def test_each_output_of_an_op_has_its_own_edges_inside_a_call() -> None:
    halves = [make.value(2, 3, place=str(at), op=1, output=at) for at in range(2)]
    trace = make.trace(
        [
            make.op(0, "x", kind="input"),
            make.op(1, "chunk", 0, call=0),
            make.op(2, "linear", (1, 0), call=2),
            make.op(3, "linear", (1, 1), call=3),
            make.op(4, "add", 2, 3, call=1),
        ],
        [
            call(0, "", None, inputs=(0,), outputs=(4,)),
            make.call(1, "two", parent=0, inputs=halves, outputs=[make.value(2, 3, op=4)]),
            make.call(2, "two.a", parent=1, inputs=halves[:1], outputs=[make.value(2, 3, op=2)]),
            make.call(3, "two.b", parent=1, inputs=halves[1:], outputs=[make.value(2, 3, op=3)]),
        ],
    )

    assert {end for end in edges(call_graph(trace)) if "two." in end[1]} == {
        ("input 0", "two.a:1"),
        ("input 1", "two.b:1"),
    }


def test_call_graph_edges_connect_only_nodes_of_the_same_parent() -> None:
    trace = make.trace(
        [
            make.op(0, "x", kind="input"),
            make.op(1, "linear", 0, call=2),
            make.op(2, "relu", 1, call=2),
            make.op(3, "linear", 2, call=3),
        ],
        [
            call(0, "", None, inputs=(0,), outputs=(3,)),
            call(1, "block", inputs=(0,), outputs=(2,)),
            call(2, "block.inner", 1, inputs=(0,), outputs=(2,)),
            call(3, "head", inputs=(2,), outputs=(3,)),
        ],
    )

    graph = call_graph(trace)

    parents = {node.id: node.parent for node in graph.nodes}
    assert all(parents[edge.source] == parents[edge.target] for edge in graph.edges)
    assert ("block:1", "head:1") in edges(graph)
    assert ("input 0", "block.inner:1") in edges(graph)


def test_a_module_called_twice_has_two_nodes() -> None:
    trace = make.trace(
        [
            make.op(0, "x", kind="input"),
            make.op(1, "linear", 0, call=1),
            make.op(2, "linear", 1, call=2),
        ],
        [
            call(0, "", None, inputs=(0,), outputs=(2,)),
            call(1, "fc", inputs=(0,), outputs=(1,)),
            call(2, "fc", number=2, inputs=(1,), outputs=(2,)),
        ],
    )

    assert ("fc:1", "fc:2") in edges(call_graph(trace))


def test_a_tensor_used_without_being_an_argument_is_an_edge() -> None:
    trace = make.trace(
        [
            make.op(0, "x", kind="input"),
            make.op(1, "linear", 0, call=1),
            make.op(2, "add", 0, 1, call=2),
        ],
        [
            call(0, "", None, inputs=(0,), outputs=(2,)),
            call(1, "memory", inputs=(0,), outputs=(1,)),
            call(2, "reader", inputs=(0,), outputs=(2,)),
        ],
    )

    assert ("memory:1", "reader:1") in edges(call_graph(trace))


def test_a_module_that_returns_its_input_connects_input_and_output() -> None:
    trace = make.trace(
        [make.op(0, "x", kind="input")],
        [
            call(0, "", None, inputs=(0,), outputs=(0,)),
            call(1, "identity", inputs=(0,), outputs=(0,)),
        ],
    )

    assert ("input 0", "identity:1") in edges(call_graph(trace))
    assert ("input 0", "output") in edges(call_graph(trace))


def test_an_attached_tensor_is_a_node_on_its_edge() -> None:
    graph = call_graph(chain(), attached={OpId(2): "hidden"})

    assert ("a:1", "attached hidden") in edges(graph)
    assert ("attached hidden", "b:1") in edges(graph)
    assert ("a:1", "b:1") not in edges(graph)


def test_facts_are_on_the_calls_of_their_module() -> None:
    graph = call_graph(chain(), facts={"a": {"bias": "True"}})

    assert [node.facts for node in graph.nodes if node.path in ("a", "b")] == [{"bias": "True"}, {}]


def test_a_union_counts_how_often_each_part_occurred() -> None:
    both = call_graph(chain())
    only_a = call_graph(
        make.trace(
            [make.op(0, "x", kind="input"), make.op(1, "linear", 0, call=1)],
            [
                call(0, "", None, inputs=(0,), outputs=(1,)),
                call(1, "a", inputs=(0,), outputs=(1,)),
            ],
        )
    )

    graph = union(union(None, both, times=3), only_a, times=2)

    assert graph.passes == 5
    counts = {node.path: node.count for node in graph.nodes if node.kind == "call"}
    assert counts == {"": 5, "a": 5, "b": 3}
    by_name = dict(zip(sorted(edges(graph)), sorted(edges(graph)), strict=True))
    assert ("a:1", "output") in by_name
    assert {edge.count for edge in graph.edges} == {2, 3, 5}


def test_a_union_with_itself_is_the_same_graph_counted_twice() -> None:
    graph = call_graph(chain())

    twice = union(union(None, graph), graph)

    assert edges(twice) == edges(graph)
    assert all(node.count == 2 for node in twice.nodes)


@pytest.mark.parametrize(
    ("extra", "facts"),
    [
        ("", {}),
        ("p=0.5, inplace=False", {"p": "0.5", "inplace": "False"}),
        (
            "3, 64, kernel_size=(7, 7), stride=(2, 2)",
            {"0": "3", "1": "64", "kernel_size": "(7, 7)", "stride": "(2, 2)"},
        ),
        ("(64,), eps=1e-05", {"0": "(64,)", "eps": "1e-05"}),
        ("a\nb=[1, 2]", {"0": "a", "b": "[1, 2]"}),
    ],
)
def test_the_extra_repr_of_a_module_is_split_into_facts(extra: str, facts: dict[str, str]) -> None:
    assert facts_of(extra) == facts
