"""Trainings that are put together wrongly: modes, modules, losses, inputs and labels."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.diagnosis.cases import Watch, fit, functional, planted
from benchmarks.diagnosis.data import clusters, images, sentences, waves
from benchmarks.diagnosis.holdout.models import (
    ClsViT,
    EncoderBlock,
    GraphNet,
    GRUTagger,
    Llama,
    PreActNet,
    ResidualMLP,
    UNet,
)
from benchmarks.diagnosis.holdout.tasks import (
    blobs,
    graphs,
    in_epochs,
    next_token,
    reviews,
    table,
    tags,
    unlogged,
)

FAMILY = "set-up"


@planted("eval-mode", at=("", "*"), family=FAMILY, on="CNN")
def loaded_model_is_trained_in_eval_mode(watch: Watch) -> None:
    """`model.eval()` of the script that loads the model is never taken back."""
    model = PreActNet().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    fit(watch, model, optimizer, images(50))


@planted("eval-mode", at=("", "*"), family=FAMILY, on="transformer")
def evaluation_in_the_first_step_is_not_undone(watch: Watch) -> None:
    """A sanity check before the first epoch sets eval mode; dropout is off from then on."""
    layers = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
    model = nn.Sequential(nn.Embedding(16, 16), nn.TransformerEncoder(layers, 2), nn.Linear(16, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    watcher = watch(model)
    batches = list(sentences(12))
    model.eval()
    with torch.no_grad():
        model(batches[0][0])
    for _ in range(5):
        for tokens, targets in batches:
            optimizer.zero_grad(set_to_none=True)
            loss = next_token(model(tokens), targets)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
    watcher.close()


@planted("tiny-batch-norm", at=("", "[0-9]"), family=FAMILY, on="MLP")
def batch_norm_on_batches_of_two(watch: Watch) -> None:
    """Batch norm over two samples: each output is about +1 or -1."""
    model = nn.Sequential(
        nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32),
        nn.ReLU(), nn.Linear(32, 4),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    unlogged(watch, model, optimizer, clusters(80, batch=2), functional.cross_entropy)


class PooledNorm(nn.Module):
    """Batch norm behind a global pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.bn = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.bn(self.pool(functional.relu(self.conv(x)))).flatten(1))


@planted("tiny-batch-norm", at=("", "bn"), family=FAMILY, on="CNN")
def accumulation_over_micro_batches_of_two(watch: Watch) -> None:
    """Eight micro-batches of two images each; batch norm sees two values per channel."""
    model = PooledNorm()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    watcher = watch(model)
    for x, y in images(40, batch=16):
        optimizer.zero_grad()
        total = 0.0
        for part, labels in zip(torch.chunk(x, 8), torch.chunk(y, 8), strict=True):
            loss = functional.cross_entropy(model(part), labels) / 8
            loss.backward()
            total += float(loss)
        optimizer.step()
        watcher.log("loss", total)
    watcher.close()


@planted("batch-norm-drift", at=("", "norm", "stages.*", "conv"), family=FAMILY, on="CNN")
def momentum_of_batch_norm_is_zero(watch: Watch) -> None:
    """momentum=0: running statistics stay at 0 and 1, the batches are far from them."""
    model = PreActNet(norm=lambda width: nn.BatchNorm2d(width, momentum=0.0))
    with torch.no_grad():
        model.conv.weight *= 30
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    in_epochs(watch, model, optimizer, images, functional.cross_entropy, 3, 20)


@planted("batch-norm-drift", at=("", "[0-9]"), family=FAMILY, on="MLP")
def statistics_of_another_domain(watch: Watch) -> None:
    """Running statistics come from data a hundred times as large, and hardly follow."""
    model = nn.Sequential(
        nn.Linear(16, 32), nn.BatchNorm1d(32, momentum=1e-5), nn.ReLU(), nn.Linear(32, 4)
    )
    norm: Any = model[1]
    norm.running_var.fill_(1e4)
    norm.running_mean.fill_(40)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    in_epochs(watch, model, optimizer, clusters, functional.cross_entropy)


