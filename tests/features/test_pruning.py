"""Which channels of a model can be removed, which only together, and what that saves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchglass as tg
from tests.architectures import ResNet, UNet
from tests.command_line import main


class Residual(nn.Module):
    """A skip connection with a projection, batch norms, and a depthwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 24, 3, padding=1)
        self.skip = nn.Conv2d(3, 24, 1)
        self.depthwise = nn.Conv2d(24, 24, 3, padding=1, groups=24)
        self.head = nn.Linear(24 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(torch.relu(self.norm(self.first(x)))) + self.skip(x)
        y = nn.functional.adaptive_avg_pool2d(torch.relu(self.depthwise(y)), 2)
        result: Tensor = self.head(y.flatten(1))
        return result


def images() -> Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def residual() -> Residual:
    torch.manual_seed(0)
    return Residual()


def test_channels_joined_by_a_skip_connection_are_one_group() -> None:
    found = tg.pruning(residual(), images(), timed=False)
    groups = {one.group: (one.layers, one.channels) for one in found.measured}
    assert sorted(groups.values()) == [(("first",), 16), (("second", "skip"), 24)]


def test_a_pruned_copy_is_smaller_and_matches_zeroed_weights() -> None:
    model = residual()
    found = tg.pruning(model, images(), amount=0.4, timed=False)
    smaller = found.apply()
    plain = model.eval()(images()).detach()
    changed = smaller(images()).detach()
    noise = (plain - changed).double().square().sum()
    measured = 10 * torch.log10(plain.double().square().sum() / noise)
    assert found.sqnr_db == pytest.approx(float(measured), abs=0.1)
    assert tg.flops(smaller, images()).total_flops == found.pruned_flops
    assert found.pruned_flops < 0.7 * found.flops
    assert sum(p.numel() for p in smaller.parameters()) < sum(p.numel() for p in model.parameters())
    smaller.train()(images()).sum().backward()


def test_unused_channels_are_pruned_first_without_loss() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    with torch.no_grad():
        model[2].weight[:, ::2] = 0  # type: ignore[operator]
    found = tg.pruning(model, torch.randn(8, 8), amount=0.5, timed=False)
    assert found.sqnr_db > 100
    assert dict(found.apply().named_parameters())["2.weight"].abs().min() > 0


def test_a_transformer_loses_hidden_units_and_keeps_its_width() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    found = tg.pruning(nn.TransformerEncoder(layer, 2), torch.randn(2, 5, 16), amount=0.2)
    assert {one.layers for one in found.measured} == {("layers.0.linear1",), ("layers.1.linear1",)}
    assert found.apply()(torch.randn(2, 5, 16)).shape == (2, 5, 16)
    assert "setting the same weights to zero saves no time" in str(found)


def test_concatenated_channels_are_traced_to_their_layer() -> None:
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 6, 1), nn.Conv2d(3, 10, 1)
            self.last = nn.Conv2d(16, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.last(torch.cat([self.a(x), self.b(x)], 1))
            return result

    torch.manual_seed(0)
    found = tg.pruning(Dense(), images(), amount=0.5, timed=False)
    assert {(one.layers, one.channels) for one in found.measured} == {(("a",), 6), (("b",), 10)}
    assert found.apply()(images()).shape == (4, 2, 8, 8)


def test_channels_scaled_by_a_bare_parameter_are_not_pruned() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
            self.plain, self.last = nn.Linear(8, 12), nn.Linear(12, 2)
            self.gamma = nn.Parameter(torch.ones(16))

        def forward(self, x: Tensor) -> Tensor:
            x = self.down(self.up(x) * self.gamma)
            result: Tensor = self.last(torch.relu(self.plain(x)))
            return result

    torch.manual_seed(0)
    found = tg.pruning(Scaled(), torch.randn(4, 8), timed=False)
    assert "up" not in {layer for one in found.measured for layer in one.layers}
    assert any("up" in reason for reason in found.skipped)


def test_the_model_and_the_random_state_are_unchanged() -> None:
    model = residual()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    tg.pruning(model, images())
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())


def test_a_given_metric_decides() -> None:
    model, x = residual(), images()
    labels = model.eval()(x).argmax(-1)

    def accuracy(candidate: nn.Module) -> float:
        return float((candidate(x).argmax(-1) == labels).float().mean())

    found = tg.pruning(model, x, metric=accuracy, amount=0.2)
    assert found.baseline == 1.0
    assert "a metric of" in found.answer


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (nn.Linear(4, 4), {}, "has no channels that can be removed"),
        (nn.Linear(4, 4), {"amount": 2}, "amount must be between 0 and 0.9"),
        (len, {}, "pruning needs a module"),
    ],
)
def test_a_model_that_cannot_be_pruned_says_why(model: Any, options: Any, message: str) -> None:
    with pytest.raises(tg.TorchglassError, match=message):
        tg.pruning(model, torch.randn(2, 4), **options)


