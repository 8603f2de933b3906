"""Activations and attention as pictures."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchglass as tg
from tests.command_line import main


def pixels(data: bytes) -> list[list[tuple[int, ...]]]:
    """The RGBA pixels of a PNG without filters."""
    width, height = struct.unpack(">II", data[16:24])
    start = data.index(b"IDAT") + 4
    lines = zlib.decompress(
        data[start : start + struct.unpack(">I", data[start - 8 : start - 4])[0]]
    )
    rows = [lines[at * (4 * width + 1) + 1 :][: 4 * width] for at in range(height)]
    return [[tuple(row[4 * x : 4 * x + 4]) for x in range(width)] for row in rows]


def test_channels_form_a_grid_with_transparent_empty_cells(
    tmp_path: Path,
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU())
    x = torch.randn(2, 3, 8, 8)
    trace = tg.trace(model, x)
    maps = trace["0"].images(sample=1)
    assert len(maps) == 5
    expected = model[0](x)[1].tolist()
    assert torch.tensor(maps.maps).allclose(torch.tensor(expected, dtype=torch.float64), atol=1e-6)
    maps.save(tmp_path / "new" / "maps.png")
    picture = pixels((tmp_path / "new" / "maps.png").read_bytes())
    # Five maps stand in a grid of three by two, so the last cell is empty.
    assert picture[0][0][3] == 255
    assert picture[-1][-1][3] == 0
    assert "conv2d_1_1: 5 of 8×8" in str(maps)
    assert maps._repr_png_().startswith(b"\x89PNG")


class Attention(nn.Module):
    def __init__(self, *, causal: bool = False, mask: bool = False, groups: int = 1) -> None:
        super().__init__()
        self.causal, self.mask, self.groups = causal, mask, groups
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        k, v = k[:, :: self.groups], v[:, :: self.groups]
        mask = x.new_ones(x.shape[1], x.shape[1]).tril(1).bool() if self.mask else None
        return nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=self.causal, enable_gqa=self.groups > 1
        )


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"mask": True}, {"groups": 2}], ids=str)
def test_attention_weights_reproduce_the_output(options: dict[str, bool]) -> None:
    torch.manual_seed(0)
    trace = tg.trace(Attention(**options), torch.randn(3, 5, 8))
    op = next(op for op in trace.ops if op.function == "scaled_dot_product_attention")
    maps = op.attention(sample=2)
    assert maps.maps.shape == (2, 5, 5)
    value = op.parents[-1].tensor if not options.get("mask") else op.parents[2].tensor
    assert value is not None
    assert op.tensor is not None
    output = torch.tensor(maps.maps) @ value[2].double()
    assert output.allclose(op.tensor[2].double(), atol=1e-5)
    assert "recomputed" in str(maps)


class FusedAttention(nn.Module):
    """Query, key and value are the outputs of one op."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])


class UnboundAttention(FusedAttention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 1, 8)).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("kind", [FusedAttention, UnboundAttention])
def test_attention_weights_of_a_fused_projection_are_not_mixed_up(
    kind: type[FusedAttention],
) -> None:
    torch.manual_seed(0)
    model, x = kind(), torch.randn(2, 5, 8)
    trace = tg.trace(model, x)
    op = next(op for op in trace.ops if op.function == "scaled_dot_product_attention")
    q, k, _ = model.qkv(x).double().chunk(3, dim=-1)
    truth = (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1)
    assert torch.tensor(op.attention(sample=1).maps[0]).allclose(truth[1], atol=1e-6)


def test_an_op_without_feature_maps_says_why() -> None:
    trace = tg.trace(nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)), torch.randn(2, 4))
    with pytest.raises(tg.TorchglassError, match="is not a picture: its shape is"):
        trace["1"].images()
    with pytest.raises(tg.TorchglassError, match="is not an attention"):
        trace["0"].attention()
    image = tg.trace(nn.Conv2d(1, 1, 1), torch.randn(2, 1, 3, 3))
    with pytest.raises(tg.TorchglassError, match="has 2 samples, so there is no sample 5"):
        image["conv2d_1"].images(sample=5)


def test_the_command_writes_or_prints_the_maps_of_an_op(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = tmp_path / "net.py"
    net.write_text(
        "from torch import nn\n"
        "def Net():\n"
        "    return nn.TransformerEncoderLayer(16, 4, batch_first=True)\n",
        encoding="utf-8",
    )
    command = ["trace", f"{net}:Net", "--input", "2x10x16"]
    attention = [*command, "--op", "scaleddotproductattention_1"]
    main([*attention, "--images", str(tmp_path / "heads.png")])
    told = capsys.readouterr().err
    assert "4 of 10×10" in told
    assert "recomputed from query and key" in told
    assert (tmp_path / "heads.png").read_bytes().startswith(b"\x89PNG")
    main([*attention, "--images", "-"])
    assert "▀" in capsys.readouterr().out
    assert main([*command, "--images", "-"]) != 0
    assert "--images needs an op" in capsys.readouterr().err
