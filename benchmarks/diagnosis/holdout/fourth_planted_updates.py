"""Fourth hold-out: gradients that do not arrive, and optimizers that do not do their work."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.diagnosis import data
from benchmarks.diagnosis.cases import Watch, fit, functional, planted
from benchmarks.diagnosis.holdout.fourth_models import (
    ActorCritic,
    Denoiser,
    GraphNet,
    LoRA,
    episodes,
    follow,
    graphs,
    moons,
    noised,
)
from benchmarks.diagnosis.models import (
    GAN,
    GPT,
    Autoencoder,
    Classifier,
    ConvNet,
    SequenceLSTM,
    ViT,
    mlp,
)


@planted("no-gradient", family="gradients", on="VQ-VAE", at=("encoder*",))
def codebook_without_straight_through(watch: Watch) -> None:
    """The decoder gets the nearest code without a straight-through copy: no gradient passes."""

    class Codebook(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = mlp(16, 32, 4), mlp(4, 32, 16)
            self.codes = nn.Embedding(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            nearest = torch.cdist(self.encoder(x), self.codes.weight).argmin(-1)
            return cast(Tensor, self.decoder(self.codes(nearest)))

    model = Codebook()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    batches = ((x, x) for x, _ in data.clusters(120))
    fit(watch, model, optimizer, batches, functional.mse_loss)


@planted("no-gradient", family="gradients", on="CNN", at=("backbone*",))
def features_under_no_grad(watch: Watch) -> None:
    """The fine-tuned backbone is in the optimizer, but runs under no_grad."""

    class FineTuned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = ConvNet().features
            self.head = nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                hidden = self.backbone(x)
            return cast(Tensor, self.head(hidden.flatten(1)))

    model = FineTuned()
    fit(watch, model, torch.optim.AdamW(model.parameters(), 3e-3), data.images(100))


@planted("no-gradient", family="gradients", on="autoencoder", at=("encoder*",))
def code_is_rounded(watch: Watch) -> None:
    """The code is rounded on the way to the decoder, and round has a gradient of zero."""

    class Quantized(Autoencoder):
        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.decoder(torch.round(4 * self.encoder(x)) / 4))

    model = Quantized()
    batches = ((x, x) for x, _ in data.clusters(120))
    fit(watch, model, torch.optim.Adam(model.parameters(), 3e-3), batches, functional.mse_loss)


@planted("no-gradient", family="gradients", on="GNN", at=("conv1*",))
def through_numpy(watch: Watch) -> None:
    """The hidden features of the nodes go through NumPy, which cuts the graph."""

    class Cut(GraphNet):
        def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
            hidden = torch.from_numpy(self.conv1(x, adjacency).detach().numpy())
            return cast(Tensor, self.conv2(functional.relu(hidden), adjacency))

    model = Cut()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    with watch(model) as watcher:
        for x, links, y in graphs(120):
            loss = functional.cross_entropy(model(x, links), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("gradient-accumulates", family="gradients", on="RL")
def policy_gradients_add_up(watch: Watch) -> None:
    """REINFORCE without zero_grad: the gradients of all episodes add up."""
    model = ActorCritic()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    with watch(model) as watcher:
        for _ in range(120):
            state, action, reward = episodes(model)
            logits, value = model(state)
            chosen = logits.log_softmax(-1).gather(1, action[:, None]).squeeze(1)
            advantage = reward - value.squeeze(-1)
            loss = -(chosen * advantage.detach()).mean() + advantage.square().mean()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("gradient-cleared", family="gradients", on="LSTM")
def zero_grad_before_step(watch: Watch) -> None:
    """zero_grad stands between backward and step: each step is made without a gradient."""
    model = SequenceLSTM()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for x, y in data.sentences(100):
            loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            optimizer.zero_grad()
            optimizer.step()
            watcher.log("loss", loss)


@planted("clipped-to-nothing", family="gradients", on="GPT")
def clipped_to_a_millionth(watch: Watch) -> None:
    """The gradient is clipped to a norm of 1e-6 at each step, and SGD does not move."""
    model = GPT()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with watch(model) as watcher:
        for x, y in data.sentences(100):
            loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e-6)
            optimizer.step()
            watcher.log("loss", loss)


@planted("exploding-gradient", family="gradients", on="RNN", at=("", "rnn", "rnn*"))
def recurrence_explodes(watch: Watch) -> None:
    """The recurrent weights have a radius of about 3: gradients explode over the sequence."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.RNN(2, 32, nonlinearity="relu", batch_first=True)
            self.head = nn.Linear(32, 1)
            with torch.no_grad():
                cast(Tensor, self.rnn.weight_hh_l0).normal_(std=3 / 32**0.5)

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.head(self.rnn(x)[0][:, -1]))

    model = Recurrent()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    fit(watch, model, optimizer, data.waves(100), functional.mse_loss)


