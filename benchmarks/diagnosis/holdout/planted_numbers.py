"""Trainings whose values become NaN or Inf."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.diagnosis.cases import Watch, fit, functional, planted
from benchmarks.diagnosis.data import clusters, images, ring
from benchmarks.diagnosis.holdout.models import (
    DLRM,
    ActorCritic,
    Denoiser,
    EncoderBlock,
    Llama,
    ResidualMLP,
)
from benchmarks.diagnosis.holdout.tasks import (
    bandit,
    clicks,
    draws,
    graphs,
    next_token,
    reviews,
    table,
)

FAMILY = "numbers"


class SentenceEncoder(nn.Module):
    """Attention with a padding mask, and a mean over the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 24, padding_idx=0)
        self.query = nn.Linear(24, 24)
        self.key = nn.Linear(24, 24)
        self.value = nn.Linear(24, 24)
        self.fc = nn.Linear(24, 4)

    def forward(self, tokens: Tensor) -> Any:
        x = self.embed(tokens)
        scores = self.query(x) @ self.key(x).transpose(1, 2) / math.sqrt(24)
        scores = scores.masked_fill((tokens == 0)[:, None], float("-inf"))
        return self.fc((scores.softmax(-1) @ self.value(x)).mean(1))


@planted("nan", at=("", "value", "fc", "query", "key"), family=FAMILY, on="transformer", since=30)
def an_empty_sentence_masks_all_keys(watch: Watch) -> None:
    """A sentence of padding alone: a row of scores is all -inf, and its softmax is NaN."""
    model = SentenceEncoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with watch(model) as watcher:
        for step, (tokens, labels) in enumerate(reviews(60)):
            if step == 30:
                tokens[3] = 0
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(tokens), labels)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


class EdgeAttention(nn.Module):
    """Attention over the incoming edges of each node, by sums over an index."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(8, 24)
        self.score = nn.Linear(48, 1)
        self.out = nn.Linear(24, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Any:
        source, target = edges
        h = self.inp(x)
        weight = self.score(torch.cat([h[source], h[target]], -1)).exp()
        total = torch.zeros(len(x), 1).index_add(0, target, weight)
        mixed = torch.zeros_like(h).index_add(0, target, weight * h[source])
        return self.out(mixed / total)


@planted("nan", at=("", "out", "score", "inp"), family=FAMILY, on="GNN")
def a_node_without_edges_divides_by_zero(watch: Watch) -> None:
    """A node without incoming edges has a total weight of 0: 0 / 0."""
    model = EdgeAttention()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    watcher = watch(model)
    for x, edges, labels in graphs(40):
        loss = functional.cross_entropy(model(x, edges), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class CosineEncoder(nn.Module):
    """An encoder whose output is divided by its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(16, 32, bias=False), nn.ReLU(), nn.Linear(32, 8, bias=False)
        )

    def forward(self, x: Tensor) -> Any:
        h = self.body(x)
        return h / h.norm(dim=-1, keepdim=True)


@planted("nan", at=("", "body", "body.*"), family=FAMILY, on="Siamese", since=24)
def embedding_of_a_blank_sample_is_divided_by_its_zero_norm(watch: Watch) -> None:
    """A blank sample gives the embedding 0, which is divided by its norm."""
    model = CosineEncoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    centres = torch.randn(4, 8)
    watcher = watch(model)
    for step, (x, y) in enumerate(clusters(50)):
        if step >= 24:
            x[0] = 0
        optimizer.zero_grad()
        loss = (1 - (model(x) * functional.normalize(centres)[y]).sum(-1)).mean()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("nan", at=("", "[0-9]"), family=FAMILY, on="Siamese", since=20)
