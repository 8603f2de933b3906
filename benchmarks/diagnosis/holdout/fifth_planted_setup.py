"""Fifth hold-out: wrong optimizers, wrong set-ups, and losses that go astray."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.diagnosis.cases import Watch, functional, planted
from benchmarks.diagnosis.holdout.fifth_models import (
    Adversaries,
    CharLSTM,
    Layer,
    NoiseNet,
    PatchNet,
    SmallCNN,
    Tabular,
    TextModel,
    blobs,
    chains,
    circle,
    deep,
    ema_into,
    epochs,
    house_prices,
    module_of,
    next_token,
    seeded,
    stripes,
)


@planted("replaced-parameter", family="optimizer", on="ViT", at=("head", "head.*"))
def head_replaced_after_the_optimizer(watch: Watch) -> None:
    """Fine-tuning: the optimizer was made from the loaded model, then the head was replaced."""
    model = PatchNet(classes=10)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model.head = nn.Linear(24, 4)
    with watch(model) as watcher:
        for x, y in epochs(stripes(), 5):
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("not-in-optimizer", family="optimizer", on="GAN", at=("discriminator", "discriminator.*"))
def both_optimizers_hold_the_generator(watch: Watch) -> None:
    """The line of the second optimizer was copied: the discriminator is in none."""
    model = Adversaries()
    first = torch.optim.Adam(model.generator.parameters(), 1e-3)
    second = torch.optim.Adam(model.generator.parameters(), 1e-3)
    with watch(model) as watcher:
        for real in circle(60):
            fake = model.generator(torch.randn(64, 4))
            ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
            judge = functional.binary_cross_entropy_with_logits
            second.zero_grad()
            loss_d = judge(model.discriminator(real), ones)
            loss_d = loss_d + judge(model.discriminator(fake.detach()), zeros)
            loss_d.backward()
            second.step()
            first.zero_grad()
            loss = judge(model.discriminator(fake), ones)
            loss.backward()
            first.step()
            watcher.log("loss", loss)


@planted("lr-too-low", "lr-zero", family="optimizer", on="CNN")
def scheduler_stepped_in_each_batch(watch: Watch) -> None:
    """StepLR counts epochs, but is stepped in the loop over batches: lr is 1e-9 after an epoch."""
    model = SmallCNN()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    with watch(model) as watcher:
        for x, y in epochs(stripes(), 6):
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            watcher.log("loss", loss)


@planted("lr-too-high", family="optimizer", on="LSTM")
def lr_of_ten(watch: Watch) -> None:
    """SGD with lr=10 throws the weights about; the loss jumps and never settles."""
    model = CharLSTM()
    optimizer = torch.optim.SGD(model.parameters(), 10.0, momentum=0.9)
    with watch(model) as watcher:
        for ids, _, y in epochs(chains(), 6):
            loss = functional.cross_entropy(model(ids), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("lr-too-low", family="optimizer", on="diffusion")
def lr_of_a_billionth(watch: Watch) -> None:
    """lr=1e-9 instead of 1e-3: Adam moves nothing."""
    model = NoiseNet()
    optimizer = torch.optim.Adam(model.parameters(), 1e-9)
    with watch(model) as watcher:
        for x in circle(60):
            t, noise = torch.rand(64, 1), torch.randn(64, 2)
            loss = functional.mse_loss(model(x * (1 - t) + noise * t, t), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("weight-decay-too-strong", family="optimizer", on="GPT", at=("", "*"))
def weight_decay_of_ten(watch: Watch) -> None:
    """AdamW with weight_decay=10 and lr=0.01 takes a tenth of each weight at every step."""
    model = TextModel()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, weight_decay=10)
    with watch(model) as watcher:
        for ids, targets, _ in epochs(chains(), 6):
            loss = next_token(model(ids), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("scaler-skips", family="optimizer", on="MLP")
def scaler_never_finds_a_scale(watch: Watch) -> None:
    """The scale begins at 2**60 and falls by a hundredth: each step is skipped for overflow."""
    model = deep(1, 32, nn.ReLU)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60, backoff_factor=0.99)
    with watch(model) as watcher:
        for x, y in epochs(blobs(), 5):
            with torch.autocast("cpu", torch.float16):
                loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            watcher.log("loss", loss)


@planted("frozen", family="optimizer", on="CNN", at=("fc", "fc.*"))
def the_new_head_is_frozen(watch: Watch) -> None:
    """The freeze was to hit the backbone, but the names were compared the wrong way round."""
    model = SmallCNN()
    for name, parameter in model.named_parameters():
        if name.startswith("fc"):
            parameter.requires_grad = False
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), 3e-3)
    with watch(model) as watcher:
        for x, y in epochs(stripes(), 6):
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("lost-updates", family="optimizer", on="diffusion")
def average_is_copied_the_wrong_way(watch: Watch) -> None:
    """The moving average is written into the trained model: each step is undone to 99.9 %."""
    model = NoiseNet()
    average = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with watch(model) as watcher:
        for x in circle(60):
            t, noise = torch.rand(64, 1), torch.randn(64, 2)
            loss = functional.mse_loss(model(x * (1 - t) + noise * t, t), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema_into(model, average, 0.001)
            watcher.log("loss", loss)


@planted("not-frozen", family="optimizer", on="distillation", at=("teacher", "teacher.*"))
def the_teacher_learns_too(watch: Watch) -> None:
    """Teacher and student are in the optimizer, and the teacher moves towards the student."""
    model = module_of({"teacher": deep(2, 48, nn.ReLU), "student": deep(0, 16, nn.ReLU)})
    teacher, student = model["teacher"], model["student"]
    early = torch.optim.Adam(teacher.parameters(), 3e-3)
    for x, y in epochs(blobs(), 10):
        early.zero_grad()
        functional.cross_entropy(teacher(x), y).backward()
        early.step()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with watch(model) as watcher:
        for x, _ in epochs(blobs(), 8):
            target = functional.softmax(teacher(x), -1)
            loss = functional.kl_div(
                functional.log_softmax(student(x), -1), target, reduction="batchmean"
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted(
    "gradient-accumulates",
    family="gradients",
    on="GAN",
    at=("", "discriminator", "discriminator.*"),
)
def discriminator_is_never_cleared(watch: Watch) -> None:
    """zero_grad is called for the generator twice and for the discriminator never."""
    model = Adversaries()
    opt_g = torch.optim.Adam(model.generator.parameters(), 1e-3)
    opt_d = torch.optim.Adam(model.discriminator.parameters(), 1e-3)
    judge = functional.binary_cross_entropy_with_logits
    with watch(model) as watcher:
        for real in circle(60):
            fake = model.generator(torch.randn(64, 4))
            opt_g.zero_grad()
            loss_d = judge(model.discriminator(real), torch.ones(64, 1))
            loss_d = loss_d + judge(model.discriminator(fake.detach()), torch.zeros(64, 1))
            loss_d.backward()
            opt_d.step()
            opt_g.zero_grad()
            loss = judge(model.discriminator(fake), torch.ones(64, 1))
            loss.backward()
            opt_g.step()
            watcher.log("loss", loss_d)


@planted("eval-mode", family="set-up", on="CNN", at=("", "*"), since=16)
def validation_leaves_eval_mode(watch: Watch) -> None:
    """After the first validation nobody calls train(): norms and dropout stay in eval mode."""
    model = SmallCNN()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    model.train()
    with watch(model) as watcher:
        for epoch in range(6):
            for x, y in stripes():
                loss = functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                watcher.log("loss", loss)
            if epoch == 1:
                model.eval()
                with torch.no_grad():
                    for x, _ in stripes():
                        model(x)


@planted("batch-norm-drift", family="set-up", on="CNN", at=("norm1", "norm2", ""))
def momentum_of_another_framework(watch: Watch) -> None:
    """momentum=0.99 means the opposite in Keras: the running statistics are the last batch's."""
    model = SmallCNN(momentum=0.99)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for _ in range(6):
            model.train()
            for x, y in stripes(batch=8):
                loss = functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                watcher.log("loss", loss)


