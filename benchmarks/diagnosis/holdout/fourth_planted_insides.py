"""Fourth hold-out: activations, set-up of modules, and the course of the loss."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from benchmarks.diagnosis import data
from benchmarks.diagnosis.cases import Watch, fit, functional, planted
from benchmarks.diagnosis.holdout.fourth_models import SimSiam
from benchmarks.diagnosis.models import (
    GPT,
    VAE,
    Classifier,
    ConvNet,
    Mixture,
    ViT,
    mlp,
    plain_convnet,
)


@planted("dead-units", family="activations", on="CNN", at=("0", "1"))
def biases_of_minus_eight(watch: Watch) -> None:
    """The biases of the first convolution start at -8: no unit of it is ever active."""
    model = plain_convnet()
    nn.init.constant_(model[0].bias, -8)  # type: ignore[arg-type]
    fit(watch, model, torch.optim.Adam(model.parameters(), 2e-3), data.images(120))


@planted("saturated", family="activations", on="MLP", at=("1", "3", "0", "2"))
def tanh_of_large_sums(watch: Watch) -> None:
    """Weights of unit scale into 128 units of tanh: nearly all are at -1 or 1."""
    model = mlp(16, 128, 128, 4, activation=nn.Tanh)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=1.5)
    fit(watch, model, torch.optim.SGD(model.parameters(), 1e-3), data.clusters(120))


@planted("identical-units", family="activations", on="MLP", at=("0", "2", "1", "3"))
def all_weights_start_equal(watch: Watch) -> None:
    """Every hidden weight starts at 0.05: all units of a layer stay the same."""
    model = mlp(16, 32, 32, 4)
    for layer in list(model)[:-1]:
        if isinstance(layer, nn.Linear):
            nn.init.constant_(layer.weight, 0.05)
            nn.init.zeros_(layer.bias)
    nn.init.constant_(model[4].weight, 0.05)  # type: ignore[arg-type]
    fit(watch, model, torch.optim.Adam(model.parameters(), 3e-3), data.clusters(120))


@planted("attention-collapse", family="activations", on="GPT", at=("*attention*", "blocks*"))
def attention_without_scale(watch: Watch) -> None:
    """Queries and keys are 12 times too large: each token looks at one other only."""
    model = GPT(width=64, heads=1)
    for block in model.blocks:
        with torch.no_grad():
            block.attention.query.weight.mul_(12)  # type: ignore[union-attr, operator]
            block.attention.key.weight.mul_(12)  # type: ignore[union-attr, operator]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with watch(model) as watcher:
        for x, y in data.sentences(100):
            loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("router-collapse", family="activations", on="mixture", at=("router", "experts*", ""))
def one_expert_takes_all(watch: Watch) -> None:
    """The router starts with a bias to one expert and nothing balances the load."""
    model = Mixture()
    with torch.no_grad():
        model.router.bias[1] += 12
    fit(watch, model, torch.optim.Adam(model.parameters(), 2e-3), data.clusters(120))


@planted("dropout-drops-all", family="activations", on="ViT", at=("*dropout*", "layers*"))
def keep_probability_as_dropout(watch: Watch) -> None:
    """A keep probability of 1.0 was given as dropout: the branches drop everything."""
    model = ViT()
    for layer in model.layers:
        layer.dropout1.p = layer.dropout2.p = 1.0  # type: ignore[union-attr]
    fit(watch, model, torch.optim.AdamW(model.parameters(), 2e-3), data.images(60))


@planted("train-eval-gap", family="set-up", on="MLP")
def functional_dropout_never_ends(watch: Watch) -> None:
    """functional.dropout without training=self.training also drops in validation."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(16, 64), nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.fc2(functional.dropout(self.fc1(x).relu(), 0.5)))

    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(data.clusters(120)):
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
            if step % 20 == 19:
                model.eval()
                with torch.no_grad():
                    watcher.log("validation", functional.cross_entropy(model(x), y))
                model.train()