class ProbabilityViT(ClsViT):
    """A ViT that returns probabilities."""

    def forward(self, images: Tensor) -> Any:
        return functional.softmax(super().forward(images), dim=1)


@planted("softmax-before-cross-entropy", at=("", "head"), family=FAMILY, on="ViT")
def softmax_in_the_forward(watch: Watch) -> None:
    """The forward ends with softmax, and the loss is cross entropy."""
    model = ProbabilityViT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fit(watch, model, optimizer, images(60), nn.CrossEntropyLoss())


@planted("softmax-before-cross-entropy", at=("", "lm_head"), family=FAMILY, on="GPT")
def softmax_in_the_loop(watch: Watch) -> None:
    """The loop turns logits into probabilities before it calls cross_entropy."""
    model = Llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    watcher = watch(model)
    for tokens, targets in sentences(60):
        probabilities = torch.softmax(model(tokens), dim=-1)
        loss = functional.cross_entropy(
            probabilities.view(-1, 16), targets.reshape(-1), label_smoothing=0.05
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("nll-without-log-softmax", "loss-diverges", at=("", "fc"), family=FAMILY, on="GRU")
def nll_of_raw_scores(watch: Watch) -> None:
    """`nll_loss` gets scores that are not log probabilities: the loss falls below 0."""
    model = GRUTagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, reviews(60), functional.nll_loss)


@planted("nll-without-log-softmax", at=("", "[0-9]"), family=FAMILY, on="MLP")
def nll_of_probabilities(watch: Watch) -> None:
    """`NLLLoss` gets the output of a softmax, without the logarithm."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4), nn.Softmax(dim=1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, clusters(60), nn.NLLLoss())


@planted("sigmoid-before-bce", at=("", "4", "3"), family=FAMILY, on="MLP")
def sigmoid_module_before_logits_loss(watch: Watch) -> None:
    """The model ends in a Sigmoid, and BCEWithLogitsLoss applies it again."""
    model = nn.Sequential(
        nn.Linear(12, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 5), nn.Sigmoid()
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, tags(60), nn.BCEWithLogitsLoss())


class SigmoidUNet(UNet):
    """A U-Net that returns probabilities."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x).sigmoid()


