"""Healthy models: unusual layers, zero starts, sparse activations, masks and shared weights."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from benchmarks.diagnosis import data
from benchmarks.diagnosis.cases import Watch, fit, functional, healthy
from benchmarks.diagnosis.models import (
    GPT,
    Classifier,
    ConvNet,
    Mixture,
    ResidualBlock,
    ResNet,
    SequenceLSTM,
    SeriesLSTM,
    ViT,
    mlp,
    plain_convnet,
)

_FAMILY = "models"


def _next_token(logits: Tensor, tokens: Tensor) -> Any:
    return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


@healthy(family=_FAMILY, on="CNN")
def batch_norm_with_a_bias_before_it(watch: Watch) -> None:
    """Batch norm subtracts the bias before it: the gradient of that bias is 0 by mathematics."""
    model = ConvNet()
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=1e-2), data.images(60))


@healthy(family=_FAMILY, on="ResNet")
def residual_network(watch: Watch) -> None:
    """An ordinary ResNet with SGD and momentum."""
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    fit(watch, model, optimizer, data.images(60))


@healthy(family=_FAMILY, on="ResNet")
def zero_start_of_residual_branches(watch: Watch) -> None:
    """The last norm of each branch starts at 0: no gradient reaches the convolutions at step 0."""
    model = ResNet()
    for block in model.blocks:
        nn.init.zeros_(cast(ResidualBlock, block).bn2.weight)
    fit(watch, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), data.images(60))


class _ScaledBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = mlp(width, 2 * width, width, activation=nn.GELU)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, x + self.scale * self.mlp(self.norm(x)))


@healthy(family=_FAMILY)
def layer_scale(watch: Watch) -> None:
    """Branches start scaled by 1e-6, so their weights get tiny gradients at first."""
    model = nn.Sequential(
        nn.Linear(16, 32), *(_ScaledBlock(32) for _ in range(3)), nn.LayerNorm(32), nn.Linear(32, 4)
    )
    fit(watch, model, torch.optim.AdamW(model.parameters(), lr=3e-3), data.clusters(60))


@healthy(family=_FAMILY, on="GPT")
def causal_attention(watch: Watch) -> None:
    """Scores hold −Inf above the diagonal, by design; the key bias has no gradient."""
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    fit(watch, model, optimizer, data.sentences(100, batch=16), _next_token)


@healthy(family=_FAMILY, on="GPT")
def tied_embedding_and_head(watch: Watch) -> None:
    """Embedding and head share one tensor."""
    model = GPT(tied=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    fit(watch, model, optimizer, data.sentences(100, batch=16), _next_token)


@healthy(family=_FAMILY, on="GPT")
def deep_pre_norm_transformer(watch: Watch) -> None:
    """Twelve blocks at their start: the residual stream grows slowly, as it does in every GPT."""
    model = GPT(width=16, depth=12, heads=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, data.sentences(40), _next_token)


@healthy(family=_FAMILY, on="ViT")
def vision_transformer(watch: Watch) -> None:
    """torch's own encoder layers, whose out_proj is never called as a module."""
    model = ViT()
    fit(watch, model, torch.optim.AdamW(model.parameters(), lr=2e-3), data.images(60))


class _PaddedEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(17, 32, padding_idx=16)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        padding = tokens == 16
        x = self.encoder(self.embedding(tokens), src_key_padding_mask=padding)
        kept = (~padding)[..., None].float()
        return cast(Tensor, self.head((x * kept).sum(1) / kept.sum(1)))


@healthy(family=_FAMILY, on="transformer")
def padded_sentences(watch: Watch) -> None:
    """Padding is masked with −Inf, and the padding embedding stays 0 without a gradient."""
    model = _PaddedEncoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with watch(model) as watcher:
        for x, _ in data.sentences(80, batch=32):
            lengths = torch.randint(4, 13, (len(x), 1))
            label = x[:, 0].clone()
            tokens = x.masked_fill(torch.arange(12) >= lengths, 16)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(tokens), label)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family=_FAMILY)
def ninety_percent_sparse_relu(watch: Watch) -> None:
    """Biases make nine of ten activations zero by design; every unit still fires at times."""
    model = mlp(8, 256, 1)
    nn.init.constant_(cast(nn.Linear, model[0]).bias, -0.75)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit(watch, model, optimizer, data.curve(100, batch=64), functional.mse_loss)


@healthy(family=_FAMILY, on="mixture")
def mixture_with_resting_experts(watch: Watch) -> None:
    """Experts that no sample of a batch chose have no gradient at that step."""
    model = Mixture()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with watch(model) as watcher:
        for x, y in data.clusters(80, batch=10):
            gates, choice = model.route(x)
            share = functional.one_hot(choice, 4).float().mean(0)
            balance = 4 * (share * gates.mean(0)).sum()
            loss = functional.cross_entropy(model(x), y) + 0.2 * balance
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family=_FAMILY)
def dropout_of_one_half(watch: Watch) -> None:
    """Half of the activations are zero at random."""
    model = nn.Sequential(
        nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4),
    )  # fmt: skip
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=3e-3), data.clusters(80))


class _StochasticDepth(ResNet):
    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            if not self.training or torch.rand(()) < 0.7:
                x = block(x)
        return cast(Tensor, self.fc(x.mean((2, 3))))


