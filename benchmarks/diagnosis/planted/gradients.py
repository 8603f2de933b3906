"""Gradients that do not arrive, vanish, explode, accumulate or are clipped away."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.diagnosis import data
from benchmarks.diagnosis.cases import Watch, fit, functional, planted
from benchmarks.diagnosis.models import (
    GAN,
    GPT,
    Autoencoder,
    Classifier,
    ConvNet,
    Mixture,
    ResNet,
    SequenceLSTM,
    TwoTower,
    ViT,
    mlp,
)

_FAMILY = "gradients"


@planted("gradient-accumulates", family=_FAMILY)
def zero_grad_missing_mlp(watch: Watch) -> None:
    """`zero_grad` is never called: gradients add up, and their norm grows with the steps."""
    model = mlp(8, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    watcher = watch(model)
    for x, y in data.curve(80):
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("gradient-accumulates", family=_FAMILY, on="GPT")
def zero_grad_missing_gpt(watch: Watch) -> None:
    """The same with AdamW, whose updates keep their size, so that the loss looks plausible."""
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with watch(model) as watcher:
        for x, y in data.sentences(60):
            loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss.item())


@planted("gradient-accumulates", family=_FAMILY, on="CNN")
def zero_grad_once_before_the_loop(watch: Watch) -> None:
    """`zero_grad` is called once, before the loop, instead of in it."""
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    watcher = watch(model)
    optimizer.zero_grad()
    for x, y in data.images(60):
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted(
    "gradient-accumulates", at=("", "discriminator", "discriminator.*"), family=_FAMILY, on="GAN"
)
def discriminator_gradients_never_cleared(watch: Watch) -> None:
    """The generator's loss also fills the gradients of the discriminator, which nobody clears."""
    model = GAN()
    for_g = torch.optim.Adam(model.generator.parameters(), lr=1e-3)
    for_d = torch.optim.Adam(model.discriminator.parameters(), lr=1e-3)
    criterion = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
    with watch(model) as watcher:
        for real in data.ring(60):
            fake = model.fake(32)
            d_loss = criterion(model.discriminator(real), ones)
            d_loss = d_loss + criterion(model.discriminator(fake.detach()), zeros)
            d_loss.backward()
            for_d.step()
            for_g.zero_grad()
            g_loss = criterion(model.discriminator(fake), ones)
            g_loss.backward()
            for_g.step()
            watcher.log("loss", d_loss)


class _Detached(Classifier):
    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.backbone(x))
        return cast(Tensor, self.head(hidden.detach()))


@planted("no-gradient", at=("backbone", "backbone.*"), family=_FAMILY)
def detach_before_the_head(watch: Watch) -> None:
    """Features are detached before the head: the backbone is in the optimizer and never learns."""
    model = _Detached()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit(watch, model, optimizer, data.clusters(60))


class _NoGradViT(ViT):
    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x)
        return cast(Tensor, self.head(self.norm(x).mean(1)))


@planted("no-gradient", at=("patches", "positions", ""), family=_FAMILY, on="ViT")
def no_grad_around_the_patches(watch: Watch) -> None:
    """The patch embedding runs under no_grad, although it is to be trained."""
    model = _NoGradViT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fit(watch, model, optimizer, data.images(50))


class _DataLSTM(SequenceLSTM):
    def forward(self, tokens: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embedding(tokens))
        return cast(Tensor, self.head(outputs.data))


@planted("no-gradient", at=("lstm", "lstm.*", "embedding"), family=_FAMILY, on="LSTM")
def data_of_the_lstm_output(watch: Watch) -> None:
    """`outputs.data` leaves the graph: neither the LSTM nor the embedding learns."""
    model = _DataLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for x, y in data.sentences(50):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x).transpose(1, 2), y)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class _Codebook(Autoencoder):
    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Embedding(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        nearest = torch.cdist(self.encoder(x), self.codes.weight).argmin(-1)
        return cast(Tensor, self.decoder(self.codes(nearest)))


@planted("no-gradient", at=("encoder", "encoder.*"), family=_FAMILY, on="autoencoder")
def argmin_without_straight_through(watch: Watch) -> None:
    """The code is chosen by argmin, which has no gradient, and no straight-through estimator."""
    model = _Codebook()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with watch(model) as watcher:
        for x, _ in data.clusters(60):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), x)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


class _ItemScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(16, 32, 4)
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.net(x) / self.temperature.item())


