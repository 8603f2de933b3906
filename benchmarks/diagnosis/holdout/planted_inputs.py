"""Trainings with wrong inputs, labels or dtypes, or with layers that are not registered."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.diagnosis.cases import Watch, fit, functional, planted
from benchmarks.diagnosis.data import clusters, images, ring, sentences
from benchmarks.diagnosis.holdout.models import (
    DLRM,
    GRUTagger,
    Llama,
    PreActNet,
    ResidualMLP,
    UNet,
)
from benchmarks.diagnosis.holdout.tasks import (
    blobs,
    clicks,
    next_token,
    reviews,
)

FAMILY = "set-up"


@planted("inputs-not-normalized", at=("", "conv"), family=FAMILY, on="CNN")
def pixels_from_0_to_255(watch: Watch) -> None:
    """Images as floats from 0 to 255."""
    model = PreActNet(norm=lambda width: nn.Identity())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = ((((x + 3) / 6).clamp(0, 1) * 255, y) for x, y in images(50))
    fit(watch, model, optimizer, batches)


@planted("inputs-not-normalized", at=("", "bottom", "bottom.0"), family=FAMILY, on="DLRM")
def timestamp_among_the_features(watch: Watch) -> None:
    """One dense column is a time in seconds, 1.6e9."""
    model = DLRM()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    watcher = watch(model)
    for dense, categories, clicked in clicks(50):
        dense[:, 4] = 1.6e9 + 1e5 * dense[:, 4]
        loss = functional.binary_cross_entropy_with_logits(model(dense, categories), clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("constant-input", at=("", "conv"), family=FAMILY, on="CNN")
def the_same_image_in_every_place(watch: Watch) -> None:
    """An index that is not advanced: a batch is one image, over and over."""
    model = PreActNet(norm=lambda width: nn.GroupNorm(4, width))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    only = next(iter(images(1)))[0][:1]
    fit(watch, model, optimizer, ((only.expand(16, -1, -1, -1), y) for _, y in images(50)))


@planted("zero-input", "constant-input", at=("", "down1", "down1.0"), family=FAMILY, on="U-Net")
def images_are_rounded_to_zero(watch: Watch) -> None:
    """Pixels divided by 255 are cast to whole numbers before the model: all 0."""
    model = UNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    batches = (((x.clamp(0, 0.9)).to(torch.uint8).float(), y) for x, y in blobs(40))
    fit(watch, model, optimizer, batches, functional.binary_cross_entropy_with_logits)


@planted("constant-input", "zero-input", at=("", "embed"), family=FAMILY, on="GRU")
def every_token_is_unknown(watch: Watch) -> None:
    """The tokenizer has the wrong vocabulary: each token is the one for unknown words."""
    model = GRUTagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = ((torch.ones_like(tokens), labels) for tokens, labels in reviews(50))
    fit(watch, model, optimizer, batches)


@planted("labels-out-of-range", at=("", "out"), family=FAMILY, on="residual MLP")
def labels_that_count_from_one(watch: Watch) -> None:
    """Labels are 1 to 4 for four outputs: cross_entropy raises."""
    model = ResidualMLP()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with contextlib.suppress(IndexError, RuntimeError), watch(model) as watcher:
        for x, y in clusters(30):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y + 1)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
    watch.losses.append(0.0)


@planted("labels-out-of-range", "nan", at=("", "lm_head"), family=FAMILY, on="GPT")
def every_label_is_ignored(watch: Watch) -> None:
    """The prompt mask covers the answer too: all labels are -100, and the mean is 0 / 0."""
    model = Llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fit(
        watch,
        model,
        optimizer,
        ((a, torch.full_like(b, -100)) for a, b in sentences(30)),
        next_token,
    )


class DoubleHead(nn.Module):
    """A float32 body and a head in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.body = ResidualMLP(out=16)
        self.head = nn.Linear(16, 4).double()

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(x).double())


@planted("dtype-mix", at=("", "head", "body", "body.*"), family=FAMILY, on="residual MLP")
def head_computes_in_float64(watch: Watch) -> None:
    """A numpy array made the head float64; the output is cast to fit."""
    model = DoubleHead()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(watch, model, optimizer, clusters(50))


class Upcast(nn.Module):
    """A linear layer that computes in float32 inside a bfloat16 model."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.float()

    def forward(self, x: Tensor) -> Any:
        return self.inner(x.float()).to(x.dtype)


@planted("dtype-mix", at=("", "layers.1.*", "layers.1"), family=FAMILY, on="GPT")
def one_projection_stays_in_float32(watch: Watch) -> None:
    """An adapter left one projection of a bfloat16 model in float32."""
    model = Llama().bfloat16()
    block: Any = model.layers[1]
    block.up = Upcast(block.up)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for tokens, targets in sentences(50):
        optimizer.zero_grad()
        loss = next_token(model(tokens).float(), targets)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class ListedLayers(nn.Module):
    """Keeps its layers in a Python list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(16, 16) for _ in range(3)]
        self.fc = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            x = x + functional.relu(layer(x))
        return self.fc(x)


@planted("unregistered-module", "not-in-optimizer", at=("", "layers", "layers*"), family=FAMILY)
def layers_in_a_python_list(watch: Watch) -> None:
    """A list instead of a ModuleList: the optimizer gets only the last layer."""
    model = ListedLayers()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, clusters(50))


class LazyHeads(nn.Module):
    """Makes a discriminator head for each scale in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2))
        self.heads = {"coarse": nn.Linear(32, 1), "fine": nn.Linear(32, 1)}

    def forward(self, x: Tensor) -> Any:
        h = self.body(x)
        return self.heads["coarse"](h) + self.heads["fine"](h)


@planted("unregistered-module", "not-in-optimizer", at=("", "heads", "heads*"), family=FAMILY)
def heads_in_a_dict(watch: Watch) -> None:
    """A dict instead of a ModuleDict: the heads are not trained."""
    model = LazyHeads()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for real in ring(50):
        x = torch.cat([real, torch.randn(32, 2)])
        labels = torch.cat([torch.ones(32, 1), torch.zeros(32, 1)])
        loss = functional.binary_cross_entropy_with_logits(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()