@healthy(family=_FAMILY, on="ResNet")
def stochastic_depth(watch: Watch) -> None:
    """Blocks are skipped at random, and have no gradient at such steps."""
    model = _StochasticDepth()
    fit(watch, model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), data.images(80))


@healthy(family=_FAMILY)
def weight_norm_of_layers(watch: Watch) -> None:
    """Weights are computed from a direction and a length."""
    model = nn.Sequential(weight_norm(nn.Linear(16, 32)), nn.ReLU(), weight_norm(nn.Linear(32, 4)))
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=1e-2), data.clusters(60))


@healthy(family=_FAMILY, on="CNN")
def spectral_norm_of_layers(watch: Watch) -> None:
    """Weights are divided by their largest singular value."""
    model = nn.Sequential(
        spectral_norm(nn.Conv2d(1, 8, 3)), nn.LeakyReLU(0.2), nn.Flatten(),
        spectral_norm(nn.Linear(288, 4)),
    )  # fmt: skip
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=1e-2), data.images(60))


@healthy(family=_FAMILY)
def hard_tanh_and_relu6(watch: Watch) -> None:
    """Activations that are cut off on both sides, some of them at their limit."""
    model = nn.Sequential(
        nn.Linear(16, 32), nn.Hardtanh(), nn.Linear(32, 32), nn.ReLU6(), nn.Linear(32, 4)
    )
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=1e-2), data.clusters(60))


@healthy(family=_FAMILY)
def silu_and_gelu(watch: Watch) -> None:
    """Smooth activations, which are never exactly 0."""
    model = nn.Sequential(
        nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4)
    )
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=1e-2), data.clusters(60))


class _Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(2, 16, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        _, last = self.gru(packed)
        return cast(Tensor, self.head(torch.cat([last[0], last[1]], -1)))


@healthy(family=_FAMILY, on="GRU")
def packed_sequences(watch: Watch) -> None:
    """A bidirectional GRU over sequences of different lengths."""
    model = _Packed()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model) as watcher:
        for x, _ in data.waves(60):
            lengths = torch.randint(5, 21, (len(x),))
            y = x[torch.arange(len(x)), lengths - 1, :1]
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x, lengths), y)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family=_FAMILY, on="LSTM")
def hidden_state_carried_and_detached(watch: Watch) -> None:
    """Truncated backpropagation: the state is carried from batch to batch, and detached."""
    model = SequenceLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    state: tuple[Tensor, Tensor] | None = None
    watcher = watch(model)
    for x, y in data.sentences(80, batch=16):
        outputs, state = model.lstm(model.embedding(x), state)
        loss = functional.cross_entropy(model.head(outputs).flatten(0, 1), y.flatten())
        state = (state[0].detach(), state[1].detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=_FAMILY, on="LSTM")
def saturating_gates(watch: Watch) -> None:
    """A forget bias of 3 keeps that gate near 1, as is usual for long series."""
    model = SeriesLSTM()
    with torch.no_grad():
        dict(model.lstm.named_parameters())["bias_hh_l0"][16:32] = 3.0
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit(watch, model, optimizer, data.waves(60), functional.mse_loss)


class _LoRA(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.base(x) + x @ self.down.T @ self.up.T)


@healthy(family=_FAMILY)
def lora_with_zero_start(watch: Watch) -> None:
    """Adapters around frozen layers: B starts at 0, so A has no gradient at step 0."""
    base = mlp(16, 64, 64, 4)
    model = nn.Sequential(
        *(_LoRA(layer) if isinstance(layer, nn.Linear) else layer for layer in base)
    )
    trained = [p for p in model.parameters() if p.requires_grad]
    fit(watch, model, torch.optim.AdamW(trained, lr=1e-2), data.clusters(60))


@healthy(family=_FAMILY, on="CNN")
def group_norm_with_a_batch_of_one(watch: Watch) -> None:
    """A batch of one image is fine without batch norm."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)
    )
    fit(watch, model, torch.optim.SGD(model.parameters(), lr=0.02), data.images(120, batch=1))


@healthy(family=_FAMILY)
def one_layer_used_three_times(watch: Watch) -> None:
    """A universal block is applied three times by design, in a loop in the forward."""

    class Looped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into = nn.Linear(16, 32)
            self.block = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU())
            self.out = nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.into(x)
            for _ in range(3):
                x = x + self.block(x)
            return cast(Tensor, self.out(x))

    model = Looped()
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=1e-2), data.clusters(60))


@healthy(family=_FAMILY, on="CNN")
def half_of_the_channels_pruned(watch: Watch) -> None:
    """A mask keeps half of the weights at 0, as after pruning."""
    from torch.nn.utils import prune

    model = plain_convnet()
    for layer in model:
        if isinstance(layer, nn.Conv2d):
            prune.random_unstructured(layer, "weight", 0.5)  # type: ignore[no-untyped-call]
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=1e-2), data.images(60))


@healthy(family=_FAMILY)
def functional_call_of_the_weights(watch: Watch) -> None:
    """The forward runs through `torch.func.functional_call` with the model's own parameters."""
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model) as watcher:
        for x, y in data.clusters(60):
            optimizer.zero_grad()
            logits = torch.func.functional_call(model, dict(model.named_parameters()), (x,))
            loss = functional.cross_entropy(logits, y)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
