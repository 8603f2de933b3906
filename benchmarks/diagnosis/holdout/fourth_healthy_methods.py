"""Fourth hold-out: healthy trainings whose model or optimizer looks odd."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from benchmarks.diagnosis import data
from benchmarks.diagnosis.cases import Watch, fit, functional, healthy
from benchmarks.diagnosis.holdout.fourth_models import LoRA, draw, follow
from benchmarks.diagnosis.models import (
    GPT,
    Block,
    Classifier,
    ConvNet,
    ResNet,
    SequenceLSTM,
    ViT,
    mlp,
)


def _next_token(logits: Tensor, y: Tensor) -> Any:
    return functional.cross_entropy(logits.flatten(0, 1), y.flatten())


@healthy(family="LoRA", on="GPT")
def adapters_in_a_trained_model(watch: Watch) -> None:
    """A GPT is trained, frozen, and adapted to other sentences by LoRA and its norms alone."""
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    for x, y in data.sentences(80):
        optimizer.zero_grad()
        _next_token(model(x), y).backward()
        optimizer.step()
    model.requires_grad_(False)
    for block in model.blocks:
        part = cast(Block, block)
        part.attention.query = LoRA(part.attention.query)  # type: ignore[assignment]
        part.mlp[2] = LoRA(cast(nn.Linear, part.mlp[2]))
    model.norm.requires_grad_(True)
    trained = [one for one in model.parameters() if one.requires_grad]
    fit(watch, model, torch.optim.AdamW(trained, 1e-2), data.sentences(80, seed=99), _next_token)


@healthy(family="frozen", on="CNN")
def backbone_in_eval_mode(watch: Watch) -> None:
    """A trained backbone is frozen with its batch norms in eval mode; a new head is trained."""
    model = ConvNet()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for x, y in data.images(60):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.features.requires_grad_(False)
    model.head = nn.Linear(64, 4)
    model.train()
    model.features.eval()
    fit(watch, model, torch.optim.Adam(model.head.parameters(), 5e-3), data.images(120))


@healthy(family="memory", on="MLP")
def checkpoints_that_recompute(watch: Watch) -> None:
    """Gradient checkpoints: each block runs forward twice a step."""

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into = nn.Linear(16, 32)
            self.blocks = nn.ModuleList(mlp(32, 32, 32) for _ in range(4))
            self.head = nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.into(x)
            for block in self.blocks:
                x = x + checkpoint(block, x, use_reentrant=False)
            return cast(Tensor, self.head(x))

    model = Deep()
    fit(watch, model, torch.optim.AdamW(model.parameters(), 2e-3), data.clusters(120))


@healthy(family="precision", on="ViT")
def autocast_to_bfloat16(watch: Watch) -> None:
    """Autocast to bfloat16, and a scaler that is switched off."""
    model = ViT()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with watch(model) as watcher:
        for x, y in data.images(80):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            watcher.log("loss", loss)


@healthy(family="precision", on="MLP")
def scaler_finds_its_scale(watch: Watch) -> None:
    """float16 with a scaler: the first steps overflow and are skipped, as meant."""
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=30)
    with watch(model) as watcher:
        for x, y in data.clusters(140):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            watcher.log("loss", loss)


@healthy(family="schedules", on="CNN")
def one_cycle(watch: Watch) -> None:
    """OneCycle with SGD: the rate climbs 25-fold, and ends at a ten-thousandth."""
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)
    with watch(model) as watcher:
        for x, y in data.images(100):
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            watcher.log("loss", loss)


@healthy(family="schedules", on="GPT")
def warm_up_and_cosine_to_zero(watch: Watch) -> None:
    """The rate starts at exactly 0, warms up for 20 steps, and ends at exactly 0."""
    model = GPT(tied=True)
    optimizer = torch.optim.AdamW(model.parameters(), 6e-3, betas=(0.9, 0.95), weight_decay=0.1)

    def rate(step: int) -> float:
        end = 0.5 * (1 + torch.tensor(3.14159 * (step - 20) / 80).cos())
        return step / 20 if step < 20 else float(end) if step < 100 else 0.0

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    with watch(model) as watcher:
        for x, y in data.sentences(100):
            loss = _next_token(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            watcher.log("loss", loss)


@healthy(family="optimizers")
def quasi_newton(watch: Watch) -> None:
    """LBFGS calls its closure several times for each step."""
    model = mlp(8, 16, 1, activation=nn.Tanh)
    optimizer: Any = torch.optim.LBFGS(
        model.parameters(), 0.5, max_iter=4, line_search_fn="strong_wolfe"
    )
    x, y = next(data.curve(1, batch=128))
    with watch(model) as watcher:
        for _ in range(60):

            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = functional.mse_loss(model(x), y)
                loss.backward()
                return cast(Tensor, loss)

            watcher.log("loss", optimizer.step(closure))


@healthy(family="optimizers", on="GPT")
def adafactor(watch: Watch) -> None:
    """Adafactor scales its steps by the weights, at the rate that it has by default."""
    model = GPT()
    optimizer = torch.optim.Adafactor(model.parameters(), lr=2e-2)
    fit(watch, model, optimizer, data.sentences(100), _next_token)


@healthy(family="sparse", on="LSTM")
def sparse_rows(watch: Watch) -> None:
    """A large embedding with sparse gradients has its own SparseAdam; few rows are ever used."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5000, 24, sparse=True)
            self.gru = nn.GRU(24, 24, batch_first=True)
            self.head = nn.Linear(24, 16)

        def forward(self, tokens: Tensor) -> Tensor:
            return cast(Tensor, self.head(self.gru(self.embedding(tokens))[0]))

    model = Net()
    rows: Any = torch.optim.SparseAdam(model.embedding.parameters(), 2e-2)
    rest = torch.optim.Adam([*model.gru.parameters(), *model.head.parameters()], 1e-2)
    with watch(model) as watcher:
        for x, y in data.sentences(120):
            loss = _next_token(model(x), y)
            rows.zero_grad()
            rest.zero_grad()
            loss.backward()
            rows.step()
            rest.step()
            watcher.log("loss", loss)