def distance_of_identical_pairs_has_a_nan_gradient(watch: Watch) -> None:
    """The gradient of sqrt at 0: anchor and positive are the same sample. The loss is finite."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    watcher = watch(model)
    for step, (x, y) in enumerate(clusters(50)):
        order = torch.argsort(y, stable=True)
        anchor, positive = x[order], x[order].roll(1, 0)
        negative = x[order].roll(len(x) // 2, 0)
        if step >= 20:
            positive[5] = anchor[5]
        a, p, n = model(anchor), model(positive), model(negative)
        near = ((a - p) ** 2).sum(-1).sqrt()
        far = ((a - n) ** 2).sum(-1).sqrt()
        loss = functional.relu(near - far + 1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("nan", "inf", at=("", "actor"), family=FAMILY, on="RL", since=15)
def entropy_of_masked_actions(watch: Watch) -> None:
    """p · log p with p = 0 for an action that is not allowed: 0 · -inf."""
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    # Once the weights are NaN, drawing an action raises and ends the training.
    with contextlib.suppress(RuntimeError), watch(model) as watcher:
        for step, (state, rewards) in enumerate(bandit(50)):
            logits, value = model(state)
            allowed = torch.ones_like(logits, dtype=torch.bool)
            allowed[:8, 0] = step < 15
            policy = logits.masked_fill(~allowed, float("-inf")).softmax(-1)
            action = policy.detach().multinomial(1)
            reward = rewards.gather(1, action).squeeze(1)
            chosen = policy.gather(1, action).squeeze(1).log()
            entropy = -(policy * policy.log()).sum(-1).mean()
            actor_loss = -((reward - value.detach()) * chosen).mean()
            loss = actor_loss - 0.01 * entropy + (value - reward).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


class SumPool(nn.Module):
    """Convolutions, and a sum over all pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
        self.fc = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Any:
        h = functional.relu(self.conv2(functional.relu(self.conv1(x))))
        return self.fc((256 * h).pow(2).sum((2, 3)))