def test_the_command_prints_the_answer_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "net.py"
    file.write_text(
        "from torch import nn\n"
        "def net():\n"
        "    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))\n"
    )
    words = ["pruning", f"{file}:net", "--input", "4x8"]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("Removing ")
    assert main([*words, "--json", "-", "--no-timed"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"]


class SqueezeAndExcite(nn.Module):
    """Channels that scale each other through a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.down, self.up = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Any:
        x = torch.relu(self.first(x))
        y = self.second(x)
        gate = torch.sigmoid(self.up(torch.relu(self.down(y.mean((2, 3), keepdim=True)))))
        return self.head(torch.relu(x + y * gate).mean((2, 3)))


class Inverted(nn.Module):
    """Blocks of MobileNet: a depthwise convolution between two others, and clipped activations."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(8, 32, 1, bias=False),
                nn.BatchNorm2d(32),
                nn.ReLU6(),
                nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False),
                nn.BatchNorm2d(32),
                nn.ReLU6(),
                nn.Conv2d(32, 8, 1),
            )
            for _ in range(2)
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


class Recurring(nn.Module):
    """The same layers three times, on their own result."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.wide = nn.Linear(8, 16), nn.Linear(16, 32)
        self.narrow, self.leave = nn.Linear(32, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Any:
        x = self.enter(x)
        for _ in range(3):
            x = x + self.narrow(torch.relu(self.wide(x)))
        return self.leave(x)


class Gated(nn.Module):
    """A gated unit whose two halves come from one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.out = nn.Linear(16, 96), nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Any:
        gate, value = self.both(x).chunk(2, -1)
        return self.out(nn.functional.silu(gate) * value)


class Heads(nn.Module):
    """An attention that says how many heads it has."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 4
        self.q, self.k, self.v = (nn.Linear(16, 32) for _ in range(3))
        self.o, self.head = nn.Linear(32, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Any:
        n, length, _ = x.shape
        shape = n, length, self.num_heads, -1
        q, k, v = (layer(x).view(shape).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return self.head(x + self.o(y.reshape(n, length, -1)))


def sequence(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))


@pytest.mark.parametrize(
    ("make", "shape", "groups"),
    [
        pytest.param(lambda: ResNet((2,), 8), (2, 3, 16, 16), 6, id="resnet"),
        # Whole groups of the convolutions in groups go, with what makes and reads them.
        pytest.param(lambda: ResNet((2,), 8, groups=4), (2, 3, 16, 16), 4, id="grouped"),
        pytest.param(lambda: UNet(8, 1), (2, 3, 8, 8), 7, id="unet"),
        pytest.param(SqueezeAndExcite, (2, 3, 8, 8), 2, id="squeeze"),
        pytest.param(Inverted, (2, 3, 8, 8), 3, id="mobilenet"),
        pytest.param(Recurring, (8, 8), 2, id="shared"),
        pytest.param(Gated, (8, 16), 1, id="gated"),
        pytest.param(Heads, (2, 6, 16), 1, id="heads"),
        pytest.param(
            lambda: nn.Sequential(
                nn.Conv2d(3, 16, 3, 2, 1),
                nn.ReLU(),
                nn.ConvTranspose2d(16, 8, 4, 2, 1),
                nn.ReLU(),
                nn.ConvTranspose2d(8, 1, 3, padding=1),
            ),
            (2, 3, 8, 8),
            2,
            id="transposed",
        ),
        pytest.param(
            lambda: sequence(
                nn.Conv2d(3, 16, 3),
                nn.GroupNorm(4, 16),
                nn.Conv2d(16, 16, 3),
                nn.InstanceNorm2d(16, affine=True),
                nn.PReLU(16),
                nn.Conv2d(16, 16, 1),
            ),
            (2, 3, 8, 8),
            3,
            id="norms",
        ),
        pytest.param(
            lambda: sequence(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3, groups=8), nn.ReLU()),
            (2, 3, 8, 8),
            1,
            id="multiplier",
        ),
        pytest.param(
            lambda: nn.Sequential(
                nn.Linear(8, 16),
                nn.TransformerEncoderLayer(16, 4, 64, batch_first=True),
                nn.Linear(16, 3),
            ),
            (2, 6, 8),
            1,
            id="transformer",
        ),
    ],
)
def test_a_pruned_copy_of_any_architecture_matches_zeroed_weights(
    make: Any, shape: tuple[int, ...], groups: int
) -> None:
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
    found = tg.pruning(model, x, amount=0.3, timed=False)
    assert len({one.group for one in found.measured}) == groups
    smaller = found.apply()
    assert sum(map(torch.numel, smaller.parameters())) < sum(map(torch.numel, model.parameters()))
    with torch.no_grad():
        plain, changed = model.eval()(x), smaller(x)
    noise = (plain - changed).double().square().sum()
    measured = 10 * torch.log10(plain.double().square().sum() / noise)
    assert found.sqnr_db == pytest.approx(float(measured), abs=0.1)


class FixedHeads(Heads):
    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch = batch

    def forward(self, x: Tensor) -> Any:
        parts = [layer(x).view(self.batch, 6, 4, 8) for layer in (self.q, self.k, self.v)]
        q, k, v = (part.transpose(1, 2) for part in parts)
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return self.head(self.o(y.reshape(self.batch, 6, 32)))


def test_channels_with_hard_coded_sizes_are_skipped_with_the_reason() -> None:
    found = tg.pruning(FixedHeads(-1), torch.randn(2, 6, 16), timed=False)
    reasons = [one for one in found.skipped if one.startswith("k, q, v: ")]
    assert "a copy with fewer channels does not run (shape '[-1, 6, 4, 8]'" in reasons[0]
    with pytest.raises(tg.TorchglassError, match="does not run with another batch size"):
        tg.pruning(FixedHeads(2), torch.randn(2, 6, 16), timed=False)