@planted("sigmoid-before-bce", at=("", "last"), family=FAMILY, on="U-Net")
def mask_probabilities_before_logits_loss(watch: Watch) -> None:
    """The forward ends with `.sigmoid()`, and the loss takes logits."""
    model = SigmoidUNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for x, y in blobs(50):
        loss = functional.binary_cross_entropy_with_logits(
            model(x), y, pos_weight=torch.tensor(2.0)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("relu-on-output", at=("", "[0-9]"), family=FAMILY, on="MLP")
def every_layer_has_a_relu(watch: Watch) -> None:
    """A loop adds a ReLU after each layer, the last one too; half of the targets are negative."""
    layers: list[nn.Module] = []
    for into, out in ((8, 32), (32, 32), (32, 1)):
        layers += [nn.Linear(into, out), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    fit(watch, model, optimizer, table(70), functional.mse_loss)


class Forecast(nn.Module):
    """An LSTM whose forecast cannot be negative."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 24, batch_first=True)
        self.head = nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Any:
        _, (h, _) = self.lstm(x)
        return functional.relu(self.head(h[-1]))


@planted("relu-on-output", at=("", "head"), family=FAMILY, on="LSTM")
def forecast_is_cut_off_at_zero(watch: Watch) -> None:
    """A ReLU on a forecast of a wave between -1 and 1."""
    model = Forecast()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    fit(watch, model, optimizer, waves(60), functional.smooth_l1_loss)


@planted("loss-broadcast", at=("", "out"), family=FAMILY, on="residual MLP")
def squared_error_of_n_by_1_and_n(watch: Watch) -> None:
    """Predictions (N, 1) minus targets (N) are N × N differences; the loss is written by hand."""
    model = ResidualMLP(8, out=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    watcher = watch(model)
    for x, y in table(60):
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@planted("loss-broadcast", at=("", "[0-9]"), family=FAMILY, on="RL")
def values_of_a_dqn_are_broadcast(watch: Watch) -> None:
    """The chosen value has shape (N, 1), the target (N)."""
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    watcher = watch(model)
    for _ in range(60):
        state = torch.randn(48, 6)
        action = torch.randint(3, (48, 1))
        reward = state[:, 0] * (action[:, 0] - 1)
        value = model(state).gather(1, action)
        loss = functional.huber_loss(value, reward)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class ForgottenNorm(nn.Module):
    """Two norms and a projection, of which the forward uses one norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm1 = nn.LayerNorm(16)
        self.norm2 = nn.LayerNorm(16)
        self.ff = nn.Linear(16, 16)
        self.fc = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Any:
        x = self.norm1(x + self.attn(x, x, x)[0])
        x = self.norm1(x + self.ff(x))
        return self.fc(x.mean(1))


@planted("module-never-called", "no-gradient", at=("norm2",), family=FAMILY, on="transformer")
def second_norm_is_never_used(watch: Watch) -> None:
    """A copied line calls norm1 twice and norm2 never."""
    model = ForgottenNorm()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    batches = ((x[:, None] + torch.randn(32, 3, 16), y) for x, y in clusters(50))
    fit(watch, model, optimizer, batches)


class ForgottenSkip(GraphNet):
    """A graph network with a projection of the input that is never added."""

    def __init__(self) -> None:
        super().__init__()
        self.skip = nn.Linear(8, 24)


@planted("module-never-called", "no-gradient", at=("skip",), family=FAMILY, on="GNN")
def skip_projection_is_never_added(watch: Watch) -> None:
    """`self.skip` is made in `__init__` and missing in the forward."""
    model = ForgottenSkip()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for x, edges, labels in graphs(50):
        loss = functional.cross_entropy(model(x, edges), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watch.losses.append(float(loss))
    watcher.close()


@planted("shared-module", at=("", "encoder", "encoder.*"), family=FAMILY, on="ViT")
def encoder_is_one_block_six_times(watch: Watch) -> None:
    """`nn.ModuleList([block] * 6)` has one block in six places."""
    model = ClsViT()
    model.encoder = nn.ModuleList([EncoderBlock(32)] * 6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fit(watch, model, optimizer, images(40))


@planted("shared-module", at=("", "[0-9]", "[0-9].*"), family=FAMILY, on="MLP")
def hidden_layers_are_one_layer(watch: Watch) -> None:
    """The list of hidden layers was multiplied, and not made anew for each."""
    hidden: list[nn.Module] = [nn.Linear(32, 32), nn.ReLU()] * 4
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), *hidden, nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(watch, model, optimizer, clusters(50))


@planted("untied-weights", at=("", "embed", "lm_head"), family=FAMILY, on="GPT")
def tied_weights_are_cloned(watch: Watch) -> None:
    """The head is filled with a clone of the embedding: two parameters from then on."""
    model = Llama(tied=True)
    model.lm_head.weight = nn.Parameter(model.embed.weight.detach().clone())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    fit(watch, model, optimizer, sentences(50), next_token)


@planted("untied-weights", at=("", "encode", "decode"), family=FAMILY, on="LSTM")
def deepcopy_of_parts_unties_them(watch: Watch) -> None:
    """Embedding and output layer are copied one by one, which makes two weights of one."""
    tied = Llama(tied=True, vocabulary=16, width=24)
    model = CopiedParts(copy.deepcopy(tied.embed), copy.deepcopy(tied.lm_head))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    fit(watch, model, optimizer, sentences(50), next_token)


class CopiedParts(nn.Module):
    """A language model of an LSTM between an embedding and an output layer."""

    def __init__(self, encode: nn.Module, decode: nn.Module) -> None:
        super().__init__()
        self.encode = encode
        self.rnn = nn.LSTM(24, 24, batch_first=True)
        self.decode = decode

    def forward(self, tokens: Tensor) -> Any:
        return self.decode(self.rnn(self.encode(tokens))[0])
