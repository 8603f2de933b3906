"""Trainings of the third hold-out with a mistake in their values, gradients or optimizer."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.diagnosis.cases import Watch, functional, planted
from benchmarks.diagnosis.holdout.third_tasks import (
    batches,
    digits,
    next_token,
    prices,
    records,
    text,
    train,
)
from benchmarks.diagnosis.models import GAN, GPT, ConvNet, ResNet, SequenceLSTM, mlp

# numbers


@planted("nan", "inf", at=("", "1"), family="numbers", on="MLP", since=20)
def temperature_that_reaches_zero(watch: Watch) -> None:
    """A temperature falls by a twentieth each step and divides by 0 at the twentieth."""
    model = mlp(10, 32, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(batches(records(), 6)):
            loss = functional.cross_entropy(model(x) / max(0.0, 1 - step / 20), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


class UnitFeatures(nn.Module):
    """Features of unit length, from a ReLU that may be all zero."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 4), nn.ReLU())
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Any:
        z = self.body(x)
        return self.head(z / z.norm(dim=-1, keepdim=True))


@planted("nan", at=("", "head", "body"), family="numbers", on="MLP")
def unit_length_of_a_vector_of_zeros(watch: Watch) -> None:
    """A sample for which every ReLU is 0 is divided by its norm, which is 0."""
    model = UnitFeatures()
    train(watch, model, torch.optim.Adam(model.parameters(), lr=1e-3), records(), batch=64)


@planted("nan", "inf", at=("",), family="numbers", on="GAN", since=0)
def log_of_one_minus_a_sure_discriminator(watch: Watch) -> None:
    """log(1 - sigmoid(d)) is -Inf as soon as the discriminator is sure."""
    model = GAN()
    nn.init.normal_(list(model.discriminator.parameters())[-2], std=100.0)
    g = torch.optim.Adam(model.generator.parameters(), lr=1e-3)
    d = torch.optim.Adam(model.discriminator.parameters(), lr=1e-3)
    with watch(model) as watcher:
        for _ in range(50):
            real, fake = torch.randn(32, 2) * 3, model.fake(32)
            score = torch.sigmoid(model.discriminator(fake.detach()))
            loss: Any = -torch.log(torch.sigmoid(model.discriminator(real))).mean()
            loss = loss - torch.log(1 - score).mean()
            d.zero_grad()
            loss.backward()
            d.step()
            fooled: Any = -torch.log(torch.sigmoid(model.discriminator(fake))).mean()
            g.zero_grad()
            fooled.backward()
            g.step()
            watcher.log("loss", loss)


