"""What the details and performance panels say of a module."""

from __future__ import annotations

from dataclasses import replace

import pytest
from textual.pilot import Pilot

from tests import make
from tests.unit.views.tui.panels import samples
from tests.unit.views.tui.panels.panel_app import (
    PanelApp,
    drive,
    module_at,
    seen,
    subject_of,
    text_of,
)
from tests.unit.views.tui.runs import changed, two_models
from torchglass.analyse.model_diff import compare
from torchglass.records.model import Ancestor, ClassSource, Model, Module, Slot, TensorId
from torchglass.records.run import Document
from torchglass.views.tui.panels.details import (
    DetailsPanel,
    PerformancePanel,
    describe_module,
    describe_performance,
)
from torchglass.views.tui.panels.panel import Panel


def told(model: Model, path: str, width: int = 80) -> str:
    state = subject_of(samples.store(model))
    return text_of(describe_module(state, module_at(state, path), width))


def holding(*slots: Slot) -> Model:
    model = samples.net()
    modules = (
        replace(module, slots=slots) if module.path == "broken" else module
        for module in model.modules
    )
    return replace(model, modules=tuple(modules))


def test_a_module_is_shown_with_path_class_and_arguments() -> None:
    text = told(samples.net(), "blocks.0.fc")

    assert text.startswith(
        "blocks.0.fc\nLinear(4, 4)\ntorch.nn.modules.linear · training · 4 instances"
    )


def test_a_checkpoint_group_has_no_class_and_no_mode() -> None:
    model = make.model({"class": "checkpoint", "children": {"stem": {"class": "group"}}})

    assert told(model, "stem").startswith("stem\ngroup\n\nSize")


def test_own_and_total_parameters_are_separate() -> None:
    assert "parameters     0      20" in told(samples.net(), "blocks.0")


def test_shares_of_the_model_and_of_the_parent_are_shown() -> None:
    text = told(samples.net(), "blocks.0")

    assert "24% of all parameters" in text
    assert "50% of blocks" in text


def test_tensors_are_listed_with_shape_dtype_and_bytes() -> None:
    assert "weight  4×4  float32  64 B" in told(samples.net(), "blocks.0.fc")


def test_a_tied_weight_names_its_other_path_on_both_sides() -> None:
    assert "= head.weight" in told(samples.net(), "embed")
    assert "= embed.weight" in told(samples.net(), "head")


def test_a_shared_module_names_its_first_path() -> None:
    assert "↗ same module as norm" in told(samples.net(), "again")


def test_an_unreadable_module_shows_the_reason() -> None:
    assert "Problem\nRuntimeError: [/red] extra_repr" in told(samples.net(), "broken")


def test_an_unknown_shape_is_not_shown_as_zero() -> None:
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


def test_a_list_of_ten_thousand_tensors_is_shortened() -> None:
    slots = [
        Slot(name=str(number), role="parameter", spec=make.spec(1), tensor=TensorId(number + 99))
        for number in range(10_000)
    ]

    assert "and 9,000 more" in told(holding(*slots), "broken")


def test_inputs_and_outputs_of_a_recorded_forward_are_shown() -> None:
    state = subject_of(samples.store(None, samples.statistics()))
    text = text_of(describe_module(state, module_at(state, "blocks.0.fc"), 80))

    assert "Last call  of 3\ninput.0  2×4  float32  32 B\noutput   3×4  float32  48 B" in text


def test_inputs_and_outputs_of_a_trace_are_shown() -> None:
    state = subject_of(samples.store(None, samples.traced()))
    text = text_of(describe_module(state, module_at(state, ""), 80))

    assert "Last call\noutput.0  2×4  float32  32 B" in text


def test_the_base_classes_are_shown() -> None:
    source = ClassSource(
        file="net.py",
        ancestors=(
            Ancestor(class_name="net._Block"),
            Ancestor(class_name="torch.nn.modules.module.Module"),
        ),
    )
    model = replace(samples.net(), classes={"net.Block": source})

    assert ("Inherits\nBlock  net\n└ _Block  net\n  └ Module  torch.nn.modules.module") in told(
        model, "blocks.0"
    )


def test_existing_hooks_are_listed() -> None:
    model = samples.net()
    root = replace(model.root, hooks=("forward: spy",))
    model = replace(model, modules=(root, *model.modules[1:]))

    assert "Hooks\nforward: spy" in told(model, "")


