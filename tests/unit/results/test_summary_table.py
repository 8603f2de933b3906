"""The table keeps its columns straight, whatever a model holds."""

from __future__ import annotations

from tests import make
from torchglass.records.model import Model
from torchglass.records.trace import CallRecord
from torchglass.results.summary import Summary
from torchglass.tables.text import width


def table(model: Model, calls: list[CallRecord] | None = None, *names: str) -> list[str]:
    return Summary(model, calls, col_names=names or None).table().splitlines()


def row(lines: list[str], name: str) -> str:
    (found,) = (line for line in lines if f"─ {name}" in line)
    return found


def test_control_characters_in_names_are_shown_escaped() -> None:
    lines = table(make.model({"children": {"a\x1b[2J\nb": {"class": "Lin\near"}}}))

    assert r"a\x1b[2J\nb  Lin\near" in row(lines, "a")


def test_columns_stay_aligned_with_wide_characters() -> None:
    lines = table(
        make.model({"children": {"漢字": {"weight": (2,)}, "plain": {"weight": (2,)}}}),
        None,
        "parameters",
    )

    assert width(row(lines, "漢字")) == width(row(lines, "plain"))


def test_a_very_long_name_is_shortened_in_the_middle() -> None:
    lines = table(make.model({"children": {"x" * 3000 + "end": {}}}))

    assert max(map(len, lines)) < 200
    assert "…" in row(lines, "x")
    assert "end" in row(lines, "x")


def test_a_module_called_twice_shows_its_first_output_and_the_number_of_calls() -> None:
    calls = [
        make.call(0),
        make.call(1, "norm", parent=0, number=1, outputs=[(2, 3)]),
        make.call(2, "norm", parent=0, number=2, outputs=[(9, 9)]),
    ]

    assert "2×3 · 2 calls" in row(table(make.model({"children": {"norm": {}}}), calls), "norm")


def test_a_module_that_never_ran_shows_a_dash() -> None:
    lines = table(make.model({"children": {"unused": {}}}), [make.call(0)], "output_size")

    assert row(lines, "unused").endswith("–")


def test_outputs_of_every_type_have_a_text() -> None:
    calls = [
        make.call(0, "several", outputs=[(2, 3), (4,), (5,)]),
        make.call(1, "scalar", outputs=[()]),
        make.call(2, "nothing"),
    ]
    model = make.model({"children": {"several": {}, "scalar": {}, "nothing": {}}})

    lines = table(model, calls, "output_size")

    assert row(lines, "several").endswith("2×3 +2")
    assert row(lines, "scalar").endswith("scalar")
    assert row(lines, "nothing").endswith("no tensor")


def test_a_module_that_could_not_be_read_is_marked_and_explained() -> None:
    lines = table(make.model({"children": {"bad": {"problem": "extra_repr raised"}}}))

    assert "Sequential !" in row(lines, "bad")
    assert "problem: bad: extra_repr raised" in lines


def test_a_hundred_ties_are_not_all_listed() -> None:
    tied = {str(i): {"weight": (i + 1,), "tied": {"weight": f"t{i // 2}"}} for i in range(200)}

    lines = table(make.model({"children": tied}))

    assert "… and 90 more tied weights" in lines


def test_a_model_without_parameters_has_no_training_memory() -> None:
    weights, none = {"weight": (2, 3)}, {"children": {"act": {"class": "ReLU"}}}

    assert any(line.startswith("Training") for line in table(make.model(weights)))
    assert not any("train" in line for line in table(make.model(none)))
