"""The text of seed 003: a pass is logged, printed and looked into by any of its names.

Only what is wrong in the seed's own output differs: "dype", and 16 parameter
operations of 248.7 MB where AlexNet has 8 of 233.1 MB.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import torchglass as tg
from tests.zoo_trace import AlexNet
from torchglass import Trace

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.fixture(scope="module")
def model_history() -> Trace:
    return tg.log_forward_pass(AlexNet(), torch.rand(1, 3, 224, 224))


def golden(name: str) -> str:
    return (GOLDEN / name).read_text(encoding="utf-8")


def without_times(text: str) -> str:
    text = re.sub(r"Random seed: \d+$", "Random seed: SEED", text, flags=re.MULTILINE)
    return re.sub(
        r"(Time elapsed:  ?)(\d+\.\d{3}s|\d\.\d{3}E-\d\ds)$", r"\1TIME", text, flags=re.MULTILINE
    )


def test_the_log_starts_as_in_the_specification(model_history: Trace) -> None:
    assert without_times(str(model_history)).startswith(golden("seed_003_log.txt"))


def test_the_log_continues_to_the_last_layer(model_history: Trace) -> None:
    assert str(model_history).endswith("\t\t22: linear_3_22 \n\t\t23: output_1_23 ")


def test_a_layer_starts_as_in_the_specification(model_history: Trace) -> None:
    layer = model_history["conv2d_3_7"]
    corner = str(layer.tensor_contents[0, 0, :5, :5].detach())  # type: ignore[index]
    text = without_times(str(layer)).replace(corner, "NUMBERS")

    assert text.startswith(golden("seed_003_layer.txt"))


def test_after_the_specified_lines_a_layer_shows_values_and_source(
    model_history: Trace,
) -> None:
    values, arguments, field, source = str(model_history["conv2d_3_7"]).splitlines()[-4:]

    assert re.fullmatch(r"\tValues: min \S+, mean \S+, max \S+, std \S+  [▁▂▃▄▅▆▇█]{16}", values)
    assert arguments.startswith("\tArguments: ")
    assert field.startswith("\tReceptive field: 1×3×99×99 of ")
    assert source.endswith("in forward: x = self.avgpool(self.features(x))")


@pytest.mark.parametrize("key", ["conv2d_3_7", "conv2d_3", "conv2d_3_7:1", "features.6", 7, -17])
def test_all_names_of_a_layer_return_the_same_object(model_history: Trace, key: int | str) -> None:
    assert model_history[key] is model_history.ops[7]


@pytest.mark.parametrize(
    ("module", "label"),
    [
        ("features", "maxpool2d_3_13"),
        ("classifier", "linear_3_22"),
        ("classifier.3", "dropout_2_19"),
    ],
)
def test_a_module_names_the_layer_that_is_its_output(
    model_history: Trace, module: str, label: str
) -> None:
    assert model_history[module].label == label


def test_activations_match_the_forward_pass(model_history: Trace) -> None:
    before, after = model_history["conv2d_3_7"], model_history["relu_3_8"]

    assert before.tensor_contents is not None
    assert before.tensor_contents.shape == (1, 384, 13, 13)
    assert before.tensor_contents.min() < 0
    assert torch.equal(before.tensor_contents.relu(), after.tensor_contents)  # type: ignore[arg-type]
