"""Trainings in which gradients do not arrive, vanish, explode, pile up or are cut off."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.diagnosis.cases import Watch, fit, functional, planted
from benchmarks.diagnosis.data import clusters, curve, images, pairs, ring, sentences, waves
from benchmarks.diagnosis.holdout.models import (
    ActorCritic,
    ClsViT,
    ConvVAE,
    GraphNet,
    Llama,
    MultiTask,
    PreActNet,
    ResidualMLP,
)
from benchmarks.diagnosis.holdout.tasks import bandit, graphs, next_token

FAMILY = "gradients"


@planted("no-gradient", at=("critic",), family=FAMILY, on="RL")
def critic_is_detached_in_its_own_loss(watch: Watch) -> None:
    """The value is detached for the advantage, and the same tensor is used for its loss."""
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for state, rewards in bandit(60):
        logits, value = model(state)
        value = value.detach()
        policy: Any = torch.distributions.Categorical(logits=logits)
        action = policy.sample()
        reward = rewards.gather(1, action[:, None]).squeeze(1)
        advantage = reward - value
        loss = -(advantage * policy.log_prob(action)).mean() + 0.5 * advantage.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class HardQuantizer(nn.Module):
    """An autoencoder whose code is replaced by the nearest vector of a codebook."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        self.codebook = nn.Embedding(32, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Any:
        code = self.encoder(x)
        nearest = torch.cdist(code, self.codebook.weight).argmin(-1)
        return self.decoder(self.codebook(nearest))


@planted("no-gradient", at=("encoder", "encoder.*"), family=FAMILY, on="autoencoder")
def codebook_without_straight_through(watch: Watch) -> None:
    """argmin has no gradient: the encoder does not learn."""
    model = HardQuantizer()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for x, _ in pairs(60):
        loss = functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class Rewrapped(nn.Module):
    """Makes a new tensor of what its encoder computes."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(2, 16, batch_first=True)
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Any:
        out, _ = self.rnn(x)
        last = [row[-1].tolist() for row in out]
        return self.head(torch.tensor(last))


@planted("no-gradient", at=("rnn",), family=FAMILY, on="GRU")
def features_are_wrapped_in_a_new_tensor(watch: Watch) -> None:
    """`torch.tensor(list)` makes a tensor without history: the GRU gets no gradient."""
    model = Rewrapped()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    fit(watch, model, optimizer, waves(60), functional.mse_loss)


class Extractor(ClsViT):
    """A ViT whose features were computed for a cache once."""

    @torch.no_grad()
    def features(self, images: Tensor) -> Any:
        return super().features(images)


@planted(
    "no-gradient",
    at=("", "encoder", "encoder.*", "proj", "cls_token", "pos_embed"),
    family=FAMILY,
    on="ViT",
)
def features_are_still_under_no_grad(watch: Watch) -> None:
    """A decorator left on `features`: only the head gets a gradient, the optimizer has all."""
    model = Extractor()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fit(watch, model, optimizer, images(60))


class RoundedCode(nn.Module):
    """An autoencoder with a code of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 6))
        self.dec = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 16))

    def forward(self, x: Tensor) -> Any:
        return self.dec(torch.round(4 * self.enc(x)) / 4)


@planted("no-gradient", "vanishing-gradient", at=("enc", "enc.*"), family=FAMILY, on="autoencoder")
def code_is_rounded(watch: Watch) -> None:
    """The derivative of round is 0 everywhere: the encoder gets gradients of exactly 0."""
    model = RoundedCode()
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
    watcher = watch(model)
    for x, _ in pairs(60):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("no-gradient", at=("score",), family=FAMILY, on="multi-task")
