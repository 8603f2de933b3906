"""What is told of a module."""

from __future__ import annotations

from dataclasses import replace

from tests import make
from tests.unit.views.tui.runs import Training, changed, tiny
from torchglass.records.model import Model, Slot, TensorId
from torchglass.records.run import Run
from torchglass.views.tui.details import describe
from torchglass.views.tui.subject import Subject, measure


def told(model: Model, path: str, width: int = 80) -> str:
    subject = Subject(Run(name="run", created_ns=0), model)
    subject.measures = measure(model)
    return text_of(subject, path, width)


def text_of(subject: Subject, path: str, width: int = 80) -> str:
    module = subject.model.find(path)
    assert module is not None
    lines = describe(subject, module, width)
    return "\n".join("".join(text for text, _ in line) for line in lines)


def test_a_module_is_told_by_path_class_and_arguments() -> None:
    text = told(tiny(), "blocks.0.attention.qkv")

    assert text.startswith(
        "blocks.0.attention.qkv\n"
        "Linear(in_features=64, out_features=192, bias=True)\n"
        "torch.nn.modules.linear · training · one of 9 of its class"
    )


def test_own_and_total_are_told_apart() -> None:
    text = told(tiny(), "blocks.0")

    assert "parameters          0      49.7K" in text


def test_tensors_are_listed_with_shape_type_and_bytes() -> None:
    assert "weight  192×64  float32  48.0 KB" in told(tiny(), "blocks.0.attention.qkv")


def test_a_tied_weight_names_the_other_place_on_both_sides() -> None:
    assert "= head.weight" in told(tiny(), "embed")
    assert "= embed.weight" in told(tiny(), "head")


def test_a_shared_module_names_the_first_place() -> None:
    assert "↗ the very module at norm" in told(tiny(), "last_norm")


def test_a_frozen_parameter_says_so() -> None:
    assert "frozen" in told(tiny(), "norm").split("tensors")[1]


def test_a_module_that_could_not_be_read_tells_why() -> None:
    assert "problem\nRuntimeError: [/red] extra_repr" in told(tiny(), "broken")


def test_a_shape_that_is_not_known_yet_is_no_zero() -> None:
    lazy = Slot(
        name="weight",
        role="parameter",
        spec=replace(make.spec(1), shape=None),
        tensor=TensorId(99),
    )
    model = changed(tiny(), "broken", lambda module: replace(module, slots=(lazy,)))

    assert "weight  ?" in told(model, "broken")


def test_a_buffer_that_is_not_saved_says_so() -> None:
    mask = Slot(
        name="mask",
        role="buffer",
        spec=make.spec(8, 8, device="cuda:0"),
        tensor=TensorId(99),
        persistent=False,
    )
    model = changed(tiny(), "broken", lambda module: replace(module, slots=(mask,)))

    assert "mask  8×8  float32  256 B  buffer, not saved, cuda:0" in told(model, "broken")


def test_ten_thousand_tensors_are_told_in_part() -> None:
    slots = tuple(
        Slot(name=str(number), role="parameter", spec=make.spec(1), tensor=TensorId(number))
        for number in range(10_000)
    )
    model = changed(tiny(), "broken", lambda module: replace(module, slots=slots))

    assert told(model, "broken").endswith("and 9,900 more")


def test_series_are_told_with_their_last_value() -> None:
    training = Training().train(16)
    subject = Subject(training.store.run(), training.model)
    series = training.store.series()
    points = [training.store.points(one.id) for one in series]
    subject.learn(15, series, points)

    text = text_of(subject, "")

    assert "loss      1.47  █▇▇▆▅▅▄▄▃▃▃▂▂▂▁▁" in text
