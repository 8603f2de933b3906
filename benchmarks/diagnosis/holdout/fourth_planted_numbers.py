"""Fourth hold-out: values that are not finite, and losses that read their operands wrongly."""

from __future__ import annotations

from contextlib import suppress
from typing import cast

import torch
from torch import Tensor, nn

from benchmarks.diagnosis import data
from benchmarks.diagnosis.cases import Watch, fit, functional, planted
from benchmarks.diagnosis.holdout.fourth_models import (
    ActorCritic,
    GraphNet,
    Seq2Seq,
    SpeechNet,
    UNet,
    episodes,
    graphs,
    reversals,
    speech,
    squares,
)
from benchmarks.diagnosis.models import GPT, VAE, Classifier, TwoTower, mlp, plain_convnet


@planted("nan", "inf", "inputs-not-normalized", family="numbers", on="VAE", at=("", "log_variance"))
def log_variance_overflows(watch: Watch) -> None:
    """Inputs of scale 300 make log variances of hundreds, and their exp overflows at once."""
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with watch(model) as watcher:
        for x, _ in data.clusters(100):
            again, mean, log_variance = model(300 * x)
            kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).mean()
            loss = functional.mse_loss(again, 300 * x) + kl
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("nan", "inf", "inputs-not-normalized", family="numbers", on="CNN", since=30)
def focal_loss_takes_the_log_of_zero(watch: Watch) -> None:
    """A focal loss takes the log of a softmax; from step 30, a picture makes a share of 0."""
    model = plain_convnet()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(data.images(120)):
            if step >= 30:
                x[0] *= 2000
            share = model(x).softmax(-1).gather(1, y[:, None])
            loss = (-((1 - share) ** 2) * share.log()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("nan", "inf", family="numbers", on="GNN", at=("conv1",), since=25)
def node_without_neighbours(watch: Watch) -> None:
    """From step 25, a node has no neighbour: the mean over its neighbours is 0 / 0."""
    model = GraphNet(safe=False)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    with watch(model) as watcher:
        for x, links, y in graphs(120, isolated_at=25):
            loss = functional.cross_entropy(model(x, links), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("nan", family="numbers", on="seq2seq", at=("attention", ""), since=33)
def empty_source_sentence(watch: Watch) -> None:
    """At step 33, all tokens of a source are padding: its row of scores is all -inf."""
    model = Seq2Seq()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    with watch(model) as watcher:
        for source, before, mask, target in reversals(80, empty_at=33):
            said = model(source, before, mask)
            loss = functional.cross_entropy(said.flatten(0, 1), target.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("nan", "inf", family="numbers", on="RL", since=40)
def advantages_of_one_sample(watch: Watch) -> None:
    """The last batch of an epoch has one sample: the deviation of its advantage is NaN."""
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    # The policy of NaN ends the script of the user by a RuntimeError at step 41.
    with suppress(RuntimeError), watch(model) as watcher:
        for step in range(100):
            state, action, reward = episodes(model, 1 if step == 40 else 64)
            logits, value = model(state)
            advantage = reward - value.squeeze(-1).detach()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            chosen = logits.log_softmax(-1).gather(1, action[:, None]).squeeze(1)
            critic = functional.mse_loss(value.squeeze(-1), reward)
            loss = -(chosen * advantage).mean() + 0.5 * critic
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("nan", "inf", family="numbers", at=("", "2"), since=20)
def distance_of_equal_points(watch: Watch) -> None:
    """From step 20, an anchor is its own positive: the gradient of its distance is NaN."""
    model = mlp(16, 32, 8)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    with watch(model) as watcher:
        for step, (x, near) in enumerate(data.pairs(100)):
            if step >= 20:
                near[0] = x[0]
            anchor, positive, negative = model(x), model(near), model(x.roll(1, 0))
            good = ((anchor - positive) ** 2).sum(-1).sqrt()
            bad = ((anchor - negative) ** 2).sum(-1).sqrt()
            loss = (good - bad + 1).clamp(min=0).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("inf", "nan", "inputs-not-normalized", family="numbers", on="MLP", at=("0", "2", ""))
def half_precision_overflows(watch: Watch) -> None:
    """Autocast to float16 with inputs in the ten thousands: the second layer exceeds 65504."""
    model = mlp(16, 64, 64, 4)
    with torch.no_grad():
        cast(nn.Linear, model[2]).weight.mul_(8)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    with watch(model) as watcher:
        for x, y in data.clusters(100):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = functional.cross_entropy(model(20_000 * x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("scaler-skips", family="numbers", on="MLP")
def scaler_skips_every_step(watch: Watch) -> None:
    """The scaler starts at 2^120 and halves once a step: no step is made."""
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    with watch(model) as watcher:
        for x, y in data.clusters(90):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            watcher.log("loss", loss)


@planted("inf", "nan", family="numbers", on="CTC")
def ctc_target_longer_than_input(watch: Watch) -> None:
    """Seven symbols can not be said in six frames: the CTC loss is infinite."""
    model = SpeechNet()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for x, y in speech(60, frames=6, said=7):
            said = model(x).transpose(0, 1)
            lengths = torch.full((len(x),), 6), torch.full((len(x),), 7)
            loss = functional.ctc_loss(said, y, *lengths)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("nan", "inf", family="numbers", on="detector")
def log_of_a_negative_box(watch: Watch) -> None:
    """The width of a box is a raw output; its log is NaN where the output is negative."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    with watch(model) as watcher:
        for x, y in data.curve(80, outputs=2):
            size = y.exp()
            loss = (model(x).log() - size.log()).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("labels-out-of-range", "nan", family="numbers", on="GPT", since=27)
def batch_of_ignored_labels(watch: Watch) -> None:
    """At step 27 the prompt fills the window: all labels are -100, and their mean is 0 / 0."""
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(data.sentences(60)):
            labels = y.clone()
            labels[:, : 12 if step == 27 else 3] = -100
            loss = functional.cross_entropy(model(x).flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("labels-out-of-range", family="set-up", on="MLP")
def labels_of_minus_one_and_one(watch: Watch) -> None:
    """Labels are -1 and 1, but binary cross entropy wants 0 and 1: the loss falls without end."""
    fit(
        watch,
        model := mlp(16, 32, 1),
        torch.optim.Adam(model.parameters(), 3e-3),
        ((x, (y % 2 * 2 - 1.0)[:, None]) for x, y in data.clusters(120)),
        functional.binary_cross_entropy_with_logits,
    )


@planted("labels-out-of-range", family="set-up", on="MLP")
def mixup_labels_do_not_sum_to_one(watch: Watch) -> None:
    """Mixup multiplies both labels by its weight, not one by the rest: they sum to 0.4 and less."""
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for x, y in data.clusters(120):
            weight = 0.2
            one = functional.one_hot(y, 4).float()
            mixed = weight * x + (1 - weight) * x.flip(0)
            loss = functional.cross_entropy(model(mixed), weight * one + weight * one.flip(0))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("softmax-before-cross-entropy", family="set-up", on="U-Net", at=("", "out.3"))
def probabilities_of_pixels(watch: Watch) -> None:
    """The segmentation net ends in a softmax over classes, and cross entropy takes another one."""
    model = UNet()
    model.out.append(nn.Softmax(1))
    fit(watch, model, torch.optim.Adam(model.parameters(), 2e-3), squares(100))


@planted("nll-without-log-softmax", family="set-up", on="MLP")
def nll_of_logits(watch: Watch) -> None:
    """NLLLoss takes log-probabilities, but gets logits: the loss falls below 0 without end."""
    model = Classifier()
    fit(watch, model, torch.optim.Adam(model.parameters(), 2e-3), data.clusters(120), nn.NLLLoss())


@planted("nll-without-log-softmax", family="set-up", on="distillation", at=("", "student"))
def kl_of_probabilities(watch: Watch) -> None:
    """kl_div takes log-probabilities first, but gets the probabilities of the student."""

    class Distillation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.teacher = Classifier().requires_grad_(False)
            self.student = mlp(16, 16, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.student(x).softmax(-1), (5 * self.teacher(x)).softmax(-1)

    model = Distillation()
    optimizer = torch.optim.Adam(model.student.parameters(), 3e-3)
    with watch(model) as watcher:
        for x, _ in data.clusters(120):
            student, teacher = model(x)
            loss = functional.kl_div(student, teacher, reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("softmax-over-batch", family="set-up", at=("", "3"), on="MLP")
def softmax_over_the_batch(watch: Watch) -> None:
    """The softmax is over dim 0, the batch, instead of the classes."""
    model = nn.Sequential(*mlp(16, 32, 4), nn.LogSoftmax(dim=0))
    fit(watch, model, torch.optim.Adam(model.parameters(), 2e-3), data.clusters(120), nn.NLLLoss())


@planted("sigmoid-before-bce", family="set-up", on="CNN", at=("", "8"))
def sigmoid_twice(watch: Watch) -> None:
    """A multi-label head ends in a sigmoid, and the loss takes logits."""
    model = nn.Sequential(*plain_convnet(), nn.Sigmoid())
    fit(
        watch,
        model,
        torch.optim.AdamW(model.parameters(), 2e-3),
        ((x, functional.one_hot(y, 4).float()) for x, y in data.images(120)),
        nn.BCEWithLogitsLoss(),
    )


@planted("loss-broadcast", family="set-up", on="RL", at=("", "value"))
def critic_broadcasts(watch: Watch) -> None:
    """The value is (64, 1) and the return is (64): the Huber loss compares all with all."""
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for _ in range(120):
            state, action, reward = episodes(model)
            logits, value = model(state)
            advantage = reward - value.detach().squeeze(-1)
            chosen = logits.log_softmax(-1).gather(1, action[:, None]).squeeze(1)
            loss = functional.huber_loss(value, reward) - (chosen * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("relu-on-output", family="set-up", at=("", "2", "3"))
def output_can_not_be_negative(watch: Watch) -> None:
    """A regression net ends in a ReLU, and half of its targets are negative."""
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1), nn.ReLU())
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    fit(watch, model, optimizer, data.curve(120), functional.smooth_l1_loss)


@planted("nan", family="numbers", on="two towers", at=("", "left*", "right*"), since=0)
def normalise_by_hand(watch: Watch) -> None:
    """Some rows are all zero and the towers have no bias: their norm is 0, and x / norm is NaN."""
    model = TwoTower()
    for layer in (*model.left, *model.right):
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with watch(model) as watcher:
        for x, y in data.pairs(80):
            x[:2], y[:2] = 0, 0
            left, right = model(x, y)
            left = left / left.norm(dim=-1, keepdim=True)
            right = right / right.norm(dim=-1, keepdim=True)
            loss = functional.cross_entropy(left @ right.T / 0.1, torch.arange(len(x)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
