"""Healthy trainings with unusual optimizers, schedules and loops."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from benchmarks.diagnosis.cases import Watch, fit, functional, healthy
from benchmarks.diagnosis.data import clusters, curve, images, sentences, waves
from benchmarks.diagnosis.holdout.models import (
    DLRM,
    ClsViT,
    GraphNet,
    GRUTagger,
    Llama,
    MultiTask,
    PreActNet,
    ResidualMLP,
    Seq2Seq,
    UNet,
)
from benchmarks.diagnosis.holdout.planted_optimizers import Lion
from benchmarks.diagnosis.holdout.tasks import (
    blobs,
    clicks,
    graphs,
    in_epochs,
    next_token,
    reversals,
    reviews,
    table,
    unlogged,
)

FAMILY = "optimizer"


@healthy(family=FAMILY, on="GPT")
def linear_warmup_then_cosine(watch: Watch) -> None:
    """The learning rate starts at 0, and ends near 0."""
    model = Llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95), weight_decay=0.1)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 1e-6, 1.0, total_iters=10)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 70)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], [10])
    with watch(model) as watcher:
        for tokens, targets in sentences(80):
            optimizer.zero_grad()
            loss = next_token(model(tokens), targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            watcher.log("loss", loss)


@healthy(family=FAMILY, on="GPT")
def warmup_from_exactly_zero(watch: Watch) -> None:
    """The first step has a learning rate of 0 and moves nothing."""
    model = Llama(tied=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 25))
    watcher = watch(model)
    for tokens, targets in sentences(80):
        loss = next_token(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="CNN")
def one_cycle_with_a_high_peak(watch: Watch) -> None:
    """OneCycleLR with a peak of 0.3, and an evaluation after each epoch."""
    model = PreActNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=80)
    watcher = watch(model)
    for x, y in images(80, batch=32):
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="residual MLP")
def cyclic_learning_rate(watch: Watch) -> None:
    """The learning rate goes up and down by a factor of a hundred."""
    model = ResidualMLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CyclicLR(optimizer, 1e-3, 0.1, step_size_up=10)
    watcher = watch(model)
    for x, y in clusters(80):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="GRU")
def warm_restarts(watch: Watch) -> None:
    """Cosine annealing with restarts reaches 0 three times."""
    model = GRUTagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 25)
    watcher = watch(model)
    for tokens, labels in reviews(100):
        loss = functional.cross_entropy(model(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="MLP")
def lbfgs_with_a_closure(watch: Watch) -> None:
    """LBFGS calls the model several times for each step."""
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 1), nn.Flatten(0))
    optimizer: Any = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, history_size=10)
    x, y = next(iter(table(1, batch=128)))
    watcher = watch(model)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(40):
        watcher.log("loss", optimizer.step(closure))
    watcher.close()


@healthy(family=FAMILY, on="MLP")
def sgd_by_hand(watch: Watch) -> None:
    """No optimizer: parameters are moved under no_grad, gradients set to None."""
    model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 4))
    watcher = watch(model)
    for x, y in clusters(80):
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)  # type: ignore[arg-type]
                p.grad = None
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="CNN")
def sharpness_aware_minimization(watch: Watch) -> None:
    """Two forwards and backwards for each step; weights are moved and moved back between them."""
    model = PreActNet(norm=lambda width: nn.GroupNorm(4, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    watcher = watch(model)
    parameters = list(model.parameters())
    for x, y in images(50):
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            gradients: list[Any] = [p.grad for p in parameters]
            norm = torch.stack([one.norm() for one in gradients]).norm() + 1e-12
            moves = [0.05 * one / norm for one in gradients]
            for p, move in zip(parameters, moves, strict=True):
                p.add_(move)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p, move in zip(parameters, moves, strict=True):
                p.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="ViT")
def sign_momentum_with_a_small_rate(watch: Watch) -> None:
    """An optimizer of one's own, which moves every weight by the same amount."""
    model = ClsViT()
    optimizer = Lion(model.parameters(), lr=5e-4, weight_decay=0.1)
    fit(watch, model, optimizer, images(80))


