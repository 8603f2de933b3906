"""Mistakes in how model, loss and data are put together."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmarks.diagnosis import data
from benchmarks.diagnosis.cases import Watch, fit, functional, planted
from benchmarks.diagnosis.models import (
    GPT,
    Autoencoder,
    Block,
    Classifier,
    ConvNet,
    ResNet,
    SequenceLSTM,
    SeriesLSTM,
    TwoTower,
    ViT,
    mlp,
    plain_convnet,
)

_FAMILY = "set-up"


def _next_token(logits: Tensor, tokens: Tensor) -> Any:
    return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


@planted("eval-mode", at=("", "features", "features.*"), family=_FAMILY, on="CNN")
def never_back_to_train_mode(watch: Watch) -> None:
    """After the validation at step 20 `model.train()` is missing: batch norm stops learning."""
    model = ConvNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(data.images(60)):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
            if step == 19:
                model.eval()
                with torch.no_grad():
                    watcher.log("validation loss", functional.cross_entropy(model(x), y))


@planted("eval-mode", at=("", "2", "5"), family=_FAMILY)
def eval_mode_from_the_start(watch: Watch) -> None:
    """The model was loaded with `.eval()`: its dropout does nothing in training."""
    model = nn.Sequential(
        nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.3),
        nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 4),
    ).eval()  # fmt: skip
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=3e-3), data.clusters(60))


@planted("tiny-batch-norm", at=("", "1", "4"), family=_FAMILY)
def batch_norm_over_two_samples(watch: Watch) -> None:
    """BatchNorm1d with batches of two: every feature becomes +1 or −1, whatever it was."""
    model = nn.Sequential(
        nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(),
        nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    fit(watch, model, optimizer, data.clusters(80, batch=2))


@planted("tiny-batch-norm", at=("", "stem.1", "blocks.*.bn?"), family=_FAMILY, on="ResNet")
def batch_norm_with_one_image(watch: Watch) -> None:
    """A batch of one small image: the statistics of batch norm are those of that image."""
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    fit(watch, model, optimizer, data.images(80, batch=1, size=4))


@planted("batch-norm-drift", at=("", "features.1", "features.5"), family=_FAMILY, on="CNN")
def running_statistics_never_updated(watch: Watch) -> None:
    """Momentum 0 keeps the running mean at 0 and the variance at 1: evaluation is far off."""
    model = ConvNet()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.0
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for step, (x, y) in enumerate(data.images(60)):
        shifted = 4 * x + 3
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(shifted), y)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
        if step % 10 == 9:
            model.eval()
            with torch.no_grad():
                watcher.log("validation loss", functional.cross_entropy(model(shifted), y))
            model.train()
    watcher.close()


@planted("softmax-before-cross-entropy", at=("", "5", "4"), family=_FAMILY)
def softmax_layer_before_cross_entropy(watch: Watch) -> None:
    """The model ends in nn.Softmax, and CrossEntropyLoss applies another: the loss stays high."""
    model = mlp(16, 32, 32, 4).append(nn.Softmax(-1))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit(watch, model, optimizer, data.clusters(60), criterion)


class _SoftmaxGPT(GPT):
    def forward(self, tokens: Tensor) -> Tensor:
        return torch.softmax(super().forward(tokens), -1)


@planted("softmax-before-cross-entropy", at=("", "head"), family=_FAMILY, on="GPT")
def probabilities_of_a_gpt_in_cross_entropy(watch: Watch) -> None:
    """The forward returns probabilities, and cross entropy takes them for logits."""
    model = _SoftmaxGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, data.sentences(60), _next_token)


@planted("softmax-before-cross-entropy", at=("", "head"), family=_FAMILY, on="CNN")
def softmax_in_the_loop(watch: Watch) -> None:
    """The loop turns logits into probabilities for the accuracy, and gives those to the loss."""
    model = ConvNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with watch(model) as watcher:
        for x, y in data.images(60):
            probabilities = functional.softmax(model(x), dim=1)
            watcher.log("accuracy", (probabilities.argmax(1) == y).float().mean())
            loss = functional.cross_entropy(probabilities, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("nll-without-log-softmax", "loss-diverges", at=("", "head"), family=_FAMILY)
def logits_in_nll_loss(watch: Watch) -> None:
    """NLLLoss gets logits: it pays to make one of them ever larger, and the loss falls for ever."""
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit(watch, model, optimizer, data.clusters(60), nn.NLLLoss())


@planted("nll-without-log-softmax", at=("", "7", "8"), family=_FAMILY, on="CNN")
def probabilities_without_log_in_nll_loss(watch: Watch) -> None:
    """NLLLoss gets probabilities: it is negative and ends at −1, with weak gradients."""
    model = plain_convnet().append(nn.Softmax(-1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, data.images(60), functional.nll_loss)


@planted("sigmoid-before-bce", at=("", "3", "2"), family=_FAMILY)
def sigmoid_layer_before_bce_with_logits(watch: Watch) -> None:
    """The model ends in nn.Sigmoid, and BCEWithLogitsLoss applies another."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batches = ((x, (y > 1).float()[:, None]) for x, y in data.clusters(60))
    fit(watch, model, optimizer, batches, criterion)