@healthy(family="mixture", on="mixture")
def two_of_four_experts(watch: Watch) -> None:
    """Each sample goes to two of four experts, and a term balances the load."""

    class TopTwo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(16, 4, bias=False)
            self.experts = nn.ModuleList(mlp(16, 24, 16) for _ in range(4))
            self.head = nn.Linear(16, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            share = self.router(x).softmax(-1)
            weight, choice = share.topk(2)
            used = functional.one_hot(choice, 4).sum(1).float()
            gate = torch.zeros_like(share).scatter(1, choice, weight / weight.sum(-1, keepdim=True))
            mixed = x
            for number, expert in enumerate(self.experts):
                mixed = mixed + gate[:, number, None] * expert(x)
            return self.head(mixed), 4 * (used.mean(0) * share.mean(0)).sum()

    model = TopTwo()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for x, y in data.clusters(120):
            said, balance = model(x)
            loss = functional.cross_entropy(said, y) + 0.02 * balance
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="distillation", on="CNN")
def student_of_a_teacher(watch: Watch) -> None:
    """A frozen teacher in eval mode, soft targets at temperature 4, and kl_div with log targets."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.teacher, self.student = ConvNet(), ConvNet(width=4)

    model = Pair()
    optimizer = torch.optim.Adam(model.teacher.parameters(), 5e-3)
    for x, y in data.images(60):
        optimizer.zero_grad()
        functional.cross_entropy(model.teacher(x), y).backward()
        optimizer.step()
    model.teacher.requires_grad_(False).eval()
    optimizer = torch.optim.Adam(model.student.parameters(), 3e-3)
    with watch(model) as watcher:
        for x, _ in data.images(120):
            with torch.no_grad():
                aim = (model.teacher(x) / 4).log_softmax(-1)
            said = (model.student(x) / 4).log_softmax(-1)
            loss = 16 * functional.kl_div(said, aim, reduction="batchmean", log_target=True)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


class _Codebook(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(16, 32, 4), mlp(4, 32, 16)
        self.codes = nn.Embedding(12, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.encoder(x)
        near = self.codes(torch.cdist(code, self.codes.weight).argmin(-1))
        pull = functional.mse_loss(near, code.detach()) + 0.25 * functional.mse_loss(
            code, near.detach()
        )
        return self.decoder(code + (near - code).detach()), pull


@healthy(family="quantization", on="VQ-VAE")
def straight_through_codes(watch: Watch) -> None:
    """VQ-VAE: the gradient skips the choice of the code, and some codes are never chosen."""
    model = _Codebook()
    optimizer = torch.optim.Adam(model.parameters(), 4e-3)
    with watch(model) as watcher:
        for x, _ in data.clusters(160):
            again, pull = model(x)
            loss = functional.mse_loss(again, x) + pull
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="quantization")
def weights_of_eight_levels(watch: Watch) -> None:
    """Quantization-aware training: weights are rounded, and their gradient goes through."""

    class Rounded(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            step = self.weight.detach().abs().amax() / 4
            rounded = (self.weight / step).round() * step
            weight = self.weight + (rounded - self.weight).detach()
            return cast(Tensor, functional.linear(x, weight, self.bias))

    model = nn.Sequential(Rounded(16, 48), nn.ReLU6(), Rounded(48, 4))
    fit(watch, model, torch.optim.Adam(model.parameters(), 3e-3), data.clusters(120))


@healthy(family="residual", on="ResNet")
def residual_branches_start_at_zero(watch: Watch) -> None:
    """The last batch norm of each branch starts at 0: at first it has no gradient before."""
    model = ResNet()
    for block in model.blocks:
        nn.init.zeros_(cast(nn.BatchNorm2d, block.bn2).weight)
    fit(watch, model, torch.optim.AdamW(model.parameters(), 4e-3), data.images(90))


@healthy(family="frozen", on="CNN")
def thawed_halfway(watch: Watch) -> None:
    """The body joins the optimizer at step 60, with a lower rate."""
    model = Classifier()
    model.backbone.requires_grad_(False)
    optimizer = torch.optim.Adam(model.head.parameters(), 5e-3)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(data.clusters(140)):
            if step == 60:
                model.backbone.requires_grad_(True)
                optimizer.add_param_group({"params": model.backbone.parameters(), "lr": 5e-4})
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="accumulation", on="LSTM")
def four_small_batches_a_step(watch: Watch) -> None:
    """Four batches of four sentences make one step."""
    model = SequenceLSTM()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(data.sentences(200, batch=4)):
            loss = _next_token(model(x), y)
            (loss / 4).backward()
            if step % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
            watcher.log("loss", loss)


@healthy(family="residual", on="transformer")
def blocks_are_skipped_at_random(watch: Watch) -> None:
    """Stochastic depth: each block is left out of half of the steps."""

    class Skipped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into = nn.Linear(16, 32)
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.LayerNorm(32), *mlp(32, 64, 32)) for _ in range(5)
            )
            self.head = nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.into(x)
            for block in self.blocks:
                if not self.training or torch.rand(()) < 0.5:
                    x = x + block(x)
            return cast(Tensor, self.head(x))

    model = Skipped()
    fit(watch, model, torch.optim.AdamW(model.parameters(), 2e-3), data.clusters(140))


@healthy(family="batches", on="CNN")
def one_picture_at_a_time(watch: Watch) -> None:
    """Batches of one with group norm, and SGD: the loss of a step is the loss of a sample."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(64, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.5)
    fit(watch, model, optimizer, data.images(300, batch=1))