@planted("inf", "nan", at=("", "fc", "conv1", "conv2"), family=FAMILY, on="CNN")
def squares_overflow_in_float16(watch: Watch) -> None:
    """Features in units of 1/256 are squared and added up in float16: more than 65504."""
    model = SumPool().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    watcher = watch(model)
    for x, y in images(30):
        loss = functional.cross_entropy(model(x.half()).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("inf", "nan", at=("", "layers.*"), family=FAMILY, on="GPT", since=0)
def activations_overflow_in_half_precision(watch: Watch) -> None:
    """A float16 model whose activations in one block exceed the range of float16."""
    model = Llama().half()
    block: Any = model.layers[1]
    nn.init.normal_(block.down.weight, std=3e4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    draw = draws(3)
    with watch(model) as watcher:
        for _ in range(30):
            tokens = torch.randint(16, (8, 13), generator=draw)
            optimizer.zero_grad()
            loss = next_token(model(tokens[:, :-1]).float(), tokens[:, 1:])
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("nan", at=("", "bottom", "bottom.0"), family=FAMILY, on="DLRM", since=13)
def missing_value_in_a_dense_column(watch: Watch) -> None:
    """A missing value of the table arrives as NaN in a dense feature from one batch on."""
    model = DLRM()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    watcher = watch(model)
    for step, (dense, categories, clicked) in enumerate(clicks(40)):
        if step >= 13:
            dense[7, 2] = float("nan")
        loss = functional.binary_cross_entropy_with_logits(model(dense, categories), clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("nan", at=("", "inp"), family=FAMILY, on="residual MLP")
def standardising_a_constant_column(watch: Watch) -> None:
    """A column that is constant in the batch is divided by its standard deviation, 0."""
    model = ResidualMLP(8, out=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    watcher = watch(model)
    for x, y in table(30):
        x[:, 4] = 1.0
        standard = (x - x.mean(0)) / x.std(0)
        loss = functional.mse_loss(model(standard).squeeze(-1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("nan", at=("",), family=FAMILY, on="MLP")
def logarithm_of_a_negative_prediction(watch: Watch) -> None:
    """A squared logarithmic error of predictions that may be below -1."""
    last = nn.Linear(32, 1)
    nn.init.normal_(last.weight)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), last)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    def loss_function(prediction: Tensor, target: Tensor) -> Any:
        price = target.exp()
        return (torch.log1p(prediction.squeeze(-1)) - torch.log1p(price)).pow(2).mean()

    fit(watch, model, optimizer, table(30), loss_function)


class SetClassifier(nn.Module):
    """An encoder over the points of a set, and their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(EncoderBlock(16), EncoderBlock(16))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.encoder(x).mean(1))


@planted("nan", "inf", at=("encoder.1", "encoder.1.*"), family=FAMILY, on="transformer")
def corrupt_weight_in_the_checkpoint(watch: Watch) -> None:
    """One value of a loaded weight is NaN."""
    model = SetClassifier()
    state = model.state_dict()
    state["encoder.1.ff.0.weight"][5, 3] = float("nan")
    model.load_state_dict(state)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fit(watch, model, optimizer, ((x.view(-1, 4, 16), y) for x, y in sets(20)))


def sets(steps: int) -> Any:
    """Four points of the same class at a time."""
    for x, y in clusters(steps, batch=24):
        yield torch.cat([x + 0.1 * torch.randn(24, 16) for _ in range(4)], 1), y


@planted("nan", "inf", at=("",), family=FAMILY, on="diffusion")
def last_time_of_the_schedule_divides_by_zero(watch: Watch) -> None:
    """The clean sample is computed with a division by sqrt(alpha), which is 0 at the last time."""
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    alpha = torch.linspace(1, 0, 20)
    watcher = watch(model)
    for clean in ring(50, batch=64):
        t = torch.randint(20, (64,))
        a = alpha[t][:, None]
        noise = torch.randn_like(clean)
        noisy = a.sqrt() * clean + (1 - a).sqrt() * noise
        predicted = (noisy - (1 - a).sqrt() * model(noisy, t / 20)) / a.sqrt()
        loss = functional.mse_loss(predicted, clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class DeviationNet(nn.Module):
    """Aggregates the standard deviation of the neighbors."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(8, 16)
        self.out = nn.Linear(32, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Any:
        source, target = edges
        h = self.inp(x)
        count = torch.zeros(len(x)).index_add(0, target, torch.ones(len(target)))
        count = count.clamp(min=1)[:, None]
        mean = torch.zeros_like(h).index_add(0, target, h[source]) / count
        square = torch.zeros_like(h).index_add(0, target, h[source] ** 2) / count
        deviation = (square - mean**2).clamp(min=0).sqrt()
        return self.out(torch.cat([h, deviation], -1))


@planted("nan", "inf", at=("", "inp"), family=FAMILY, on="GNN")
def deviation_of_a_single_neighbor(watch: Watch) -> None:
    """sqrt of a variance that is exactly 0: its gradient is not finite, though the loss is."""
    model = DeviationNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for x, edges, labels in graphs(30):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x, edges), labels)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("nan", at=("", "[0-9]"), family=FAMILY, on="MLP")
def where_does_not_stop_the_gradient_of_log(watch: Watch) -> None:
    """`torch.where` hides log of a negative value in the forward; its gradient is still NaN."""
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def loss_function(prediction: Tensor, target: Tensor) -> Any:
        p = prediction.squeeze(-1)
        squeezed = torch.where(p > 0, torch.sqrt(p), torch.zeros_like(p))
        return functional.mse_loss(squeezed, target.abs())

    fit(watch, model, optimizer, table(30), loss_function)


@planted("nan", at=("",), family=FAMILY, on="MLP")
def angle_of_unit_vectors_by_acos(watch: Watch) -> None:
    """acos of a product slightly above 1, for vectors that are the same up to rounding."""
    model = nn.Sequential(nn.Linear(3, 32), nn.SiLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    watcher = watch(model)
    for _ in range(60):
        x = functional.normalize(torch.randn(64, 3), dim=-1)
        residual = functional.normalize(x + 1e-4 * model(x), dim=-1)
        loss: Any = torch.acos((residual * x).sum(-1) * (1 + 1e-7)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()
