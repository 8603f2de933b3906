"""Optimizers that miss parameters, step wrongly, or step too far or not at all."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmarks.diagnosis import data
from benchmarks.diagnosis.cases import Watch, fit, functional, planted
from benchmarks.diagnosis.models import (
    GPT,
    Autoencoder,
    Classifier,
    ConvNet,
    Mixture,
    ResNet,
    SequenceLSTM,
    SeriesLSTM,
    TwoTower,
    ViT,
    mlp,
    plain_convnet,
)

_FAMILY = "optimizer"


def _next_token(logits: Tensor, tokens: Tensor) -> Any:
    return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


@planted("not-in-optimizer", at=("backbone", "backbone.*"), family=_FAMILY)
def optimizer_of_the_head_alone(watch: Watch) -> None:
    """Only the head is given to the optimizer, though the random backbone computes gradients."""
    model = Classifier()
    optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-2)
    fit(watch, model, optimizer, data.clusters(60))


@planted("not-in-optimizer", at=("right", "right.*"), family=_FAMILY, on="two-tower")
def optimizer_of_one_tower(watch: Watch) -> None:
    """`model.left.parameters()` twice: the right tower computes gradients and never moves."""
    model = TwoTower()
    optimizer = torch.optim.Adam(model.left.parameters(), lr=3e-3)
    watcher = watch(model)
    for left, right in data.pairs(60):
        a, b = model(left, right)
        scores = functional.normalize(a) @ functional.normalize(b).T / 0.1
        loss = functional.cross_entropy(scores, torch.arange(len(scores)))
        model.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted(
    "not-in-optimizer",
    at=("", "norm", "blocks.*.ln1", "blocks.*.ln2", "blocks.*"),
    family=_FAMILY,
    on="GPT",
)
def parameter_groups_that_miss_the_norms(watch: Watch) -> None:
    """One group takes matrices, the other biases of Linears: the norms are in neither."""
    model = GPT()
    named = dict(model.named_parameters())
    decayed = [p for name, p in named.items() if p.ndim == 2]
    others = [p for name, p in named.items() if name.endswith("bias") and "ln" not in name]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    fit(watch, model, optimizer, data.sentences(60), _next_token)


@planted("not-in-optimizer", at=("cls", ""), family=_FAMILY, on="ViT")
def class_token_made_after_the_optimizer(watch: Watch) -> None:
    """A parameter is added to the model after the optimizer was made."""

    class TokenViT(ViT):
        cls: nn.Parameter

        def forward(self, images: Tensor) -> Tensor:
            x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
            x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1)
            for layer in self.layers:
                x = layer(x)
            return cast(Tensor, self.head(self.norm(x)[:, 0]))

    model = TokenViT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model.cls = nn.Parameter(torch.randn(1, 1, 32))
    fit(watch, model, optimizer, data.images(50))


@planted("replaced-parameter", "not-in-optimizer", at=("fc",), family=_FAMILY, on="ResNet")
def head_replaced_after_the_optimizer(watch: Watch) -> None:
    """`model.fc` gets the right number of classes after the optimizer took the old one."""
    model = ResNet(classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model.fc = nn.Linear(8, 4)
    fit(watch, model, optimizer, data.images(60))


@planted("replaced-parameter", "not-in-optimizer", at=("embedding",), family=_FAMILY, on="LSTM")
def embedding_resized_after_the_optimizer(watch: Watch) -> None:
    """The embedding is enlarged for new tokens; the optimizer holds the old one."""
    model = SequenceLSTM(vocabulary=12)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    larger = nn.Embedding(16, 32)
    with torch.no_grad():
        larger.weight[:12] = model.embedding.weight
    model.embedding = larger
    model.head = nn.Linear(32, 16)
    optimizer.add_param_group({"params": list(model.head.parameters())})
    fit(watch, model, optimizer, data.sentences(60), _next_token)


@planted(
    "replaced-parameter", "not-in-optimizer", "optimizer-not-stepped", "loss-plateau",
    family=_FAMILY, on="autoencoder",
)  # fmt: skip
def copy_of_the_model_is_trained(watch: Watch) -> None:
    """The optimizer has the parameters of the original; the loop trains a copy of it."""
    original = Autoencoder()
    optimizer = torch.optim.Adam(original.parameters(), lr=3e-3)
    model = copy.deepcopy(original)
    with watch(model) as watcher:
        for x, _ in data.clusters(60):
            loss = functional.mse_loss(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


class _PlainList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(16, 16) for _ in range(3)]
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = functional.relu(layer(x))
        return cast(Tensor, self.head(x))


@planted("unregistered-module", "not-in-optimizer", at=("", "layers", "layers.*"), family=_FAMILY)
def layers_in_a_plain_list(watch: Watch) -> None:
    """Layers are in a Python list, not an nn.ModuleList: `parameters()` has the head alone."""
    model = _PlainList()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit(watch, model, optimizer, data.clusters(60))


@planted("optimizer-not-stepped", "loss-plateau", family=_FAMILY, on="CNN")
def step_never_called(watch: Watch) -> None:
    """`optimizer.step()` is missing: gradients come and go, weights stay."""
    model = plain_convnet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for x, y in data.images(50):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        watcher.log("loss", loss)
    watcher.close()


@planted("gradient-cleared", "no-gradient", "loss-plateau", family=_FAMILY)
def zero_grad_between_backward_and_step(watch: Watch) -> None:
    """`zero_grad` stands between backward and step: the optimizer finds no gradient."""
    model = mlp(16, 32, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model) as watcher:
        for x, y in data.clusters(50):
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.zero_grad()
            optimizer.step()
            watcher.log("loss", loss)


@planted("gradient-cleared", "no-gradient", "loss-plateau", family=_FAMILY, on="GPT")
def gradients_set_to_zero_before_the_step(watch: Watch) -> None:
    """The same with gradients filled with zeros: weight decay alone moves the weights."""
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watcher = watch(model)
    for x, y in data.sentences(50):
        loss = _next_token(model(x), y)
        loss.backward()
        optimizer.zero_grad(set_to_none=False)
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("lr-too-high", "loss-diverges", family=_FAMILY)
def sgd_with_a_huge_learning_rate(watch: Watch) -> None:
    """SGD with lr 1.5 on a regression: the loss grows within a few steps."""
    model = mlp(8, 32, 32, 1, activation=nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.5, momentum=0.9)
    fit(watch, model, optimizer, data.curve(80), functional.mse_loss)


@planted("lr-too-high", "loss-diverges", family=_FAMILY, on="GPT")
def adam_with_a_huge_learning_rate(watch: Watch) -> None:
    """AdamW with lr 1: each update is larger than the weights, and the loss is above its start."""
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    fit(watch, model, optimizer, data.sentences(60), _next_token)


@planted("lr-too-high", "loss-diverges", family=_FAMILY, on="CNN")
def momentum_with_a_huge_learning_rate(watch: Watch) -> None:
    """Batch norm hides the size of weights that grow by 100 % and more a step; the loss jumps."""
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=20.0, momentum=0.9)
    fit(watch, model, optimizer, data.images(60))


@planted("lr-too-high", "loss-diverges", at=("", "lstm", "lstm.*"), family=_FAMILY, on="LSTM")
def rmsprop_with_a_high_learning_rate(watch: Watch) -> None:
    """RMSprop with lr 0.5: the gates saturate and the loss never settles."""
    model = SequenceLSTM()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.5)
    fit(watch, model, optimizer, data.sentences(60), _next_token)


@planted("lr-too-low", family=_FAMILY)
def adam_with_a_tiny_learning_rate(watch: Watch) -> None:
    """Adam with lr 1e-9: updates are a billionth of the weights."""
    model = mlp(16, 32, 32, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-9)
    fit(watch, model, optimizer, data.clusters(60))


@planted("lr-too-low", family=_FAMILY, on="CNN")
def sgd_with_a_tiny_learning_rate(watch: Watch) -> None:
    """SGD with lr 1e-7, as if it were Adam after long training: nothing moves from the start."""
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    fit(watch, model, optimizer, data.images(60))


@planted("lr-zero", "lr-too-low", family=_FAMILY, on="LSTM")
def warmup_by_integer_division(watch: Watch) -> None:
    """The warm-up factor is `step // 1000`: it is 0 during the whole training."""
    model = SeriesLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, step // 1000))
    with watch(model) as watcher:
        for x, y in data.waves(60):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            watcher.log("loss", loss)


@planted("lr-zero", "lr-too-low", family=_FAMILY, on="ViT")
def scheduler_stepped_per_batch(watch: Watch) -> None:
    """StepLR for epochs is stepped at every batch: after 30 batches lr is 1e-13."""
    model = ViT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.1)
    watcher = watch(model)
    for x, y in data.images(80):
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("lr-zero", "lr-too-low", family=_FAMILY)
def polynomial_schedule_that_ends_early(watch: Watch) -> None:
    """The schedule was told 10 steps, as many as there are epochs: lr is 0 for the other 110."""
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=10)
    with watch(model) as watcher:
        for x, y in data.clusters(120):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            watcher.log("loss", loss)


@planted("weight-decay-too-strong", at=("", "backbone", "backbone.*", "head"), family=_FAMILY)
def decay_that_shrinks_all_weights(watch: Watch) -> None:
    """AdamW with lr 0.01 and a decay of 30 takes 30 % off every weight at every step."""
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=30.0)
    fit(watch, model, optimizer, data.clusters(60))


@planted("weight-decay-too-strong", at=("", "lstm", "lstm.*", "head"), family=_FAMILY, on="LSTM")
def decay_stronger_than_the_gradient(watch: Watch) -> None:
    """SGD with a decay of 1: weights fall to nothing, and the output to its bias."""
    model = SeriesLSTM()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1.0)
    fit(watch, model, optimizer, data.waves(80), functional.mse_loss)


@planted("scaler-skips", family=_FAMILY)
def scaler_with_a_scale_that_overflows(watch: Watch) -> None:
    """The scale starts at 2¹²⁷ and falls too slowly: every step overflows, and is skipped."""
    model = mlp(16, 32, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=0.99)
    with watch(model) as watcher:
        for x, y in data.clusters(40):
            optimizer.zero_grad()
            loss = 1e6 * functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            watcher.log("loss", loss)


@planted("scaler-skips", "nan", "inf", at=("", "1", "3"), family=_FAMILY)
def scaler_that_hides_nan_gradients(watch: Watch) -> None:
    """Gradients are NaN at every step; the scaler skips them all, so the loss looks finite."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    watcher = watch(model)
    for x, y in data.images(40):
        optimizer.zero_grad()
        logits = model(x)
        sharpness = (logits - logits.detach()).pow(2).sum(-1).sqrt().mean()
        loss = functional.cross_entropy(logits, y) + 0.1 * sharpness
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        watcher.log("loss", loss)
    watcher.close()


