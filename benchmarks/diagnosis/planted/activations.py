"""Units that are dead, saturated, identical, constant or collapsed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmarks.diagnosis import data
from benchmarks.diagnosis.cases import Watch, fit, functional, planted
from benchmarks.diagnosis.models import (
    GPT,
    VAE,
    Attention,
    Autoencoder,
    Block,
    Mixture,
    TwoTower,
    ViT,
    mlp,
    plain_convnet,
)

_FAMILY = "activations"


def _next_token(logits: Tensor, tokens: Tensor) -> Any:
    return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def _linear(module: object) -> nn.Linear:
    return cast(nn.Linear, module)


@planted("dead-units", at=("2", "3"), family=_FAMILY)
def relu_dead_by_its_bias(watch: Watch) -> None:
    """The second layer's bias is −50: its ReLU is 0 for all inputs from the start."""
    model = mlp(16, 32, 32, 4)
    nn.init.constant_(_linear(model[2]).bias, -50.0)
    fit(watch, model, torch.optim.SGD(model.parameters(), lr=0.1), data.clusters(60))


@planted("dead-units", "lr-too-high", at=("", "0", "1", "2", "3"), family=_FAMILY)
def relu_killed_by_one_large_step(watch: Watch) -> None:
    """Plain SGD with lr 5 throws the biases far below zero; afterwards nothing fires."""
    model = mlp(8, 32, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    with watch(model) as watcher:
        for x, y in data.curve(60):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y + 3)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            watcher.log("loss", loss)


@planted("dead-units", at=("3", "4"), family=_FAMILY, on="CNN")
def convolution_dead_in_most_channels(watch: Watch) -> None:
    """14 of 16 channels of the second convolution never fire; the others still learn."""
    model = plain_convnet()
    with torch.no_grad():
        cast(Tensor, cast(nn.Conv2d, model[3]).bias)[:14] = -30.0
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=3e-3), data.images(60))


class _ReluBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.up = nn.Linear(32, 64)
        self.relu = nn.ReLU()
        self.down = nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, x + self.down(self.relu(self.up(self.norm(x)))))


@planted("dead-units", at=("3.up", "3.relu"), family=_FAMILY, on="transformer")
def dead_branch_of_a_residual_network(watch: Watch) -> None:
    """The third residual branch is dead; the skip connection hides it in the loss."""
    model = nn.Sequential(
        nn.Linear(16, 32), *(_ReluBlock() for _ in range(4)), nn.LayerNorm(32), nn.Linear(32, 4)
    )
    nn.init.constant_(cast(_ReluBlock, model[3]).up.bias, -20.0)
    fit(watch, model, torch.optim.AdamW(model.parameters(), lr=1e-3), data.clusters(60))


@planted("saturated", at=("", "1", "3", "0", "2"), family=_FAMILY)
def sigmoid_saturated_by_large_weights(watch: Watch) -> None:
    """Weights start with a standard deviation of 10: every sigmoid is 0 or 1."""
    model = mlp(16, 32, 32, 4, activation=nn.Sigmoid)
    for layer in (model[0], model[2]):
        nn.init.normal_(_linear(layer).weight, std=10.0)
    fit(watch, model, torch.optim.SGD(model.parameters(), lr=0.01), data.clusters(60))


@planted("saturated", "vanishing-gradient", at=("encoder", "encoder.*"), family=_FAMILY,
         on="autoencoder")  # fmt: skip
def tanh_code_saturated(watch: Watch) -> None:
    """The code's tanh is at ±1 for every sample: the encoder gets no gradient through it."""
    model = Autoencoder()
    nn.init.normal_(_linear(model.encoder[2]).weight, std=20.0)
    model.encoder.append(nn.Tanh())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model) as watcher:
        for x, _ in data.clusters(60):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), x)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


class _TanhRNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(2, 16, batch_first=True)
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.rnn(x)
        return cast(Tensor, self.head(outputs[:, -1]))


@planted("saturated", at=("", "rnn", "rnn.*"), family=_FAMILY, on="RNN")
def recurrent_tanh_saturated(watch: Watch) -> None:
    """Input weights of the RNN start 300 times too large: its outputs are at ±1."""
    model = _TanhRNN()
    with torch.no_grad():
        dict(model.rnn.named_parameters())["weight_ih_l0"].mul_(300)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(watch, model, optimizer, data.waves(60), functional.mse_loss)


class _UnscaledBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(32, 64, 32)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, x + self.net(x))