@planted("nan", at=("", "0"), family="numbers", on="CNN", since=33)
def one_file_that_cannot_be_read(watch: Watch) -> None:
    """One picture of the dataset is NaN; a batch meets it in the fifth epoch."""
    model = ConvNet(classes=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(batches(digits(), 8)):
            if step == 33:
                x[3] = float("nan")
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("train/loss", loss)
            watch.losses.append(float(loss))


@planted("nan", at=("", "distances", "[0-9]", "net", "net.*"), family="numbers", on="MLP", since=0)
def distance_of_a_point_to_itself(watch: Watch) -> None:
    """The root of a squared distance is taken, and the diagonal is 0: its gradient is NaN."""
    model = mlp(10, 16, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model) as watcher:
        for x, y in batches(records(), 5):
            z = model(x)
            far = (z[:, None] - z[None]).square().sum(-1).sqrt()
            same = (y[:, None] == y[None]).float()
            loss = (same * far + (1 - same) * (1 - far).relu()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("inf", "nan", at=("", "blocks", "blocks.*"), family="numbers", on="GPT")
def scores_masked_before_they_are_cast(watch: Watch) -> None:
    """Large weights of queries and keys overflow the scores in float16."""

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key = nn.Linear(16, 16), nn.Linear(16, 16)
            with torch.no_grad():
                self.query.weight.mul_(400)
                self.key.weight.mul_(400)

        def forward(self, x: Tensor) -> Any:
            return (self.query(x).half() @ self.key(x).half().transpose(-1, -2)).float().softmax(
                -1
            ) @ x

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(14, 16)
            self.blocks = nn.ModuleList([Scores()])
            self.head = nn.Linear(16, 14)

        def forward(self, tokens: Tensor) -> Any:
            x = self.tokens(tokens)
            for block in self.blocks:
                x = x + block(x)
            return self.head(x)

    model = Net()
    train(watch, model, torch.optim.Adam(model.parameters(), lr=1e-3), text(), next_token)


# gradients


class Pipeline(nn.Module):
    """A stem, a middle and a head."""

    def __init__(self, cut: str = "") -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(10, 24), nn.GELU())
        self.middle = nn.Sequential(nn.Linear(24, 24), nn.GELU())
        self.head = nn.Linear(24, 3)
        self.cut = cut

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        if self.cut == "numpy":
            x = torch.from_numpy(x.detach().numpy())
        if self.cut == "sign":
            x = torch.sign(x)
        if self.cut == "no_grad":
            with torch.no_grad():
                x = self.middle(x)
        else:
            x = self.middle(x)
        return self.head(x)


@planted("no-gradient", at=("stem", "stem.*"), family="gradients", on="MLP")
def detour_through_numpy(watch: Watch) -> None:
    """Features pass through numpy between two parts."""
    model = Pipeline("numpy")
    train(watch, model, torch.optim.AdamW(model.parameters(), lr=2e-3), records())


@planted("no-gradient", at=("stem", "stem.*"), family="gradients", on="MLP")
def binary_code_by_sign(watch: Watch) -> None:
    """sign() has a gradient of 0: nothing before it learns."""
    model = Pipeline("sign")
    train(watch, model, torch.optim.AdamW(model.parameters(), lr=2e-3), records())


@planted(
    "no-gradient", at=("stem", "stem.*", "middle", "middle.*", ""), family="gradients", on="MLP"
)
def middle_left_under_no_grad(watch: Watch) -> None:
    """no_grad around the middle cuts off the stem, too."""
    model = Pipeline("no_grad")
    train(watch, model, torch.optim.AdamW(model.parameters(), lr=2e-3), records())


@planted("gradient-accumulates", family="gradients", on="CNN")
def zero_grad_of_the_other_optimizer(watch: Watch) -> None:
    """Two optimizers: the gradients of one are cleared twice, those of the other never."""
    model = ConvNet(classes=5)
    body = torch.optim.SGD(model.features.parameters(), lr=0.01)
    head = torch.optim.SGD(model.head.parameters(), lr=0.01)
    with watch(model) as watcher:
        for x, y in batches(digits(), 6):
            head.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            body.step()
            head.step()
            watcher.log("loss", loss)


@planted("gradient-accumulates", family="gradients", on="LSTM")
def zero_grad_in_a_branch_that_is_not_taken(watch: Watch) -> None:
    """`if step % 100 == 0: zero_grad()` was meant for the log."""
    model = SequenceLSTM(14)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(batches(text(), 12)):
            loss = next_token(model(x), y)
            loss.backward()
            optimizer.step()
            if step % 100 == 0:
                optimizer.zero_grad()
            watcher.log("loss", loss)


@planted("vanishing-gradient", "saturated", at=("", "0", "[0-9]*"), family="gradients", on="MLP")
def twenty_layers_of_tanh_with_small_weights(watch: Watch) -> None:
    """std=0.02, as in GPT-2, in a deep network without residual connections."""
    layers: list[nn.Module] = [nn.Linear(10, 32), nn.Tanh()]
    for _ in range(10):
        layers += [nn.Linear(32, 32), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(32, 3))
    for one in model.modules():
        if isinstance(one, nn.Linear):
            nn.init.normal_(one.weight, std=0.02)
            nn.init.zeros_(one.bias)
    train(watch, model, torch.optim.SGD(model.parameters(), lr=0.05), records())


@planted("clipped-to-nothing", "lr-too-low", family="gradients", on="GPT")
def clip_of_the_norm_at_one_billionth(watch: Watch) -> None:
    """clip_grad_norm_ with 1e-9 instead of 1.0, and SGD."""
    model = GPT(14, length=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(
        watch,
        model,
        optimizer,
        text(),
        next_token,
        after_backward=lambda: nn.utils.clip_grad_norm_(model.parameters(), 1e-9),
    )


@planted(
    "exploding-gradient",
    "growing-activations",
    "lr-too-high",
    at=("", "[0-9]*"),
    family="gradients",
    on="MLP",
)
def twelve_layers_with_a_gain_of_four(watch: Watch) -> None:
    """Every layer of a deep network multiplies the signal and the gradient by about four."""
    layers: list[nn.Module] = []
    for _ in range(12):
        layers += [nn.Linear(10, 10), nn.LeakyReLU(0.5)]
    model = nn.Sequential(*layers, nn.Linear(10, 3))
    with torch.no_grad():
        for one in model.modules():
            if isinstance(one, nn.Linear):
                nn.init.orthogonal_(one.weight, gain=5.0)
    train(watch, model, torch.optim.SGD(model.parameters(), lr=1e-9), records())


@planted("no-gradient", at=("heads.1", "heads", "heads.*"), family="gradients", on="MLP")
def loss_of_the_first_head_twice(watch: Watch) -> None:
    """Both losses are computed from the first head; the second is called and not used."""

    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(10, 16), nn.ReLU())
            self.heads = nn.ModuleList([nn.Linear(16, 3), nn.Linear(16, 3)])

        def forward(self, x: Tensor) -> Any:
            z = self.body(x)
            return [head(z) for head in self.heads]

    model = TwoHeads()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model) as watcher:
        for x, y in batches(records(), 6):
            one, _ = model(x)
            loss = functional.cross_entropy(one, y) + functional.cross_entropy(one, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


# optimizer


@planted("not-in-optimizer", at=("positions", "", "head"), family="optimizer", on="GPT")
def only_the_blocks_are_given_to_the_optimizer(watch: Watch) -> None:
    """`model.blocks.parameters()` leaves out embeddings, norm and head."""
    model = GPT(14, length=10)
    train(watch, model, torch.optim.AdamW(model.blocks.parameters(), lr=2e-3), text(), next_token)


@planted("replaced-parameter", "not-in-optimizer", at=("", "fc"), family="optimizer", on="CNN")
def weights_are_loaded_by_replacing_the_head(watch: Watch) -> None:
    """`model.fc = nn.Linear(…)` for the new classes, after the optimizer was made."""
    model = ResNet(classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model.fc = nn.Linear(8, 5)
    train(watch, model, optimizer, digits())


@planted("optimizer-not-stepped", family="optimizer", on="MLP")
def step_without_parentheses(watch: Watch) -> None:
    """`optimizer.step` is named and not called."""
    model = mlp(10, 32, 3)
    optimizer = torch.optim.Adam(model.parameters())
    with watch(model) as watcher:
        for x, y in batches(records(), 6):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step  # noqa: B018
            watcher.log("loss", loss)


@planted("lr-too-high", "loss-diverges", at=("", "*"), family="optimizer", on="CNN")
def learning_rate_of_a_linear_model(watch: Watch) -> None:
    """lr=20 with SGD on a convolutional network without norms."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 5),
    )
    train(watch, model, torch.optim.SGD(model.parameters(), lr=20.0), digits())


@planted("lr-too-high", "loss-diverges", at=("", "*"), family="optimizer", on="GPT")
def learning_rate_of_sgd_given_to_adam(watch: Watch) -> None:
    """lr=0.5, fine for SGD, is given to Adam."""
    model = GPT(14, length=10)
    train(watch, model, torch.optim.Adam(model.parameters(), lr=0.5), text(), next_token)


@planted("lr-too-low", at=("", "*"), family="optimizer", on="MLP")
def learning_rate_with_the_wrong_exponent(watch: Watch) -> None:
    """1e-30 instead of 1e-3."""
    model = mlp(10, 32, 3)
    train(watch, model, torch.optim.SGD(model.parameters(), lr=1e-10), records())


@planted("lr-too-low", "lr-zero", at=("", "*"), family="optimizer", on="LSTM")
def exponential_decay_at_every_batch(watch: Watch) -> None:
    """ExponentialLR(gamma=0.5) is made for epochs and stepped at each batch."""
    model = SequenceLSTM(14)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    train(watch, model, optimizer, text(), next_token, epochs=15, scheduler=scheduler)


@planted("lr-zero", family="optimizer", on="CNN")
def warm_up_that_never_ends(watch: Watch) -> None:
    """The factor of a warm-up counts epochs from 0 and is never raised: lr is 0."""
    model = ConvNet(classes=5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: min(1.0, epoch / 5))
    train(watch, model, optimizer, digits(), epochs=6)


@planted("weight-decay-too-strong", at=("", "*"), family="optimizer", on="MLP")
def weight_decay_of_one_with_sgd(watch: Watch) -> None:
    """weight_decay=5 and lr=0.02: ten percent of every weight are gone at each step."""
    model = mlp(10, 32, 32, 3)
    train(watch, model, torch.optim.SGD(model.parameters(), lr=0.02, weight_decay=5.0), records())


@planted("scaler-skips", at=("", "*"), family="optimizer", on="MLP")
def scaler_with_a_loss_that_is_always_inf(watch: Watch) -> None:
    """A division by zero in the loss: every step is skipped, and the scaler hides it."""
    model = mlp(10, 32, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    with watch(model) as watcher:
        for x, y in batches(records(), 6):
            optimizer.zero_grad()
            loss = (functional.cross_entropy(model(x), y, reduction="none") / (y > 5)).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            watcher.log("loss", functional.cross_entropy(model(x), y))


@planted(
    "replaced-parameter",
    "not-in-optimizer",
    "optimizer-not-stepped",
    at=("", "*"),
    family="optimizer",
    on="MLP",
)
def optimizer_of_a_copy(watch: Watch) -> None:
    """The model is copied for safety, and the copy's parameters are optimized."""
    model = mlp(10, 32, 3)
    optimizer = torch.optim.Adam(copy.deepcopy(model).parameters(), lr=1e-2)
    train(watch, model, optimizer, records())


@planted("loss-diverges", "lr-too-high", at=("", "*"), family="dynamics", on="MLP")
def square_root_schedule_upside_down(watch: Watch) -> None:
    """The learning rate is multiplied by 1.15 at each step instead of divided."""
    model = mlp(10, 32, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.15**step)
    with contextlib.suppress(RuntimeError):
        train(watch, model, optimizer, prices(), functional.mse_loss, scheduler=scheduler)