@healthy(family=FAMILY, on="GNN")
def noise_on_gradients(watch: Watch) -> None:
    """Gradients are clipped and get normal noise, as for differential privacy."""
    model = GraphNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    watcher = watch(model)
    for x, edges, labels in graphs(100, nodes=80):
        optimizer.zero_grad(set_to_none=False)
        loss = functional.cross_entropy(model(x, edges), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for p in model.parameters():
            assert p.grad is not None
            p.grad.add_(torch.randn_like(p.grad), alpha=0.003)
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="DLRM")
def sparse_tables_and_two_optimizers(watch: Watch) -> None:
    """Sparse embeddings have their own optimizer; most rows get no gradient in a step."""
    model = DLRM()
    for table_ in model.tables:
        table_.sparse = True  # type: ignore[assignment]
    dense = [*model.bottom.parameters(), *model.top.parameters()]
    adam = torch.optim.Adam(dense, lr=5e-3)
    sparse: Any = torch.optim.SparseAdam(list(model.tables.parameters()), lr=2e-2)
    watcher = watch(model)
    for features, categories, clicked in clicks(80):
        loss = functional.binary_cross_entropy_with_logits(model(features, categories), clicked)
        adam.zero_grad()
        sparse.zero_grad()
        loss.backward()
        adam.step()
        sparse.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="DLRM")
def adagrad_on_long_tails(watch: Watch) -> None:
    """Adagrad with a learning rate of 0.1; a third of the rows is never seen."""
    model = DLRM(rows=(50, 20, 2000))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    watcher = watch(model)
    for features, categories, clicked in clicks(80):
        loss = functional.binary_cross_entropy_with_logits(model(features, categories), clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watch.losses.append(float(loss))
    watcher.close()


@healthy(family=FAMILY, on="seq2seq")
def accumulation_with_parts_of_different_size(watch: Watch) -> None:
    """Gradients accumulate over four batches of 4 to 16 sequences; the last part is smaller."""
    model = Seq2Seq()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    watcher = watch(model)
    total = 0.0
    for number, (source, target) in enumerate(reversals(240), 1):
        size = 8 + 4 * (number % 4)
        loss = next_token(model(source[:size], target[:size]), target[:size]) / 4
        loss.backward()
        total += float(loss)
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
            watcher.log("loss", total)
            total = 0.0
    watcher.close()


@healthy(family=FAMILY, on="residual MLP")
def autocast_to_bfloat16(watch: Watch) -> None:
    """Autocast to bfloat16 with a disabled scaler, as the same script runs without a GPU."""
    model = ResidualMLP()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler: Any = torch.amp.GradScaler("cpu", enabled=False)
    watcher = watch(model)
    for x, y in clusters(60):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            loss = functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="MLP")
def scaler_that_finds_its_scale(watch: Watch) -> None:
    """A scaler starts too high, skips the first steps, and then trains."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scaler: Any = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=0.25)
    watcher = watch(model, scaler=scaler)
    for x, y in clusters(70):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        scaler.scale(20 * loss).backward()
        scaler.step(optimizer)
        scaler.update()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="GPT")
def bfloat16_with_master_weights(watch: Watch) -> None:
    """The model is bfloat16; the optimizer has float32 copies that are written back."""
    model = Llama().bfloat16()
    master = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.AdamW(master, lr=3e-3)
    watcher = watch(model)
    for tokens, targets in sentences(70):
        loss = next_token(model(tokens).float(), targets)
        model.zero_grad()
        loss.backward()
        for copy_, p in zip(master, model.parameters(), strict=True):
            copy_.grad = None if p.grad is None else p.grad.float()
        optimizer.step()
        with torch.no_grad():
            for copy_, p in zip(master, model.parameters(), strict=True):
                p.copy_(copy_)
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="CNN")
def average_of_the_weights_for_evaluation(watch: Watch) -> None:
    """An exponential average of the weights is evaluated after each epoch, under no_grad."""
    model = PreActNet()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
    watcher = watch(model)
    for _ in range(3):
        model.train()
        for x, y in images(20):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(p, 0.05)
            watcher.log("loss", loss)
        with torch.no_grad():
            average(x)
    watcher.close()


@healthy(family=FAMILY, on="U-Net")
def decay_for_weights_alone(watch: Watch) -> None:
    """Two groups: decay for convolutions, none for norms and biases."""
    model = UNet()
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=5e-3)
    loss_function = functional.binary_cross_entropy_with_logits
    in_epochs(watch, model, optimizer, blobs, loss_function, 3, 15)


@healthy(family=FAMILY, on="ViT")
def learning_rate_falls_with_the_layer(watch: Watch) -> None:
    """Fine-tuning with a rate that is ten times lower at each layer towards the input."""
    model = ClsViT()
    unlogged_fit(model, images(40))
    groups: list[dict[str, Any]] = [
        {"params": list(model.head.parameters()), "lr": 2e-3},
        {"params": list(model.encoder[1].parameters()), "lr": 2e-4},
        {"params": list(model.encoder[0].parameters()), "lr": 2e-5},
        {"params": [model.cls_token, model.pos_embed, *model.proj.parameters()], "lr": 2e-6},
    ]
    optimizer = torch.optim.AdamW(groups)
    fit(watch, model, optimizer, images(60))


def unlogged_fit(model: nn.Module, batches: Any, lr: float = 1e-3) -> None:
    """Train a model before it is watched."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for x, y in batches:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()


