"""Healthy optimizers and loops: frozen parts, schedules, accumulation, clipping, precision."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.diagnosis import data
from benchmarks.diagnosis.cases import Watch, fit, functional, healthy
from benchmarks.diagnosis.models import (
    GPT,
    Autoencoder,
    Classifier,
    ConvNet,
    ResNet,
    SequenceLSTM,
    SeriesLSTM,
    ViT,
    mlp,
)

_FAMILY = "optimizers"


def _next_token(logits: Tensor, tokens: Tensor) -> Any:
    return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def _trained(model: nn.Module, steps: int = 80) -> None:
    """Train a classifier of clusters without watching it."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for x, y in data.clusters(steps):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


@healthy(family=_FAMILY)
def frozen_backbone(watch: Watch) -> None:
    """A trained backbone is frozen on purpose; a new head is trained on it."""
    model = Classifier()
    _trained(model)
    model.backbone.requires_grad_(False)
    model.head = nn.Linear(32, 4)
    fit(watch, model, torch.optim.Adam(model.head.parameters(), lr=1e-2), data.clusters(60))


@healthy(family=_FAMILY, on="CNN")
def frozen_backbone_under_no_grad(watch: Watch) -> None:
    """Features are computed under no_grad and in eval mode, and only the head is optimized."""
    model = ConvNet()
    model.features.requires_grad_(False)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-2)
    watcher = watch(model)
    model.features.eval()
    for x, y in data.images(80):
        with torch.no_grad():
            features = model.features(x)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model.head(features.flatten(1)), y)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=_FAMILY)
def fine_tuning_at_a_low_learning_rate(watch: Watch) -> None:
    """A trained model is tuned at 1e-5: loss and weights hardly move, as intended."""
    model = Classifier()
    _trained(model)
    fit(watch, model, torch.optim.AdamW(model.parameters(), lr=1e-5), data.clusters(60))


@healthy(family=_FAMILY, on="ViT")
def warmup_from_zero(watch: Watch) -> None:
    """The learning rate is 0 at the first step and rises linearly over 30."""
    model = ViT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 30))
    with watch(model) as watcher:
        for x, y in data.images(80):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            watcher.log("loss", loss)


@healthy(family=_FAMILY, on="ResNet")
def cosine_schedule_to_zero(watch: Watch) -> None:
    """The learning rate ends at exactly 0 with the last step."""
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=79)
    with watch(model) as watcher:
        for x, y in data.images(80):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            watcher.log("loss", loss)


@healthy(family=_FAMILY)
def one_cycle(watch: Watch) -> None:
    """OneCycle raises the learning rate 25-fold and lowers it to almost nothing."""
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=80)
    watcher = watch(model)
    for x, y in data.clusters(80):
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=_FAMILY, on="GPT")
def step_schedule_by_epochs(watch: Watch) -> None:
    """The learning rate falls tenfold after every 40 steps."""
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [40, 80], gamma=0.1)
    with watch(model) as watcher:
        for x, y in data.sentences(100, batch=16):
            optimizer.zero_grad()
            loss = _next_token(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            watcher.log("loss", loss)


@healthy(family=_FAMILY)
def group_with_learning_rate_zero(watch: Watch) -> None:
    """A group has lr 0 until it is thawed at step 40."""
    model = Classifier()
    groups = [{"params": list(model.backbone.parameters()), "lr": 0.0},
              {"params": list(model.head.parameters()), "lr": 1e-2}]  # fmt: skip
    optimizer = torch.optim.Adam(groups)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(data.clusters(80)):
            if step == 40:
                optimizer.param_groups[0]["lr"] = 3e-3
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family=_FAMILY, on="LSTM")
def accumulation_over_four_batches(watch: Watch) -> None:
    """Gradients are added up over four batches on purpose, each divided by four."""
    model = SequenceLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    watcher = watch(model)
    for step, (x, y) in enumerate(data.sentences(200)):
        loss = _next_token(model(x), y)
        (loss / 4).backward()
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
            watcher.log("loss", loss)
    watcher.close()


