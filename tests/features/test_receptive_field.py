"""Which part of the input an op sees, composed from the ops and checked against gradients."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchglass as tg
from tests.architectures import CausalAttention, ResNet, UNet


class Upsampled(nn.Module):
    def __init__(self, mode: str, align: bool | None = None) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(1, 2, 3, 2, 1), nn.Conv2d(2, 1, 3, padding=1)
        self.options = {"mode": mode, "align_corners": align}

    def forward(self, x: Tensor) -> Any:
        return self.up(F.interpolate(self.down(x), scale_factor=2, **self.options))  # type: ignore[arg-type]


class Moved(nn.Module):
    """Rolls, flips, slices, joins, pads and reshapes, between convolutions of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.holes = nn.Conv2d(2, 4, 3, padding=2, dilation=2)
        self.groups = nn.Conv2d(4, 8, 3, groups=2, padding=1)
        self.larger = nn.ConvTranspose2d(8, 4, 3, 2, 1, output_padding=1, groups=2)

    def forward(self, x: Tensor) -> Any:
        y = self.larger(torch.roll(self.groups(self.holes(x)), 1, 2).flip(3))
        upper, lower = y[:, 1:, 2:-1, ::2].chunk(2, 2)
        y = F.pad(torch.cat([lower, upper], 2), (1, 2, 0, 1))
        y = F.pad(y, (1, 1, 2, 0), mode="reflect")
        y = F.pixel_shuffle(F.pixel_unshuffle(y[:, :, :8, :8], 2), 2).permute(0, 2, 3, 1)
        y = y.flatten(1, 2)[:, :6]
        y = torch.stack([y[..., 0], y.sum(2) * 2], 1)
        return torch.einsum("bkl,bml->bkm", y, y)


class Windowed(nn.Module):
    """Attention within windows of two by two patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.qkv = nn.Conv2d(1, 4, 2, 2), nn.Linear(4, 12)
        self.mix = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        x = self.patches(x)
        n, c, h, w = x.shape
        x = x.view(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 3, 5, 1).reshape(-1, 4, c)
        x = F.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1))
        x = x.view(n, h // 2, w // 2, 2, 2, c).permute(0, 5, 1, 3, 2, 4).reshape(n, c, h, w)
        return self.mix(x)


class Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.conv = CausalAttention(8, 2), nn.Conv1d(8, 8, 3)

    def forward(self, x: Tensor) -> Any:
        return self.conv(F.pad(self.attention(x).transpose(1, 2), (2, 0)))


def ready(model: nn.Module) -> nn.Module:
    """Weights with which no gradient is 0 by chance; a maximum reads one value of its window."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.rand_like(parameter) * 0.5 + 0.01)
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.MaxPool2d):
            above, _, name = path.rpartition(".")
            mean = nn.AvgPool2d(module.kernel_size, module.stride, module.padding)
            setattr(model.get_submodule(above), name, mean)
    return model.double().eval()


def support(value: Tensor, x: Tensor) -> tuple[range, ...] | None:
    """The positions of an input with a gradient, as the smallest box."""
    (gradient,) = torch.autograd.grad(
        value, x, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    places = gradient.nonzero()
    if not len(places):
        return None
    low, high = places.amin(0).tolist(), places.amax(0).tolist()
    return tuple(range(a, b + 1) for a, b in zip(low, high, strict=True))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        pytest.param(
            nn.Sequential(
                nn.Conv2d(2, 3, 5, stride=2, padding=1),
                nn.AvgPool2d(3, 2, 1, ceil_mode=True),
                nn.Conv2d(3, 3, 3, dilation=3, padding="same"),
                nn.Conv2d(3, 2, (1, 7), padding=(0, 3)),
            ),
            (2, 2, 33, 37),
            id="windows",
        ),
        pytest.param(ResNet((2, 1), 4), (1, 3, 48, 48), id="resnet"),
        pytest.param(ResNet((1,), 8, groups=4), (1, 3, 32, 32), id="grouped"),
        pytest.param(UNet(2, 2), (1, 3, 16, 20), id="unet"),
        pytest.param(Upsampled("nearest"), (1, 1, 17, 22), id="nearest"),
        pytest.param(Upsampled("bilinear", align=False), (1, 1, 17, 22), id="bilinear"),
        pytest.param(Upsampled("bilinear", align=True), (1, 1, 17, 22), id="aligned"),
        pytest.param(Upsampled("bicubic", align=False), (1, 1, 17, 22), id="bicubic"),
        pytest.param(Moved(), (1, 2, 9, 10), id="moved"),
        pytest.param(Windowed(), (1, 1, 16, 24), id="windowed"),
        pytest.param(Causal(), (2, 7, 8), id="causal"),
        pytest.param(
            nn.Sequential(nn.Conv3d(1, 2, 3, stride=(1, 2, 2), padding=1), nn.AvgPool3d(2)),
            (1, 1, 5, 12, 12),
            id="volumes",
        ),
        pytest.param(
            nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d((3, 4)), nn.GroupNorm(2, 2)),
            (1, 1, 13, 15),
            id="adaptive",
        ),
    ],
)
def test_the_receptive_field_of_every_op_matches_its_gradient(
    model: nn.Module, shape: tuple[int, ...]
) -> None:
    x = (torch.rand(shape, dtype=torch.float64) + 0.1).requires_grad_()
    trace = tg.trace(ready(model), x)
    chosen = random.Random(0)
    for op in trace.ops:
        # What an op in place overwrote was saved as a copy without a history.
        if op.is_input or op.tensor is None or not op.tensor.requires_grad:
            continue
        field = op.receptive_field()
        positions = list(itertools.product(*map(range, op.tensor.shape)))
        for position in chosen.sample(positions, min(2, len(positions))):
            assert field.at(*position) == support(op.tensor[position], x), (op.label, position)


