"""Healthy trainings of the third hold-out that look odd: models and losses."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.diagnosis.cases import Watch, functional, healthy
from benchmarks.diagnosis.holdout.third_tasks import (
    batches,
    digits,
    next_token,
    prices,
    records,
    text,
    train,
)
from benchmarks.diagnosis.models import GPT, ConvNet, ResNet, SequenceLSTM, mlp

Adam = torch.optim.Adam


class LowRank(nn.Module):
    """A frozen layer with a trained update of rank two that starts at zero."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, 2, bias=False)
        self.up = nn.Linear(2, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x) + self.up(self.down(x))


@healthy(family="optimizer", on="GPT")
def low_rank_adapters_of_a_gpt(watch: Watch) -> None:
    """All weights are frozen but small adapters and the head."""
    model = GPT(14, length=10).requires_grad_(False)
    block: Any
    for block in model.blocks:
        block.attention.query = LowRank(block.attention.query)
        block.attention.value = LowRank(block.attention.value)
    model.head.requires_grad_(True)
    trained = [one for one in model.parameters() if one.requires_grad]
    train(watch, model, torch.optim.AdamW(trained, lr=1e-2), text(), next_token)


class Bootstrap(nn.Module):
    """An online network that predicts what a slow copy of itself computes."""

    def __init__(self) -> None:
        super().__init__()
        self.online = mlp(10, 32, 16)
        self.predictor = mlp(16, 32, 16)
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, one: Tensor, two: Tensor) -> Any:
        wanted = self.target(two).detach()
        return functional.cosine_similarity(self.predictor(self.online(one)), wanted)


@healthy(family="gradients", on="MLP")
def slow_copy_as_a_teacher(watch: Watch) -> None:
    """The target network gets no gradient and is updated by a moving average."""
    model = Bootstrap()
    trained = [*model.online.parameters(), *model.predictor.parameters()]
    optimizer = Adam(trained, lr=1e-3)
    with watch(model) as watcher:
        for x, _ in batches(records(), 8):
            loss = (2 - 2 * model(x, x + 0.1 * torch.randn_like(x))).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                pairs = zip(model.online.parameters(), model.target.parameters(), strict=True)
                for own, slow in pairs:
                    slow.lerp_(own, 0.02)
            watcher.log("loss", loss)


class Quantizer(nn.Module):
    """The nearest entry of a codebook, with a straight-through gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Embedding(16, 4)
        nn.init.normal_(self.codes.weight, std=0.3)

    def forward(self, z: Tensor) -> Any:
        nearest = torch.cdist(z, self.codes.weight).argmin(-1)
        code = self.codes(nearest)
        commit = functional.mse_loss(z, code.detach()) * 0.25 + functional.mse_loss(
            code, z.detach()
        )
        return z + (code - z).detach(), commit


@healthy(family="gradients", on="autoencoder")
def codebook_with_a_straight_through_gradient(watch: Watch) -> None:
    """A VQ-VAE: argmin and detach are meant."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.quantizer, self.decoder = mlp(10, 32, 4), Quantizer(), mlp(4, 32, 10)

        def forward(self, x: Tensor) -> Any:
            code, commit = self.quantizer(self.encoder(x))
            return self.decoder(code), commit

    model = Net()
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model) as watcher:
        for x, _ in batches(records(), 20):
            out, commit = model(x)
            loss = functional.mse_loss(out, x) + commit
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", functional.mse_loss(out, x))


class Sine(nn.Module):
    """A layer of SIREN: sin(30 · Wx)."""

    def __init__(self, into: int, out: int, first: bool = False) -> None:
        super().__init__()
        self.fc = nn.Linear(into, out)
        limit = 1 / into if first else (6 / into) ** 0.5 / 30
        nn.init.uniform_(self.fc.weight, -limit, limit)

    def forward(self, x: Tensor) -> Any:
        return torch.sin(30 * self.fc(x))


@healthy(family="activations", on="MLP")
def network_of_sines_for_a_picture(watch: Watch) -> None:
    """A SIREN learns a picture; all pixels are one batch, at every step the same."""
    model = nn.Sequential(Sine(2, 32, first=True), Sine(32, 32), nn.Linear(32, 1))
    line = torch.linspace(-1, 1, 16)
    grid = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).flatten(0, 1)
    picture = (grid[:, :1] * 5).sin() * (grid[:, 1:] * 3).cos()
    optimizer = Adam(model.parameters(), lr=1e-3)
    with watch(model) as watcher:
        for _ in range(60):
            loss = functional.mse_loss(model(grid), picture)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