@planted("sigmoid-before-bce", at=("", "decoder", "decoder.2"), family=_FAMILY, on="autoencoder")
def reconstruction_with_two_sigmoids(watch: Watch) -> None:
    """The reconstruction is squashed in the loop, and again in binary_cross_entropy_with_logits."""
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for x, _ in data.clusters(60):
        pixels = (x > 0).float()
        output = torch.sigmoid(model(pixels))
        loss = functional.binary_cross_entropy_with_logits(output, pixels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("relu-on-output", at=("", "3", "2"), family=_FAMILY)
def relu_on_a_regression_output(watch: Watch) -> None:
    """The last layer is a ReLU and half of the targets are negative: the loss stays high."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1), nn.ReLU())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit(watch, model, optimizer, data.curve(80), functional.mse_loss)


@planted(
    "relu-on-output", at=("", "decoder", "decoder.3", "decoder.2"), family=_FAMILY, on="autoencoder"
)
def relu_on_a_reconstruction(watch: Watch) -> None:
    """The decoder ends in a ReLU, and the inputs it is to reproduce are around zero."""
    model = Autoencoder()
    model.decoder.append(nn.ReLU())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with watch(model) as watcher:
        for x, _ in data.clusters(80):
            loss = functional.l1_loss(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("loss-broadcast", family=_FAMILY)
def mse_of_a_column_and_a_row(watch: Watch) -> None:
    """Outputs are (N, 1), targets (N): MSE compares every output with every target."""
    model = mlp(8, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batches = ((x, y.squeeze(1)) for x, y in data.curve(80))
    fit(watch, model, optimizer, batches, nn.MSELoss())


@planted("loss-broadcast", family=_FAMILY, on="LSTM")
def smooth_loss_of_a_row_and_a_column(watch: Watch) -> None:
    """Outputs are squeezed to (N), targets are (N, 1); smooth_l1_loss broadcasts to (N, N)."""
    model = SeriesLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for x, y in data.waves(80):
        loss = functional.smooth_l1_loss(model(x).squeeze(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("loss-broadcast", "loss-plateau", family=_FAMILY, on="CNN")
def loss_by_hand_that_broadcasts(watch: Watch) -> None:
    """`((output - y) ** 2).mean()` with (N, 1) and (N): the best output is the mean of targets."""
    model = plain_convnet(classes=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model) as watcher:
        for x, y in data.images(80):
            output = model(x)
            loss = ((output - y.float()) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


class _ForgottenNorm(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)


@planted("module-never-called", "no-gradient", at=("norm",), family=_FAMILY)
def norm_that_is_never_called(watch: Watch) -> None:
    """The norm is made in `__init__` and forgotten in `forward`."""
    model = _ForgottenNorm()
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=1e-2), data.clusters(60))


class _ShortLoop(ViT):
    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for number in range(len(self.layers) - 1):
            x = self.layers[number](x)
        return cast(Tensor, self.head(self.norm(x).mean(1)))


@planted(
    "module-never-called", "no-gradient", at=("layers.2", "layers.2.*"), family=_FAMILY, on="ViT"
)
def last_block_never_called(watch: Watch) -> None:
    """The loop over the blocks ends one too early: the last block never runs."""
    model = _ShortLoop(depth=3)
    fit(watch, model, torch.optim.AdamW(model.parameters(), lr=1e-3), data.images(50))


@planted(
    "module-never-called", "no-gradient", at=("right", "right.*"), family=_FAMILY, on="two-tower"
)
def one_tower_called_twice(watch: Watch) -> None:
    """A copied line calls the left tower for both sides; the right one never runs."""

    class Copied(TwoTower):
        def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
            return self.left(left), self.left(right)

    model = Copied()
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


@planted("shared-module", at=("", "[0-9]", "1[0-9]"), family=_FAMILY)
def one_layer_six_times(watch: Watch) -> None:
    """`[layer] * 6` repeats one object: the deep network has the weights of one layer."""
    layers = [nn.Sequential(nn.Linear(32, 32), nn.ReLU())] * 6
    model = nn.Sequential(nn.Linear(16, 32), *layers, nn.Linear(32, 4))
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=3e-3), data.clusters(60))


@planted("shared-module", at=("", "blocks", "blocks.*"), family=_FAMILY, on="GPT")
def one_block_in_every_place(watch: Watch) -> None:
    """`nn.ModuleList([block] * 4)`: a GPT of four blocks that are one."""
    model = GPT()
    model.blocks = nn.ModuleList([Block(32, 4, 12)] * 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, data.sentences(60), _next_token)


@planted("untied-weights", at=("", "head", "tokens"), family=_FAMILY, on="GPT")
def loading_that_unties_the_head(watch: Watch) -> None:
    """`load_state_dict(assign=True)` gives head and embedding a tensor each, equal at the start."""
    model = GPT(tied=True)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, data.sentences(60), _next_token)


@planted("untied-weights", at=("", "encoder", "decoder", "encoder.0", "decoder.2"),
         family=_FAMILY, on="autoencoder")  # fmt: skip
def copy_instead_of_a_tie(watch: Watch) -> None:
    """The decoder was to share the encoder's matrix; `nn.Parameter(weight)` makes another one."""

    class Mirrored(Autoencoder):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = mlp(16, 16, 16, activation=nn.Tanh)
            self.decoder = mlp(16, 16, 16, activation=nn.Tanh)
            first = cast(nn.Linear, self.encoder[0]).weight
            cast(nn.Linear, self.decoder[2]).weight = nn.Parameter(first.detach().clone())

    model = Mirrored()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with watch(model) as watcher:
        for x, _ in data.clusters(60):
            loss = functional.mse_loss(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("inputs-not-normalized", at=("", "0"), family=_FAMILY, on="CNN")
def pixels_from_0_to_255(watch: Watch) -> None:
    """Images are bytes from 0 to 255, as floats, without any scaling."""
    model = plain_convnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batches = (((60 * x + 128).clamp(0, 255).round(), y) for x, y in data.images(60))
    fit(watch, model, optimizer, batches)


@planted("inputs-not-normalized", at=("", "0"), family=_FAMILY)
def one_column_of_ten_thousands(watch: Watch) -> None:
    """One feature is an income of about 50,000 beside others around 1."""
    model = mlp(8, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    watcher = watch(model)
    for x, y in data.curve(60):
        x[:, 3] = 50_000 + 20_000 * x[:, 3]
        loss = functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("inputs-not-normalized", "saturated", at=("", "lstm", "lstm.*"), family=_FAMILY, on="LSTM")
def timestamps_in_a_series(watch: Watch) -> None:
    """The first channel is a Unix time of 1.7e9: it drives every gate of the LSTM to its limit."""
    model = SeriesLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batches = (
        (torch.stack([1.7e9 + 60 * torch.arange(20.0).expand(len(x), 20), x[..., 1]], -1), y)
        for x, y in data.waves(60)
    )
    fit(watch, model, optimizer, batches, functional.mse_loss)


@planted(
    "constant-input", "loss-plateau", at=("", "features", "features.0"), family=_FAMILY, on="CNN"
)
def same_image_for_every_sample(watch: Watch) -> None:
    """The loader returns the first image at every index, with changing labels."""
    model = ConvNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    first = next(data.images(1))[0][:1]
    batches = ((first.expand(len(x), -1, -1, -1), y) for x, y in data.images(60))
    fit(watch, model, optimizer, batches)


@planted(
    "constant-input", "loss-plateau", at=("", "tokens", "embedding"), family=_FAMILY, on="LSTM"
)
def every_token_unknown(watch: Watch) -> None:
    """The vocabulary does not match the tokenizer: every token is the unknown one, 0."""
    model = SequenceLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = ((torch.zeros_like(x), y) for x, y in data.sentences(60))
    fit(watch, model, optimizer, batches, _next_token)


@planted("zero-input", "constant-input", at=("", "0"), family=_FAMILY)
def inputs_divided_as_integers(watch: Watch) -> None:
    """Bytes are divided by 255 as integers: all inputs are 0."""
    model = mlp(16, 32, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for x, y in data.clusters(60):
        pixels = (40 * x + 100).clamp(0, 250).byte()
        scaled = (pixels // 255).float()
        loss = functional.cross_entropy(model(scaled), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted(
    "zero-input", "constant-input", at=("right", "right.*", ""), family=_FAMILY, on="two-tower"
)
def one_tower_fed_with_zeros(watch: Watch) -> None:
    """A failed join leaves the features of the right side empty: all zeros."""
    model = TwoTower()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with watch(model) as watcher:
        for left, right in data.pairs(60):
            a, b = model(left, torch.zeros_like(right))
            scores = (a * b).sum(-1)
            loss = functional.binary_cross_entropy_with_logits(scores, (left[:, 0] > 0).float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("labels-out-of-range", "nan", family=_FAMILY, on="LSTM")
def all_labels_ignored(watch: Watch) -> None:
    """From step 20 on the mask sets every label to −100: the mean over no label is NaN."""
    model = SequenceLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for step, (x, y) in enumerate(data.sentences(50)):
        labels = y.masked_fill(torch.full_like(y, step >= 20, dtype=torch.bool), -100)
        loss = functional.cross_entropy(model(x).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("labels-out-of-range", "loss-diverges", family=_FAMILY)
def binary_labels_of_0_and_255(watch: Watch) -> None:
    """A mask read from an image has 0 and 255: BCEWithLogits falls without end below zero."""
    model = mlp(16, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batches = ((x, 255.0 * (y > 1).float()[:, None]) for x, y in data.clusters(60))
    fit(watch, model, optimizer, batches, functional.binary_cross_entropy_with_logits)


@planted("labels-out-of-range", family=_FAMILY, on="CNN")
def targets_that_sum_to_three(watch: Watch) -> None:
    """Float targets of cross entropy are votes of three people: rows sum to 3, not to 1."""
    model = ConvNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = ((x, 3 * functional.one_hot(y, 4).float()) for x, y in data.images(60))
    fit(watch, model, optimizer, batches)


@planted("dtype-mix", at=("", "1", "1.linear"), family=_FAMILY)
def float64_island(watch: Watch) -> None:
    """One layer in the middle runs in float64, for a normalization written by hand."""

    class Island(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 64).double()

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.linear(x.double()).float())

    model = nn.Sequential(nn.Linear(16, 64), Island(), nn.ReLU(), nn.Linear(64, 4))
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=1e-3), data.clusters(60))


@planted("dtype-mix", at=("", "2", "3", "4", "4.linear"), family=_FAMILY)
def bfloat16_upcast_by_a_buffer(watch: Watch) -> None:
    """A float32 scale in a bfloat16 model makes everything behind it float32, silently."""

    class Scaled(nn.Module):
        scale: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(64))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, functional.linear(x, self.linear.weight.to(x.dtype)))

    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), Scaled(), nn.ReLU(), Head()).bfloat16()
    model[2].float()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = ((x.bfloat16(), y) for x, y in data.clusters(60))
    fit(watch, model, optimizer, batches)