def test_a_click_on_a_tied_weight_goes_to_its_other_path() -> None:
    state = subject_of(samples.store())
    panel = DetailsPanel(state)
    app = PanelApp(panel, "embed")

    async def story(pilot: Pilot[None]) -> None:
        line = next(at for at, row in enumerate(panel.rows) if row.target == "head")
        await pilot.click(DetailsPanel, offset=(4, line))
        await pilot.pause()

    drive(app, story)

    assert [message.path for message in app.heard if isinstance(message, Panel.Jump)] == ["head"]


def other_class(module: Module) -> Module:
    return replace(module, class_name="my.Norm", extra="[b]64[/b]")


def told_changes(path: str) -> str:
    before, after = two_models()
    compared = compare(
        before, changed(after, "blocks.0.mlp.1", other_class), {"embed.weight": 0.25}
    )
    state = subject_of(samples.store(after), comparison=compared)
    return text_of(describe_module(state, module_at(state, path), 80))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("probe", "Added  only in the new model\n"),
        ("blocks.1", "Removed  only in the old model\n"),
        ("embed", "weight  100×64 float32  Δ 0.25"),
        ("head", "weight  100×64 float32  →  120×64 float32"),
        ("", "No direct changes\n"),
        ("blocks.0", "1 changed below"),
    ],
)
def test_changes_of_a_module_are_shown(path: str, words: str) -> None:
    assert words in told_changes(path)


def test_a_changed_class_is_shown_without_new_settings() -> None:
    text = told_changes("blocks.0.mlp.1")

    assert "previous class: torch.nn.modules.activation.GELU" in text
    assert "previous settings" not in text


def test_changed_settings_of_the_same_class_are_shown() -> None:
    def norm(eps: str) -> Model:
        return make.model({"children": {"norm": {"class": "Norm", "extra": f"64, eps={eps}"}}})

    compared = compare(norm("1e-05"), norm("0.01"), {})
    state = subject_of(samples.store(norm("0.01")), comparison=compared)

    shown = text_of(describe_module(state, module_at(state, "norm"), 80))

    assert "previous settings: 64, eps=1e-05" in shown


def test_unchanged_parts_are_not_mentioned() -> None:
    assert "changed" not in told_changes("blocks.0.attention").lower()


def told_performance(
    path: str, *documents: Document, differences: bool = False, width: int = 80
) -> str:
    state = subject_of(samples.store(None, *documents))
    return text_of(
        describe_performance(state, module_at(state, path), width, differences=differences)
    )


def test_time_flops_and_memory_are_shown_with_their_share() -> None:
    text = told_performance("blocks.0.fc", samples.measures())

    assert "Fastest run  2 calls" in text
    assert "forward             3.00ms  3.00ms    75%  ━━━━━━━╸──" in text
    assert "forward FLOPs         1.0M       –    50%" in text
    assert "saved for backward  1.0 KB       –    25%" in text
    assert "the lowest of 5 runs" in text


def test_unmeasured_values_are_omitted() -> None:
    assert "backward  " not in told_performance("blocks.0.fc", samples.measures()).replace(
        "for backward", ""
    )


def test_calls_are_shown_with_inputs_and_outputs() -> None:
    text = told_performance("blocks.0.fc", samples.statistics())

    assert "Calls  7 in total, 9.00ms while recording, 1 raised" in text
    assert "last 3 calls" in text
    assert "   1  1.00ms  in   2×4          -2    2     0    1" in text
    assert "   3          ✗    ValueError" in text


def test_a_too_wide_table_is_compacted() -> None:
    assert "   1 1.00ms in  2×4         -2   2    0   1" in told_performance(
        "blocks.0.fc", samples.statistics(), width=46
    )


def test_differences_from_the_previous_call_are_shown() -> None:
    text = told_performance("blocks.0.fc", samples.statistics(), differences=True)

    assert "Differences from the previous call" in text
    assert "   2  +1.00ms  in   same         -2   +2    +0   +1" in text
    assert "               out  2×4          -2   +2    +0   +1" in text


def test_a_trace_shows_times_without_a_profile() -> None:
    text = told_performance("blocks.0.fc", samples.traced())

    assert text.startswith("One traced forward  times include tracing\ncalls")


def test_a_module_that_did_not_run_says_so() -> None:
    panel = PerformancePanel(subject_of(samples.store(None, samples.measures())))

    assert "norm did not run in the recorded forward." in seen(panel, "norm")


@pytest.mark.parametrize("key", ["d", "space"])
def test_a_key_shows_the_differences(key: str) -> None:
    panel = PerformancePanel(subject_of(samples.store(None, samples.statistics())))

    assert "Differences from" in seen(panel, "blocks.0.fc", [key])
    assert "Differences from" not in seen(panel_again(), "blocks.0.fc", [key, key])


def panel_again() -> PerformancePanel:
    return PerformancePanel(subject_of(samples.store(None, samples.statistics())))
