from __future__ import annotations

import pytest

from tests import make
from torchglass.analyse.trace import TraceStructure
from torchglass.records.model import Stats
from torchglass.records.trace import OpId, SourceLine
from torchglass.views.trace_text import TensorPreview, op_line, op_text, trace_text

WEIGHT = {"fc.weight": (3, 3), "fc.bias": (3,)}
OPS = (
    make.op(0, "x", kind="input"),
    make.op(1, "linear", 0, parameters=WEIGHT, call=1, grad_fn="AddmmBackward0"),
    make.op(2, "relu_", 1, writes=True, settings=(("alpha", "1"), ("name", "'\x1b[31m'"))),
    make.op(3, "linear", 2, parameters=WEIGHT, call=2, end_ns=567_000),
    make.op(4, "", 3, kind="output"),
)
CALLS = (
    make.call(0, outputs=[make.value(2, op=3)]),
    make.call(1, "fc", parent=0, outputs=[make.value(2, op=1)]),
    make.call(2, "fc", parent=0, number=2, outputs=[make.value(2, op=3)]),
)
MODEL = make.model({"children": {"fc": {"class": "torch.nn.Linear", "weight": (3, 3)}}})
ALL = frozenset((op.id, 0) for op in OPS)


@pytest.fixture
def anatomy() -> TraceStructure:
    return TraceStructure(make.trace(OPS, CALLS, start_ns=1_000_000_000, end_ns=1_250_400_000))


def test_a_recurrent_pass_shows_its_loop_count(anatomy: TraceStructure) -> None:
    assert trace_text(anatomy, MODEL, ALL, as_log=True).splitlines() == [
        "Log of Net forward pass:",
        "\tModel structure: recurrent (at most 2 loops), without branching; 1 total modules.",
        "\t5 tensors (120 B) computed in forward pass; 5 tensors (120 B) saved.",
        "\t2 parameter operations (12 params total; 48 B).",
        "\tTime elapsed: 0.250s",
        "\tModule Hierarchy:",
        "\t\tfc",
        "\tLayers:",
        "\t\t0: input_1_0 ",
        "\t\t1: linear_1_1:1 ",
        "\t\t2: relu_1_2 ",
        "\t\t3: linear_1_1:2 ",
        "\t\t4: output_1_3 ",
    ]


def test_a_branching_pass_says_so() -> None:
    ops = [make.op(0, "x", kind="input"), make.op(1, "relu", 0), make.op(2, "add", 0, 1)]

    text = trace_text(TraceStructure(make.trace(ops)), MODEL, frozenset(), as_log=True)

    assert "purely feedforward, with branching; 1 total modules." in text


def test_a_known_random_seed_is_shown(anatomy: TraceStructure) -> None:
    lines = trace_text(anatomy, MODEL, ALL, random_seed=3210097511, as_log=True).splitlines()

    assert lines[4:6] == ["\tRandom seed: 3210097511", "\tTime elapsed: 0.250s"]


def test_saved_layers_are_marked_if_some_are_not_saved(anatomy: TraceStructure) -> None:
    text = trace_text(anatomy, MODEL, frozenset({(OpId(2), 0)}), as_log=True)

    assert "computed in forward pass; 1 tensor (24 B) saved." in text
    assert "\tLayers (* where the tensor is saved):\n\t\t0: input_1_0 \n" in text
    assert "\n\t\t2: relu_1_2 *\n" in text


def test_a_failed_pass_shows_its_error(anatomy: TraceStructure) -> None:
    record = make.trace(OPS, CALLS, error="RuntimeError: shapes\ndo not fit")

    second = trace_text(TraceStructure(record), MODEL, ALL, as_log=True).splitlines()[1]

    assert second == "\tStopped by an error: RuntimeError: shapes\\ndo not fit"


def test_a_long_list_of_layers_is_shortened_in_the_middle() -> None:
    ops = [make.op(number, "relu") for number in range(1_000)]

    lines = trace_text(
        TraceStructure(make.trace(ops)), MODEL, frozenset(), as_log=True
    ).splitlines()

    layers = lines[lines.index("\tLayers:") + 1 :]
    assert len(layers) == 201
    assert layers[99:102] == [
        "\t\t99: relu_100_99 ",
        "\t\t… 800 more lines …",
        "\t\t900: relu_901_900 ",
    ]


def test_modules_are_indented_below_their_parents_and_leaves_share_lines() -> None:
    leaf = {"class": "torch.nn.Linear"}
    block = {"children": {"attention": {"children": {"out": leaf}}, "up": leaf, "down": leaf}}
    many = {"children": {str(number): leaf for number in range(9)}}
    model = make.model({"children": {"stem": leaf, "block": block, "many": many}})

    text = trace_text(TraceStructure(make.trace(())), model, frozenset(), as_log=True)

    assert text.partition("\tModule Hierarchy:\n")[2].partition("\tLayers:")[0].splitlines() == [
        "\t\tstem",
        "\t\tblock:",
        "\t\t    block.attention:",
        "\t\t        block.attention.out",
        "\t\t    block.up, block.down",
        "\t\tmany:",
        "\t\t    many.0, many.1, many.2, many.3, many.4, many.5, many.6, many.7, ",
        "\t\t    many.8",
    ]


