"""Healthy trainings with unusual losses, targets, tasks and data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.diagnosis.cases import Watch, fit, functional, healthy
from benchmarks.diagnosis.data import clusters, images, pairs, sentences
from benchmarks.diagnosis.holdout.models import (
    ClsViT,
    Llama,
    MultiTask,
    PreActNet,
    ResidualMLP,
    Seq2Seq,
    UNet,
)
from benchmarks.diagnosis.holdout.tasks import (
    blobs,
    draws,
    in_epochs,
    next_token,
    reversals,
    table,
)

FAMILY = "dynamics"


@healthy(family=FAMILY, on="MLP")
def labels_with_a_lot_of_noise(watch: Watch) -> None:
    """60 % of the labels are random: the loss falls a little and then stays, as it must."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    draw = draws(21)
    batches = (
        (x, torch.where(torch.rand(128, generator=draw) < 0.6, torch.randint(4, (128,)), y))
        for x, y in clusters(100, batch=128)
    )
    fit(watch, model, optimizer, batches)


@healthy(family=FAMILY, on="MLP")
def three_quantiles(watch: Watch) -> None:
    """A quantile loss with three outputs, targets with heavy tails."""
    model = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    levels = torch.tensor([0.1, 0.5, 0.9])

    def pinball(predicted: Any, target: Tensor) -> Any:
        error = target[:, None] - predicted
        return torch.maximum(levels * error, (levels - 1) * error).mean()

    fit(watch, model, optimizer, table(80), pinball)


@healthy(family=FAMILY, on="Siamese")
def triplets_that_become_easy(watch: Watch) -> None:
    """A triplet loss reaches exactly 0 at times, and then there is no gradient."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    watcher = watch(model)
    for x, y in clusters(100, batch=48):
        order = y.argsort()
        anchor = model(x[order])
        positive, negative = anchor.roll(1, 0), anchor.roll(24, 0)
        loss = functional.triplet_margin_loss(anchor, positive, negative, margin=0.5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="MLP")
def hinge_loss_reaches_zero(watch: Watch) -> None:
    """Separable classes and a hinge loss: at the end loss and gradients are exactly 0."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = list(clusters(4))
    fit(watch, model, optimizer, data * 25, functional.multi_margin_loss)


@healthy(family=FAMILY, on="seq2seq")
def sequences_become_longer(watch: Watch) -> None:
    """A curriculum: the loss jumps up whenever the length grows."""
    model = Seq2Seq()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for length in (1, 2, 4):
        for source, target in reversals(40, length=length):
            loss = next_token(model(source, target), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
            watch.losses.append(float(loss) / length)
    watcher.close()


@healthy(family=FAMILY, on="MLP")
def positive_rates_by_softplus(watch: Watch) -> None:
    """Poisson regression: outputs are all positive, by softplus."""
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1), nn.Softplus())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for x, y in table(80, batch=64):
        rate = model(x).squeeze(-1)
        loss = functional.poisson_nll_loss(rate, torch.poisson(y.exp().clamp(max=8)), False)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family="set-up", on="MLP")
def relu_on_an_output_that_is_never_negative(watch: Watch) -> None:
    """Targets are amounts of rain: 0 or more, so a ReLU at the end is right."""
    model = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 1), nn.ReLU())
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    batches = ((x, functional.relu(y + 0.5)[:, None]) for x, y in table(90, batch=64))
    fit(watch, model, optimizer, batches, functional.mse_loss)


@healthy(family="set-up", on="CNN")
def batches_of_one_class_at_times(watch: Watch) -> None:
    """Every sixth batch has a single class."""
    model = PreActNet(norm=lambda width: nn.GroupNorm(4, width))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for step, (x, y) in enumerate(images(90, batch=32)):
        keep = y == y[0] if step % 6 == 5 else y >= 0
        loss = functional.cross_entropy(model(x[keep]), y[keep])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="U-Net")
def rare_pixels_with_dice_and_cross_entropy(watch: Watch) -> None:
    """Segmentation with a Dice loss: a tenth of the pixels is positive."""
    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

    def loss_function(logits: Any, mask: Tensor) -> Any:
        p = logits.sigmoid()
        overlap = (p * mask).sum((1, 2, 3))
        dice = 1 - (2 * overlap + 1) / (p.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)
        return dice.mean() + functional.binary_cross_entropy_with_logits(logits, mask)

    in_epochs(watch, model, optimizer, blobs, loss_function, 3, 15)


class Uncertain(MultiTask):
    """Learns the weights of its two losses."""

    def __init__(self) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros(2))


