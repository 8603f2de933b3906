"""NaN and Inf: in the data, the loss, the forward, the backward, the weights, in half precision."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from benchmarks.diagnosis import data
from benchmarks.diagnosis.cases import Watch, fit, functional, planted
from benchmarks.diagnosis.models import (
    GAN,
    GPT,
    VAE,
    Attention,
    Autoencoder,
    Classifier,
    ConvNet,
    SeriesLSTM,
    TwoTower,
    mlp,
)

_FAMILY = "numbers"


@planted("nan", at=("", "0"), family=_FAMILY)
def nan_in_a_batch(watch: Watch) -> None:
    """One value of the batch of step 25 is NaN: the data is at fault, not the model."""
    model = mlp(16, 32, 32, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(data.clusters(50)):
            if step == 25:
                x[3, 5] = float("nan")
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss.item())


@planted("nan", "inf", at=("", "features.0", "features"), family=_FAMILY, on="CNN")
def constant_image_standardised(watch: Watch) -> None:
    """Images are divided by their standard deviation; a black image at step 30 makes 0/0."""
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    watcher = watch(model)
    for step, (x, y) in enumerate(data.images(60)):
        if step == 30:
            x[0] = 0
        scaled = (x - x.mean((1, 2, 3), keepdim=True)) / x.std((1, 2, 3), keepdim=True)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(scaled), y)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("nan", "inf", at=("", "decoder", "decoder.3"), family=_FAMILY, on="autoencoder")
def log_of_zero_in_the_loss(watch: Watch) -> None:
    """The entropy is written by hand; a ReLU output of exactly 0 makes 0 · log(0) = NaN."""
    model = Autoencoder()
    model.decoder.append(nn.ReLU())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with watch(model) as watcher:
        for x, _ in data.clusters(40):
            target = x.sigmoid()
            optimizer.zero_grad()
            share = model(x)
            loss = -(target * torch.log(share)).mean() + share.mean()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("nan", "inf", at=("", "head"), family=_FAMILY)
def log_of_a_softmax_that_underflows(watch: Watch) -> None:
    """`log(softmax(x))` in two steps: large logits underflow to 0, and the loss is Inf."""
    model = Classifier()
    with torch.no_grad():
        model.head.weight.mul_(300)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    watcher = watch(model)
    for x, y in data.clusters(40):
        probabilities = torch.softmax(model(x), -1)
        loss = functional.nll_loss(torch.log(probabilities), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("nan", at=("", "left", "right", "left.*", "right.*"), family=_FAMILY, on="two-tower")
def square_root_of_zero_in_the_backward(watch: Watch) -> None:
    """The distance of equal vectors is sqrt(0), whose gradient is Inf · 0.

    The loss is finite at the first step; only the gradients are NaN.
    """
    model = TwoTower()
    model.right.load_state_dict(model.left.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model) as watcher:
        for left, _ in data.pairs(40):
            a, b = model(left, left)
            distance = (a - b).pow(2).sum(-1).sqrt()
            loss = distance.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


class _SafeLog(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, torch.log(x), torch.zeros_like(x))


@planted("nan", at=("", "0", "1", "2"), family=_FAMILY)
def gradient_through_where(watch: Watch) -> None:
    """`torch.where` hides log(0) in the forward alone: the backward is 0 · Inf = NaN."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), _SafeLog(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    fit(watch, model, optimizer, data.curve(40), functional.mse_loss)


class _UnitNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.pow(2).sum(-1, keepdim=True).sqrt()


@planted("nan", "inf", at=("", "norm", "backbone"), family=_FAMILY)
def division_by_a_zero_norm(watch: Watch) -> None:
    """Features are divided by their norm; those of an all-zero sample at step 20 have norm 0."""

    class Embedder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Sequential(nn.Linear(16, 32, bias=False), nn.ReLU())
            self.norm = _UnitNorm()
            self.head = nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.head(self.norm(self.backbone(x))))

    model = Embedder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(data.clusters(60)):
            if step >= 20:
                x[7] = 0.0  # padding of an incomplete batch
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


class _PaddedAttention(Attention):
    padding: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = q @ k.transpose(1, 2) / x.shape[-1] ** 0.5
        if self.padding is not None:
            scores = scores.masked_fill(self.padding[:, None, :], float("-inf"))
        return cast(Tensor, self.out(scores.softmax(-1) @ v))


@planted("nan", at=("blocks.0.attention", "blocks.0.attention.out"), family=_FAMILY, on="GPT")
def attention_rows_all_masked(watch: Watch) -> None:
    """At step 15 a sentence is empty: its row of scores is all −Inf, and its softmax is NaN."""
    model = GPT()
    attention = _PaddedAttention(32, 1, 12)
    model.blocks[0].attention = attention
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watcher = watch(model)
    for step, (x, y) in enumerate(data.sentences(40)):
        lengths = torch.full((len(x), 1), 10)
        if step == 15:
            lengths[2] = 0
        attention.padding = torch.arange(x.shape[1]) >= lengths
        logits = model(x)
        loss = functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("nan", at=("attention", "attention.*"), family=_FAMILY, on="ViT")