@planted("no-gradient", at=("temperature", ""), family=_FAMILY)
def item_of_a_parameter(watch: Watch) -> None:
    """`temperature.item()` is a Python number: the parameter gets no gradient."""
    model = _ItemScale()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit(watch, model, optimizer, data.clusters(60))


class _Rounded(Autoencoder):
    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.decoder(torch.round(3 * self.encoder(x).tanh())))


@planted(
    "no-gradient",
    "vanishing-gradient",
    at=("encoder", "encoder.*"),
    family=_FAMILY,
    on="autoencoder",
)
def rounding_in_the_middle(watch: Watch) -> None:
    """`torch.round` has gradient 0 everywhere: gradients exist before it, and are all zero."""
    model = _Rounded()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with watch(model) as watcher:
        for x, _ in data.clusters(60):
            loss = functional.mse_loss(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


class _NumpyTower(TwoTower):
    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        features = self.right(right).detach().cpu().numpy()
        return self.left(left), torch.from_numpy(features)


@planted("no-gradient", at=("right", "right.*"), family=_FAMILY, on="two-tower")
def one_tower_through_numpy(watch: Watch) -> None:
    """The right tower's output goes through numpy: only the left tower is trained."""
    model = _NumpyTower()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for left, right in data.pairs(60):
        a, b = model(left, right)
        scores = functional.normalize(a) @ functional.normalize(b).T / 0.1
        loss = functional.cross_entropy(scores, torch.arange(len(scores)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class _TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = mlp(16, 32, 32)
        self.head = nn.Linear(32, 4)
        self.box = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = functional.relu(self.backbone(x))
        return self.head(hidden), self.box(hidden)


@planted("no-gradient", at=("box",), family=_FAMILY)
def second_head_not_in_the_loss(watch: Watch) -> None:
    """The box head is called and optimized, and its loss was forgotten in the sum."""
    model = _TwoHeads()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model) as watcher:
        for x, y in data.clusters(60):
            classes, boxes = model(x)
            class_loss = functional.cross_entropy(classes, y)
            box_loss = functional.l1_loss(boxes, x[:, :2])
            watcher.log("box loss", box_loss)
            optimizer.zero_grad()
            class_loss.backward()
            optimizer.step()
            watcher.log("loss", class_loss)


class _HardRouter(Mixture):
    def forward(self, x: Tensor) -> Tensor:
        _, choice = self.route(x)
        weights = functional.one_hot(choice, len(self.experts)).float()
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        return cast(Tensor, self.head(x + (weights[..., None] * outputs).sum(1)))


@planted("no-gradient", at=("router",), family=_FAMILY, on="mixture")
def router_behind_an_argmax(watch: Watch) -> None:
    """A one-hot argmax chooses the expert, and no gate weights it: the router cannot learn."""
    model = _HardRouter()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, data.clusters(60))


@planted("no-gradient", at=("generator", "generator.*"), family=_FAMILY, on="GAN")
def fake_detached_for_the_generator(watch: Watch) -> None:
    """The detached sample of the discriminator's step is used again for the generator's."""
    model = GAN()
    for_g = torch.optim.Adam(model.generator.parameters(), lr=1e-3)
    for_d = torch.optim.Adam(model.discriminator.parameters(), lr=1e-3)
    criterion = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
    watcher = watch(model)
    for real in data.ring(60):
        fake = model.fake(32).detach()
        for_d.zero_grad()
        d_loss = criterion(model.discriminator(real), ones)
        d_loss = d_loss + criterion(model.discriminator(fake), zeros)
        d_loss.backward()
        for_d.step()
        for_g.zero_grad()
        g_loss = criterion(model.discriminator(fake), ones)
        g_loss.backward()
        for_g.step()
        watcher.log("loss", g_loss)
    watcher.close()


@planted("no-gradient", "loss-plateau", family=_FAMILY, on="ResNet")
def loss_wrapped_in_a_new_tensor(watch: Watch) -> None:
    """`torch.tensor(loss, requires_grad=True)` is a leaf: its backward reaches no parameter."""
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watcher:
        for x, y in data.images(40):
            optimizer.zero_grad()
            losses = [functional.cross_entropy(model(x), y).item()]
            loss: Any = torch.tensor(sum(losses) / len(losses), requires_grad=True)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


class _Checkpointed(Classifier):
    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.backbone, x, use_reentrant=True)
        return cast(Tensor, self.head(functional.relu(cast(Tensor, hidden))))


