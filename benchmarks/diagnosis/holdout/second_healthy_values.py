"""The second set of healthy trainings: unusual updates, values and frozen parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.diagnosis.cases import Watch, fit, functional, healthy
from benchmarks.diagnosis.data import clusters, curve, images, sentences, waves
from benchmarks.diagnosis.holdout.healthy_optimizers import unlogged_fit
from benchmarks.diagnosis.holdout.models import (
    ClsViT,
    GRUTagger,
    Llama,
    UNet,
)
from benchmarks.diagnosis.holdout.tasks import (
    blobs,
    draws,
    next_token,
    reviews,
    table,
    tags,
    unlogged,
)


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are made orthogonal."""

    def __init__(self, params: Any, lr: float = 0.02) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move by the orthogonal part of the momentum."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.mul_(0.9).add_(p.grad)
                if p.ndim == 2:
                    left, _, right = torch.linalg.svd(momentum, full_matrices=False)
                    p.add_(left @ right, alpha=-group["lr"])
                else:
                    p.add_(momentum / (momentum.norm() + 1e-8), alpha=-group["lr"])


@healthy(family="optimizer", on="GPT")
def orthogonal_updates(watch: Watch) -> None:
    """An optimizer of one's own whose updates have the same size at each step."""
    model = Llama()
    optimizer = Muon(model.parameters(), lr=0.03)
    fit(watch, model, optimizer, sentences(40), next_token)


class SoftChoice(nn.Module):
    """A Gumbel softmax with a temperature that falls."""

    temperature = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.chooser = nn.Linear(16, 8)
        self.values = nn.Linear(8, 32)
        self.out = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Any:
        soft = functional.gumbel_softmax(self.chooser(x), self.temperature)
        return self.out(functional.relu(self.values(soft)))


@healthy(family="activations", on="MLP")
def temperature_of_a_gumbel_softmax_falls(watch: Watch) -> None:
    """A softmax becomes almost one-hot on purpose."""
    model = SoftChoice()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for step, (x, y) in enumerate(clusters(100)):
        model.temperature = max(0.2, 1 - step / 100)
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family="set-up", on="ViT")
def pixels_from_0_to_1(watch: Watch) -> None:
    """Images between 0 and 1 are not centered, and train well."""
    model = ClsViT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    fit(watch, model, optimizer, ((((x + 3) / 6).clamp(0, 1), y) for x, y in images(90)))


