"""Trainings of the third hold-out with a mistake in activations, set-up, data or dynamics."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

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
from benchmarks.diagnosis.models import GPT, Autoencoder, ConvNet, Mixture, ViT, mlp

Adam = torch.optim.Adam


# activations


@planted("dead-units", at=("1", "2", "0", "features.*"), family="activations", on="CNN")
def convolution_initialized_with_a_negative_bias(watch: Watch) -> None:
    """nn.init.constant_(bias, -10): no ReLU of the first layer is ever on."""
    first = nn.Conv2d(1, 8, 3)
    nn.init.constant_(list(first.parameters())[1], -10.0)
    model = nn.Sequential(
        first, nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5)
    )
    train(watch, model, Adam(model.parameters(), lr=1e-3), digits())


@planted("saturated", at=("encoder", "encoder.*", "1", "[0-9]"), family="activations", on="MLP")
def sigmoid_after_standard_normal_weights(watch: Watch) -> None:
    """Weights of N(0, 10²) before a sigmoid: all hidden units are at 0 or 1."""
    model = mlp(10, 64, 3, activation=nn.Sigmoid)
    nn.init.normal_(next(model.parameters()), std=30.0)
    train(watch, model, torch.optim.SGD(model.parameters(), lr=0.01), records())


@planted("identical-units", at=("fc1", "fc2", "[0-9]", ""), family="activations", on="MLP")
def hidden_layer_filled_with_one_constant(watch: Watch) -> None:
    """nn.init.constant_(weight, 0.1) in all layers: every hidden unit is the same."""
    model = mlp(10, 24, 24, 3)
    for one in model.parameters():
        nn.init.constant_(one, 0.1)
    train(watch, model, Adam(model.parameters(), lr=1e-3), records())


@planted(
    "attention-collapse",
    "attention-logit-growth",
    "saturated",
    at=("", "blocks", "blocks.*", "layers.*"),
    family="activations",
    on="GPT",
)
def queries_and_keys_eight_times_too_large(watch: Watch) -> None:
    """Queries and keys start eight times too large: attention looks at one token."""
    model = GPT(14, length=10)
    with torch.no_grad():
        block: Any
        for block in model.blocks:
            block.attention.query.weight.mul_(12)
            block.attention.key.weight.mul_(12)
    train(watch, model, Adam(model.parameters(), lr=1e-3), text(), next_token)


@planted("router-collapse", at=("", "router", "experts"), family="activations", on="mixture")
def router_with_a_large_initial_bias(watch: Watch) -> None:
    """The bias of the router starts at 8 for one expert, which gets all samples."""
    model = Mixture(10)
    model.head = nn.Linear(10, 3)
    with torch.no_grad():
        model.router.bias[2] = 8.0
    train(watch, model, Adam(model.parameters(), lr=1e-3), records())


@planted("dropout-drops-all", at=("1", "drop", "[0-9]", ""), family="activations", on="CNN")
def spatial_dropout_of_nearly_all(watch: Watch) -> None:
    """nn.Dropout2d(0.98): p is the share that is dropped."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.Dropout2d(0.98), nn.ReLU(), nn.Flatten(), nn.Linear(576, 5)
    )
    train(watch, model, Adam(model.parameters(), lr=1e-3), digits())