@planted("no-gradient", at=("backbone", "backbone.*"), family=_FAMILY)
def reentrant_checkpoint_without_input_gradient(watch: Watch) -> None:
    """Reentrant checkpointing needs an input that requires a gradient; the backbone gets none."""
    model = _Checkpointed()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit(watch, model, optimizer, data.clusters(50))


class _FunctionalEmbedding(GPT):
    def embed(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1])
        looked_up = functional.embedding(tokens, self.tokens.weight.data)
        return cast(Tensor, looked_up + self.positions(places))


@planted("no-gradient", "module-never-called", at=("tokens",), family=_FAMILY, on="GPT")
def embedding_looked_up_in_data(watch: Watch) -> None:
    """The lookup reads `tokens.weight.data`: the embedding keeps its random start."""
    model = _FunctionalEmbedding()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for x, y in data.sentences(50):
        loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("vanishing-gradient", at=("", "0", "2", "4", "6"), family=_FAMILY)
def deep_sigmoid_network(watch: Watch) -> None:
    """Each of ten sigmoids shrinks the gradient at least fourfold: the first layers stand still."""
    model = mlp(16, *[32] * 10, 4, activation=nn.Sigmoid)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fit(watch, model, optimizer, data.clusters(60))


@planted("vanishing-gradient", "dead-units", at=("", "0", "2", "4", "6", "8"), family=_FAMILY)
def deep_network_with_tiny_weights(watch: Watch) -> None:
    """Weights start with a standard deviation of 0.01: signal and gradient vanish along depth."""
    model = mlp(16, *[32] * 9, 4)
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fit(watch, model, optimizer, data.clusters(60))


@planted(
    "vanishing-gradient", "saturated", at=("", "0", "3", "6", "1", "4"), family=_FAMILY, on="CNN"
)
def deep_convolutions_with_small_kernels(watch: Watch) -> None:
    """Eight small convolutions with tanh, without norm or skip: no gradient gets back."""
    layers: list[nn.Module] = []
    for number in range(8):
        conv = nn.Conv2d(1 if number == 0 else 8, 8, 3, padding=1)
        nn.init.normal_(conv.weight, std=0.05)
        layers += [conv, nn.Tanh(), nn.AvgPool2d(1)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    fit(watch, model, optimizer, data.images(50))


@planted(
    "exploding-gradient", "growing-activations", "lr-too-high", "loss-diverges",
    at=("", "0", "1", "2", "3", "4", "5", "6", "7"), family=_FAMILY,
)  # fmt: skip
def deep_linear_network_with_large_weights(watch: Watch) -> None:
    """Each of eight layers multiplies signal and gradient by about four."""
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(8)), nn.Linear(16, 4))
    for module in model:
        nn.init.normal_(cast(nn.Linear, module).weight, std=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    fit(watch, model, optimizer, data.clusters(50))


class _LongRNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(2, 16, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.rnn(x)
        return cast(Tensor, self.head(outputs[:, -1]))


@planted(
    "exploding-gradient", "growing-activations", "lr-too-high", "loss-diverges", "nan", "inf",
    at=("", "rnn", "rnn.*", "head"), family=_FAMILY, on="RNN",
)  # fmt: skip
def recurrent_network_that_explodes(watch: Watch) -> None:
    """The recurrent weight is larger than the identity: 40 time steps blow the gradient up."""
    model = _LongRNN()
    with torch.no_grad():
        dict(model.rnn.named_parameters())["weight_hh_l0"].copy_(
            1.3 * torch.eye(16) + 0.05 * torch.randn(16, 16)
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    fit(watch, model, optimizer, data.waves(40, length=40), functional.mse_loss)


@planted("clipped-to-nothing", "lr-too-low", family=_FAMILY)
def gradients_clipped_to_a_millionth(watch: Watch) -> None:
    """`clip_grad_norm_` with 1e-6: SGD is left with updates of nothing at every step."""
    model = mlp(16, 32, 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = watch(model)
    for x, y in data.clusters(60):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1e-6)
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("clipped-to-nothing", "lr-too-low", family=_FAMILY, on="LSTM")
def gradient_values_clipped_to_nothing(watch: Watch) -> None:
    """`clip_grad_value_` with 1e-7 cuts every value of every gradient off."""
    model = SequenceLSTM()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    with watch(model) as watcher:
        for x, y in data.sentences(60):
            loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_value_(model.parameters(), 1e-7)
            optimizer.step()
            watcher.log("loss", loss)