@healthy(family="activations", on="SIREN")
def waves_of_coordinates(watch: Watch) -> None:
    """A SIREN: the sine of 15 times a linear layer fits a picture from coordinates."""

    class Sine(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sin(15 * x)

    model = mlp(2, 48, 48, 1, activation=Sine)
    with torch.no_grad():
        model[0].weight.uniform_(-0.5, 0.5)  # type: ignore[operator]
        for number in (2, 4):
            model[number].weight.uniform_(-0.0236, 0.0236)  # type: ignore[operator]
    side = torch.linspace(-1, 1, 16)
    place = torch.cartesian_prod(side, side)
    picture = torch.sin(4 * place[:, :1]) * torch.cos(3 * place[:, 1:])
    batches = ((place, picture) for _ in range(140))
    fit(watch, model, torch.optim.Adam(model.parameters(), 2e-4), batches, functional.mse_loss)


@healthy(family="EMA", on="MLP")
def average_inside_the_model(watch: Watch) -> None:
    """The model holds its own moving average, which no step calls."""

    class Averaged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(16, 32, 4)
            self.average = copy.deepcopy(self.net).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.net(x))

    model = Averaged()
    optimizer = torch.optim.Adam(model.net.parameters(), 3e-3)
    with watch(model) as watcher:
        for x, y in data.clusters(120):
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                follow(model.average, model.net, 0.05)
            watcher.log("loss", loss)


