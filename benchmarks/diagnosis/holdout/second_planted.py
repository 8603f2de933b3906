"""The second set of planted mistakes: numbers, gradients and optimizer."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.diagnosis.cases import Watch, fit, functional, planted
from benchmarks.diagnosis.data import clusters, images, ring, sentences, waves
from benchmarks.diagnosis.holdout.models import (
    ActorCritic,
    ClsViT,
    GraphNet,
    Llama,
    PreActNet,
    Seq2Seq,
    UNet,
)
from benchmarks.diagnosis.holdout.tasks import (
    bandit,
    blobs,
    graphs,
    next_token,
    reversals,
    table,
    unlogged,
)


@planted("nan", "inf", at=("",), family="numbers", on="CNN")
def divergence_with_a_probability_that_underflows(watch: Watch) -> None:
    """log(p / q) with a q that is 0 in float32, because its logits are far apart."""
    model = PreActNet(norm=lambda width: nn.GroupNorm(4, width))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    watcher = watch(model)
    for x, y in images(40):
        q = (200 * model(x)).softmax(-1)
        p = 0.9 * functional.one_hot(y, 4) + 0.025
        loss = (p * (p / q).log()).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("nan", at=("", "trunk", "trunk.*"), family="numbers", on="RL", since=36)
def deviation_of_a_batch_of_one(watch: Watch) -> None:
    """The last batch of an epoch has one sample; its standard deviation is NaN."""
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    # Once the weights are NaN, drawing an action raises and ends the training.
    with contextlib.suppress(ValueError, RuntimeError), watch(model) as watcher:
        for step, (state, rewards) in enumerate(bandit(60)):
            size = 1 if step == 36 else len(state)
            logits, value = model(state[:size])
            policy: Any = torch.distributions.Categorical(logits=logits)
            action = policy.sample()
            reward = rewards[:size].gather(1, action[:, None]).squeeze(1)
            advantage = reward - value.detach()
            advantage = (advantage - advantage.mean()) / advantage.std()
            loss = -(advantage * policy.log_prob(action)).mean()
            loss = loss + functional.mse_loss(value, reward)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


class HandNorm(nn.Module):
    """A norm over the features without an epsilon."""

    def forward(self, x: Tensor) -> Any:
        return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)


@planted("nan", at=("", "norm", "[0-9]", "first", "second"), family="numbers", on="MLP", since=21)
def norm_without_an_epsilon(watch: Watch) -> None:
    """A blank row has a standard deviation of 0 in a norm written by hand."""
    model = nn.Sequential()
    model.add_module("norm", HandNorm())
    model.add_module("first", nn.Linear(16, 32))
    model.add_module("act", nn.ReLU())
    model.add_module("second", nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    watcher = watch(model)
    for step, (x, y) in enumerate(clusters(50)):
        x[2] *= float(step < 21)
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class HardChoice(nn.Module):
    """Chooses one of several experts by a hard one-hot vector."""

    def __init__(self) -> None:
        super().__init__()
        self.chooser = nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 4))
        self.options = nn.Linear(16, 4 * 8)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        hard = functional.one_hot(self.chooser(x).argmax(-1), 4).float()
        return self.fc((hard[..., None] * self.options(x).unflatten(-1, (4, 8))).sum(1))


@planted("no-gradient", at=("chooser", "chooser.*"), family="gradients", on="mixture")
def choice_by_argmax(watch: Watch) -> None:
    """A one-hot vector of an argmax: the part that chooses gets no gradient."""
    model = HardChoice()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    unlogged(watch, model, optimizer, clusters(60), functional.cross_entropy)


class CutUNet(UNet):
    """Detaches what the way down computes."""

    def forward(self, x: Tensor) -> Any:
        a = self.down1(x)
        b = self.down2(functional.max_pool2d(a, 2))
        a, b = a.detach(), b.detach()
        c = self.middle(functional.max_pool2d(b, 2))
        y = self.up2(torch.cat([b, functional.interpolate(c, scale_factor=2)], 1))
        return self.last(self.up1(torch.cat([a, functional.interpolate(y, scale_factor=2)], 1)))


@planted("no-gradient", at=("down1", "down2", "down1.*", "down2.*"), family="gradients", on="U-Net")
def skips_and_path_are_detached(watch: Watch) -> None:
    """`.detach()` meant to save memory cuts the whole way down off."""
    model = CutUNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, blobs(40), functional.binary_cross_entropy_with_logits)


class ZeroAdapter(nn.Module):
    """A frozen layer and two small matrices that both start at 0."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.zeros(4, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, 4))

    def forward(self, x: Tensor) -> Any:
        return self.base(x) + x @ self.a.T @ self.b.T