def key_padding_mask_of_an_empty_sample(watch: Watch) -> None:
    """`nn.MultiheadAttention` gets a key_padding_mask that is True for a whole sample: NaN."""

    class Pooler(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Linear(8, 16)
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
            self.head = nn.Linear(16, 4)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            x = self.embedding(x)
            mixed, _ = self.attention(x, x, x, key_padding_mask=mask)
            return cast(Tensor, self.head(mixed.mean(1)))

    model = Pooler()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model) as watcher:
        for step, (images, y) in enumerate(data.images(40)):
            rows = images.squeeze(1)
            mask = torch.zeros(rows.shape[:2], dtype=torch.bool)
            mask[:, 6:] = True
            mask[0] = step == 22
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(rows, mask), y)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("inf", "nan", at=("", "2", "4"), family=_FAMILY)
def float16_overflow(watch: Watch) -> None:
    """A model in float16 has activations beyond 65,504 in its third layer: Inf in the forward."""
    model = mlp(16, 64, 64, 4).half()
    with torch.no_grad():
        cast(nn.Linear, model[0]).weight.mul_(200)
        cast(nn.Linear, model[2]).weight.mul_(400)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watch(model) as watcher:
        for x, y in data.clusters(40):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x.half()).float(), y)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted(
    "inf", "nan", at=("", "blocks.0.attention", "blocks.0.attention.*"), family=_FAMILY, on="GPT"
)
def attention_scores_overflow_in_autocast(watch: Watch) -> None:
    """Under float16 autocast, scores of large queries and keys overflow before the softmax."""
    model = GPT()
    attention = cast(Attention, model.blocks[0].attention)
    with torch.no_grad():
        attention.query.weight.mul_(2000)
        attention.key.weight.mul_(2000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    watcher = watch(model)
    for x, y in data.sentences(40):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = functional.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("inf", "nan", at=("backbone.2", "backbone"), family=_FAMILY)
def inf_in_a_loaded_weight(watch: Watch) -> None:
    """The checkpoint that training starts from has one Inf in a weight."""
    model = Classifier()
    state = model.state_dict()
    state["backbone.2.weight"][4, 4] = float("inf")
    model.load_state_dict(state)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    fit(watch, model, optimizer, data.clusters(40))


@planted("nan", "inf", at=("", "lstm", "lstm.*"), family=_FAMILY, on="LSTM")
def empty_sequence_in_a_mean(watch: Watch) -> None:
    """Outputs are averaged over the valid steps; a sequence of length 0 at step 18 makes 0/0."""
    model = SeriesLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(data.waves(40)):
            valid = torch.ones(x.shape[:2])
            valid[1] = 0.0 if step == 18 else 1.0
            mean = (x * valid[..., None]).sum(1, keepdim=True) / valid.sum(1)[:, None, None]
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x - mean), y)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted(
    "inf", "nan", "lr-too-high", "loss-diverges",
    at=("", "log_variance", "decoder", "decoder.0", "encoder", "encoder.0", "mean"),
    family=_FAMILY, on="VAE",
)  # fmt: skip
def exponential_of_a_log_variance(watch: Watch) -> None:
    """The log variance is not bounded; the first large step makes its exponential Inf."""
    model = VAE()
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
    watcher = watch(model)
    for x, _ in data.clusters(40):
        output, mean, log_variance = model(x)
        divergence = (mean**2 + log_variance.exp() - log_variance - 1).sum(-1).mean() / 2
        loss = functional.mse_loss(output, x) + divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class _Gamma(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x**0.45


@planted("nan", at=("", "1", "0"), family=_FAMILY, on="CNN")
def fractional_power_of_negative_values(watch: Watch) -> None:
    """A gamma correction of features: a negative base with a fractional exponent is NaN."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), _Gamma(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(watch, model, optimizer, data.images(40))


@planted("nan", at=("", "discriminator", "discriminator.*"), family=_FAMILY, on="GAN")
def gradient_penalty_at_zero(watch: Watch) -> None:
    """The penalty takes the square root of a squared gradient that starts at exactly 0."""
    model = GAN()
    last = cast(nn.Linear, model.discriminator[-1])
    nn.init.zeros_(last.weight)
    critic = torch.optim.Adam(model.discriminator.parameters(), lr=1e-3)
    with watch(model) as watcher:
        for real in data.ring(40):
            real.requires_grad_()
            score = model.discriminator(real)
            (slope,) = torch.autograd.grad(score.sum(), real, create_graph=True)
            penalty = (slope.pow(2).sum(-1).sqrt() - 1).pow(2).mean()
            fake = model.discriminator(model.fake(32).detach())
            loss = fake.mean() - score.mean() + 10 * penalty
            critic.zero_grad()
            loss.backward()
            critic.step()
            watcher.log("loss", loss)