@healthy(family=FAMILY, on="CNN")
def fine_tuning_from_a_tiny_loss(watch: Watch) -> None:
    """The model is trained already; the loss starts close to 0 and stays there."""
    model = PreActNet()
    unlogged_fit(model, images(100, batch=32), lr=3e-3)
    optimizer = torch.optim.SGD(model.parameters(), lr=2e-3, momentum=0.9)
    fit(watch, model, optimizer, images(50, batch=32))


@healthy(family=FAMILY, on="MLP")
def a_small_learning_rate_that_works(watch: Watch) -> None:
    """Adam with 5e-5 on a wide network: slow, and the loss falls at each epoch."""
    model = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-5)
    fit(watch, model, optimizer, clusters(120))


@healthy(family=FAMILY, on="CNN")
def backbone_is_frozen_for_the_head(watch: Watch) -> None:
    """A trained backbone is frozen and in eval mode; a new head is trained."""
    model = PreActNet()
    unlogged_fit(model, images(60, batch=32), lr=3e-3)
    model.requires_grad_(False)
    model.classifier = nn.Linear(12, 4)
    optimizer = torch.optim.Adam(model.classifier.parameters(), lr=1e-2)
    watcher = watch(model)
    model.eval()
    model.classifier.train()
    for x, y in images(60, batch=32):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="ViT")
def layers_are_unfrozen_one_by_one(watch: Watch) -> None:
    """First the head, then the last block, then all, each added to the optimizer."""
    model = ClsViT()
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=2e-3)
    watcher = watch(model)
    for step, (x, y) in enumerate(images(90)):
        for when, part in ((20, model.encoder[1]), (40, model.encoder[0]), (50, model.proj)):
            if step == when:
                part.requires_grad_(True)
                optimizer.add_param_group({"params": list(part.parameters())})
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="LSTM")
def clipping_is_active_at_each_step(watch: Watch) -> None:
    """The gradient norm is above the limit of 0.05 at each step; Adam does not mind."""
    model = nn.LSTM(2, 24, batch_first=True, proj_size=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for x, y in waves(80):
        optimizer.zero_grad()
        loss = 10 * functional.mse_loss(model(x)[0][:, -1], y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="MLP")
def training_in_float64(watch: Watch) -> None:
    """A physics model in float64, with RMSprop."""
    model = nn.Sequential(nn.Linear(8, 32), nn.Softplus(), nn.Linear(32, 1)).double()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-3)
    batches = ((x.double(), y.double()) for x, y in curve(90))
    fit(watch, model, optimizer, batches, functional.mse_loss)


@healthy(family=FAMILY, on="GRU")
def nothing_is_logged(watch: Watch) -> None:
    """A loop that never calls `watcher.log`, with gradients cleared before the backward."""
    model = GRUTagger()
    optimizer = torch.optim.Adamax(model.parameters(), lr=1e-2)
    unlogged(watch, model, optimizer, reviews(80), functional.cross_entropy)


@healthy(family=FAMILY, on="multi-task")
def tasks_take_turns(watch: Watch) -> None:
    """One head is trained in even steps, the other in odd ones, by two optimizers."""
    model = MultiTask()
    first = torch.optim.Adam([*model.trunk.parameters(), *model.label.parameters()], lr=3e-3)
    second = torch.optim.Adam(model.score.parameters(), lr=3e-3)
    watcher = watch(model)
    for step, (x, y) in enumerate(clusters(100)):
        label, score = model(x)
        even = step % 2 == 0
        optimizer: Any = first if even else second
        loss = functional.cross_entropy(label, y) if even else functional.mse_loss(score, y / 4.0)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss" if even else "loss_score", loss)
    watcher.close()