@planted("frozen", "loss-plateau", at=("", "features", "features.*"), family=_FAMILY, on="CNN")
def all_but_a_bias_frozen(watch: Watch) -> None:
    """The filter asks for "fc", which is called "head" here: all but one bias is frozen."""
    model = ConvNet()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "fc" in name or name == "head.bias"
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit(watch, model, optimizer, data.images(60))


@planted("frozen", "loss-plateau", at=("", "router", "experts", "experts.*", "head"),
         family=_FAMILY, on="mixture")  # fmt: skip
def everything_frozen_but_the_temperature(watch: Watch) -> None:
    """`requires_grad_(False)` for evaluation was never undone; a temperature alone is trained."""

    class Tempered(Mixture):
        def __init__(self) -> None:
            super().__init__()
            self.temperature = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) / self.temperature

    model = Tempered()
    model.requires_grad_(False)
    model.temperature.requires_grad_(True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit(watch, model, optimizer, data.clusters(60))


@planted("lost-updates", "lr-too-low", family=_FAMILY)
def updates_lost_in_bfloat16(watch: Watch) -> None:
    """bfloat16 has 8 bits: Adam's updates of 1e-5 to weights of 0.1 are rounded away."""
    model = mlp(16, 64, 64, 4, activation=nn.GELU).bfloat16()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    watcher = watch(model)
    for x, y in data.clusters(80):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x.bfloat16()).float(), y)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()