@planted(
    "representation-collapse",
    "constant-output",
    family="activations",
    on="SimSiam",
    at=("encoder*", "predictor*", ""),
)
def views_agree_on_nothing(watch: Watch) -> None:
    """Two views are pulled together and nothing keeps them apart: all become the same."""
    model = SimSiam()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    with watch(model) as watcher:
        for x, _ in data.clusters(160):
            one = model.predictor(model.encoder(x + 0.1 * torch.randn_like(x)))
            two = model.encoder(x + 0.1 * torch.randn_like(x))
            loss = functional.mse_loss(one, two) + functional.mse_loss(one, one.roll(1, 0))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted(
    "representation-collapse",
    "constant-output",
    family="activations",
    on="VAE",
    at=("mean", "log_variance", "", "decoder*"),
)
def posterior_collapses(watch: Watch) -> None:
    """The KL term weighs 50 times the reconstruction: the code says nothing of the input."""
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    with watch(model) as watcher:
        for x, _ in data.clusters(160):
            again, mean, log_variance = model(x)
            kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(-1).mean()
            loss = functional.mse_loss(again, x) + 50 * kl
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("growing-activations", family="activations", on="residual MLP", at=("blocks*", ""))
def residual_stream_grows(watch: Watch) -> None:
    """Sixteen residual blocks without a norm, each with a gain of about 2."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(mlp(16, 32, 16) for _ in range(16))
            self.head = nn.Linear(16, 4)
            for block in self.blocks:
                nn.init.normal_(block[2].weight, std=0.35)  # type: ignore[index]
                nn.init.normal_(block[0].weight, std=0.35)  # type: ignore[index]

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = x + block(x)
            return cast(Tensor, self.head(x))

    model = Residual()
    fit(watch, model, torch.optim.Adam(model.parameters(), 1e-4), data.clusters(80))


@planted("eval-mode", family="set-up", on="CNN", since=30)
def train_forgotten_after_validation(watch: Watch) -> None:
    """After the first validation at step 30, model.train() is not called again."""
    model = ConvNet()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(data.images(120)):
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
            if step == 29:
                model.eval()
                with torch.no_grad():
                    watcher.log("validation", functional.cross_entropy(model(x), y))


@planted("tiny-batch-norm", family="set-up", on="MLP", at=("1", "4"))
def batch_norm_of_two(watch: Watch) -> None:
    """Batches of two: the statistics of batch norm are those of two samples."""
    model = nn.Sequential(
        nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(),
        nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4),
    )  # fmt: skip
    fit(watch, model, torch.optim.Adam(model.parameters(), 2e-3), data.clusters(140, batch=2))


@planted("module-never-called", family="set-up", on="transformer", at=("norm2",))
def first_norm_used_twice(watch: Watch) -> None:
    """norm1 is used in both places, and norm2 is never called."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
            self.mix, self.mlp = nn.Linear(16, 16), mlp(16, 32, 16)
            self.head = nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.mix(self.norm1(x))
            x = x + self.mlp(self.norm1(x))
            return cast(Tensor, self.head(x))

    model = Layer()
    fit(watch, model, torch.optim.Adam(model.parameters(), 2e-3), data.clusters(120))


@planted("shared-module", family="set-up", on="transformer", at=("layers*",))
def layers_times_four(watch: Watch) -> None:
    """`[layer] * 4` holds the same layer four times."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(16, 32)
            layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
            self.layers = nn.ModuleList([layer] * 4)
            self.head = nn.Linear(32, 16)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embedding(tokens)
            for layer in self.layers:
                x = layer(x)
            return cast(Tensor, self.head(x).transpose(1, 2))

    model = Encoder()
    fit(watch, model, torch.optim.AdamW(model.parameters(), 1e-3), data.sentences(60))


@planted("inputs-not-normalized", family="set-up", on="CNN", at=("", "0"))
def bytes_as_pictures(watch: Watch) -> None:
    """Pixels of 0 to 255 go in as they are."""
    model = plain_convnet()
    batches = (((x * 40 + 128).clamp(0, 255), y) for x, y in data.images(120))
    fit(watch, model, torch.optim.SGD(model.parameters(), 0.01), batches)


@planted("constant-target", family="set-up", on="MLP")
def target_is_always_the_same(watch: Watch) -> None:
    """The column of the target was read wrongly: each target is class 2."""
    model = Classifier()
    batches = ((x, torch.full_like(y, 2)) for x, y in data.clusters(120))
    fit(watch, model, torch.optim.Adam(model.parameters(), 2e-3), batches)


@planted("loss-spike", "inputs-not-normalized", family="dynamics", on="MLP", since=60)
def one_batch_is_corrupt(watch: Watch) -> None:
    """The batch of step 60 is 300 times too large, and the loss jumps."""
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    batches = (
        (x * (300 if step == 60 else 1), y) for step, (x, y) in enumerate(data.clusters(140))
    )
    fit(watch, model, optimizer, batches)


@planted("lr-too-high", "loss-diverges", family="dynamics", on="MLP")
def momentum_overshoots(watch: Watch) -> None:
    """SGD at 0.5 with momentum 0.99 on a regression: the loss grows without end."""
    model = mlp(8, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.99)
    fit(watch, model, optimizer, data.curve(100), functional.mse_loss)


@planted("loss-plateau", family="dynamics", on="CNN")
def labels_of_other_samples(watch: Watch) -> None:
    """Inputs were shuffled and labels were not: nothing is to be learnt, and the loss stays."""
    model = ConvNet()
    draw = torch.Generator().manual_seed(7)
    batches = ((x, y[torch.randperm(len(y), generator=draw)]) for x, y in data.images(200))
    fit(watch, model, torch.optim.Adam(model.parameters(), 1e-3), batches)


@planted("loss-diverges", family="dynamics", on="MLP")
def loss_is_maximized(watch: Watch) -> None:
    """The optimizer was made with maximize=True, and the loss climbs."""
    model = Classifier()
    fit(watch, model, torch.optim.Adam(model.parameters(), 3e-3, maximize=True), data.clusters(120))


@planted("zero-input", family="set-up", on="MLP", at=("", "0"))
def features_are_all_zero(watch: Watch) -> None:
    """The loader fills a buffer after it was given away: inputs are all zero."""
    model = mlp(16, 32, 4)
    batches = ((torch.zeros_like(x), y) for x, y in data.clusters(120))
    fit(watch, model, torch.optim.Adam(model.parameters(), 2e-3), batches)


@planted("vanishing-gradient", family="gradients", on="MLP", at=("0", "2", "4", "6", "", "*"))
def twelve_sigmoids(watch: Watch) -> None:
    """Twelve layers of sigmoids: the gradient of the first is a millionth of the last."""
    model = mlp(16, *[24] * 12, 4, activation=nn.Sigmoid)
    fit(watch, model, torch.optim.SGD(model.parameters(), 0.05), data.clusters(120))
