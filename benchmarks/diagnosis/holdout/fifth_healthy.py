"""Fifth hold-out: healthy trainings that look odd."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.diagnosis.cases import Watch, functional, healthy
from benchmarks.diagnosis.holdout.fifth_models import (
    Adversaries,
    CharLSTM,
    Experts,
    MessageNet,
    NoiseNet,
    PatchNet,
    Siamese,
    SmallCNN,
    Tabular,
    TextModel,
    blobs,
    chains,
    circle,
    deep,
    ema_into,
    epochs,
    friends,
    house_prices,
    module_of,
    next_token,
    seeded,
    stripes,
)


@healthy(family="fine-tuning", on="CNN")
def backbone_stays_in_eval_mode(watch: Watch) -> None:
    """A frozen backbone with batch norm is kept in eval mode, and only the new head learns."""
    model = SmallCNN()
    early = torch.optim.Adam(model.parameters(), 3e-3)
    for x, y in epochs(stripes(), 4):
        early.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        early.step()
    model.requires_grad_(False)
    model.fc = nn.Linear(24, 2)
    optimizer = torch.optim.Adam(model.fc.parameters(), 1e-2)
    with watch(model) as watcher:
        for _ in range(6):
            model.train()
            model.norm1.eval()
            model.norm2.eval()
            for x, y in stripes():
                loss = functional.cross_entropy(model(x), (y > 1).long())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                watcher.log("loss", loss)


@healthy(family="GAN", on="GAN")
def critic_with_clipped_weights(watch: Watch) -> None:
    """WGAN: five steps of the critic for one of the generator, weights clipped to ±0.05."""
    model = Adversaries()
    opt_g = torch.optim.RMSprop(model.generator.parameters(), 5e-4)
    opt_d = torch.optim.RMSprop(model.discriminator.parameters(), 5e-4)
    with watch(model) as watcher:
        for step, real in enumerate(circle(80)):
            fake = model.generator(torch.randn(64, 4))
            opt_d.zero_grad()
            loss = model.discriminator(fake.detach()).mean() - model.discriminator(real).mean()
            loss.backward()
            opt_d.step()
            for weight in model.discriminator.parameters():
                weight.data.clamp_(-0.05, 0.05)
            if step % 5 == 4:
                opt_g.zero_grad()
                (-model.discriminator(fake).mean()).backward()
                opt_g.step()
            watcher.log("loss", loss)


@healthy(family="contrastive", on="contrastive")
def info_nce_over_the_batch(watch: Watch) -> None:
    """Normalised embeddings, temperature 0.1, the rest of the batch as negatives."""
    model = Siamese()
    optimizer = torch.optim.AdamW(
        [*model.encoder.parameters(), *model.projector.parameters()], 3e-3
    )
    watched = nn.Sequential(model.encoder, model.projector)
    with watch(watched) as watcher:
        for x, _ in epochs(blobs(), 8):
            a = functional.normalize(model(x + 0.2 * torch.randn(x.shape)), dim=-1)
            b = functional.normalize(model(x + 0.2 * torch.randn(x.shape)), dim=-1)
            loss = functional.cross_entropy(a @ b.T / 0.1, torch.arange(len(x)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="mixture", on="mixture")
def experts_in_balance(watch: Watch) -> None:
    """Top-1 routing with a balance loss; an expert may get no row of a batch."""
    model = Experts()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for x, y in epochs(blobs(), 8):
            logits = model(x)
            share = functional.one_hot(model.share.argmax(-1), 4).float().mean(0)
            balance = 4 * (share * model.share.mean(0)).sum()
            loss = functional.cross_entropy(logits, y) + 0.05 * balance
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="diffusion", on="diffusion")
def denoiser_with_an_average(watch: Watch) -> None:
    """The usual noise prediction: a loss of high variance, and a moving average beside it."""
    model = module_of({"net": NoiseNet(), "average": NoiseNet()})
    net, average = model["net"], model["average"]
    average.load_state_dict(net.state_dict())
    average.requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.0)
    with watch(model) as watcher:
        for x in circle(80):
            t, noise = torch.rand(64, 1), torch.randn(64, 2)
            loss = functional.mse_loss(net(x * (1 - t) + noise * t, t), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema_into(average, net, 0.99)
            watcher.log("loss", loss)


@healthy(family="reinforcement", on="MLP")
def q_learning_with_a_target_net(watch: Watch) -> None:
    """Q-values against a target network that is copied every twenty steps; the loss may rise."""
    model = deep(1, 32, nn.ReLU, outputs=2)
    frozen = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    draw = seeded(31)
    with watch(model) as watcher:
        for step in range(100):
            state = torch.randn(32, 8, generator=draw)
            action = torch.randint(2, (32,), generator=draw)
            reward = torch.where(action == (state[:, 0] > 0).long(), 1.0, 0.0)
            after = state + 0.1 * torch.randn(32, 8, generator=draw)
            goal = reward + 0.8 * frozen(after).max(-1).values
            chosen = model(state).gather(1, action[:, None])[:, 0]
            loss = functional.smooth_l1_loss(chosen, goal)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            if step % 20 == 19:
                frozen.load_state_dict(model.state_dict())
            watcher.log("loss", loss)


class LowRank(nn.Module):
    """A frozen linear layer with a low-rank addition that begins at zero."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Any:
        return self.base(x) + self.up(self.down(x))


