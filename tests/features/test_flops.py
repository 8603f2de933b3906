"""Someone wants to know how much a model computes, where, and how well it uses the machine."""

from __future__ import annotations

import csv
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.command_line import main
from torchglass import flops, register_flops, unregister_flops

NET = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)
            self.head = nn.Linear(8, 5)

        def forward(self, x):
            print("a forward that talks")
            return self.head(torch.relu(self.conv(x)).mean((2, 3)))
"""
CONV, HEAD = 2 * 2 * 8 * 14 * 14 * 27, 2 * 2 * 8 * 5


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(functional.relu(self.conv(x)).mean((2, 3)))
        return logits


@pytest.fixture(scope="module")
def counted() -> Any:
    targets = torch.zeros(2, dtype=torch.long)
    return flops(
        Net(),
        torch.randn(2, 3, 16, 16),
        backward=True,
        loss=lambda logits: functional.cross_entropy(logits, targets),
        timed=True,
    )


def test_every_module_has_forward_and_backward_flops(counted: Any) -> None:
    assert counted.forward_flops == CONV + HEAD
    # Nobody asks for the gradient of the image.
    assert counted.backward_flops == CONV + 2 * HEAD
    assert counted["conv"].forward.self_flops == counted["conv"].backward.self_flops == CONV
    assert counted.total_macs == (2 * CONV + 3 * HEAD) // 2


def test_the_printed_flops_have_a_line_per_module_and_the_counting_rule(
    counted: Any,
) -> None:
    text = str(counted)

    assert "├─ conv" in text
    assert "└─ head" in text
    assert f"{counted.total_flops:,} FLOPs = {counted.total_macs:,} MACs" in text
    assert "1 multiply-add = 2 FLOPs" in text
    assert "Lower bound" not in text


def test_speed_and_arithmetic_intensity_name_the_bottleneck(counted: Any) -> None:
    conv, head = counted["conv"], counted["head"]

    assert conv.intensity is not None
    assert head.intensity is not None
    assert conv.intensity > head.intensity
    assert counted.flops_per_second is not None
    assert "aten.convolution_backward" in counted.op_table()


def test_a_custom_op_is_counted_once_it_has_a_formula() -> None:
    @torch.library.custom_op("glassstory::mix", mutates_args=())
    def mix(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x @ weight

    inputs = torch.randn(3, 4), torch.randn(4, 5)
    before = flops(mix, *inputs)

    register_flops(mix)(lambda x, weight, *, out_shape: 2 * x[0] * x[1] * weight[1])
    after = flops(mix, *inputs)
    unregister_flops(mix)

    assert (before.total_flops, before.is_lower_bound) == (0, True)
    assert (after.total_flops, after.is_lower_bound) == (120, False)


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "net.py").write_text(textwrap.dedent(NET))
    monkeypatch.chdir(tmp_path)
    return "net.py:Net"


def test_the_flops_command_prints_only_the_table(
    net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["flops", net, "--input", "2x3x16x16", "--ops"]) == 0

    out = capsys.readouterr().out
    assert f"{CONV + HEAD:,} FLOPs" in out
    assert "aten.convolution" in out
    assert "talks" not in out


def test_the_flops_command_writes_files_and_prints_the_table(
    net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["flops", net, "--input", "2x3x16x16", "--backward"]

    assert main([*words, "--json", "flops.json", "--csv", "flops.csv"]) == 0

    counted = json.loads(Path("flops.json").read_text())
    lines = list(csv.DictReader(Path("flops.csv").read_text().splitlines()))
    assert counted["total_flops"] == 2 * CONV + 3 * HEAD
    assert [line["path"] for line in lines] == ["Net", "conv", "head", "unattributed"]
    assert f"{2 * CONV + 3 * HEAD:,} FLOPs" in capsys.readouterr().out


def test_the_flops_command_can_print_only_json(
    net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["flops", net, "--input", "2x3x16x16", "--backward", "--fake", "--json", "-"]

    assert main(words) == 0

    counted = json.loads(capsys.readouterr().out)
    assert counted["total_flops"] == 2 * CONV + 3 * HEAD
    assert counted["fake"] is True


def test_measurement_csv_has_fractions_and_units_in_its_headers() -> None:
    import csv

    import torchglass as tg

    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), torch.ones(2, 4)
    shares = {
        "share": tg.flops(model, x).to_csv(),
        "peak_share": tg.memory(model, x).to_csv(),
        "forward_share": tg.profile(model, x, repeats=1).to_csv(),
    }

    for heading, text in shares.items():
        root, *rows = csv.DictReader(text.splitlines())
        assert float(root[heading]) == 1.0
        assert all(0 <= float(row[heading]) <= 1 for row in rows if row[heading])
    assert "forward_self_ns" in shares["forward_share"]
    assert "peak_bytes" in shares["peak_share"]
