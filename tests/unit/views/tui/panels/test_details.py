"""What is told of a module."""

from __future__ import annotations

from dataclasses import replace

from textual.pilot import Pilot

from tests import make
from tests.unit.views.tui.panels import samples
from tests.unit.views.tui.panels.panel_app import PanelApp, drive, module_at, subject_of, text_of
from torchglass.records.model import Ancestor, ClassSource, Model, Slot, TensorId
from torchglass.views.tui.panels.details import DetailsPanel, describe
from torchglass.views.tui.panels.panel import Panel


def told(model: Model, path: str, width: int = 80) -> str:
    state = subject_of(samples.store(model))
    return text_of(describe(state, module_at(state, path), width))


def holding(*slots: Slot) -> Model:
    model = samples.net()
    modules = (
        replace(module, slots=slots) if module.path == "broken" else module
        for module in model.modules
    )
    return replace(model, modules=tuple(modules))


def test_a_module_is_told_by_path_class_and_arguments() -> None:
    text = told(samples.net(), "blocks.0.fc")

    assert text.startswith(
        "blocks.0.fc\nLinear(4, 4)\ntorch.nn.modules.linear · training · 4 instances"
    )


def test_a_group_of_a_checkpoint_is_of_no_class_and_in_no_mode() -> None:
    model = make.model({"class": "checkpoint", "children": {"stem": {"class": "group"}}})

    assert told(model, "stem").startswith("stem\ngroup\n\nsize")


def test_own_and_total_are_told_apart() -> None:
    assert "parameters     0      20" in told(samples.net(), "blocks.0")


def test_shares_are_told_of_the_model_and_of_what_is_around() -> None:
    text = told(samples.net(), "blocks.0")

    assert "24% of all parameters" in text
    assert "50% of blocks" in text


def test_tensors_are_listed_with_shape_type_and_bytes() -> None:
    assert "weight  4×4  float32  64 B" in told(samples.net(), "blocks.0.fc")


def test_a_tied_weight_names_the_other_place_on_both_sides() -> None:
    assert "= head.weight" in told(samples.net(), "embed")
    assert "= embed.weight" in told(samples.net(), "head")


def test_a_shared_module_names_the_first_place() -> None:
    assert "↗ same module as norm" in told(samples.net(), "again")


def test_a_module_that_could_not_be_read_tells_why() -> None:
    assert "problem\nRuntimeError: [/red] extra_repr" in told(samples.net(), "broken")


def test_a_shape_that_is_not_known_yet_is_no_zero() -> None:
    unknown = replace(make.spec(1), shape=None)
    lazy = Slot(name="weight", role="parameter", spec=unknown, tensor=TensorId(99))

    assert "weight  ?" in told(holding(lazy), "broken")


def test_a_buffer_that_is_not_saved_says_so() -> None:
    mask = Slot(
        name="mask",
        role="buffer",
        spec=make.spec(8, 8, device="cuda:0"),
        tensor=TensorId(99),
        persistent=False,
    )

    assert "mask  8×8  float32  256 B  buffer, not saved, cuda:0" in told(holding(mask), "broken")


def test_a_frozen_parameter_says_so() -> None:
    frozen = Slot(name="weight", role="parameter", spec=make.spec(2), tensor=TensorId(99))

    assert "weight  2  float32  8 B  frozen" in told(holding(frozen), "broken")


def test_ten_thousand_tensors_are_told_in_part() -> None:
    slots = [
        Slot(name=str(number), role="parameter", spec=make.spec(1), tensor=TensorId(number + 99))
        for number in range(10_000)
    ]

    assert "and 9,000 more" in told(holding(*slots), "broken")


def test_what_went_in_and_out_is_told_where_a_forward_was_recorded() -> None:
    state = subject_of(samples.store(None, samples.statistics()))
    text = text_of(describe(state, module_at(state, "blocks.0.fc"), 80))

    assert "last call  of 3\ninput.0  2×4  float32  32 B\noutput   3×4  float32  48 B" in text


def test_a_trace_tells_what_went_in_and_out_too() -> None:
    state = subject_of(samples.store(None, samples.traced()))
    text = text_of(describe(state, module_at(state, ""), 80))

    assert "last call\noutput.0  2×4  float32  32 B" in text


def test_the_line_of_ancestors_is_told() -> None:
    source = ClassSource(
        file="net.py",
        ancestors=(
            Ancestor(class_name="net._Block"),
            Ancestor(class_name="torch.nn.modules.module.Module"),
        ),
    )
    model = replace(samples.net(), classes={"net.Block": source})

    assert ("inherits\nBlock  net\n└ _Block  net\n  └ Module  torch.nn.modules.module") in told(
        model, "blocks.0"
    )


def test_hooks_of_others_are_named() -> None:
    model = samples.net()
    root = replace(model.root, hooks=("forward: spy",))
    model = replace(model, modules=(root, *model.modules[1:]))

    assert "hooks\nforward: spy" in told(model, "")


def test_a_click_on_a_tied_weight_goes_to_the_other_place() -> None:
    state = subject_of(samples.store())
    panel = DetailsPanel(state)
    app = PanelApp(panel, "embed")

    async def story(pilot: Pilot[None]) -> None:
        line = next(at for at, row in enumerate(panel.rows) if row.target == "head")
        await pilot.click(DetailsPanel, offset=(4, line))
        await pilot.pause()

    drive(app, story)

    assert [message.path for message in app.heard if isinstance(message, Panel.Jump)] == ["head"]