@planted(
    "growing-activations", "exploding-gradient",
    at=("", "[0-9]", "1[0-9]", "blocks", "[0-9].*", "1[0-9].*"), family=_FAMILY, on="ResNet",
)  # fmt: skip
def residual_stream_without_norm(watch: Watch) -> None:
    """Sixteen residual blocks without norm multiply the stream: it ends at 10⁸ times its start."""
    model = nn.Sequential(
        nn.Linear(16, 32), *(_UnscaledBlock() for _ in range(16)), nn.Linear(32, 4)
    )
    for module in model.modules():
        if isinstance(module, _UnscaledBlock):
            for layer in (module.net[0], module.net[2]):
                nn.init.normal_(_linear(layer).weight, std=0.35)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    fit(watch, model, optimizer, data.clusters(50))


@planted("growing-activations", at=("", "blocks", "blocks.*"), family=_FAMILY, on="GPT")
def output_projections_too_large(watch: Watch) -> None:
    """Output projections start too large, more so in later blocks: each block swamps the stream."""
    model = GPT(depth=4)
    with torch.no_grad():
        for number, block in enumerate(model.blocks):
            one = cast(Block, block)
            for projection in (one.attention.out, one.mlp[2]):
                _linear(projection).weight.mul_(8 * 3**number)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    fit(watch, model, optimizer, data.sentences(40), _next_token)


@planted("identical-units", at=("", "0", "1", "2"), family=_FAMILY)
def all_weights_the_same(watch: Watch) -> None:
    """All weights start at 0.05: units of a layer stay copies of each other."""
    model = mlp(16, 32, 32, 4)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.constant_(layer.weight, 0.05)
            nn.init.zeros_(layer.bias)
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=1e-2), data.clusters(60))


@planted(
    "identical-units", "no-gradient", "dead-units", "vanishing-gradient", "constant-output",
    "loss-plateau", at=("", "0", "1", "3", "4", "7"), family=_FAMILY, on="CNN",
)  # fmt: skip
def all_weights_zero(watch: Watch) -> None:
    """All weights start at 0: the last bias alone gets a gradient, for ever."""
    model = plain_convnet()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    fit(watch, model, torch.optim.SGD(model.parameters(), lr=0.1), data.images(60))


@planted(
    "constant-output", "loss-plateau", at=("", "net", "net.3", "net.2", "net.1"), family=_FAMILY
)
def softmax_over_a_single_logit(watch: Watch) -> None:
    """A softmax over one logit is 1 for every input: no gradient gets behind it."""

    class Binary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1), nn.Softmax(1))

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.net(x).squeeze(1))

    model = Binary()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batches = ((x, (y > 1).float()) for x, y in data.clusters(50))
    fit(watch, model, optimizer, batches, functional.binary_cross_entropy)


@planted("constant-output", "loss-plateau", at=("", "3", "2"), family=_FAMILY)
def layer_norm_of_a_single_feature(watch: Watch) -> None:
    """LayerNorm(1) subtracts the only feature from itself: the output is its bias."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1), nn.LayerNorm(1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit(watch, model, optimizer, data.curve(60), functional.mse_loss)


class _BatchPool(ViT):
    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x)
        pooled = self.norm(x).mean(0).mean(0, keepdim=True).expand(len(x), -1)
        return cast(Tensor, self.head(pooled))


@planted("constant-output", "loss-plateau", at=("", "head"), family=_FAMILY, on="ViT")
def pooling_over_the_batch(watch: Watch) -> None:
    """The mean is taken over the batch as well: all samples get the same logits."""
    model = _BatchPool()
    fit(watch, model, torch.optim.AdamW(model.parameters(), lr=2e-3), data.images(50))


@planted(
    "attention-collapse", "saturated",
    at=("", "blocks.0", "blocks.0.attention", "blocks.0.attention.*"), family=_FAMILY, on="GPT",
)  # fmt: skip
def attention_on_a_single_token(watch: Watch) -> None:
    """Queries and keys start 20 times too large: the softmax is one-hot and gets no gradient."""
    model = GPT()
    attention = cast(Attention, model.blocks[0].attention)
    with torch.no_grad():
        attention.query.weight.mul_(20)
        attention.key.weight.mul_(20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    fit(watch, model, optimizer, data.sentences(60), _next_token)


@planted(
    "attention-collapse", "saturated",
    at=("", "layers.*", "layers.*.self_attn"), family=_FAMILY, on="ViT",
)  # fmt: skip
def multihead_attention_one_hot(watch: Watch) -> None:
    """The packed projection of torch's attention was scaled as if it were not divided by √d."""
    model = ViT()
    with torch.no_grad():
        for layer in model.layers:
            weight = cast(nn.TransformerEncoderLayer, layer).self_attn.in_proj_weight
            cast(Tensor, weight)[:64].mul_(16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    fit(watch, model, optimizer, data.images(50))


@planted(
    "attention-logit-growth", "attention-collapse", "lr-too-high",
    at=("", "blocks.*", "blocks.*.attention", "blocks.*.attention.*"), family=_FAMILY, on="GPT",
)  # fmt: skip
def attention_scores_that_grow(watch: Watch) -> None:
    """Queries and keys have a group with lr 0.1: scores grow tenfold every 20 steps."""
    model = GPT()
    fast = [p for name, p in model.named_parameters() if ".query." in name or ".key." in name]
    chosen = {id(p) for p in fast}
    slow = [p for p in model.parameters() if id(p) not in chosen]
    optimizer = torch.optim.AdamW([{"params": slow, "lr": 1e-3}, {"params": fast, "lr": 0.05}])
    fit(watch, model, optimizer, data.sentences(80), _next_token)


@planted("router-collapse", at=("", "router", "experts", "experts.*"), family=_FAMILY, on="mixture")
def router_that_prefers_one_expert(watch: Watch) -> None:
    """The router's bias sends every sample to expert 0; the other three never run."""
    model = Mixture()
    nn.init.normal_(model.router.weight, std=0.01)
    with torch.no_grad():
        model.router.bias[0] = 4.0
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=3e-3), data.clusters(60))