def test_receptive_fields_of_known_architectures_match_hand_computation() -> None:
    trace = tg.trace(ResNet().eval(), torch.randn(1, 3, 224, 224), save=None)
    # 7 after the first convolution, 11 after the pool, and 2 · jump for each 3×3 convolution.
    known = {"conv1": (7, 2), "maxpool": (11, 4), "layer1": (35, 4), "layer2": (91, 8)}
    known |= {"layer3": (267, 16), "layer4": (427, 32)}
    for path, (size, stride) in known.items():
        field = trace[path].receptive_field()
        assert field.size[2:] == (size, size), path
        assert field.stride[2:] == (stride, stride), path
        assert field.start[2:] == (-(size - 1) // 2, -(size - 1) // 2), path
    assert "427 of 224, stride 32, starts at -213" in str(trace["layer4"].receptive_field())
    assert trace["fc"].receptive_field().at(0, 0) == (range(1), range(3), range(224), range(224))


def test_attention_and_mean_have_a_global_receptive_field() -> None:
    trace = tg.trace(CausalAttention(8, 2), torch.randn(2, 5, 8))
    field = trace["proj"].receptive_field()
    # A causal token sees the tokens before it, all channels, and its own sample alone.
    assert field.at(1, 2, 0) == (range(1, 2), range(3), range(8))
    assert not field.axes[1].is_global
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    both = tg.trace(layer, torch.randn(2, 5, 8))[-1].receptive_field()
    assert both.axes[1].is_global
    assert str(both.axes[1]) == "all 5"
    assert str(both.axes[0]) == "own index"


def test_a_batch_norm_in_training_mixes_the_samples_of_a_batch() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    training = tg.trace(model.train(), torch.randn(4, 1, 8, 8))["1"].receptive_field()
    running = tg.trace(model.eval(), torch.randn(4, 1, 8, 8))["1"].receptive_field()
    assert training.axes[0].is_global
    assert training.axes[2].is_global
    assert running.size == (1, 1, 3, 3)


def test_an_unknown_receptive_field_names_the_op_and_the_reason() -> None:
    class Gathered(nn.Module):
        def forward(self, x: Tensor, scale: Tensor) -> Any:
            return x.gather(1, x.argsort(1)) * scale, torch.ones(3) + 1

    trace = tg.trace(Gathered(), torch.randn(2, 3), torch.ones(3))
    with pytest.raises(tg.TorchglassError, match="not known: argsort may read any position"):
        trace["mul"].receptive_field()
    assert trace["mul"].receptive_field("scale").size == (1,)
    with pytest.raises(tg.TorchglassError, match="does not depend on an input"):
        trace["add"].receptive_field()
    with pytest.raises(tg.TorchglassError, match=r"no position \(9,\)"):
        trace["mul"].receptive_field("scale").at(9)


def test_a_printed_op_shows_its_receptive_field() -> None:
    trace = tg.trace(nn.Sequential(nn.Conv2d(1, 2, 3, 2)), torch.randn(1, 1, 9, 9))
    line = "Receptive field: 1×1×3×3 of input (1×1×9×9), stride 2×2, starts at 0, 0"
    assert line in str(trace["conv2d_1"])
