"""The second set of healthy trainings: unusual losses and models."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.diagnosis.cases import Watch, fit, functional, healthy
from benchmarks.diagnosis.data import clusters, images, pairs
from benchmarks.diagnosis.holdout.healthy_optimizers import unlogged_fit
from benchmarks.diagnosis.holdout.models import (
    DLRM,
    PreActNet,
    ResidualMLP,
    Seq2Seq,
)
from benchmarks.diagnosis.holdout.tasks import (
    clicks,
    in_epochs,
    next_token,
    reversals,
    reviews,
    unlogged,
)


class TiedAutoencoder(nn.Module):
    """The decoder uses the transposed weight of the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Linear(16, 6)
        self.bias = nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor) -> Any:
        return functional.linear(torch.tanh(self.enc(x)), self.enc.weight.T, self.bias)


@healthy(family="activations", on="autoencoder")
def decoder_is_the_transposed_encoder(watch: Watch) -> None:
    """One weight is used in both directions."""
    model = TiedAutoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    unlogged(watch, model, optimizer, ((x, x) for x, _ in pairs(80)), functional.mse_loss)


@healthy(family="optimizer", on="MLP")
def inner_steps_of_meta_learning(watch: Watch) -> None:
    """MAML: weights are adapted by `autograd.grad` with a graph, then the start is updated."""
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    watcher = watch(model)
    for _ in range(80):
        total: Any = 0.0
        for _ in range(2):
            scale = 0.5 + torch.rand(())
            x = 4 * torch.rand(20, 1) - 2
            y = scale * x.sin()
            names = dict(model.named_parameters())
            support = functional.mse_loss(model(x[:10]), y[:10])
            slopes = torch.autograd.grad(support, list(names.values()), create_graph=True)
            moved = {n: p - 0.05 * g for (n, p), g in zip(names.items(), slopes, strict=True)}
            hidden = torch.tanh(functional.linear(x[10:], moved["0.weight"], moved["0.bias"]))
            after = functional.linear(hidden, moved["2.weight"], moved["2.bias"])
            total = total + functional.mse_loss(after, y[10:]) / 2
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        watcher.log("loss", total)
    watcher.close()


@healthy(family="dynamics", on="CNN")
def mean_teacher_with_a_ramp(watch: Watch) -> None:
    """Agreement with an averaged model counts more and more; the total loss may rise."""
    model = PreActNet(norm=lambda width: nn.GroupNorm(4, width))
    teacher = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for step, (x, y) in enumerate(images(80)):
        logits = model(x + 0.1 * torch.randn_like(x))
        supervised = functional.cross_entropy(logits, y)
        agree = functional.mse_loss(logits.softmax(-1), teacher(x).softmax(-1))
        loss = supervised + 5 * min(1.0, step / 40) * agree
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, p in zip(teacher.parameters(), model.parameters(), strict=True):
                slow.lerp_(p, 0.05)
        watcher.log("loss", loss)
        watch.losses.append(float(supervised.detach()))
    watcher.close()


@healthy(family="dynamics", on="DLRM")
def rare_clicks_with_a_focal_loss(watch: Watch) -> None:
    """A focal loss: values and gradients are small from the start."""
    model = DLRM()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for dense, categories, clicked in clicks(90, batch=128):
        logits = model(dense, categories)
        bce = functional.binary_cross_entropy_with_logits(logits, clicked, reduction="none")
        loss = ((1 - (-bce).exp()) ** 2 * bce).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class Reverse(torch.autograd.Function):
    """The identity, with a negative gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return -0.3 * gradients[0]


class DomainNet(nn.Module):
    """Features that shall not tell the domain."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
        self.label = nn.Linear(32, 4)
        self.domain = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x: Tensor) -> tuple[Any, Any]:
        h = self.features(x)
        reverse: Any = Reverse.apply
        return self.label(h), self.domain(reverse(h))


@healthy(family="dynamics", on="MLP")
def domain_classifier_that_shall_fail(watch: Watch) -> None:
    """Gradient reversal: the loss of the domain stays at log 2 by design."""
    model = DomainNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for x, y in clusters(80):
        domain = torch.arange(32) % 2
        label, where = model(x + 0.5 * domain[:, None])
        first = functional.cross_entropy(label, y)
        second = functional.cross_entropy(where, domain)
        optimizer.zero_grad()
        (first + second).backward()
        optimizer.step()
        watcher.log("loss", first)
        watcher.log("domain", second)
    watcher.close()