@healthy(family="dynamics", on="MLP")
def targets_of_a_thousandth(watch: Watch) -> None:
    """Targets in millivolts: loss and gradients are tiny, Adam does not mind."""
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0))
    with torch.no_grad():
        for p in model[2].parameters():
            p.mul_(1e-3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = ((x, 1e-3 * y) for x, y in table(90))
    fit(watch, model, optimizer, batches, functional.mse_loss)


class Price(nn.Module):
    """Predicts a price in its own unit."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, x: Tensor) -> Any:
        return 200_000 + 80_000 * self.net(x).squeeze(-1)


@healthy(family="dynamics", on="MLP")
def loss_in_squared_money(watch: Watch) -> None:
    """Prices around 200,000: the loss is 1e10 and falls."""
    model = Price()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    batches = ((x, 200_000 + 80_000 * y) for x, y in table(90))
    fit(watch, model, optimizer, batches, functional.mse_loss)


@healthy(family="optimizer", on="transformer")
def only_biases_are_fine_tuned(watch: Watch) -> None:
    """BitFit: all weights of a trained model are frozen, its biases learn a new task."""
    model = ClsViT()
    unlogged_fit(model, images(50), lr=2e-3)
    for name, p in model.named_parameters():
        p.requires_grad = name.endswith("bias") or name.startswith("head")
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    fit(watch, model, optimizer, ((x, (y + 1) % 4) for x, y in images(70)))


class Prompted(nn.Module):
    """Learned vectors before the tokens of a frozen model."""

    def __init__(self, base: Llama) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.prompt = nn.Parameter(0.1 * torch.randn(1, 6, 32))

    def forward(self, tokens: Tensor) -> Any:
        x = self.base.embed(tokens)
        x = torch.cat([self.prompt.expand(len(x), -1, -1), x], 1)
        for layer in self.base.layers:
            x = layer(x)
        return self.base.lm_head(self.base.norm(x))[:, 6:]


@healthy(family="optimizer", on="GPT")
def only_a_prompt_is_learned(watch: Watch) -> None:
    """Prompt tuning: a single parameter is trained, the model is frozen."""
    base = Llama()
    pretrain = torch.optim.Adam(base.parameters(), lr=5e-3)
    for tokens, targets in sentences(60):
        pretrain.zero_grad()
        next_token(base(tokens), targets).backward()
        pretrain.step()
    model = Prompted(base)
    model.zero_grad()
    optimizer = torch.optim.Adam([model.prompt], lr=3e-2)
    fit(watch, model, optimizer, sentences(80), next_token)


@healthy(family="activations", on="MLP")
def self_normalising_units(watch: Watch) -> None:
    """SELU with alpha dropout, ten layers deep."""
    layers: list[nn.Module] = [nn.Linear(16, 48), nn.SELU(), nn.AlphaDropout(0.05)]
    for _ in range(8):
        layers += [nn.Linear(48, 48), nn.SELU()]
    model = nn.Sequential(*layers, nn.Linear(48, 4))
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    fit(watch, model, optimizer, clusters(70))


@healthy(family="dynamics", on="MLP")
def one_positive_in_fifty(watch: Watch) -> None:
    """Rare labels: the loss is small from the start and falls by little."""
    last = nn.Linear(32, 5)
    nn.init.constant_(last.bias, -3.0)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), last)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    draw = draws(51)
    batches = (
        (x, y * (torch.rand(y.shape, generator=draw) < 0.1)) for x, y in tags(100, batch=128)
    )
    fit(watch, model, optimizer, batches, functional.binary_cross_entropy_with_logits)


@healthy(family="optimizer", on="U-Net")
def slow_weights_follow_the_fast_ones(watch: Watch) -> None:
    """Lookahead: every five steps the weights are set back towards slow ones."""
    model = UNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    slow = [p.detach().clone() for p in model.parameters()]
    watcher = watch(model)
    for step, (x, y) in enumerate(blobs(50), 1):
        loss = functional.binary_cross_entropy_with_logits(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            with torch.no_grad():
                for old, p in zip(slow, model.parameters(), strict=True):
                    p.copy_(old.lerp_(p, 0.5))
        watcher.log("loss", loss)
    watcher.close()


@healthy(family="optimizer", on="GRU")
def pretrained_vectors_are_not_trained(watch: Watch) -> None:
    """Word vectors come from elsewhere and are frozen; the optimizer has all other parameters."""
    model = GRUTagger()
    embedding: Any = nn.Embedding
    model.embed = embedding.from_pretrained(torch.randn(16, 24), freeze=True, padding_idx=0)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-3, weight_decay=0.01)
    unlogged(watch, model, optimizer, reviews(70), functional.cross_entropy)


@healthy(family="set-up", on="MLP")
def columns_that_are_mostly_zero(watch: Watch) -> None:
    """Half of the columns are 0 in most batches."""
    model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    batches = ((functional.pad(x, (0, 16)), y) for x, y in curve(90))
    fit(watch, model, optimizer, batches, functional.mse_loss)


@healthy(family="dynamics", on="LSTM")
def forecast_with_scheduled_sampling(watch: Watch) -> None:
    """More and more inputs are the model's own forecasts, so the loss does not fall at the end."""
    model = nn.ModuleDict({"cell": nn.GRUCell(2, 24), "out": nn.Linear(24, 2)})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for step, (x, _) in enumerate(waves(80, length=12)):
        state = torch.zeros(len(x), 24)
        forecast = x[:, 0]
        loss: Any = 0.0
        for t in range(11):
            own = torch.rand(len(x), 1) < step / 160
            state = model["cell"](torch.where(own, forecast, x[:, t]), state)
            forecast = model["out"](state)
            loss = loss + functional.mse_loss(forecast, x[:, t + 1]) / 11
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()