@healthy(family="fine-tuning", on="GPT")
def low_rank_additions(watch: Watch) -> None:
    """Only the additions to queries and values learn; everything else is frozen."""
    model = TextModel(tied=True)
    early = torch.optim.AdamW(model.parameters(), 3e-3)
    for ids, targets, _ in epochs(chains(), 3):
        early.zero_grad()
        next_token(model(ids), targets).backward()
        early.step()
    model.requires_grad_(False)
    for layer in model.layers:
        layer.attn.q = LowRank(layer.attn.q)  # type: ignore[union-attr, arg-type]
        layer.attn.v = LowRank(layer.attn.v)  # type: ignore[union-attr, arg-type]
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), 1e-2)
    with watch(model) as watcher:
        for ids, targets, _ in epochs(chains(), 7):
            loss = next_token(model(ids), (targets + 1) % 16)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="optimizer", on="GPT")
def warm_up_cosine_and_accumulation(watch: Watch) -> None:
    """Two batches for one step, clipped to 1, lr from 0 up and back down to 0."""
    model = TextModel()
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, 6e-3, betas=(0.9, 0.95))
    total = 48

    def rate(step: int) -> float:
        return step / 6 if step < 6 else 0.5 + 0.5 * math.cos(math.pi * (step - 6) / (total - 6))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    with watch(model) as watcher:
        for number, (ids, targets, _) in enumerate(epochs(chains(), 12)):
            loss = next_token(model(ids), targets) / 2
            loss.backward()
            if number % 2:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                watcher.log("loss", loss * 2)


@healthy(family="autoencoder", on="VAE")
def kl_weight_grows_slowly(watch: Watch) -> None:
    """A VAE whose KL weight grows from 0: the whole loss rises for a while."""

    class Variational(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
            self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))

        def forward(self, x: Tensor) -> Any:
            mean, spread = self.encoder(x).chunk(2, -1)
            code = mean + torch.randn_like(mean) * (spread / 2).exp()
            return self.decoder(code), mean, spread

    model = Variational()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for step, (x, _) in enumerate(epochs(blobs(), 12)):
            again, mean, spread = model(x)
            kl = -0.5 * (1 + spread - mean**2 - spread.exp()).sum(-1).mean()
            loss = functional.mse_loss(again, x) + min(1.0, step / 60) * 0.05 * kl
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="losses", on="ViT")
def mixed_images_and_soft_labels(watch: Watch) -> None:
    """Mixup: images and labels are mixed, so that the loss stays far above zero."""
    model = PatchNet()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    mix = torch.distributions.Beta(0.4, 0.4)
    with watch(model) as watcher:
        for x, y in epochs(stripes(), 10):
            share, order = mix.sample(), torch.randperm(len(x))
            hard = functional.one_hot(y, 4).float()
            soft = share * hard + (1 - share) * hard[order]
            mixed = share * x + (1 - share) * x[order]
            loss = functional.cross_entropy(model(mixed), soft, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="tasks", on="CNN")
