"""Trainings whose optimizer, learning rate, scheduler or scaler is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.diagnosis.cases import Watch, fit, functional, planted
from benchmarks.diagnosis.data import clusters, curve, images, sentences, waves
from benchmarks.diagnosis.holdout.models import (
    ClsViT,
    GRUTagger,
    Llama,
    MultiTask,
    PreActNet,
    ResidualMLP,
    Seq2Seq,
    TopTwoMixture,
    UNet,
)
from benchmarks.diagnosis.holdout.tasks import (
    blobs,
    in_epochs,
    next_token,
    reversals,
    reviews,
    table,
    unlogged,
)

FAMILY = "optimizer"


class Lion(torch.optim.Optimizer):
    """The sign of a moving average, with decoupled weight decay."""

    def __init__(self, params: Any, lr: float = 1e-3, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move each parameter by the sign of its average gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(0.9 * average + 0.1 * p.grad), alpha=-group["lr"])
                average.mul_(0.99).add_(p.grad, alpha=0.01)


@planted("not-in-optimizer", at=("", "decoder", "target", "out"), family=FAMILY, on="seq2seq")
def decoder_is_not_in_the_optimizer(watch: Watch) -> None:
    """The optimizer is made of the encoder's and the embeddings' parameters only."""
    model = Seq2Seq()
    parameters = [*model.source.parameters(), *model.encoder.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-3)
    watcher = watch(model)
    for source, target in reversals(60):
        loss = next_token(model(source, target), target)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("not-in-optimizer", at=("cls_token", "pos_embed", ""), family=FAMILY, on="ViT")
def groups_by_module_forget_bare_parameters(watch: Watch) -> None:
    """Groups are collected from modules with a weight: the bare parameters are in none."""
    model = ClsViT()
    decay, rest = [], []
    for module in model.modules():
        if isinstance(module, nn.Linear):
            decay.append(module.weight)
            rest.append(module.bias)
        elif isinstance(module, nn.LayerNorm):
            rest += [module.weight, module.bias]
        elif isinstance(module, nn.MultiheadAttention):
            decay.append(module.in_proj_weight)
            rest.append(module.in_proj_bias)
    groups: Any = [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    watcher = watch(model)
    for x, y in images(60):
        loss = functional.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("replaced-parameter", "not-in-optimizer", at=("classifier",), family=FAMILY, on="CNN")
def new_classifier_after_the_optimizer(watch: Watch) -> None:
    """The classifier is replaced for four classes after the optimizer was made."""
    model = PreActNet(classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    model.classifier = nn.Linear(12, 4)
    in_epochs(watch, model, optimizer, images, functional.cross_entropy, 3, 20)


@planted("replaced-parameter", "not-in-optimizer", at=("embed",), family=FAMILY, on="GRU")
def pretrained_embedding_after_the_optimizer(watch: Watch) -> None:
    """Pretrained vectors are put in with `from_pretrained` after the optimizer was made."""
    model = GRUTagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    embedding: Any = nn.Embedding
    model.embed = embedding.from_pretrained(torch.randn(16, 24), freeze=False, padding_idx=0)
    unlogged(watch, model, optimizer, reviews(60), functional.cross_entropy)


@planted("lr-too-high", "loss-diverges", at=("", "*"), family=FAMILY, on="GPT")
def adam_with_a_learning_rate_of_one(watch: Watch) -> None:
    """lr=1.0 with Adam, which moves every weight by about 1 at each step."""
    model = Llama()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    fit(watch, model, optimizer, sentences(60), next_token)


@planted("lr-too-high", "loss-diverges", at=("", "*"), family=FAMILY, on="MLP")
def momentum_and_a_large_learning_rate(watch: Watch) -> None:
    """SGD with lr=1.5 and momentum 0.95: the loss swings and ends above its start."""
    model = nn.Sequential(
        nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.5, momentum=0.95)
    fit(watch, model, optimizer, curve(60), functional.mse_loss)


@planted("lr-too-high", "loss-diverges", at=("", "*"), family=FAMILY, on="residual MLP")
def sign_updates_with_the_rate_of_adamw(watch: Watch) -> None:
    """An optimizer that moves by the sign needs a tenth of Adam's lr, and gets 1."""
    model = ResidualMLP()
    optimizer = Lion(model.parameters(), lr=1.0)
    fit(watch, model, optimizer, clusters(60))


@planted("lr-too-low", at=("", "*"), family=FAMILY, on="ViT")
def learning_rate_in_the_wrong_unit(watch: Watch) -> None:
    """lr=1e-9 with SGD."""
    model = ClsViT()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9, momentum=0.9)
    fit(watch, model, optimizer, images(60))


@planted("lr-too-low", at=("", "*"), family=FAMILY, on="GRU")
def adam_with_a_billionth(watch: Watch) -> None:
    """lr=1e-9 with Adam, no loss is logged."""
    model = GRUTagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-9)
    unlogged(watch, model, optimizer, reviews(60), functional.cross_entropy)


@planted("lr-zero", at=("",), family=FAMILY, on="GPT")
def warmup_by_integer_division(watch: Watch) -> None:
    """`step // 1000` of the warm-up is 0 for the whole training."""
    model = Llama(tied=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, step // 1000))
    watcher = watch(model)
    for tokens, targets in sentences(60):
        optimizer.zero_grad()
        loss = next_token(model(tokens), targets)
        loss.backward()
        optimizer.step()
        scheduler.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("lr-zero", "lr-too-low", at=("",), family=FAMILY, on="CNN")
def epoch_scheduler_is_stepped_at_each_batch(watch: Watch) -> None:
    """StepLR(3, 0.1) is meant for epochs and is stepped for each batch: lr falls to 1e-20."""
    model = PreActNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.1)
    watcher = watch(model)
    for x, y in images(60):
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("lr-zero", "lr-too-low", at=("",), family=FAMILY, on="seq2seq")
def polynomial_decay_over_too_few_steps(watch: Watch) -> None:
    """The scheduler was given the number of epochs as the number of steps: lr is 0 from step 5."""
    model = Seq2Seq()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=5)
    watcher = watch(model)
    for source, target in reversals(60):
        optimizer.zero_grad()
        loss = next_token(model(source, target), target)
        loss.backward()
        optimizer.step()
        scheduler.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("weight-decay-too-strong", at=("", "*"), family=FAMILY, on="residual MLP")