@planted(
    "tiny-batch-norm", family="set-up", on="CNN", at=("norm1", "norm2", "head.1", "head.*", "")
)
def norm_of_two_rows(watch: Watch) -> None:
    """Memory allows two images only, and the head normalises over these two."""
    model = nn.Sequential()
    model.add_module("body", nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten()))
    head = nn.Sequential(nn.Linear(288, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    model.add_module("head", head)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for x, y in epochs(stripes(batch=2), 1):
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("softmax-before-cross-entropy", family="set-up", on="GPT", at=("", "lm_head"))
def probabilities_into_cross_entropy(watch: Watch) -> None:
    """forward returns F.softmax(logits) for sampling, and the loss takes them as logits."""

    class Sampler(TextModel):
        def forward(self, ids: Tensor) -> Any:
            return functional.softmax(super().forward(ids), dim=-1)

    model = Sampler()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    loss_function = nn.CrossEntropyLoss(label_smoothing=0.05)
    with watch(model) as watcher:
        for ids, targets, _ in epochs(chains(), 6):
            probabilities = model(ids)
            loss = loss_function(probabilities.view(-1, 16), targets.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("nll-without-log-softmax", family="set-up", on="MLP", at=("", "*"))
def logits_into_nll_loss(watch: Watch) -> None:
    """NLLLoss gets raw logits: log_softmax is missing, and the loss falls without end."""
    model = deep(1, 32, nn.ReLU)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    criterion = nn.NLLLoss()
    with watch(model) as watcher:
        for x, y in epochs(blobs(), 6):
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted(
    "sigmoid-before-bce", family="set-up", on="GAN", at=("", "discriminator", "discriminator.*")
)
def judged_by_a_sigmoid_twice(watch: Watch) -> None:
    """The discriminator ends in a sigmoid and its loss is binary_cross_entropy_with_logits."""
    model = Adversaries()
    model.discriminator.append(nn.Sigmoid())
    opt_g = torch.optim.Adam(model.generator.parameters(), 1e-3)
    opt_d = torch.optim.Adam(model.discriminator.parameters(), 1e-3)
    judge = nn.BCEWithLogitsLoss()
    with watch(model) as watcher:
        for real in circle(60):
            fake = model.generator(torch.randn(64, 4))
            opt_d.zero_grad()
            loss_d = judge(model.discriminator(real), torch.ones(64, 1))
            loss_d = loss_d + judge(model.discriminator(fake.detach()), torch.zeros(64, 1))
            loss_d.backward()
            opt_d.step()
            opt_g.zero_grad()
            loss = judge(model.discriminator(fake), torch.ones(64, 1))
            loss.backward()
            opt_g.step()
            watcher.log("loss", loss_d)


@planted("relu-on-output", family="set-up", on="LSTM", at=("", "out", "out.*"))
def returns_can_not_be_negative(watch: Watch) -> None:
    """The head of a forecast of returns ends in ReLU, and half of the targets are below zero."""

    class Forecast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(3, 24, batch_first=True)
            self.out = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 1), nn.ReLU())

        def forward(self, x: Tensor) -> Any:
            return self.out(self.rnn(x)[0][:, -1]).squeeze(-1)

    model = Forecast()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    draw = seeded(11)
    with watch(model) as watcher:
        for _ in range(60):
            x = torch.randn(32, 8, 3, generator=draw)
            loss = functional.l1_loss(model(x), x[:, -1].sum(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("loss-broadcast", family="set-up", on="table")
def column_against_row_in_huber(watch: Watch) -> None:
    """Predictions are (32, 1) and prices (32,): the Huber loss compares each with each."""
    model = Tabular()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    criterion = nn.HuberLoss()
    with watch(model) as watcher:
        for numbers, ids, price in epochs(house_prices(), 6):
            loss = criterion(model(numbers, ids), price)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("module-never-called", family="set-up", on="ViT", at=("norm2",))
def second_norm_is_never_called(watch: Watch) -> None:
    """A copied line calls norm1 twice: norm2 is never used."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(1, 24, 4, stride=4)
            self.norm1, self.norm2 = nn.LayerNorm(24), nn.LayerNorm(24)
            self.mix, self.ff = nn.Linear(4, 4), nn.Linear(24, 24)
            self.head = nn.Linear(24, 4)

        def forward(self, x: Tensor) -> Any:
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = x + self.mix(self.norm1(x).transpose(1, 2)).transpose(1, 2)
            x = x + functional.gelu(self.ff(self.norm1(x)))
            return self.head(x.mean(1))

    model = Mixed()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for x, y in epochs(stripes(), 5):
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("shared-module", family="set-up", on="transformer", at=("", "layers", "layers.*"))
def layers_are_one_layer(watch: Watch) -> None:
    """`nn.ModuleList([layer] * 4)` holds one layer four times."""
    model = TextModel()
    model.layers = nn.ModuleList([Layer(24)] * 4)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with watch(model) as watcher:
        for ids, targets, _ in epochs(chains(), 5):
            loss = next_token(model(ids), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted(
    "untied-weights",
    family="set-up",
    on="GPT",
    at=("", "lm_head", "tokens", "lm_head.*", "tokens.*"),
)
def loading_unties_the_weights(watch: Watch) -> None:
    """`load_state_dict(assign=True)` puts two tensors in the place of one shared weight."""
    state = copy.deepcopy(TextModel(tied=True).state_dict())
    state = {name: value.clone() for name, value in state.items()}
    model = TextModel(tied=True)
    model.load_state_dict(state, assign=True)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with watch(model) as watcher:
        for ids, targets, _ in epochs(chains(), 5):
            loss = next_token(model(ids), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("inputs-not-normalized", family="set-up", on="CNN", at=("", "stem"))
def pixels_from_0_to_255(watch: Watch) -> None:
    """Images come as bytes and are cast to float without division by 255."""

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(1, 8, 3)
            self.fc = nn.Linear(8 * 36, 4)

        def forward(self, x: Tensor) -> Any:
            return self.fc(torch.tanh(self.stem(x)).flatten(1))

    model = Plain()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with watch(model) as watcher:
        for x, y in epochs(stripes(), 6):
            pixels = ((x + 2) * 60).clamp(0, 255).to(torch.uint8)
            loss = functional.cross_entropy(model(pixels.float()), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("zero-input", "constant-input", family="set-up", on="LSTM", at=("", "embed"))
def all_tokens_are_zero(watch: Watch) -> None:
    """Ids were divided by the size of the vocabulary and cast back to integers: all are 0."""
    model = CharLSTM()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for ids, _, y in epochs(chains(), 6):
            loss = functional.cross_entropy(model((ids / 16).long()), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("dtype-mix", family="set-up", on="transformer", at=("layers.0", "layers.*", ""))
def half_of_the_model_in_float32(watch: Watch) -> None:
    """A `.float()` and a disabled autocast for debugging stay in the first layer."""

    class Careful(Layer):
        def forward(self, x: Tensor, pad: Tensor | None = None) -> Any:
            with torch.autocast("cpu", enabled=False):
                return super().forward(x.float(), pad)

    model = TextModel()
    model.layers[0] = Careful(24)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with watch(model) as watcher:
        for ids, targets, _ in epochs(chains(), 5):
            with torch.autocast("cpu", torch.bfloat16):
                loss = next_token(model(ids), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("dtype-mix", family="set-up", on="diffusion", at=("", "time", "enter", "body", "*"))
def waves_of_numpy_are_float64(watch: Watch) -> None:
    """Frequencies come from numpy as float64; the model was made double to silence the error."""
    model = NoiseNet().double()
    rate = torch.tensor([2.0], dtype=torch.float64)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with watch(model) as watcher:
        for x in circle(50):
            t, noise = torch.rand(64, 1) * rate, torch.randn(64, 2)
            loss = functional.mse_loss(model((x + noise * t).double(), t), noise.double())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("loss-plateau", family="dynamics", on="CNN")
def labels_of_another_shuffle(watch: Watch) -> None:
    """Images and labels are read by two loaders that shuffle on their own."""
    model = SmallCNN()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    draw = seeded(12)
    with watch(model) as watcher:
        for x, y in epochs(stripes(), 10):
            labels = torch.randint(4, y.shape, generator=draw)
            loss = functional.cross_entropy(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("loss-spike", "inputs-not-normalized", family="dynamics", on="table", since=40)
def one_batch_in_other_units(watch: Watch) -> None:
    """One file has its numbers in cents: a batch a hundred times as large makes the loss jump."""
    model = Tabular()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for step, (numbers, ids, price) in enumerate(epochs(house_prices(), 9)):
            scale = 100 if step == 40 else 1
            loss = functional.mse_loss(model(scale * numbers, ids)[:, 0], price)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("loss-diverges", family="dynamics", on="MLP")
def the_loss_is_maximised(watch: Watch) -> None:
    """A sign is wrong: the optimizer runs with maximize=True, and the loss grows."""
    model = deep(1, 32, nn.ReLU)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3, maximize=True)
    with watch(model) as watcher:
        for x, y in epochs(blobs(), 6):
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("labels-out-of-range", family="set-up", on="MLP")
def labels_count_from_one(watch: Watch) -> None:
    """Classes are 1 to 4 in the file, and the model has four outputs: 4 is outside."""
    x, y = next(iter(blobs()))
    model = deep(1, 32, nn.ReLU)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    watch.diagnose(model, (x, y + 1), loss=nn.CrossEntropyLoss(), optimizer=optimizer)


@planted("not-in-optimizer", family="optimizer", on="LSTM", at=("out", "out.*"))
def only_the_encoder_is_in_the_optimizer(watch: Watch) -> None:
    """The optimizer got the parameters of the encoder and of the embedding, not of the head."""
    ids, _, y = next(iter(chains()))
    model = CharLSTM()
    parameters = [*model.embed.parameters(), *model.rnn.parameters()]
    optimizer = torch.optim.Adam(parameters, 3e-3)
    watch.diagnose(model, (ids, y), loss=functional.cross_entropy, optimizer=optimizer)


@planted("sigmoid-before-bce", family="set-up", on="CNN", at=("", "sigmoid"))
def sigmoid_and_logit_loss(watch: Watch) -> None:
    """Multi-label classifier: a sigmoid at the end, and BCEWithLogitsLoss."""
    x, y = next(iter(stripes()))
    model = SmallCNN()
    whole = nn.Sequential()
    whole.add_module("net", model)
    whole.add_module("sigmoid", nn.Sigmoid())
    target = functional.one_hot(y, 4).float()
    watch.diagnose(whole, (x, target), loss=nn.BCEWithLogitsLoss())


@planted("loss-broadcast", family="set-up", on="MLP")
def target_column_against_row(watch: Watch) -> None:
    """Targets are a column (32, 1), predictions a row (32,)."""
    x, y = next(iter(blobs()))

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = deep(1, 32, nn.ReLU, outputs=1)

        def forward(self, x: Tensor) -> Any:
            return self.net(x).squeeze()

    model = Flat()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    watch.diagnose(model, (x, y.float()[:, None]), loss=nn.MSELoss(), optimizer=optimizer)


@planted("lr-zero", family="optimizer", on="ViT")
def lr_was_never_set(watch: Watch) -> None:
    """The lr of the config is 0: it is set by a warm-up that was removed."""
    x, y = next(iter(stripes()))
    model = PatchNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    watch.diagnose(model, (x, y), loss=functional.cross_entropy, optimizer=optimizer)


@planted("nan", family="numbers", on="GNN", at=("", "norm"))
def mean_over_no_neighbours(watch: Watch) -> None:
    """The mean over neighbours divides by the number of neighbours, which is 0 for one node."""

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.out = nn.Linear(6, 24), nn.Linear(24, 3)

        def forward(self, x: Tensor, edges: Tensor) -> Any:
            x = functional.relu(self.enter(x))
            return self.out(edges @ x / edges.sum(-1, keepdim=True))

    draw = seeded(13)
    edges = (torch.rand(24, 24, generator=draw) < 0.3).float()
    edges[5] = 0
    x, y = torch.randn(24, 6, generator=draw), torch.randint(3, (24,), generator=draw)
    watch.diagnose(Mean(), ((x, edges), y), loss=functional.cross_entropy)


@planted("softmax-over-batch", family="set-up", on="table", at=("", "*"))
def label_dimension_is_wrong(watch: Watch) -> None:
    """The model ends in softmax over the batch (dim=0) instead of the classes."""
    model = deep(1, 32, nn.ReLU)
    model.append(nn.LogSoftmax(dim=0))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for x, y in epochs(blobs(), 6):
            loss = functional.nll_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("unregistered-module", family="optimizer", on="MLP", at=("", "*"))
def layers_in_a_plain_list(watch: Watch) -> None:
    """Hidden layers are in a Python list: parameters() does not know them and they never learn."""

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(8, 32)
            self.hidden = [nn.Linear(32, 32) for _ in range(3)]
            self.out = nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Any:
            x = functional.relu(self.enter(x))
            for layer in self.hidden:
                x = functional.relu(layer(x))
            return self.out(x)

    model = Listed()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with watch(model) as watcher:
        for x, y in epochs(blobs(), 6):
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@planted("labels-out-of-range", family="numbers", on="CNN", since=30)
def stopped_by_labels_of_a_new_class(watch: Watch) -> None:
    """A later file has a fifth class: cross_entropy raises IndexError and ends the training."""
    model = SmallCNN()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with suppress(IndexError), watch(model) as watcher:
        for step, (x, y) in enumerate(epochs(stripes(), 6)):
            labels = y.clone()
            if step == 30:
                labels[0] = 4
            loss = functional.cross_entropy(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