class _SoftMixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4), nn.Softmax(-1))
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs = torch.stack([expert(x) for expert in self.experts], -1)
        return cast(Tensor, self.head((outputs * self.gate(x)[:, None]).sum(-1).relu()))


@planted(
    "router-collapse", "saturated", at=("", "gate", "gate.*", "experts", "experts.*"),
    family=_FAMILY, on="mixture",
)  # fmt: skip
def soft_gate_that_is_always_one_hot(watch: Watch) -> None:
    """A soft gate puts weight 1 on the same expert for every sample: a mixture of one."""
    model = _SoftMixture()
    with torch.no_grad():
        _linear(model.gate[2]).bias[2] = 25.0
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=3e-3), data.clusters(60))


@planted("dropout-drops-all", at=("2", "1"), family=_FAMILY)
def dropout_of_one(watch: Watch) -> None:
    """`Dropout(1.0)` was meant as the share to keep: everything behind it is zero."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(1.0), nn.Linear(32, 4))
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=1e-2), data.clusters(60))


@planted("dropout-drops-all", at=("", "drop"), family=_FAMILY, on="CNN")
def dropout_of_almost_all(watch: Watch) -> None:
    """`Dropout2d(0.98)` drops whole maps: usually none of the eight is left."""

    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 8, 3)
            self.drop = nn.Dropout2d(0.98)
            self.head = nn.Linear(288, 4)

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.head(self.drop(self.conv(x).relu()).flatten(1)))

    model = Dropped()
    fit(watch, model, torch.optim.Adam(model.parameters(), lr=1e-3), data.images(60))


@planted(
    "representation-collapse", "constant-output", at=("", "left", "right", "left.*", "right.*"),
    family=_FAMILY, on="two-tower",
)  # fmt: skip
def agreement_without_negatives(watch: Watch) -> None:
    """Pairs are pulled together and nothing is pushed apart: all embeddings become the same."""
    model = TwoTower()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    with watch(model) as watcher:
        for left, right in data.pairs(120):
            a, b = model(left, right)
            loss = functional.mse_loss(a, b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


def _views(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    for x, _ in data.images(steps, batch=32):
        yield x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)


@planted("representation-collapse", "constant-output", at=("", "[0-9]"), family=_FAMILY, on="CNN")
def siamese_network_without_stop_gradient(watch: Watch) -> None:
    """Cosine similarity of two views is maximized on both sides: it is 1 for any two images."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 32), nn.ReLU(), nn.Linear(32, 8)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for one, other in _views(80):
        loss = -functional.cosine_similarity(model(one), model(other)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted(
    "representation-collapse", "constant-output", at=("", "mean", "log_variance", "decoder"),
    family=_FAMILY, on="VAE",
)  # fmt: skip
def posterior_collapse(watch: Watch) -> None:
    """A KL term 50 times too heavy: the code is the prior for every input, and says nothing."""
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with watch(model) as watcher:
        for x, _ in data.clusters(100):
            output, mean, log_variance = model(x)
            divergence = (mean**2 + log_variance.exp() - log_variance - 1).sum(-1).mean() / 2
            loss = functional.mse_loss(output, x) + 50 * divergence
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