def two_tasks_take_turns(watch: Watch) -> None:
    """Two heads on one body, trained in alternate batches: each head rests every second step."""

    class TwoTasks(SmallCNN):
        def __init__(self) -> None:
            super().__init__()
            self.fc2 = nn.Linear(24, 2)

        def forward(self, x: Tensor, task: int = 0) -> Any:
            return (self.fc, self.fc2)[task](self.features(x))

    model = TwoTasks()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(epochs(stripes(), 10)):
            task = step % 2
            loss = functional.cross_entropy(model(x, task), y // 2 if task else y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="precision", on="GPT")
def autocast_with_float32_norms(watch: Watch) -> None:
    """bfloat16 autocast: norms, softmax and the loss stay in float32 as torch has it."""
    model = TextModel()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for ids, targets, _ in epochs(chains(), 8):
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(ids)
                loss = next_token(logits.float(), targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="texts", on="LSTM")
def packed_sequences(watch: Watch) -> None:
    """Sequences of different length are packed; the row of the padding never learns."""

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(17, 16, padding_idx=16)
            self.rnn = nn.LSTM(16, 24, batch_first=True, bidirectional=True)
            self.out = nn.Linear(48, 2)

        def forward(self, ids: Tensor, lengths: Tensor) -> Any:
            packed = nn.utils.rnn.pack_padded_sequence(
                self.embed(ids), lengths, batch_first=True, enforce_sorted=False
            )
            _, (last, _) = self.rnn(packed)
            return self.out(torch.cat([last[0], last[1]], -1))

    model = Packed()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    draw = seeded(32)
    with watch(model) as watcher:
        for ids, _, y in epochs(chains(), 8):
            lengths = torch.randint(3, 11, (len(ids),), generator=draw)
            padded = torch.where(torch.arange(10) < lengths[:, None], ids, 16)
            loss = functional.cross_entropy(model(padded, lengths), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="regression", on="table")
def noise_floor_is_reached_soon(watch: Watch) -> None:
    """Prices with much noise: the loss falls for an epoch and then stays where it can be."""
    model = Tabular()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    draw = seeded(33)
    with watch(model) as watcher:
        for numbers, ids, price in epochs(house_prices(), 12):
            noisy = price + 1.0 * torch.randn(price.shape, generator=draw)
            loss = functional.mse_loss(model(numbers, ids).squeeze(-1), noisy)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="tasks", on="GPT")
def curriculum_raises_the_loss(watch: Watch) -> None:
    """Short texts first, then the other task: the loss jumps once and falls again."""
    model = TextModel()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for step, (ids, targets, _) in enumerate(epochs(chains(), 14)):
            short = slice(None, 5 if step < 50 else None)
            goal = targets if step < 50 else (targets * 3) % 16
            loss = next_token(model(ids[:, short]), goal[:, short])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="autoencoder", on="autoencoder")
def sparse_dictionary(watch: Watch) -> None:
    """A sparse autoencoder: an L1 term leaves nine of ten units at zero for each row."""

    class Dictionary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Linear(8, 96)
            self.decoder = nn.Linear(96, 8)
            nn.init.constant_(self.encoder.bias, -0.3)

        def forward(self, x: Tensor) -> Any:
            code = functional.relu(self.encoder(x - self.decoder.bias))
            return self.decoder(code), code

    model = Dictionary()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for x, _ in epochs(blobs(), 12):
            again, code = model(x)
            loss = functional.mse_loss(again, x) + 0.02 * code.abs().sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="reinforcement", on="MLP")