class Equilibrium(nn.Module):
    """Iterates a cell without gradients, then once with them."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(16, 32)
        self.cell = nn.Linear(32, 32)
        nn.init.orthogonal_(self.cell.weight, gain=0.5)
        self.out = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Any:
        u = self.inp(x)
        z = torch.zeros_like(u)
        with torch.no_grad():
            for _ in range(10):
                z = torch.tanh(self.cell(z) + u)
        return self.out(torch.tanh(self.cell(z) + u))


@healthy(family="gradients", on="MLP")
def fixed_point_without_gradients(watch: Watch) -> None:
    """A deep equilibrium model: most calls of the cell are under no_grad."""
    model = Equilibrium()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, clusters(60))


@healthy(family="set-up", on="CNN")
def batch_norm_is_fixed_for_fine_tuning(watch: Watch) -> None:
    """Batch norms of a trained model are in eval mode, the rest is trained."""
    model = PreActNet()
    unlogged_fit(model, images(40), lr=2e-3)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=5e-3, momentum=0.9)
    fit(watch, model, optimizer, ((x.flip(-1), y) for x, y in images(60)))


class CosineHead(nn.Module):
    """Cosine similarity to a weight for each class, times 30."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 48), nn.PReLU(), nn.Linear(48, 16))
        self.weight = nn.Parameter(torch.randn(4, 16))

    def forward(self, x: Tensor) -> Any:
        return 30 * functional.normalize(self.body(x)) @ functional.normalize(self.weight).T


@healthy(family="activations", on="MLP")
def cosine_logits_times_thirty(watch: Watch) -> None:
    """ArcFace: the loss starts high, and the softmax is sharp by design."""
    model = CosineHead()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    fit(watch, model, optimizer, clusters(70))


class Agent(nn.Module):
    """An actor and a critic of state and action."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))


@healthy(family="dynamics", on="RL")
def actor_learns_through_the_critic(watch: Watch) -> None:
    """DDPG: the actor's backward also fills the critic's gradients, which are cleared later."""
    model = Agent()
    slow = copy.deepcopy(model).requires_grad_(False)
    opt_a = torch.optim.Adam(model.actor.parameters(), lr=3e-3)
    opt_c = torch.optim.Adam(model.critic.parameters(), lr=1e-2)
    watcher = watch(model)
    for _ in range(100):
        state = torch.randn(64, 4)
        with torch.no_grad():
            action = (model.actor(state) + 0.5 * torch.randn(64, 2)).clamp(-1, 1)
        reward = 1 - (action - torch.tanh(state[:, :2])).pow(2).sum(-1)
        loss = functional.mse_loss(model.critic(torch.cat([state, action], 1)).squeeze(-1), reward)
        opt_c.zero_grad()
        loss.backward()
        opt_c.step()
        chosen = model.actor(state)
        opt_a.zero_grad()
        (-model.critic(torch.cat([state, chosen], 1)).mean()).backward()
        opt_a.step()
        with torch.no_grad():
            for old, new in zip(slow.parameters(), model.parameters(), strict=True):
                old.lerp_(new, 0.05)
        watcher.log("critic", loss)
        watch.losses.append(float((chosen.detach() - torch.tanh(state[:, :2])).pow(2).mean()))
    watcher.close()


@healthy(family="gradients", on="seq2seq")
def two_backwards_before_a_step(watch: Watch) -> None:
    """Two losses have a backward each; the second one keeps the graph of the first."""
    model = Seq2Seq()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    watcher = watch(model)
    for source, target in reversals(80):
        optimizer.zero_grad()
        logits = model(source, target)
        loss = next_token(logits, target)
        loss.backward(retain_graph=True)
        (1e-3 * logits.pow(2).mean()).backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family="optimizer", on="CNN")
def sgd_with_a_rate_of_one(watch: Watch) -> None:
    """lr=1 without momentum suits this normalized network."""
    model = PreActNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 10)
    watcher = watch(model)
    for x, y in images(80, batch=32):
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        watcher.log("loss", loss)
    watcher.close()


class PackedLSTM(nn.Module):
    """A two-layer LSTM over packed sequences, with dropout between the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 24, 2, batch_first=True, dropout=0.2)
        self.fc = nn.Linear(24, 4)
        for name, p in self.lstm.named_parameters():
            if "weight_hh" in name:
                nn.init.orthogonal_(p)

    def forward(self, tokens: Tensor) -> Any:
        lengths = (tokens != 0).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embed(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        _, (h, _) = self.lstm(packed)
        return self.fc(h[-1])


@healthy(family="activations", on="LSTM")
def packed_sequences(watch: Watch) -> None:
    """Sequences of different lengths in a PackedSequence."""
    model = PackedLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    in_epochs(watch, model, optimizer, reviews, functional.cross_entropy)


class LayerScale(ResidualMLP):
    """Branches are multiplied by a learned vector that starts at 1e-4."""

    def __init__(self) -> None:
        super().__init__(depth=6)
        self.scales = nn.ParameterList(torch.full((32,), 1e-4) for _ in self.blocks)

    def forward(self, x: Tensor) -> Any:
        h = self.inp(x)
        for scale, block in zip(self.scales, self.blocks, strict=True):
            h = h + scale * block(h)
        return self.out(self.norm(h))


@healthy(family="activations", on="residual MLP")
def branches_scaled_by_a_ten_thousandth(watch: Watch) -> None:
    """LayerScale: gradients inside the branches are 1e-4 of the others at first."""
    model = LayerScale()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, clusters(60))