@planted(
    "no-gradient",
    "vanishing-gradient",
    "identical-units",
    at=("layers.*", ""),
    family="gradients",
    on="GPT",
)
def both_adapter_matrices_start_at_zero(watch: Watch) -> None:
    """LoRA with A and B at 0: each one's gradient is a multiple of the other, so 0 for ever."""
    model = Llama().requires_grad_(False)
    for layer in model.layers:
        block: Any = layer
        block.attn.qkv = ZeroAdapter(block.attn.qkv)
    model.lm_head.requires_grad_(True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    fit(watch, model, optimizer, sentences(60), next_token)


@planted("gradient-accumulates", at=("",), family="gradients", on="LSTM")
def zero_grad_without_parentheses(watch: Watch) -> None:
    """`optimizer.zero_grad` is named and not called."""
    model = nn.LSTM(2, 16, batch_first=True, proj_size=1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05)
    watcher = watch(model)
    for x, y in waves(60):
        optimizer.zero_grad  # noqa: B018 - this is the mistake
        loss = functional.mse_loss(model(x)[0][:, -1], y)
        loss.backward()
        optimizer.step()
        watch.losses.append(float(loss.detach()))
    watcher.close()


@planted("clipped-to-nothing", "lr-too-low", at=("",), family="gradients", on="seq2seq")
def clipping_in_the_wrong_unit(watch: Watch) -> None:
    """max_norm=1e-7 with momentum."""
    model = Seq2Seq()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    watcher = watch(model)
    for source, target in reversals(60):
        optimizer.zero_grad()
        loss = next_token(model(source, target), target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-7)
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("vanishing-gradient", at=("", "*"), family="gradients", on="MLP")
def sixteen_tanh_layers_with_small_weights(watch: Watch) -> None:
    """Weights of normal(0, 0.05) in sixteen layers of 32: a factor of 0.3 at each."""
    layers: list[nn.Module] = [nn.Linear(8, 32)]
    for _ in range(15):
        layers += [nn.Tanh(), nn.Linear(32, 32)]
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.05)
    model = nn.Sequential(*layers, nn.Linear(32, 1), nn.Flatten(0))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    fit(watch, model, optimizer, table(50), functional.mse_loss)


@planted("not-in-optimizer", "replaced-parameter", at=("aux",), family="optimizer", on="ViT")
def layer_added_after_the_optimizer(watch: Watch) -> None:
    """An auxiliary head is added to the model after the optimizer was made."""
    model = ClsViT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    aux = nn.Linear(32, 1)
    model.add_module("aux", aux)
    watcher = watch(model)
    for x, y in images(50):
        features = model.features(x)
        loss = functional.cross_entropy(model.head(features), y)
        loss = loss + functional.mse_loss(aux(features).squeeze(-1), y / 4.0)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("optimizer-not-stepped", at=("", "g", "g.*"), family="optimizer", on="GAN")
def generator_is_never_stepped(watch: Watch) -> None:
    """The optimizer of the generator is made, its gradients are computed, and no step is taken."""
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    model = nn.ModuleDict({"g": generator, "d": critic})
    opt_g = torch.optim.Adam(generator.parameters(), lr=2e-3)
    opt_d = torch.optim.Adam(critic.parameters(), lr=2e-3)
    watcher = watch(model)
    for real in ring(60):
        fake = generator(torch.randn(32, 4))
        loss = functional.softplus(-critic(real)).mean()
        loss = loss + functional.softplus(critic(fake.detach())).mean()
        opt_d.zero_grad()
        loss.backward()
        opt_d.step()
        opt_g.zero_grad()
        functional.softplus(-critic(fake)).mean().backward()
        watcher.log("loss", loss)
    watcher.close()


@planted("lr-too-high", "loss-diverges", at=("", "*"), family="optimizer", on="CNN")
def rmsprop_with_a_rate_of_ten(watch: Watch) -> None:
    """lr=10 with RMSprop, which was 1e-3 in another unit."""
    model = PreActNet()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=10)
    fit(watch, model, optimizer, images(50))


@planted("lr-too-low", "lr-zero", at=("",), family="optimizer", on="GNN")
def plateau_scheduler_watches_for_the_wrong_direction(watch: Watch) -> None:
    """ReduceLROnPlateau(mode="max") takes a falling loss for a plateau: lr falls at each step."""
    model = GraphNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode="max", factor=0.1, patience=1, eps=0
    )
    watcher = watch(model)
    for x, edges, labels in graphs(60):
        loss = functional.cross_entropy(model(x, edges), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step(loss.item())
        watcher.log("loss", loss)
    watcher.close()


@planted("weight-decay-too-strong", at=("", "*"), family="optimizer", on="ViT")
def decay_and_rate_are_swapped(watch: Watch) -> None:
    """AdamW(lr=0.05, weight_decay=5) where lr=5e-4 was meant."""
    model = ClsViT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=5.0)
    fit(watch, model, optimizer, images(50))


@planted("lost-updates", "lr-too-low", at=("", "*"), family="optimizer", on="CNN")
def bfloat16_convolutions_with_sgd(watch: Watch) -> None:
    """All weights are bfloat16, lr is 1e-4: updates are below the resolution."""
    model = PreActNet(norm=lambda width: nn.GroupNorm(4, width)).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    watcher = watch(model)
    for x, y in images(50):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x.bfloat16()).float(), y)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("dead-units", at=("layers.1", "layers.1.*", ""), family="activations", on="GNN")
def update_of_a_graph_layer_is_dead(watch: Watch) -> None:
    """A bias of -20 in the update of one layer: its ReLU, a function, gives only zeros."""
    model = GraphNet()
    block: Any = model.layers[1]
    nn.init.constant_(block.update.bias, -20)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for x, edges, labels in graphs(50):
        loss = functional.cross_entropy(model(x, edges), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()