@planted(
    "representation-collapse",
    "constant-output",
    at=("", "0", "2", "[0-9]"),
    family="activations",
    on="MLP",
)
def invariance_alone(watch: Watch) -> None:
    """Embeddings of a sample and its noisy copy shall agree, and nothing keeps samples apart."""
    model = mlp(10, 32, 16)
    optimizer = Adam(model.parameters(), lr=5e-3)
    with watch(model) as watcher:
        for x, _ in batches(records(), 12):
            loss = functional.mse_loss(model(x), model(x + 0.3 * torch.randn_like(x)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted(
    "growing-activations",
    "exploding-gradient",
    at=("", "blocks", "blocks.*"),
    family="activations",
    on="MLP",
)
def residual_branches_that_double_the_stream(watch: Watch) -> None:
    """Ten residual blocks without norm, initialized with a gain of two."""

    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(16, 16)
            nn.init.orthogonal_(self.fc.weight, gain=2.5)

        def forward(self, x: Tensor) -> Any:
            return x + self.fc(x).relu()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inp = nn.Linear(10, 16)
            self.blocks = nn.Sequential(*(Branch() for _ in range(10)))
            self.out = nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Any:
            return self.out(self.blocks(self.inp(x)))

    model = Net()
    train(watch, model, Adam(model.parameters(), lr=1e-5), records())


# set-up


@planted("eval-mode", at=("", "features", "features.*"), family="set-up", on="CNN")
def validation_without_going_back(watch: Watch) -> None:
    """model.eval() before the first validation; model.train() stands outside of the epochs."""
    model = ConvNet(classes=5)
    optimizer = Adam(model.parameters(), lr=1e-3)
    data = digits()
    with watch(model) as watcher:
        model.train()
        for _ in range(6):
            for x, y in batches(data, 1):
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                watcher.log("loss", loss)
            model.eval()
            with torch.no_grad():
                for x, y in batches(data, 1):
                    functional.cross_entropy(model(x), y)


@planted("tiny-batch-norm", at=("features.*", "", "features"), family="set-up", on="CNN")
def batches_of_two_pictures(watch: Watch) -> None:
    """batch_size=2 with batch norm."""
    model = ConvNet(classes=5)
    train(watch, model, Adam(model.parameters(), lr=1e-3), digits(96), batch=2, epochs=2)


@planted("softmax-before-cross-entropy", at=("", "5", "[0-9]*"), family="set-up", on="CNN")
def network_that_returns_probabilities(watch: Watch) -> None:
    """nn.Softmax as the last layer, and nn.CrossEntropyLoss."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(288, 5),
        nn.Dropout(0.1),
        nn.Softmax(1),
    )
    train(watch, model, Adam(model.parameters(), lr=1e-3), digits(), nn.CrossEntropyLoss())


@planted("sigmoid-before-bce", at=("", "3", "[0-9]*"), family="set-up", on="MLP")
def probability_into_a_loss_for_logits(watch: Watch) -> None:
    """torch.sigmoid in the loop, and nn.BCEWithLogitsLoss."""
    model = mlp(10, 32, 1)
    criterion = nn.BCEWithLogitsLoss()
    train(
        watch,
        model,
        Adam(model.parameters(), lr=1e-3),
        records(classes=2),
        lambda out, y: criterion(torch.sigmoid(out).squeeze(-1), y.float()),
    )


@planted("relu-on-output", at=("", "3", "[0-9]*"), family="set-up", on="MLP")
def prices_that_cannot_be_negative(watch: Watch) -> None:
    """A ReLU ends a regression of values around 0."""
    model = mlp(10, 32, 1).append(nn.ReLU())
    train(watch, model, Adam(model.parameters(), lr=1e-3), prices(), nn.MSELoss())


@planted("loss-broadcast", family="set-up", on="MLP")
def flat_targets_and_a_column(watch: Watch) -> None:
    """The output is (N, 1), the target (N): huber_loss compares all with all."""
    model = mlp(10, 32, 1)
    train(
        watch,
        model,
        Adam(model.parameters(), lr=1e-3),
        prices(),
        lambda out, y: functional.huber_loss(out, y.squeeze(1)),
    )


class Skipped(nn.Module):
    """A network whose norm is made and forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(10, 32)
        self.norm = nn.LayerNorm(32)
        self.extra = nn.Linear(32, 32)
        self.fc2 = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Any:
        return self.fc2(self.norm(self.fc1(x)).relu())


@planted("module-never-called", at=("extra",), family="set-up", on="MLP")
def layer_that_forward_forgets(watch: Watch) -> None:
    """`extra` is made in __init__ and not used in forward."""
    model = Skipped()
    train(watch, model, Adam(model.parameters(), lr=1e-3), records())


@planted("shared-module", at=("layers", "", "layers.*"), family="set-up", on="ViT")
def one_encoder_layer_four_times(watch: Watch) -> None:
    """nn.ModuleList([layer] * 4) has one layer."""
    model = ViT(classes=5)
    model.layers = nn.ModuleList([model.layers[0]] * 4)
    train(watch, model, Adam(model.parameters(), lr=1e-3), digits())


@planted("unregistered-module", at=("", "layers"), family="set-up", on="MLP")
def hidden_layers_in_a_tuple(watch: Watch) -> None:
    """Layers in a tuple are not registered."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inp = nn.Linear(10, 16)
            self.layers = tuple(nn.Linear(16, 16) for _ in range(3))
            self.out = nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Any:
            x = self.inp(x)
            for layer in self.layers:
                x = layer(x.relu())
            return self.out(x)

    model = Net()
    train(watch, model, Adam(model.parameters(), lr=1e-3), records())


@planted("inputs-not-normalized", family="set-up", on="ViT")
def pictures_as_bytes(watch: Watch) -> None:
    """Pixels from 0 to 255 without normalization."""
    model = ViT(classes=5)
    x, y = digits().tensors
    data = TensorDataset(((x + 3) / 6).clamp(0, 1).mul(255).round(), y)
    train(watch, model, Adam(model.parameters(), lr=1e-3), data)


@planted("zero-input", "constant-input", family="set-up", on="autoencoder")
def pixels_divided_as_integers(watch: Watch) -> None:
    """x // 255 is 0 for every pixel."""
    model = Autoencoder(10)
    x, _ = records().tensors
    data = (x * 20 + 100).clamp(0, 254).byte() // 255
    optimizer = Adam(model.parameters(), lr=1e-3)
    with watch(model) as watcher:
        for (batch,) in batches(TensorDataset(data), 6):
            out = model(batch.float())
            loss = functional.mse_loss(out, batch.float() + 1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("labels-out-of-range", family="set-up", on="CNN")
def classes_counted_from_one(watch: Watch) -> None:
    """Labels 1…5 for five outputs: cross_entropy raises."""
    model = ConvNet(classes=5)
    x, y = digits().tensors
    with contextlib.suppress(IndexError, RuntimeError):
        train(watch, model, Adam(model.parameters(), lr=1e-3), TensorDataset(x, y + 1))
    watch.losses.append(0.0)


@planted("dtype-mix", at=("", "head", "2", "[0-9]"), family="set-up", on="MLP")
def last_layer_in_double(watch: Watch) -> None:
    """The last layer is float64, and its input is converted."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
            self.head = nn.Linear(32, 3).double()

        def forward(self, x: Tensor) -> Any:
            return self.head(self.body(x).double())

    model = Net()
    train(watch, model, Adam(model.parameters(), lr=1e-3), records())


@planted("untied-weights", at=("head", "tokens", ""), family="set-up", on="GPT")
def head_is_a_copy_of_the_embedding(watch: Watch) -> None:
    """`head.weight.data.copy_(tokens.weight)` copies the values and does not tie."""
    model = GPT(14, length=10)
    model.head.weight.data.copy_(model.tokens.weight.data)
    train(watch, model, Adam(model.parameters(), lr=1e-3), text(), next_token)


@planted("nll-without-log-softmax", at=("",), family="set-up", on="MLP")
def negative_log_likelihood_of_logits(watch: Watch) -> None:
    """nn.NLLLoss on the output of a Linear: the loss falls without end."""
    model = mlp(10, 32, 3)
    train(watch, model, Adam(model.parameters(), lr=1e-3), records(), nn.NLLLoss())


@planted("batch-norm-drift", at=("", "features", "features.*"), family="set-up", on="CNN")
def momentum_of_batch_norm_mistaken_for_a_decay(watch: Watch) -> None:
    """momentum=1e-4, thought to be a decay of 0.9999: eval mode uses the initial statistics."""
    model = ConvNet(classes=5)
    for one in model.modules():
        if isinstance(one, nn.BatchNorm2d):
            one.momentum = 1e-4
    x, y = digits().tensors
    train(watch, model, Adam(model.parameters(), lr=1e-3), TensorDataset(4 * x, y))


@planted("train-eval-gap", at=("",), family="set-up", on="MLP")
def functional_dropout_in_every_mode(watch: Watch) -> None:
    """functional.dropout(x, 0.5) drops in eval mode, too."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(10, 32), nn.Linear(32, 3)

        def forward(self, x: Tensor) -> Any:
            return self.fc2(functional.dropout(self.fc1(x).relu(), 0.5))

    model = Net()
    optimizer = Adam(model.parameters(), lr=1e-3)
    data = records()
    with watch(model) as watcher:
        for _ in range(5):
            model.train()
            for x, y in batches(data, 1):
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                watcher.log("loss", loss)
            model.eval()
            with torch.no_grad():
                watcher.log(
                    "accuracy",
                    (model(data.tensors[0]).argmax(-1) == data.tensors[1]).float().mean(),
                )


# dynamics


@planted("loss-plateau", family="dynamics", on="CNN")
def labels_sorted_apart_from_the_pictures(watch: Watch) -> None:
    """The labels are sorted, the pictures are not; each epoch draws noise anew."""
    model = ConvNet(classes=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model) as watcher:
        for x, y in batches(digits(512), 5):
            loss = functional.cross_entropy(model(x), y[torch.randperm(len(y))])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("loss-spike", at=("",), family="dynamics", on="MLP", since=40)
def one_row_with_a_wrong_unit(watch: Watch) -> None:
    """One batch has prices in cents instead of euros."""
    model = mlp(10, 32, 1)
    optimizer = Adam(model.parameters(), lr=1e-3)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(batches(prices(), 9)):
            if step == 40:
                x.mul_(100)
                y.mul_(100)
            loss = functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            watcher.log("loss", loss)


@planted("loss-diverges", at=("",), family="dynamics", on="MLP")
def reward_instead_of_a_loss(watch: Watch) -> None:
    """The accuracy-like score is minimized: minus cross entropy."""
    model = mlp(10, 32, 3)
    train(
        watch,
        model,
        Adam(model.parameters(), lr=1e-2),
        records(),
        lambda out, y: -functional.cross_entropy(out, y),
    )