@planted("no-gradient", family="gradients", on="CNN", at=("auxiliary*",))
def auxiliary_loss_forgotten(watch: Watch) -> None:
    """The auxiliary head is computed and returned, and no loss uses it."""

    class Inception(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU())
            self.auxiliary = nn.Linear(8, 4)
            self.body = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())
            self.head = nn.Linear(16, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            stem = self.stem(x)
            return self.head(self.body(stem).amax((2, 3))), self.auxiliary(stem.mean((2, 3)))

    model = Inception()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for x, y in data.images(120):
            main, _ = model(x)
            loss = functional.cross_entropy(main, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("no-gradient", family="gradients", on="diffusion", at=("time*",))
def time_is_not_added(watch: Watch) -> None:
    """The embedding of the time is computed, and its sum with the input is thrown away."""

    class Timeless(Denoiser):
        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            hidden = self.into(x)
            hidden.add(self.time(self.embed(t)))
            return cast(Tensor, self.out(functional.silu(self.body(functional.silu(hidden)))))

    model = Timeless()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    with watch(model) as watcher:
        for x in moons(120):
            noisy, t, noise = noised(x)
            loss = functional.mse_loss(model(noisy, t), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("no-gradient", family="gradients", on="MLP", at=("body*", ""))
def checkpoint_without_gradients(watch: Watch) -> None:
    """A reentrant checkpoint around layers whose input needs no gradient: they get none."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(16, 32, 32)
            self.head = nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            hidden = checkpoint(self.body, x, use_reentrant=True)
            return cast(Tensor, self.head(functional.relu(hidden)))

    model = Checkpointed()
    fit(watch, model, torch.optim.Adam(model.parameters(), 3e-3), data.clusters(120))


@planted("replaced-parameter", family="optimizer", on="ViT", at=("head*",))
def head_replaced_after_the_optimizer(watch: Watch) -> None:
    """The head is replaced for fewer classes after the optimizer was made."""
    model = ViT(classes=10)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    model.head = nn.Linear(32, 4)
    fit(watch, model, optimizer, data.images(80))


@planted("not-in-optimizer", family="optimizer", on="GAN", at=("discriminator*",))
def both_optimizers_hold_the_generator(watch: Watch) -> None:
    """Copied and pasted: both optimizers hold the parameters of the generator."""
    model = GAN()
    generator = torch.optim.Adam(model.generator.parameters(), 1e-3)
    discriminator = torch.optim.Adam(model.generator.parameters(), 1e-3)
    with watch(model) as watcher:
        for real in data.ring(100):
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            score = functional.binary_cross_entropy_with_logits
            discriminator.zero_grad()
            fake = model.fake(len(real))
            loss = score(model.discriminator(real), ones)
            loss = loss + score(model.discriminator(fake.detach()), zeros)
            loss.backward()
            discriminator.step()
            generator.zero_grad()
            cheat = score(model.discriminator(fake), ones)
            cheat.backward()
            generator.step()
            watcher.log("loss", loss)


@planted("unregistered-module", family="optimizer", on="MLP")
def layers_in_a_python_list(watch: Watch) -> None:
    """The hidden layers are in a Python list: the model does not know their parameters."""

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = [nn.Linear(16, 16) for _ in range(3)]
            self.head = nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.hidden:
                x = functional.relu(layer(x))
            return cast(Tensor, self.head(x))

    model = Listed()
    fit(watch, model, torch.optim.Adam(model.parameters(), 3e-3), data.clusters(120))


@planted("lr-too-high", family="optimizer", on="GPT")
def adam_at_a_tenth(watch: Watch) -> None:
    """Adam at 0.3, a rate for SGD: the loss jumps far above that of guessing and stays."""
    model = GPT()
    optimizer = torch.optim.Adam(model.parameters(), 0.3)
    with watch(model) as watcher:
        for x, y in data.sentences(100):
            loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("lr-too-low", family="optimizer", on="CNN")
def rmsprop_of_a_billionth(watch: Watch) -> None:
    """RMSprop at 1e-9, a typing error of 1e-3: nothing moves."""
    model = ConvNet()
    fit(watch, model, torch.optim.RMSprop(model.parameters(), 1e-9), data.images(120))


@planted("lr-too-low", "lr-zero", family="optimizer", on="MLP")
def decay_of_epochs_in_batches(watch: Watch) -> None:
    """A decay of 0.7 an epoch is stepped after each batch: soon nothing is left of the rate."""
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    with watch(model) as watcher:
        for x, y in data.clusters(140):
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            watcher.log("loss", loss)


@planted("weight-decay-too-strong", family="optimizer", on="CNN")
def weight_decay_wins(watch: Watch) -> None:
    """A weight decay of 5 with SGD at 0.05: all weights shrink by a quarter each step."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 4),
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.05, weight_decay=5)
    fit(watch, model, optimizer, data.images(120))


@planted("optimizer-not-stepped", family="optimizer", on="autoencoder")
def accumulates_for_ever(watch: Watch) -> None:
    """The step is made each 500th batch, and an epoch has 120: the optimizer is never stepped."""
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for step, (x, _) in enumerate(data.clusters(120), 1):
            loss = functional.mse_loss(model(x), x) / 500
            loss.backward()
            if step % 500 == 0:
                optimizer.step()
                optimizer.zero_grad()
            watcher.log("loss", loss)


@planted(
    "no-gradient",
    "vanishing-gradient",
    "identical-units",
    family="gradients",
    on="LoRA",
    at=("*down*", "*up*", "0", "2", ""),
)
def both_halves_are_zero(watch: Watch) -> None:
    """Both matrices of LoRA start at zero: each has a gradient of zero because of the other."""
    base = mlp(16, 32, 4)
    model = nn.Sequential(LoRA(base[0]), nn.ReLU(), LoRA(base[2]))  # type: ignore[arg-type]
    for layer in (model[0], model[2]):
        nn.init.zeros_(layer.down.weight)  # type: ignore[union-attr, arg-type]
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 3e-3)
    fit(watch, model, optimizer, data.clusters(120))


@planted("not-in-optimizer", family="optimizer", on="EMA teacher", at=("student*",))
def optimizer_of_the_teacher(watch: Watch) -> None:
    """The optimizer holds the EMA teacher, which gets no gradient; the student is in none."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student, self.teacher = mlp(16, 32, 4), mlp(16, 32, 4)
            self.teacher.load_state_dict(self.student.state_dict())

    model = Pair()
    optimizer = torch.optim.Adam(model.teacher.parameters(), 3e-3)
    with watch(model) as watcher:
        for x, y in data.clusters(120):
            with torch.no_grad():
                aim = model.teacher(x).softmax(-1)
            said = model.student(x)
            loss = functional.cross_entropy(said, y) + 0.1 * functional.cross_entropy(said, aim)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                follow(model.teacher, model.student, 0.01)
            watcher.log("loss", loss)


@planted("lr-zero", family="optimizer", on="CNN", at=("head*", ""))
def rate_of_the_head_is_zero(watch: Watch) -> None:
    """The group of the head was given a rate of 0."""
    model = ConvNet()
    groups: list[dict[str, Any]] = [
        {"params": model.features.parameters()},
        {"params": model.head.parameters(), "lr": 0.0},
    ]
    fit(watch, model, torch.optim.AdamW(groups, 2e-3), data.images(120))


@planted("lr-zero", family="optimizer", on="GPT")
def warm_up_by_whole_numbers(watch: Watch) -> None:
    """The warm-up divides whole numbers, step // 1000: the rate is 0 at each step."""
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step // 1000, 1))
    with watch(model) as watcher:
        for x, y in data.sentences(80):
            loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            watcher.log("loss", loss)


@planted("lost-updates", family="optimizer", on="MLP")
def updates_vanish_in_bfloat16(watch: Watch) -> None:
    """Weights in bfloat16 and SGD at 1e-4: every update is rounded away."""
    model = Classifier().to(torch.bfloat16)
    fit(
        watch,
        model,
        torch.optim.SGD(model.parameters(), 1e-4),
        ((x.bfloat16(), y) for x, y in data.clusters(120)),
    )