class Flow(nn.Module):
    """Affine couplings; returns the log-likelihood of each sample."""

    def __init__(self, columns: int = 10, depth: int = 4) -> None:
        super().__init__()
        self.nets = nn.ModuleList(mlp(columns // 2, 32, columns) for _ in range(depth))
        for net in self.nets:
            for one in list(net.parameters())[-2:]:
                nn.init.zeros_(one)

    def forward(self, x: Tensor) -> Any:
        total: Any = 0.0
        for net in self.nets:
            one, two = x.chunk(2, -1)
            scale, shift = net(one).chunk(2, -1)
            scale = scale.tanh()
            x = torch.cat([two * scale.exp() + shift, one], -1)
            total = total + scale.sum(-1)
        return total - 0.5 * x.square().sum(-1)


@healthy(family="dynamics", on="flow")
def likelihood_of_a_flow_below_zero(watch: Watch) -> None:
    """The negative log-likelihood of narrow data falls below 0; the last layers start at zero."""
    model = Flow()
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model) as watcher:
        for x, _ in batches(records(), 12):
            loss = -model(0.05 * x).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


class Reverse(torch.autograd.Function):
    """Turns the sign of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


@healthy(family="gradients", on="MLP")
def features_that_hide_the_domain(watch: Watch) -> None:
    """Domain-adversarial training: the gradient of a second head is reversed."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
            self.label, self.domain = nn.Linear(32, 3), nn.Linear(32, 2)

        def forward(self, x: Tensor) -> Any:
            z = self.body(x)
            reverse: Any = Reverse.apply
            return self.label(z), self.domain(reverse(z))

    model = Net()
    optimizer = Adam(model.parameters(), lr=2e-3)
    with watch(model) as watcher:
        for x, y in batches(records(), 8):
            label, domain = model(x)
            wrong = functional.cross_entropy(domain, (x[:, 0] > 0).long())
            loss = functional.cross_entropy(label, y) + 0.3 * wrong
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
            watcher.log("domain", wrong)


@healthy(family="activations", on="autoencoder")
def sparse_autoencoder_with_a_top_k(watch: Watch) -> None:
    """Only four of 128 units are on for each sample."""

    class TopK(nn.Module):
        def forward(self, x: Tensor) -> Any:
            best = x.topk(4, -1)
            return torch.zeros_like(x).scatter(-1, best.indices, best.values.relu())

    model = nn.Sequential(nn.Linear(10, 128), TopK(), nn.Linear(128, 10))
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model) as watcher:
        for x, _ in batches(records(), 10):
            loss = functional.mse_loss(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="activations", on="GPT")
def attention_with_a_linear_bias(watch: Watch) -> None:
    """ALiBi: no positions, a slope per head, -Inf above the diagonal."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.qkv = nn.Embedding(14, 32), nn.Linear(32, 96)
            self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 14)

        def forward(self, tokens: Tensor) -> Any:
            x = self.tokens(tokens)
            q, k, v = (
                one.unflatten(-1, (4, 8)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1)
            )
            far = torch.arange(x.shape[1])
            bias = -(far[:, None] - far).float() * 2.0 ** -torch.arange(1, 5)[:, None, None]
            bias = bias.masked_fill(far > far[:, None], float("-inf"))
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            return self.head(self.norm(x + mixed.transpose(1, 2).flatten(2)))

    model = Net()
    train(watch, model, Adam(model.parameters(), lr=3e-3), text(), next_token)


@healthy(family="activations", on="transformer")
def transformer_with_norms_after_its_blocks(watch: Watch) -> None:
    """Post-norm, dropout 0.3, a warm-up, and padding that is masked."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.3, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.encoder, self.head = nn.Embedding(15, 32), encoder, nn.Linear(32, 14)

        def forward(self, tokens: Tensor) -> Any:
            masked = torch.rand(tokens.shape) < 0.2
            masked[:, 0] = False
            x = self.encoder(self.tokens(tokens + 1), src_key_padding_mask=masked)
            return self.head(x)

    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 20))
    train(watch, model, optimizer, text(), next_token, epochs=12, scheduler=warm_up)


@healthy(family="dynamics", on="MLP")
def noise_that_cannot_be_predicted(watch: Watch) -> None:
    """The target is mostly noise: the loss falls a little and stays."""
    x, y = prices().tensors
    data = torch.utils.data.TensorDataset(x, 0.3 * y + torch.randn_like(y))
    model = mlp(10, 16, 1)
    train(watch, model, Adam(model.parameters(), lr=1e-3), data, functional.mse_loss)


@healthy(family="dynamics", on="CNN")
def training_goes_on_from_a_good_checkpoint(watch: Watch) -> None:
    """The network was trained before: its loss is low from the first step and stays so."""
    model = ConvNet(classes=5)
    optimizer = Adam(model.parameters(), lr=3e-3)
    data = digits()
    for x, y in batches(data, 25):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    train(watch, model, Adam(model.parameters(), lr=1e-4), data)


@healthy(family="activations", on="LSTM")
def long_sequences_with_a_forget_bias(watch: Watch) -> None:
    """An LSTM whose forget gates start open (bias 3), over 60 steps."""
    model = SequenceLSTM(14)
    with torch.no_grad():
        dict(model.lstm.named_parameters())["bias_ih_l0"][32:64].fill_(3.0)
    train(
        watch,
        model,
        Adam(model.parameters(), lr=5e-3),
        text(96, 60),
        next_token,
        epochs=12,
        batch=16,
    )


@healthy(family="gradients", on="CNN")
def fake_quantization_of_the_weights(watch: Watch) -> None:
    """Weights are rounded to 8 levels in the forward; a straight-through gradient trains them."""

    class Rounded(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            scale = self.weight.abs().max() / 4
            rounded = self.weight + ((self.weight / scale).round() * scale - self.weight).detach()
            return functional.linear(x, rounded, self.bias)

    model = nn.Sequential(Rounded(10, 64), nn.ReLU(), Rounded(64, 64), nn.ReLU(), Rounded(64, 3))
    train(watch, model, Adam(model.parameters(), lr=1e-3), records())


@healthy(family="set-up", on="CNN")
def residual_network_of_thirty_layers(watch: Watch) -> None:
    """A deep residual network with SGD, momentum and weight decay."""
    model = ResNet(depth=14, classes=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    train(watch, model, optimizer, digits(128), epochs=8)