def policy_gradient_with_a_baseline(watch: Watch) -> None:
    """REINFORCE: the loss is around zero and says nothing; the reward rises."""
    model = deep(1, 32, nn.Tanh, outputs=3)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    draw = seeded(34)
    baseline = 0.3
    with watch(model) as watcher:
        for _ in range(100):
            state = torch.randn(64, 8, generator=draw)
            choice: Any = torch.distributions.Categorical(logits=model(state))
            action = choice.sample()
            reward = (action == state[:, :3].argmax(-1)).float()
            loss = -(choice.log_prob(action) * (reward - baseline)).mean()
            baseline = 0.9 * baseline + 0.1 * float(reward.mean())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.losses.append(-float(reward.mean()))
            watcher.log("reward", reward.mean())
            watcher.log("loss", loss)


@healthy(family="regularisation", on="MLP")
def layers_are_skipped_at_random(watch: Watch) -> None:
    """Stochastic depth: a skipped block has no gradient in that step."""

    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(8, 32)
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU()) for _ in range(6)
            )
            self.out = nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Any:
            x = self.enter(x)
            for number, block in enumerate(self.blocks):
                if not self.training or torch.rand(()) > 0.08 * number:
                    x = x + block(x)
            return self.out(x)

    model = Skipping()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    with watch(model) as watcher:
        for x, y in epochs(blobs(), 10):
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="losses", on="MLP")
def one_batch_is_learned_by_heart(watch: Watch) -> None:
    """The usual first test: one batch is overfitted until loss and gradients are almost zero."""
    model = deep(2, 64, nn.ReLU)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    x, y = next(iter(blobs()))
    with watch(model) as watcher:
        for _ in range(150):
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="losses", on="MLP")
def probabilities_and_their_log(watch: Watch) -> None:
    """The model returns probabilities, and the loss takes their log: right, if unusual."""
    model = deep(1, 32, nn.ReLU).append(nn.Softmax(-1))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for x, y in epochs(blobs(), 8):
            loss = functional.nll_loss((model(x) + 1e-8).log(), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="loops", on="CNN")
def validation_after_each_epoch(watch: Watch) -> None:
    """eval() and no_grad for the validation, train() for the next epoch, lr halved on a plateau."""
    model = SmallCNN()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    with watch(model) as watcher:
        for _ in range(8):
            model.train()
            for x, y in stripes():
                loss = functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                watcher.log("loss", loss)
            model.eval()
            with torch.no_grad():
                losses = [functional.cross_entropy(model(x), y) for x, y in stripes()]
            scheduler.step(float(torch.stack(losses).mean()))


@healthy(family="graphs", on="GNN")
def most_labels_are_hidden(watch: Watch) -> None:
    """Semi-supervised: the loss sees five nodes of each graph, some nodes have no neighbour."""
    model = MessageNet()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3, weight_decay=5e-4)
    with watch(model) as watcher:
        for x, edges, y in friends(80):
            edges[0], edges[:, 0] = 0, 0
            logits = model(x, edges)
            loss = functional.cross_entropy(logits[:5], y[:5])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="distillation", on="distillation")
def student_of_a_frozen_teacher(watch: Watch) -> None:
    """The teacher runs in eval mode without gradients, with temperature 4."""
    model = module_of({"teacher": deep(2, 48, nn.ReLU), "student": deep(0, 16, nn.ReLU)})
    teacher, student = model["teacher"], model["student"]
    early = torch.optim.Adam(teacher.parameters(), 3e-3)
    for x, y in epochs(blobs(), 10):
        early.zero_grad()
        functional.cross_entropy(teacher(x), y).backward()
        early.step()
    teacher.requires_grad_(False).eval()
    optimizer = torch.optim.Adam(student.parameters(), 5e-3)
    with watch(model) as watcher:
        for x, _ in epochs(blobs(), 12):
            with torch.no_grad():
                target = functional.softmax(teacher(x) / 4, -1)
            said = functional.log_softmax(student(x) / 4, -1)
            loss = 16 * functional.kl_div(said, target, reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="checks", on="LSTM")
def plain_model_and_batch(watch: Watch) -> None:
    """A sound model and batch, given to tg.diagnose without a run."""
    ids, _, y = next(iter(chains()))
    model = CharLSTM()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    watch.diagnose(model, (ids, y), loss=functional.cross_entropy, optimizer=optimizer)
