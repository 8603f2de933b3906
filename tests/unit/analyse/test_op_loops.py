from __future__ import annotations

from itertools import count

from tests import make
from torchglass.analyse.trace import longest_loop, passes
from torchglass.records.trace import OpId, OpRecord


def test_ops_with_the_same_parameters_are_passes_of_one_layer() -> None:
    weight = {"fc.weight": (3, 3)}
    ops = (
        make.op(0, "linear", parameters=weight),
        make.op(1, "sin", 0),
        make.op(2, "linear", 1, parameters=weight),
    )

    assert list(passes(ops)) == [(0, 2), (1,)]


def test_different_functions_of_one_parameter_are_different_layers() -> None:
    weight = {"embed.weight": (3, 3)}
    ops = (make.op(0, "embedding", parameters=weight), make.op(1, "linear", 0, parameters=weight))

    assert list(passes(ops)) == [(0,), (1,)]


def test_a_source_line_in_a_loop_is_one_layer() -> None:
    ops = [make.op(step, "sin" if step % 2 else "cos", site=step % 2) for step in range(6)]

    assert list(passes(ops)) == [(0, 2, 4), (1, 3, 5)]


def test_inputs_and_outputs_are_never_passes() -> None:
    ops = (
        make.op(0, "x", kind="input", site=0),
        make.op(1, "y", kind="input", site=0),
        make.op(2, "", 0, kind="output", site=0),
    )

    assert list(passes(ops)) == [(0,), (1,), (2,)]


def test_a_line_that_combines_different_layers_is_not_a_loop() -> None:
    ops = residual_blocks(3)

    assert list(passes(ops)) == [(op.id,) for op in ops]


def test_a_combining_line_inside_a_real_loop_is_part_of_it() -> None:
    weight = {"fc.weight": (3, 3)}
    ops = [
        op
        for step in range(3)
        for op in (
            make.op(2 * step, "linear", parameters=weight),
            make.op(2 * step + 1, "__add__", 2 * step, site=1),
        )
    ]

    assert list(passes(ops)) == [(0, 2, 4), (1, 3, 5)]


def test_layers_come_in_the_order_of_their_first_op() -> None:
    ops = (
        make.op(0, "sin", site=9),
        make.op(1, "cos", site=3),
        make.op(2, "sin", site=9),
        make.op(3, "cos", site=3),
    )

    assert list(passes(ops)) == [(0, 2), (1, 3)]


def test_a_layer_that_uses_its_own_result_is_a_loop() -> None:
    ops = (
        make.op(0, "x", kind="input"),
        make.op(1, "linear", 0),
        make.op(2, "relu", 1),
        make.op(3, "linear", 2),
        make.op(4, "relu", 3),
        make.op(5, "linear", 4),
        make.op(6, "", 5, kind="output"),
    )

    assert longest_loop(ops, [layer((1, 3, 5)), layer((2, 4))]) == 3


def test_parallel_passes_are_not_a_loop() -> None:
    ops = (
        make.op(0, "x", kind="input"),
        make.op(1, "view", 0),
        make.op(2, "transpose", 1),
        make.op(3, "view", 0),
        make.op(4, "transpose", 3),
        make.op(5, "matmul", 2, 4),
    )

    assert longest_loop(ops, [layer((1, 3)), layer((2, 4))]) == 1


def test_parallel_passes_after_a_loop_are_not_its_iterations() -> None:
    ops = (
        make.op(0, "linear"),
        make.op(1, "linear", 0),
        *(make.op(place, "view", 1) for place in (2, 3, 4)),
    )

    assert longest_loop(ops, [layer((0, 1)), layer((2, 3, 4))]) == 2


def layer(ops: tuple[int, ...]) -> tuple[OpId, ...]:
    return tuple(map(OpId, ops))


def residual_blocks(blocks: int) -> list[OpRecord]:
    """`x = x + layer(x)` over a list of layers: the adds have one site, the layers their own."""
    numbers = count()
    ops = [make.op(next(numbers), "x", kind="input")]
    for block in range(blocks):
        weight = {f"layers.{block}.weight": (3, 3)}
        layer = make.op(next(numbers), "linear", ops[-1].id, parameters=weight)
        ops += [layer, make.op(next(numbers), "__add__", ops[-1].id, layer.id, site=1_000)]
    return ops