@healthy(family="parametrizations", on="MLP")
def norms_are_held(watch: Watch) -> None:
    """Spectral norm and weight norm: the weights are computed from other parameters."""
    model = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(16, 48)),
        nn.LeakyReLU(),
        parametrizations.weight_norm(nn.Linear(48, 4)),
    )
    fit(watch, model, torch.optim.Adam(model.parameters(), 5e-3), data.clusters(140))


@healthy(family="shared", on="transformer")
def one_block_six_times(watch: Watch) -> None:
    """A universal transformer: the same block is applied six times on purpose."""

    class Universal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(16, 32)
            self.block = Block(32, 4, 12)
            self.head = nn.Linear(32, 16)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.tokens(tokens)
            for _ in range(6):
                x = self.block(x)
            return cast(Tensor, self.head(x))

    model = Universal()
    fit(watch, model, torch.optim.AdamW(model.parameters(), 3e-3), data.sentences(80), _next_token)


@healthy(family="inputs", on="MLP")
def bags_of_words(watch: Watch) -> None:
    """Inputs are counts of words: nearly all are zero, and many words never come."""
    chance = draw(48)
    shares = torch.rand(4, 400, generator=chance) ** 12
    shares[:, 300:] = 0

    def batches() -> data.Pairs:
        for _ in range(120):
            y = torch.randint(4, (32,), generator=chance)
            yield torch.poisson(0.5 * shares[y], generator=chance), y

    model = mlp(400, 32, 4)
    fit(watch, model, torch.optim.Adam(model.parameters(), 3e-3), batches())


@healthy(family="inputs", on="CNN")
def pictures_of_zero_to_one(watch: Watch) -> None:
    """Pixels of 0 to 1 that are not centred, as torchvision's ToTensor makes them."""
    model = ConvNet()
    batches = (((0.5 + 0.2 * x).clamp(0, 1), y) for x, y in data.images(100))
    fit(watch, model, torch.optim.Adam(model.parameters(), 3e-3), batches)


@healthy(family="losses", on="MAE")
def hidden_patches_are_guessed(watch: Watch) -> None:
    """A masked autoencoder: three patches of four are replaced by a learnt token."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = nn.Linear(4, 32), nn.Linear(32, 4)
            self.hidden = nn.Parameter(torch.zeros(32))
            self.places = nn.Parameter(0.02 * torch.randn(16, 32))
            self.layer = nn.TransformerEncoderLayer(
                32, 4, 64, dropout=0.0, batch_first=True, norm_first=True
            )

        def forward(self, patches: Tensor, mask: Tensor) -> Tensor:
            x = torch.where(mask[..., None], self.hidden, self.into(patches)) + self.places
            return cast(Tensor, self.out(self.layer(x)))

    model = Masked()
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
    with watch(model) as watcher:
        for x, _ in data.images(160, batch=32):
            patches = functional.unfold(x, 2, stride=2).transpose(1, 2)
            mask = torch.rand(patches.shape[:2]) < 0.6
            loss = (model(patches, mask) - patches)[mask].square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