def decay_of_adamw_as_large_as_one_over_lr(watch: Watch) -> None:
    """AdamW with lr=0.01 and weight_decay=20 takes a fifth of the weights at each step."""
    model = ResidualMLP()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=20)
    fit(watch, model, optimizer, clusters(60))


@planted("weight-decay-too-strong", at=("", "*"), family=FAMILY, on="U-Net")
def decay_of_sgd_shrinks_all_filters(watch: Watch) -> None:
    """SGD with lr=0.2 and weight_decay=1 shrinks weights by a fifth at each step."""
    model = UNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, weight_decay=1.0)
    fit(watch, model, optimizer, blobs(50), functional.binary_cross_entropy_with_logits)


@planted("scaler-skips", at=("",), family=FAMILY, on="MLP")
def scaler_begins_far_too_high(watch: Watch) -> None:
    """A scale of 2**127 overflows every gradient; the scaler skips step after step."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler: Any = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=0.99)
    watcher = watch(model, scaler=scaler)
    for x, y in clusters(50):
        optimizer.zero_grad()
        loss = 100 * functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        watcher.log("loss", loss)
    watcher.close()


class ZeroNorm(nn.Module):
    """A penalty on the distance of a vector to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> Any:
        h = self.net(x)
        return h, (h - h.clone()).pow(2).sum(-1).sqrt()


@planted("scaler-skips", "nan", "inf", at=("", "net", "net.*"), family=FAMILY, on="MLP")
def scaler_hides_a_gradient_that_is_never_finite(watch: Watch) -> None:
    """A sqrt at 0 makes every gradient NaN: the scaler skips all steps and says nothing."""
    model = ZeroNorm()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler: Any = torch.amp.GradScaler("cpu", init_scale=1024)
    watcher = watch(model)
    for x, y in clusters(50):
        optimizer.zero_grad()
        logits, distance = model(x)
        loss = functional.cross_entropy(logits, y) + 0.1 * distance.mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        watcher.log("loss", loss)
    watcher.close()


@planted("optimizer-not-stepped", at=("",), family=FAMILY, on="LSTM")
def only_the_scheduler_is_stepped(watch: Watch) -> None:
    """`scheduler.step()` is called, `optimizer.step()` is not."""
    model = nn.LSTM(2, 8, batch_first=True, proj_size=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    watcher = watch(model)
    for x, y in waves(60):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x)[0][:, -1], y)
        loss.backward()
        scheduler.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("optimizer-not-stepped", "gradient-accumulates", at=("",), family=FAMILY, on="mixture")
def accumulation_counter_is_never_reached(watch: Watch) -> None:
    """The step is taken at every eighth batch of an epoch, and an epoch has five."""
    model = TopTwoMixture()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watcher = watch(model)
    for _ in range(10):
        for number, (x, y) in enumerate(clusters(5), 1):
            loss = functional.cross_entropy(model(x), y) / 8
            loss.backward()
            if number % 8 == 0:
                optimizer.step()
                optimizer.zero_grad()
            watcher.log("loss", 8 * loss)
    watcher.close()


@planted("lost-updates", "lr-too-low", at=("", "*"), family=FAMILY, on="GPT")
def bfloat16_weights_and_a_small_learning_rate(watch: Watch) -> None:
    """Weights of bfloat16 with three digits and SGD updates below half of the last one."""
    model = Llama().bfloat16()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    watcher = watch(model)
    for tokens, targets in sentences(60):
        optimizer.zero_grad()
        loss = next_token(model(tokens).float(), targets)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("lost-updates", "lr-too-low", at=("", "*"), family=FAMILY, on="residual MLP")
def float16_weights_swallow_the_updates(watch: Watch) -> None:
    """The whole model is float16, and updates are below its resolution."""
    model = ResidualMLP().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=2e-4)
    watcher = watch(model)
    for x, y in clusters(60):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x.half()).float(), y)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("frozen", at=("", "conv", "stages", "stages.*", "norm"), family=FAMILY, on="CNN")
def random_backbone_is_frozen(watch: Watch) -> None:
    """The script freezes all but the classifier, and the weights were never loaded."""
    model = PreActNet()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("classifier"))
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.05)
    fit(watch, model, optimizer, images(50))


@planted("frozen", at=("", "trunk", "trunk.*", "label", "score"), family=FAMILY, on="multi-task")
def only_biases_are_left_to_train(watch: Watch) -> None:
    """A filter meant for the decay groups sets requires_grad: all weights are frozen."""
    model = MultiTask()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.endswith("bias")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    watcher = watch(model)
    for x, y in clusters(50):
        label, score = model(x)
        loss = functional.cross_entropy(label, y) + functional.mse_loss(score, y / 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("replaced-parameter", "not-in-optimizer", "optimizer-not-stepped", family=FAMILY)
def model_is_rebuilt_after_the_optimizer(watch: Watch) -> None:
    """The model is made once more with another width; the optimizer still has the first one."""

    def make(width: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 1), nn.Flatten(0))

    model = make(16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model = make(32)
    watcher = watch(model)
    for x, y in table(50):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()