def test_an_op_shows_its_pass_and_enclosing_calls(anatomy: TraceStructure) -> None:
    assert op_text(anatomy, OpId(3), {0: TensorPreview(corner="tensor([1.])")}).splitlines() == [
        "Layer linear_1_1 (pass 2/2), operation 4/5:",
        "\tOutput tensor: shape=(2, 3), dtype=torch.float32, size=24 B",
        "\t\ttensor([1.])",
        "\tParams: Computed from params with shape (3,), (3, 3); 12 params total (48 B)",
        "\tParent Layers: relu_1_2",
        "\tChild Layers: output_1_3",
        "\tFunction: linear (gradfunc=None) ",
        "\tComputed inside module: fc:2",
        "\tTime elapsed:  5.670E-04s",
        "\tOutput of modules: fc:2",
        "\tOutput of bottom-level module: fc:2",
        "\tLookup keys: -2, 3, fc:2, linear_1_1:2",
    ]


def test_an_in_place_op_outside_of_modules_says_so(anatomy: TraceStructure) -> None:
    text = op_text(anatomy, OpId(2), {})

    assert "size=24 B (not saved)\n\tParams: no params used\n" in text
    assert "\tFunction: relu_ (gradfunc=None) in place\n" in text
    assert "\tComputed inside module: not computed inside a module\n" in text
    assert "\tOutput of modules: none\n\tLookup keys: " in text


def test_control_characters_in_arguments_are_escaped(anatomy: TraceStructure) -> None:
    assert op_text(anatomy, OpId(2), {}).endswith("\tArguments: alpha=1, name='\\x1b[31m'")


def test_values_are_summarized_and_drawn(anatomy: TraceStructure) -> None:
    stats = Stats(count=6, min=-1, max=2.5, mean=0.123456, std=1, nan=2)
    look = TensorPreview(corner="", stats=stats, histogram=(0, 4, 8, 8))

    (line,) = (
        line for line in op_text(anatomy, OpId(1), {0: look}).split("\n") if "Values" in line
    )

    assert line == "\tValues: min -1, mean 0.1235, max 2.5, std 1, 2 NaN  ▁▅██"


def test_a_gradient_is_shown_below_the_values(anatomy: TraceStructure) -> None:
    gradient = TensorPreview(corner="", stats=Stats(count=2, min=0, max=1, mean=0.5, std=0.5))

    text = op_text(anatomy, OpId(1), {}, gradient=gradient)

    assert text.endswith("\tGradient: min 0, mean 0.5, max 1, std 0.5")


def test_equal_bars_are_all_full_rather_than_all_empty(anatomy: TraceStructure) -> None:
    stats = Stats(count=4, min=0, max=1, mean=0.5, std=0.5)

    text = op_text(anatomy, OpId(1), {0: TensorPreview(corner="", stats=stats, histogram=(2, 2))})

    assert text.endswith("██")


def test_an_input_has_no_function(anatomy: TraceStructure) -> None:
    text = op_text(anatomy, OpId(0), {})

    assert "\tInput of the model: x\n" in text
    assert "Function" not in text
    assert "Time elapsed" not in text


def test_related_ops_and_source_are_shown_if_present() -> None:
    source = SourceLine(file="net.py", line=12, function="forward")
    ops = [
        make.op(0, "x", kind="input"),
        make.op(1, "relu", 0, source=source),
        make.op(2, "tanh", 0),
        make.op(3, "add", 1, 2),
    ]

    text = op_text(TraceStructure(make.trace(ops)), OpId(1), {}, code="y = relu(x)")

    assert text.endswith(
        "\tShares parents with: tanh_1_2\n"
        "\tShares children with: tanh_1_2\n"
        "\tSource: net.py:12 in forward: y = relu(x)"
    )


def test_several_outputs_are_numbered_and_long_lists_are_shortened() -> None:
    outputs = tuple(make.value(2) for _ in range(6))
    anatomy = TraceStructure(make.trace([make.op(0, "unbind", outputs=outputs)]))

    lines = op_text(anatomy, OpId(0), {1: TensorPreview(corner="tensor([0.])")}).splitlines()

    assert lines[1:6] == [
        "\tOutput tensor 0: shape=(2,), dtype=torch.float32, size=8 B (not saved)",
        "\tOutput tensor 1: shape=(2,), dtype=torch.float32, size=8 B",
        "\t\ttensor([0.])",
        "\tOutput tensor 2: shape=(2,), dtype=torch.float32, size=8 B (not saved)",
        "\tOutput tensor 3: shape=(2,), dtype=torch.float32, size=8 B (not saved)",
    ]
    assert lines[6] == "\t… and 2 more output tensors"


def test_an_op_fits_in_one_line(anatomy: TraceStructure) -> None:
    assert op_line(anatomy, OpId(3)) == "<linear_1_1:2: 2×3 float32 in fc:2>"
    assert op_line(anatomy, OpId(0)) == "<input_1_0: 2×3 float32>"