@healthy(family=FAMILY, on="multi-task")
def losses_weighted_by_uncertainty(watch: Watch) -> None:
    """The total contains log variances and becomes negative."""
    model = Uncertain()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for x, y in clusters(100):
        label, score = model(x)
        first = functional.cross_entropy(label, y)
        second = functional.mse_loss(score, y / 4.0)
        s = model.log_variance
        loss = (-s[0]).exp() * first + (-s[1]).exp() * second + s.sum() / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class Quantized(nn.Module):
    """A VQ-VAE with a straight-through estimator."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        self.codebook = nn.Embedding(32, 4)
        self.dec = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> tuple[Any, Any]:
        z = self.enc(x)
        q = self.codebook(torch.cdist(z, self.codebook.weight).argmin(-1))
        commit = functional.mse_loss(q, z.detach()) + functional.mse_loss(z, q.detach())
        return self.dec(z + (q - z).detach()), commit


@healthy(family=FAMILY, on="autoencoder")
def codebook_with_straight_through(watch: Watch) -> None:
    """A codebook of which few vectors are used in a batch."""
    model = Quantized()
    with torch.no_grad():
        model.codebook.weight.copy_(model.enc(next(iter(pairs(1)))[0]))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for x, _ in pairs(100):
        reconstruction, commit = model(x)
        loss = functional.mse_loss(reconstruction, x) + commit
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="GPT")
def only_masked_tokens_count(watch: Watch) -> None:
    """Four of five labels are ignored (-100)."""
    model = Llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    draw = draws(31)
    watcher = watch(model)
    for tokens, targets in sentences(80, batch=24):
        hidden = torch.rand(targets.shape, generator=draw) < 0.8
        loss = next_token(model(tokens), targets.masked_fill(hidden, -100))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="ViT")
def mixup_of_images_and_labels(watch: Watch) -> None:
    """Mixed images with soft labels: the loss cannot come near 0."""
    model = ClsViT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    watcher = watch(model)
    for x, y in images(90, batch=32):
        share = torch.rand(()).item()
        order = torch.randperm(len(x))
        labels = functional.one_hot(y, 4).float()
        mixed = share * labels + (1 - share) * labels[order]
        loss = functional.cross_entropy(model(share * x + (1 - share) * x[order]), mixed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="LSTM")
def sequence_in_pieces(watch: Watch) -> None:
    """Truncated backpropagation: the state is detached and kept between batches."""
    model = nn.ModuleDict({"rnn": nn.LSTM(2, 24, batch_first=True), "out": nn.Linear(24, 2)})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    times = 0.3 * torch.arange(1601)[None] + torch.rand(8, 1) * 6
    series = torch.stack([times.sin(), (0.7 * times).cos()], -1)
    state: Any = None
    for start in range(0, 1600, 20):
        piece = series[:, start : start + 21]
        hidden, state = model["rnn"](piece[:, :-1], state)
        state = tuple(one.detach() for one in state)
        loss = functional.mse_loss(model["out"](hidden), piece[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family="set-up", on="autoencoder")
def binary_images_with_a_sigmoid_output(watch: Watch) -> None:
    """A sigmoid before binary_cross_entropy is right; outputs come close to 0 and 1."""
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 256), nn.Sigmoid()
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    batches = ((mask, mask.flatten(1)) for _, mask in blobs(80, batch=32))
    fit(watch, model, optimizer, batches, functional.binary_cross_entropy)


@healthy(family="set-up", on="residual MLP")
def counts_that_are_normalised_first(watch: Watch) -> None:
    """Raw columns of up to 10,000 go into a batch norm at the start of the model."""
    model = nn.Sequential(nn.BatchNorm1d(8), ResidualMLP(8, out=1), nn.Flatten(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    in_epochs(
        watch,
        model,
        optimizer,
        lambda count: ((1000 * x + 5000, y) for x, y in table(count)),
        functional.mse_loss,
    )


@healthy(family="set-up", on="MLP")
def features_that_are_zero_or_one(watch: Watch) -> None:
    """Bags of words: 95 % of the inputs are 0."""
    model = nn.Sequential(nn.Linear(200, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    draw = draws(41)
    words = (torch.rand(4, 200, generator=draw) < 0.1).float()
    watcher = watch(model)
    for _ in range(70):
        y = torch.randint(4, (32,), generator=draw)
        x = (torch.rand(32, 200, generator=draw) < 0.02 + 0.35 * words[y]).float()
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="LSTM")
def alignment_by_ctc(watch: Watch) -> None:
    """CTC: the loss falls quickly to a plateau of blanks before it learns more."""
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 6), nn.LogSoftmax(-1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for _ in range(100):
        labels = torch.randint(1, 6, (16, 4))
        frames = labels.repeat_interleave(3, 1)
        x = functional.one_hot(frames, 6) + 0.3 * torch.randn(16, 12, 6)
        loss = functional.ctc_loss(
            model(x).transpose(0, 1), labels, torch.full((16,), 12), torch.full((16,), 4)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()