def second_loss_is_not_added(watch: Watch) -> None:
    """The loss of the second head is computed and logged, and never part of what is minimized."""
    model = MultiTask()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    watcher = watch(model)
    for x, y in clusters(60):
        label, score = model(x)
        loss = functional.cross_entropy(label, y)
        loss_score = functional.mse_loss(score, y.float() / 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
        watcher.log("loss_score", loss_score)
    watcher.close()


class Thresholded(nn.Module):
    """Keeps the nodes with a positive score."""

    def __init__(self) -> None:
        super().__init__()
        self.select = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> Any:
        keep = (self.select(x) > 0).float()
        return self.net(x * keep)


@planted("no-gradient", at=("select", "select.*"), family=FAMILY, on="MLP")
def learned_mask_by_a_comparison(watch: Watch) -> None:
    """A comparison has no gradient: the part that selects features is never trained."""
    model = Thresholded()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, clusters(60))


@planted("vanishing-gradient", "saturated", at=("", "*"), family=FAMILY, on="MLP")
def fourteen_sigmoid_layers(watch: Watch) -> None:
    """Sigmoids multiply the gradient by at most 1/4 each: nothing reaches the first layers."""
    layers: list[nn.Module] = [nn.Linear(16, 32)]
    for _ in range(13):
        layers += [nn.Sigmoid(), nn.Linear(32, 32)]
    model = nn.Sequential(*layers, nn.Sigmoid(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    fit(watch, model, optimizer, clusters(60))


@planted("vanishing-gradient", at=("", "*"), family=FAMILY, on="CNN")
def small_weights_in_a_deep_convnet(watch: Watch) -> None:
    """Every convolution starts with normal(0, 0.01): signal and gradient shrink at each layer."""
    layers: list[nn.Module] = []
    for into in (1, *[12] * 9):
        layers += [nn.Conv2d(into, 12, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4))
    for module in model:
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.constant_(module.bias, 0.0)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    fit(watch, model, optimizer, images(40))


@planted("exploding-gradient", "growing-activations", at=("", "*"), family=FAMILY, on="MLP")
def standard_normal_weights_in_a_deep_network(watch: Watch) -> None:
    """`torch.randn` as the weights of ten layers of 48: values grow by five at each layer."""
    sizes = [8, *[48] * 10]
    layers: list[nn.Module] = []
    for into, out in pairwise(sizes):
        layers += [nn.Linear(into, out), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(48, 1))
    for module in model:
        if isinstance(module, nn.Linear):
            module.weight.data = torch.randn(module.weight.shape)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    fit(watch, model, optimizer, curve(50), functional.mse_loss)


class LinearRecurrence(nn.Module):
    """A recurrent cell without a nonlinearity."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(2, 16)
        self.hidden = nn.Linear(16, 16, bias=False)
        self.out = nn.Linear(16, 1)
        nn.init.orthogonal_(self.hidden.weight, gain=1.6)

    def forward(self, x: Tensor) -> Any:
        h = torch.zeros(len(x), 16)
        for t in range(x.shape[1]):
            h = self.hidden(h) + self.inp(x[:, t])
        return self.out(h)


@planted(
    "exploding-gradient",
    "growing-activations",
    at=("", "hidden", "inp", "out"),
    family=FAMILY,
    on="RNN",
)
def recurrence_with_a_gain_above_one(watch: Watch) -> None:
    """A recurrent weight with gain 1.6 over forty steps: 1.6 ** 40."""
    model = LinearRecurrence()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(watch, model, optimizer, waves(50, length=40), functional.mse_loss)


@planted("gradient-accumulates", at=("",), family=FAMILY, on="GPT")
def language_model_without_zero_grad(watch: Watch) -> None:
    """The loop has clipping, a scheduler and no zero_grad."""
    model = Llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    with watch(model) as watcher:
        for tokens, targets in sentences(60):
            loss = next_token(model(tokens), targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            watcher.log("loss", loss)


class TwoNets(nn.Module):
    """A generator and a discriminator with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
        self.d = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))