@healthy(family=_FAMILY)
def accumulation_without_division(watch: Watch) -> None:
    """The sum of four batches' gradients, with a learning rate that knows it."""
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(data.clusters(200)):
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            if (step + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
                watcher.log("loss", loss)


@healthy(family=_FAMILY)
def two_backwards_per_step(watch: Watch) -> None:
    """Two losses have a backward each before one step."""
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for x, _ in data.clusters(80):
        optimizer.zero_grad()
        code = model.encoder(x)
        loss = functional.mse_loss(model.decoder(code), x)
        loss.backward(retain_graph=True)
        (1e-3 * code.abs().mean()).backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=_FAMILY, on="GPT")
def clipping_that_acts_often(watch: Watch) -> None:
    """`clip_grad_norm_` at 1.0 scales most early gradients down, as usual for GPTs."""
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with watch(model) as watcher:
        for x, y in data.sentences(80, batch=16):
            optimizer.zero_grad()
            loss = 3 * _next_token(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family=_FAMILY, on="LSTM")
def recurrent_network_with_clipping(watch: Watch) -> None:
    """Norms are clipped at 0.1 with a learning rate to match: every step is clipped, all learn."""
    model = SeriesLSTM()
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    watcher = watch(model)
    for x, y in data.waves(120):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=_FAMILY)
def lbfgs(watch: Watch) -> None:
    """LBFGS runs the model several times in each step."""
    model = mlp(8, 16, 1, activation=nn.Tanh)
    optimizer: Any = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    x, y = next(data.curve(1, batch=128))

    def closure() -> Any:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    with watch(model) as watcher:
        for _ in range(40):
            watcher.log("loss", optimizer.step(closure))


@healthy(family=_FAMILY)
def two_optimizers(watch: Watch) -> None:
    """The backbone has SGD, the head Adam; together they have all parameters."""
    model = Classifier()
    first = torch.optim.SGD(model.backbone.parameters(), lr=0.05)
    second = torch.optim.Adam(model.head.parameters(), lr=1e-2)
    with watch(model) as watcher:
        for x, y in data.clusters(60):
            first.zero_grad()
            second.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            first.step()
            second.step()
            watcher.log("loss", loss)


@healthy(family=_FAMILY)
def sparse_embedding(watch: Watch) -> None:
    """An embedding with sparse gradients: most rows have none at a step."""
    model = nn.Sequential(nn.EmbeddingBag(1000, 16, sparse=True, mode="sum"), nn.Linear(16, 4))
    sparse: Any = torch.optim.SparseAdam(list(model[0].parameters()), lr=0.05)
    dense = torch.optim.Adam(model[1].parameters(), lr=1e-2)
    watcher = watch(model)
    for _ in range(120):
        words = torch.randint(200, (32, 4))
        label = words[:, 0] % 4
        words[:, 1:] = words[:, :1]
        sparse.zero_grad()
        dense.zero_grad()
        loss = functional.cross_entropy(model(words), label)
        loss.backward()
        sparse.step()
        dense.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=_FAMILY)
def moving_average_of_the_weights(watch: Watch) -> None:
    """A copy of the model follows as an average, is never optimized, and starts equal."""
    student = Classifier()
    average = copy.deepcopy(student).requires_grad_(False)
    model = nn.ModuleDict({"student": student, "average": average})
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
    with watch(model) as watcher:
        for x, y in data.clusters(80):
            optimizer.zero_grad()
            loss = functional.cross_entropy(student(x), y)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(average.parameters(), student.parameters(), strict=True):
                    slow.lerp_(fast, 0.05)
                watcher.log("average loss", functional.cross_entropy(average(x), y))
            watcher.log("loss", loss)


@healthy(family=_FAMILY)
def gradient_checkpointing(watch: Watch) -> None:
    """Non-reentrant checkpointing runs the backbone again in the backward."""

    class Checkpointed(Classifier):
        def forward(self, x: Tensor) -> Tensor:
            hidden = checkpoint(self.backbone, x, use_reentrant=False)
            return cast(Tensor, self.head(functional.relu(cast(Tensor, hidden))))

    model = Checkpointed()
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=1e-2), data.clusters(60))


