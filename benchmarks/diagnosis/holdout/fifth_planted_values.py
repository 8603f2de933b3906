"""Fifth hold-out: values that are not finite, gradients that do not arrive, sick activations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.diagnosis.cases import Watch, functional, planted
from benchmarks.diagnosis.holdout.fifth_models import (
    Experts,
    Layer,
    MessageNet,
    SelfAttention,
    Siamese,
    SmallCNN,
    Tabular,
    TextModel,
    blobs,
    chains,
    deep,
    epochs,
    friends,
    house_prices,
    next_token,
    seeded,
    stripes,
)


@planted("nan", "inf", family="numbers", on="contrastive", since=20)
def triplet_distance_of_equal_points(watch: Watch) -> None:
    """A duplicated row makes a distance of 0, and the gradient of its square root is infinite."""
    model = Siamese()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(epochs(blobs(), 6)):
            order = y.argsort()
            near, far = x[order], x[order.roll(16)]
            if step < 20:
                near = near + 0.1 * torch.randn(near.shape)
            a, p, n = model(x[order]), model(near), model(far)
            closer = ((a - p) ** 2).sum(-1).sqrt()
            further = ((a - n) ** 2).sum(-1).sqrt()
            loss = (closer - further + 1).relu().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


class OwnNorm(nn.Module):
    """A layer norm written by hand, without an epsilon."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Any:
        return self.scale * (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)


