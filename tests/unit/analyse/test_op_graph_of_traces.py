from __future__ import annotations

from tests import make
from torchglass.analyse.call_graph import op_graph
from torchglass.records.trace import Graph, Node


def named(graph: Graph) -> list[str]:
    return [describe(node) for node in graph.nodes]


def describe(node: Node) -> str:
    return (
        f"{node.kind} {node.path}:{node.number}"
        if node.kind == "call"
        else f"{node.kind} {node.name}"
    )


def flows(graph: Graph) -> set[tuple[str, str]]:
    names = named(graph)
    return {(names[edge.source], names[edge.target]) for edge in graph.edges}


def test_ops_are_inside_the_calls_that_ran_them() -> None:
    calls = [make.call(0), make.call(1, "a", parent=0)]
    graph = op_graph(make.trace([make.op(0, "relu", call=1), make.op(1, "add", 0, call=0)], calls))

    relu = next(node for node in graph.nodes if node.name == "relu")
    assert relu.parent == graph.nodes[1].id
    assert relu.path == "a"


def test_data_enters_and_leaves_calls_through_border_nodes() -> None:
    calls = [
        make.call(0),
        make.call(1, "a", parent=0, outputs=[make.value(2, 3, place="", op=0)]),
        make.call(2, "b", parent=0, inputs=[make.value(2, 3, place="x", op=0)]),
    ]
    ops = [make.op(0, "relu", call=1), make.op(1, "sin", 0, call=2)]

    graph = op_graph(make.trace(ops, calls))

    assert flows(graph) == {
        ("op relu", "output "),
        ("call a:1", "call b:1"),
        ("input x", "op sin"),
    }


def test_edges_connect_only_nodes_of_the_same_parent() -> None:
    calls = [make.call(0), make.call(1, "a", parent=0), make.call(2, "a.b", parent=1)]
    ops = [
        make.op(0, "one", call=2),
        make.op(1, "two", 0, call=0),
        make.op(2, "three", 0, 1, call=2),
    ]

    graph = op_graph(make.trace(ops, calls))

    assert graph.edges
    for edge in graph.edges:
        assert graph.nodes[edge.source].parent == graph.nodes[edge.target].parent


def test_inputs_and_outputs_of_the_pass_are_those_of_the_outermost_call() -> None:
    calls = [make.call(0, inputs=[make.value(2, 3, place="x", op=0)])]
    ops = [make.op(0, "x", kind="input"), make.op(1, "relu", 0, call=0)]

    graph = op_graph(make.trace(ops, calls))

    assert flows(graph) == {("input x", "op relu")}
    assert [node.parent is None for node in graph.nodes].count(True) == 1


def test_a_module_called_twice_is_two_nodes() -> None:
    calls = [make.call(0), make.call(1, "a", parent=0), make.call(2, "a", parent=0, number=2)]

    assert named(op_graph(make.trace([], calls))) == ["call :1", "call a:1", "call a:2"]