@healthy(family=_FAMILY, on="CNN")
def evaluation_between_steps(watch: Watch) -> None:
    """Every tenth step is followed by an evaluation in eval mode under no_grad."""
    model = ConvNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(data.images(80)):
            model.train()
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
            if step % 10 == 9:
                model.eval()
                with torch.no_grad():
                    watcher.log("validation loss", functional.cross_entropy(model(x), y))


@healthy(family=_FAMILY, on="ResNet")
def batch_norm_frozen_in_eval_mode(watch: Watch) -> None:
    """Batch norms of a trained model are in eval mode on purpose while it is tuned."""
    model = ResNet()
    warm = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for x, y in data.images(60):
        warm.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        warm.step()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval().requires_grad_(False)
    tuned = [p for p in model.parameters() if p.requires_grad]
    fit(watch, model, torch.optim.SGD(tuned, lr=0.01), data.images(60))


class _TwoTasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = mlp(16, 32, 32)
        self.classes = nn.Linear(32, 4)
        self.sizes = nn.Linear(32, 1)

    def forward(self, x: Tensor, task: str) -> Tensor:
        hidden = functional.relu(self.backbone(x))
        return cast(Tensor, self.classes(hidden) if task == "classes" else self.sizes(hidden))


@healthy(family=_FAMILY)
def tasks_in_turns(watch: Watch) -> None:
    """Two tasks alternate: at each step one of the heads is not called and has no gradient."""
    model = _TwoTasks()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for step, (x, y) in enumerate(data.clusters(100)):
        optimizer.zero_grad()
        if step % 2:
            loss = functional.mse_loss(model(x, "sizes"), x.norm(dim=-1, keepdim=True) / 4)
        else:
            loss = functional.cross_entropy(model(x, "classes"), y)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=_FAMILY)
def auxiliary_head_left_out(watch: Watch) -> None:
    """A head of the pre-training is frozen and unused in this stage."""
    model = _TwoTasks()
    model.sizes.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=1e-2)
    with watch(model) as watcher:
        for x, y in data.clusters(60):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x, "classes"), y)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family=_FAMILY)
def weights_in_bfloat16(watch: Watch) -> None:
    """The whole model is in bfloat16, with a learning rate that its precision can hold."""
    model = mlp(16, 32, 32, 4).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with watch(model) as watcher:
        for x, y in data.clusters(60):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x.bfloat16()).float(), y)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family=_FAMILY, on="ViT")
def autocast_to_bfloat16(watch: Watch) -> None:
    """Autocast runs matrix products in bfloat16 and norms in float32: a mix on purpose."""
    model = ViT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with watch(model) as watcher:
        for x, y in data.images(50):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family=_FAMILY)
def scaler_that_skips_at_the_start(watch: Watch) -> None:
    """The GradScaler skips its first steps until its scale fits, then trains as usual."""
    model = mlp(16, 32, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-8)
    watcher = watch(model)
    for x, y in data.clusters(60):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        scaler.scale(100 * loss).backward()
        scaler.step(optimizer)
        scaler.update()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=_FAMILY)
def training_in_float64(watch: Watch) -> None:
    """Everything is in float64, as in physics."""
    model = mlp(8, 32, 1, activation=nn.Tanh).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batches = ((x.double(), y.double()) for x, y in data.curve(80))
    fit(watch, model, optimizer, batches, functional.mse_loss)


@healthy(family=_FAMILY)
def moderate_weight_decay(watch: Watch) -> None:
    """AdamW with a decay of 0.1 shrinks weights that are not needed, and the loss falls."""
    model = mlp(16, 64, 64, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    fit(watch, model, optimizer, data.clusters(80))


@healthy(family=_FAMILY)
def sign_based_updates(watch: Watch) -> None:
    """Rprop moves every weight by its own step, whatever the size of its gradient."""
    model = mlp(8, 32, 1)
    optimizer = torch.optim.Rprop(model.parameters(), lr=1e-3)
    batch = next(data.curve(1, batch=128))
    fit(watch, model, optimizer, (batch for _ in range(60)), functional.mse_loss)
