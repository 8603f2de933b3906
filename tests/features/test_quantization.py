"""Which weights can be stored in low precision, and what a mix of formats saves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchglass as tg
from tests.command_line import main


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
    )


def samples(count: int = 64) -> torch.Tensor:
    return torch.randn(count, 32, generator=torch.Generator().manual_seed(1))


def test_quantization_noise_matches_numpy() -> None:
    model, x = network(), samples()
    found = tg.quantization(model, x, dtypes=["int4"])
    state = {name: np.array(value.tolist()) for name, value in model.state_dict().items()}
    weights = [state[f"{index}.weight"] for index in (0, 2, 4)]
    biases = [state[f"{index}.bias"] for index in (0, 2, 4)]

    def forward(matrices: list[Any]) -> Any:
        y = np.array(x.tolist())
        for index, (weight, bias) in enumerate(zip(matrices, biases, strict=True)):
            y = y @ weight.T + bias
            y = np.maximum(y, 0) if index < 2 else y
        return y

    plain = forward(weights)
    for scale, axis in (("tensor", None), ("channel", 1)):
        step = np.abs(weights[1]).max(axis=axis, keepdims=axis is not None) / 7
        rounded = np.clip(np.round(weights[1] / step), -7, 7) * step
        changed = forward([weights[0], rounded, weights[2]])
        noise = ((plain - changed) ** 2).sum()
        expected = 10 * np.log10((plain**2).sum() / noise)
        (one,) = (one for one in found["2.weight"] if one.scale == scale)
        assert one.sqnr_db == pytest.approx(expected, abs=0.05)


def test_an_outlier_channel_hurts_per_tensor_but_not_per_channel_scales() -> None:
    model = network()
    with torch.no_grad():
        model[2].weight[7] *= 50  # type: ignore[operator, index]
    found = tg.quantization(model, samples(), dtypes=["int8"])
    by_scale = {one.scale: one for one in found["2.weight"]}
    assert by_scale["tensor"].outlier_channels == 1
    assert by_scale["channel"].sqnr_db > by_scale["tensor"].sqnr_db + 10


def test_the_suggestion_is_measured_and_stays_within_budget() -> None:
    model, x = network(), samples()
    strict = tg.quantization(model, x, quality=35)
    loose = tg.quantization(model, x, quality=15)
    assert strict.mix.sqnr_db >= 35
    assert loose.mix.sqnr_db >= 15
    assert loose.mix.bytes < strict.mix.bytes < strict.mix.original_bytes
    small = tg.quantization(model, x, size="20%")
    assert small.mix.bytes <= 0.2 * small.mix.original_bytes
    assert small.answer.startswith("Storing ")
    assert "measured with all of them at once" in str(small)


def test_a_given_metric_decides() -> None:
    model, x = network(), samples(256)
    labels = model(x).argmax(-1)

    def accuracy(candidate: nn.Module) -> float:
        return float((candidate(x).argmax(-1) == labels).float().mean())

    found = tg.quantization(model, x, metric=accuracy, quality=0.9)
    assert found.baseline == 1.0
    assert found.mix.metric is not None
    assert found.mix.metric >= 0.9
    assert "a metric of" in found.answer


def test_the_model_and_the_random_state_are_unchanged() -> None:
    model = nn.Sequential(nn.Linear(32, 8), nn.BatchNorm1d(8), nn.Dropout())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    tg.quantization(model, samples(), dtypes=["fp8"])
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(one.requires_grad for one in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtypes": ["int3"]}, "dtypes must be some of int8, int4, fp8, not 'int3'"),
        ({"dtypes": []}, "not nothing"),
        ({"size": "x%"}, "is not a share"),
        ({"size": "50%", "quality": 20}, "either size or quality"),
    ],
)
def test_invalid_arguments_list_the_valid_ones(options: Any, message: str) -> None:
    with pytest.raises(tg.TorchglassError, match=message):
        tg.quantization(network(), samples(), **options)


def test_a_model_without_matrices_says_so() -> None:
    with pytest.raises(tg.TorchglassError, match="no weights with two or more dimensions"):
        tg.quantization(nn.BatchNorm1d(4), torch.randn(3, 4))


def test_the_command_writes_a_line_per_weight_and_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "net.py"
    file.write_text("from torch import nn\ndef net():\n    return nn.Linear(8, 8)\n")
    words = ["quantization", f"{file}:net", "--input", "4x8"]
    assert main([*words, "--json", "-"]) == 0
    assert len(json.loads(capsys.readouterr().out)["entries"]) == 6
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("Storing ")


def test_the_print_has_a_row_for_each_weight_and_a_column_for_each_format() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4) for _ in range(40)]
    found = tg.quantization(nn.Sequential(*layers), torch.randn(8, 4), dtypes=["int8", "int4"])

    lines = str(found).splitlines()

    assert lines[2].split()[:4] == ["Weight", "Shape", "int8", "int4"]
    rows = [line.split() for line in lines if ".weight" in line]
    assert len(rows) == 30
    assert "… and 10 more" in lines
    assert len({row[0] for row in rows}) == 30
    int4 = [float(row[4]) for row in rows]
    assert int4 == sorted(int4)
    best = max(one.sqnr_db for one in found[rows[0][0]] if one.format == "int4")
    assert int4[0] == round(best, 1)
    assert len(found.to_csv().splitlines()) == 1 + 40 * 4