@planted("gradient-accumulates", at=("", "d", "d.*"), family=FAMILY, on="GAN")
def discriminator_is_never_cleared(watch: Watch) -> None:
    """Only the generator's optimizer clears gradients; those of the discriminator pile up."""
    model = TwoNets()
    opt_g = torch.optim.Adam(model.g.parameters(), lr=1e-3, betas=(0.5, 0.9))
    opt_d = torch.optim.Adam(model.d.parameters(), lr=1e-3, betas=(0.5, 0.9))
    watcher = watch(model)
    for real in ring(60):
        fake = model.g(torch.randn(32, 4))
        loss = functional.softplus(-model.d(real)).mean()
        loss = loss + functional.softplus(model.d(fake.detach())).mean()
        loss.backward()
        opt_d.step()
        opt_g.zero_grad()
        loss_g = functional.softplus(-model.d(fake)).mean()
        loss_g.backward()
        opt_g.step()
        watcher.log("loss", loss)
        watcher.log("loss_g", loss_g)
    watcher.close()


@planted("gradient-accumulates", at=("",), family=FAMILY, on="CNN")
def gradients_are_cleared_once_an_epoch(watch: Watch) -> None:
    """zero_grad stands in the outer loop: gradients pile up over each epoch."""
    model = PreActNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    watcher = watch(model)
    for _ in range(4):
        optimizer.zero_grad()
        for x, y in images(15):
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
    watcher.close()


@planted("gradient-cleared", "no-gradient", at=("",), family=FAMILY, on="GNN")
def zero_grad_stands_after_the_backward(watch: Watch) -> None:
    """The gradients are cleared between the backward and the step."""
    model = GraphNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for x, edges, labels in graphs(50):
        loss = functional.cross_entropy(model(x, edges), labels)
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("gradient-cleared", at=("",), family=FAMILY, on="residual MLP")
def micro_batches_clear_each_other(watch: Watch) -> None:
    """Gradients shall accumulate over four batches, and are cleared before each of them."""
    model = ResidualMLP()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watcher = watch(model)
    for number, (x, y) in enumerate(clusters(160, batch=8), 1):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y) / 4
        loss.backward()
        if number % 4 == 0:
            optimizer.step()
            watcher.log("loss", 4 * loss)
    watcher.close()


@planted("clipped-to-nothing", "lr-too-low", at=("",), family=FAMILY, on="CNN")
def norm_is_clipped_to_a_millionth(watch: Watch) -> None:
    """max_norm=1e-6 with SGD: nothing is left of the gradient."""
    model = PreActNet(norm=lambda width: nn.GroupNorm(4, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    watcher = watch(model)
    for x, y in images(50):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1e-6)
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("clipped-to-nothing", "lr-too-low", at=("",), family=FAMILY, on="VAE")
def clipping_by_hand_divides_twice(watch: Watch) -> None:
    """Gradients are scaled by 1e-3 / norm² instead of limited by norm: SGD hardly moves."""
    model = ConvVAE()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    watcher = watch(model)
    for x, _ in images(50):
        reconstruction, mu, logvar = model(x)
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(-1).mean()
        loss = functional.mse_loss(reconstruction, x, reduction="sum") / len(x) + kl
        optimizer.zero_grad()
        loss.backward()
        norm = sum(float(p.grad.pow(2).sum()) for p in model.parameters() if p.grad is not None)
        for p in model.parameters():
            if p.grad is not None:
                p.grad.mul_(1e-3 / norm)
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class Frozen(nn.Module):
    """Predicts with a prototype of each class that is read as data."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 8)
        self.prototypes = nn.Linear(8, 4, bias=False)

    def forward(self, x: Tensor) -> Any:
        return -torch.cdist(self.embed(x), self.prototypes(torch.eye(8)).T.data)


@planted("no-gradient", at=("prototypes",), family=FAMILY, on="MLP")
def prototypes_are_read_by_data(watch: Watch) -> None:
    """`.data` cuts the prototypes off: the optimizer has them, no gradient reaches them."""
    model = Frozen()
    parameters = chain(model.embed.parameters(), model.prototypes.parameters())
    optimizer = torch.optim.Adam(parameters, lr=3e-3)
    watcher = watch(model)
    for x, y in clusters(50):
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    watch.losses.append(float(loss))
    watcher.close()