@planted("nan", family="numbers", on="LSTM", at=("norm",), since=15)
def own_norm_divides_by_zero(watch: Watch) -> None:
    """Padded places are embedded as zeros, and the hand-written norm divides by their deviation."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(17, 24, padding_idx=16)
            self.norm = OwnNorm(24)
            self.rnn = nn.GRU(24, 24, batch_first=True)
            self.out = nn.Linear(24, 2)

        def forward(self, ids: Tensor) -> Any:
            states, _ = self.rnn(self.norm(self.embed(ids)))
            return self.out(states[:, -1])

    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for step, (ids, _, y) in enumerate(epochs(chains(), 5)):
            padded = ids.clone()
            if step >= 15:
                padded[0, 7:] = 16
            loss = functional.cross_entropy(model(padded), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("nan", family="numbers", on="transformer", at=("layer.attn", "layer"), since=12)
def an_empty_sentence_is_all_padding(watch: Watch) -> None:
    """A sentence of length 0 has only masked keys: its attention is softmax of −inf everywhere."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(16, 24)
            self.layer = Layer(24, causal=False)
            self.out = nn.Linear(24, 2)

        def forward(self, ids: Tensor, lengths: Tensor) -> Any:
            pad = torch.arange(ids.shape[1]) >= lengths[:, None]
            return self.out(self.layer(self.embed(ids), pad).mean(1))

    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    draw = seeded(1)
    with watch(model) as watcher:
        for step, (ids, _, y) in enumerate(epochs(chains(), 4)):
            lengths = torch.randint(0 if step >= 12 else 1, 11, (len(ids),), generator=draw)
            if step == 12:
                lengths[3] = 0
            loss = functional.cross_entropy(model(ids, lengths), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("inf", "nan", family="numbers", on="MLP", at=("1", "2", "3", ""))
def half_precision_overflows(watch: Watch) -> None:
    """Squared activations of unscaled inputs are beyond 65504 in float16."""

    class Square(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return x.relu() ** 2

    model = nn.Sequential(nn.Linear(8, 32), Square(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with watch(model) as watcher:
        for x, y in epochs(blobs(), 5):
            with torch.autocast("cpu", torch.float16):
                loss = functional.cross_entropy(model(400 * x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("nan", "inf", family="numbers", on="MLP", since=0)
def divergence_with_hard_targets(watch: Watch) -> None:
    """KL divergence written by hand takes log of target probabilities that are 0: 0 · −inf."""
    model = deep(1, 32, nn.ReLU)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with watch(model) as watcher:
        for x, y in epochs(blobs(), 5):
            target = functional.one_hot(y, 4).float()
            q = model(x).softmax(-1)
            loss = (target * (target.log() - q.log())).sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("nan", family="numbers", on="table", since=21)
def missing_values_in_a_column(watch: Watch) -> None:
    """Rows of a later file have empty cells, which pandas reads as NaN."""
    model = Tabular()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for step, (numbers, ids, price) in enumerate(epochs(house_prices(), 6)):
            if step >= 21:
                numbers[::7, 3] = float("nan")
            loss = functional.mse_loss(model(numbers, ids)[:, 0], price)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("no-gradient", family="gradients", on="autoencoder", at=("encoder", "encoder.*"))
def codebook_without_straight_through(watch: Watch) -> None:
    """The nearest code is looked up by argmin, through which no gradient reaches the encoder."""

    class Quantized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
            self.codes = nn.Embedding(32, 4)
            self.decoder = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))

        def forward(self, x: Tensor) -> Any:
            nearest = torch.cdist(self.encoder(x), self.codes.weight).argmin(-1)
            return self.decoder(self.codes(nearest))

    model = Quantized()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for x, _ in epochs(blobs(), 5):
            loss = functional.mse_loss(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("no-gradient", family="gradients", on="CNN", at=("stem", "norm1", "conv", "norm2"))
def features_pass_through_numpy(watch: Watch) -> None:
    """Features are standardised with numpy, which cuts the graph below the classifier."""

    class Standardised(SmallCNN):
        def forward(self, x: Tensor) -> Any:
            features = self.features(x).detach().numpy()
            features = (features - features.mean(0)) / (features.std(0) + 1e-5)
            return self.fc(torch.from_numpy(features))

    model = Standardised()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    with watch(model) as watcher:
        for x, y in epochs(stripes(), 5):
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("no-gradient", family="gradients", on="LSTM", at=("embed", "rnn"))
def encode_is_still_without_gradients(watch: Watch) -> None:
    """`encode` was written for feature extraction and still carries @torch.no_grad()."""

    class Sentiment(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(16, 24)
            self.rnn = nn.LSTM(24, 24, batch_first=True)
            self.out = nn.Linear(24, 2)

        @torch.no_grad()
        def encode(self, ids: Tensor) -> Any:
            return self.rnn(self.embed(ids))[0].mean(1)

        def forward(self, ids: Tensor) -> Any:
            return self.out(self.encode(ids))

    model = Sentiment()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for ids, _, y in epochs(chains(), 5):
            loss = functional.cross_entropy(model(ids), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("no-gradient", family="gradients", on="MLP")
def losses_are_collected_as_numbers(watch: Watch) -> None:
    """Losses of the rows are collected with .item(), and a new tensor of them is differentiated."""
    model = deep(1, 32, nn.ReLU)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with watch(model) as watcher:
        for x, y in epochs(blobs(), 4):
            parts = [functional.cross_entropy(model(x[i::4]), y[i::4]).item() for i in range(4)]
            loss: Any = torch.tensor(parts, requires_grad=True).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("no-gradient", family="gradients", on="GNN", at=("edge_head", "edge_head.*"))
def second_loss_was_forgotten(watch: Watch) -> None:
    """A head for edges is run in each forward, and its output never reaches the loss."""

    class TwoHeads(MessageNet):
        def __init__(self) -> None:
            super().__init__()
            self.edge_head = nn.Linear(24, 24)

        def forward(self, x: Tensor, edges: Tensor) -> Any:
            share = edges / edges.sum(-1, keepdim=True).clamp(min=1)
            x = functional.relu(self.first(share @ x))
            x = functional.relu(self.second(share @ x + x))
            return self.out(x), x @ self.edge_head(x).T

    model = TwoHeads()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for x, edges, y in friends(50):
            logits, _ = model(x, edges)
            loss = functional.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("vanishing-gradient", family="gradients", on="MLP", at=("", "*"))
def tanh_stack_with_tiny_weights(watch: Watch) -> None:
    """Twelve tanh layers are drawn with deviation 0.02: gradients shrink by ten in every layer."""
    model = deep(12, 32, nn.Tanh)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model) as watcher:
        for x, y in epochs(blobs(), 6):
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted(
    "exploding-gradient",
    "growing-activations",
    family="gradients",
    on="RNN",
    at=("", "rnn", "rnn.*", "out"),
)
def recurrent_weights_above_one(watch: Watch) -> None:
    """A ReLU RNN with recurrent weights of 1.8 times the identity grows over forty steps."""

    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.RNN(1, 24, batch_first=True, nonlinearity="relu")
            with torch.no_grad():
                self.rnn.get_parameter("weight_hh_l0").copy_(1.8 * torch.eye(24))
            self.out = nn.Linear(24, 1)

        def forward(self, x: Tensor) -> Any:
            return self.out(self.rnn(x)[0][:, -1])[:, 0]

    model = Counter()
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    draw = seeded(3)
    with watch(model) as watcher:
        for _ in range(30):
            x = torch.rand(16, 40, 1, generator=draw)
            loss = functional.mse_loss(model(x), x.sum((1, 2)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("clipped-to-nothing", family="gradients", on="GPT")
def clipped_to_a_millionth(watch: Watch) -> None:
    """The clip value was meant to be an epsilon: SGD gets gradients of norm 1e-6."""
    model = TextModel()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model) as watcher:
        for ids, targets, _ in epochs(chains(), 5):
            loss = next_token(model(ids), targets)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e-6)
            optimizer.step()
            watcher.log("loss", loss)


@planted("dead-units", family="activations", on="CNN", at=("features.1", "features.0", "features"))
def biases_far_below_zero(watch: Watch) -> None:
    """Biases were set to −6 to start sparse; no ReLU of the first layer ever fires."""
    model = nn.Sequential()
    model.add_module("features", nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten()))
    model.add_module("head", nn.Linear(8 * 36, 4))
    nn.init.constant_(model[0][0].bias, -6.0)  # type: ignore[index]
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with watch(model) as watcher:
        for x, y in epochs(stripes(), 6):
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("growing-activations", family="activations", on="MLP", at=("", "blocks.*", "blocks"))
def residual_blocks_without_norm(watch: Watch) -> None:
    """Twenty residual blocks without norm: each makes the stream nearly twice as large."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(8, 32)
            self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(20))
            for block in self.blocks:
                nn.init.orthogonal_(block.get_parameter("weight"), gain=1.6)
            self.out = nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Any:
            x = self.enter(x)
            for block in self.blocks:
                x = x + functional.relu(block(x))
            return self.out(x)

    model = Residual()
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    with watch(model) as watcher:
        for x, y in epochs(blobs(), 5):
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("identical-units", family="activations", on="table", at=("body.*", "body"))
def constant_weights(watch: Watch) -> None:
    """All weights of the body begin at 0.02, so that all of its units stay alike."""
    model = Tabular()
    for layer in model.body:
        if isinstance(layer, nn.Linear):
            nn.init.constant_(layer.weight, 0.02)
            nn.init.zeros_(layer.bias)
    nn.init.constant_(model.out.weight, 0.02)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for numbers, ids, price in epochs(house_prices(), 6):
            loss = functional.mse_loss(model(numbers, ids)[:, 0], price)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("constant-output", family="activations", on="CNN", at=("", "fc", "out"))
def softmax_of_a_single_logit(watch: Watch) -> None:
    """A binary classifier ends in softmax over its one logit: the output is always 1."""

    class Binary(SmallCNN):
        def __init__(self) -> None:
            super().__init__(classes=1)
            self.out = nn.Softmax(dim=1)

        def forward(self, x: Tensor) -> Any:
            return self.out(super().forward(x))[:, 0]

    model = Binary()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for x, y in epochs(stripes(), 6):
            loss = functional.binary_cross_entropy(model(x), (y > 1).float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted(
    "attention-collapse",
    "attention-logit-growth",
    family="activations",
    on="GPT",
    at=("layers.*", "layers.0.attn", "layers.1.attn"),
)
def attention_without_scale(watch: Watch) -> None:
    """Queries and keys are drawn much too large: every place looks at one other place only."""
    model = TextModel()
    for layer in model.layers:
        for part in (layer.attn.q, layer.attn.k):  # type: ignore[union-attr]
            nn.init.normal_(part.weight, std=1.5)  # type: ignore[arg-type, union-attr]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with watch(model) as watcher:
        for ids, targets, _ in epochs(chains(), 6):
            loss = next_token(model(ids), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted(
    "router-collapse", family="activations", on="mixture", at=("router", "experts", "experts.*", "")
)
def router_prefers_one_expert(watch: Watch) -> None:
    """No balance loss, and a router with a large bias: every row goes to one expert."""
    model = Experts()
    with torch.no_grad():
        model.router.bias[2] = 4.0
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for x, y in epochs(blobs(), 6):
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("dropout-drops-all", family="activations", on="ViT", at=("drop",))
def keep_probability_as_dropout(watch: Watch) -> None:
    """`keep_prob=1.0` of another framework became nn.Dropout(1.0)."""

    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(1, 24, 4, stride=4)
            self.attn = SelfAttention(24, causal=False)
            self.drop = nn.Dropout(1.0)
            self.head = nn.Linear(24, 4)

        def forward(self, x: Tensor) -> Any:
            x = self.patches(x).flatten(2).transpose(1, 2)
            return self.head(self.drop(x + self.attn(x)).mean(1))

    model = Dropped()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with watch(model) as watcher:
        for x, y in epochs(stripes(), 5):
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted(
    "representation-collapse",
    "constant-output",
    family="activations",
    on="contrastive",
    at=("", "encoder", "encoder.*", "projector", "projector.*"),
)
def views_without_negatives(watch: Watch) -> None:
    """Two views are pulled together and nothing keeps others apart: all rows get one embedding."""
    model = Siamese()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for x, _ in epochs(blobs(), 14):
            a, b = model(x + 0.3 * torch.randn(x.shape)), model(x + 0.3 * torch.randn(x.shape))
            loss = functional.mse_loss(a, b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
