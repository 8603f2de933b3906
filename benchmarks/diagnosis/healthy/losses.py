"""Healthy losses and data: negative, noisy, tiny or hinged losses; odd inputs and labels."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmarks.diagnosis import data
from benchmarks.diagnosis.cases import Watch, fit, functional, healthy
from benchmarks.diagnosis.models import (
    GAN,
    GPT,
    VAE,
    Autoencoder,
    Classifier,
    ConvNet,
    SequenceLSTM,
    TwoTower,
    mlp,
    plain_convnet,
)

_FAMILY = "losses"


@healthy(family=_FAMILY, on="GAN")
def adversarial_training(watch: Watch) -> None:
    """Neither loss falls: generator and discriminator hold each other in balance."""
    model = GAN()
    for_g = torch.optim.Adam(model.generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    for_d = torch.optim.Adam(model.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
    with watch(model) as watcher:
        for real in data.ring(80):
            fake = model.fake(32)
            for_d.zero_grad()
            d_loss = criterion(model.discriminator(real), ones)
            d_loss = d_loss + criterion(model.discriminator(fake.detach()), zeros)
            d_loss.backward()
            for_d.step()
            for_g.zero_grad()
            g_loss = criterion(model.discriminator(fake), ones)
            g_loss.backward()
            for_g.step()
            watcher.log("loss", d_loss)
            watcher.log("generator loss", g_loss)


@healthy(family=_FAMILY, on="GAN")
def critic_with_clipped_weights(watch: Watch) -> None:
    """A Wasserstein critic: losses are negative, and weights are clamped to ±0.05."""
    model = GAN()
    for_g = torch.optim.RMSprop(model.generator.parameters(), lr=5e-4)
    for_d = torch.optim.RMSprop(model.discriminator.parameters(), lr=5e-4)
    watcher = watch(model)
    for step, real in enumerate(data.ring(80)):
        for_d.zero_grad()
        fake = model.fake(32)
        loss = model.discriminator(fake.detach()).mean() - model.discriminator(real).mean()
        loss.backward()
        for_d.step()
        with torch.no_grad():
            for parameter in model.discriminator.parameters():
                parameter.clamp_(-0.1, 0.1)
        if step % 5 == 4:
            for_g.zero_grad()
            (-model.discriminator(fake).mean()).backward()
            for_g.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=_FAMILY)
def policy_gradient(watch: Watch) -> None:
    """REINFORCE: the loss is noisy, of either sign, and says nothing; the reward rises."""
    policy = mlp(16, 32, 4)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    with watch(policy) as watcher:
        for x, best in data.clusters(120, batch=64):
            choice: Any = torch.distributions.Categorical(logits=policy(x))
            action = choice.sample()
            reward = (action == best).float()
            loss = -(choice.log_prob(action) * (reward - reward.mean())).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
            watcher.log("reward", reward.mean())


class _ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.Tanh())
        self.actor = nn.Linear(32, 4)
        self.critic = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


@healthy(family=_FAMILY)
def actor_and_critic(watch: Watch) -> None:
    """An advantage that is detached, an entropy bonus that is subtracted."""
    model = _ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for x, best in data.clusters(100, batch=64):
        logits, value = model(x)
        choice: Any = torch.distributions.Categorical(logits=logits)
        action = choice.sample()
        reward = (action == best).float()
        gain = -(choice.log_prob(action) * (reward - value.detach())).mean()
        loss = gain + functional.mse_loss(value, reward) - 0.01 * choice.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=_FAMILY)
def deep_q_learning(watch: Watch) -> None:
    """A target network without gradient, copied every ten steps; the loss rises after a copy."""
    online = mlp(16, 32, 4)
    target = copy.deepcopy(online).requires_grad_(False)
    model = nn.ModuleDict({"online": online, "target": target})
    optimizer = torch.optim.Adam(online.parameters(), lr=5e-3)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(data.clusters(100)):
            action = torch.randint(4, (len(x), 1))
            reward = (action.squeeze(1) == y).float()
            with torch.no_grad():
                best = target(x.roll(1, 0)).max(-1).values
            value = online(x).gather(1, action).squeeze(1)
            loss = functional.smooth_l1_loss(value, reward + 0.5 * best)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 9:
                target.load_state_dict(online.state_dict())
            watcher.log("loss", loss)


@healthy(family=_FAMILY, on="VAE")
def variational_autoencoder(watch: Watch) -> None:
    """The KL term falls to a small value, as it should."""
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with watch(model) as watcher:
        for x, _ in data.clusters(100):
            output, mean, log_variance = model(x)
            divergence = (mean**2 + log_variance.exp() - log_variance - 1).sum(-1).mean() / 2
            loss = functional.mse_loss(output, x) + 0.02 * divergence
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family=_FAMILY, on="VAE")
def likelihood_of_a_normal_distribution(watch: Watch) -> None:
    """A density has a negative log that falls below zero, and has no bound there but the noise."""
    model = mlp(8, 32, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for x, y in data.curve(120):
        mean, log_variance = model(x).chunk(2, -1)
        loss = functional.gaussian_nll_loss(mean, y / 10, log_variance.exp())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=_FAMILY, on="two-tower")
def contrastive_loss(watch: Watch) -> None:
    """InfoNCE over a batch, with a temperature that is learned."""

    class Clip(TwoTower):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))

    model = Clip()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with watch(model) as watcher:
        for left, right in data.pairs(80):
            a, b = model(left, right)
            scores = functional.normalize(a) @ functional.normalize(b).T * model.scale.exp()
            places = torch.arange(len(scores))
            loss = functional.cross_entropy(scores, places)
            loss = (loss + functional.cross_entropy(scores.T, places)) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family=_FAMILY, on="two-tower")
def triplets_that_become_easy(watch: Watch) -> None:
    """A hinge is 0 for easy triplets: late batches have a loss and gradients of exactly 0."""
    model = TwoTower()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for left, right in data.pairs(100, batch=16):
        a, b = model(left, right)
        loss = functional.triplet_margin_loss(a, b, b.roll(1, 0), margin=0.5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=_FAMILY)
def hinge_loss_of_a_margin_classifier(watch: Watch) -> None:
    """`multi_margin_loss` reaches exactly 0 on separable data."""
    model = mlp(16, 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    fit(watch, model, optimizer, data.clusters(100), functional.multi_margin_loss)


class _Acoustic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 32, batch_first=True)
        self.head = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.gru(x)
        return cast(Tensor, self.head(outputs))


@healthy(family=_FAMILY, on="GRU")
def connectionist_temporal_classification(watch: Watch) -> None:
    """CTC starts with a plateau in which the blank wins everywhere, then falls."""
    model = _Acoustic()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    sounds = torch.randn(6, 8)
    with watch(model) as watcher:
        for _ in range(80):
            labels = torch.randint(1, 6, (16, 4))
            x = sounds[labels].repeat_interleave(4, 1) + 0.2 * torch.randn(16, 16, 8)
            log_probabilities = model(x).log_softmax(-1).transpose(0, 1)
            lengths = torch.full((16,), 16), torch.full((16,), 4)
            loss = functional.ctc_loss(log_probabilities, labels, *lengths)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family=_FAMILY)
def quantile_loss(watch: Watch) -> None:
    """The pinball loss for the 0.9 quantile, written by hand, with shapes that match."""
    model = mlp(8, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model) as watcher:
        for x, y in data.curve(100):
            error = y - model(x)
            loss: Any = torch.maximum(0.9 * error, -0.1 * error).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family=_FAMILY, on="CNN")
def label_smoothing(watch: Watch) -> None:
    """With smoothed labels the loss cannot fall below about 0.6."""
    model = ConvNet()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit(watch, model, optimizer, data.images(80), criterion)


@healthy(family=_FAMILY)
def focal_loss(watch: Watch) -> None:
    """Easy samples count for almost nothing, so losses and gradients get very small."""
    model = mlp(16, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model) as watcher:
        for x, y in data.clusters(80):
            logits, label = model(x).squeeze(1), (y == 2).float()
            entropy = functional.binary_cross_entropy_with_logits(logits, label, reduction="none")
            loss = ((1 - torch.exp(-entropy)) ** 2 * entropy).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


def _twice(logits: Tensor, labels: Tensor) -> Any:
    return functional.cross_entropy(functional.log_softmax(logits, -1), labels)


@healthy(family=_FAMILY)
def log_softmax_before_cross_entropy(watch: Watch) -> None:
    """A log_softmax of a log_softmax is itself: superfluous, and harmless."""
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit(watch, model, optimizer, data.clusters(60), _twice)


@healthy(family=_FAMILY)
def probabilities_in_nll_loss(watch: Watch) -> None:
    """A model that ends in LogSoftmax, with NLLLoss: a softmax in the model that is right."""
    model = mlp(16, 32, 4).append(nn.LogSoftmax(-1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit(watch, model, optimizer, data.clusters(60), nn.NLLLoss())


@healthy(family=_FAMILY)
def sigmoid_before_plain_bce(watch: Watch) -> None:
    """A sigmoid output with BCELoss, which expects probabilities."""
    model = mlp(16, 32, 1).append(nn.Sigmoid())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batches = ((x, (y > 1).float()[:, None]) for x, y in data.clusters(60))
    fit(watch, model, optimizer, batches, nn.BCELoss())


@healthy(family=_FAMILY)
def relu_output_for_counts(watch: Watch) -> None:
    """A ReLU on the output is right where targets are never negative."""
    model = mlp(8, 32, 1).append(nn.ReLU())
    nn.init.constant_(cast(nn.Linear, model[2]).bias, 1.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batches = ((x, (y + 3).clamp(min=0)) for x, y in data.curve(100))
    fit(watch, model, optimizer, batches, functional.mse_loss)


@healthy(family=_FAMILY)
def large_targets(watch: Watch) -> None:
    """Targets of 1,000 with normalized inputs: a loss of 10⁶ that falls as it should."""
    model = mlp(8, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    batches = ((x, 300 * y + 1000) for x, y in data.curve(120))
    fit(watch, model, optimizer, batches, functional.mse_loss)


@healthy(family=_FAMILY, on="autoencoder")
def very_small_losses(watch: Watch) -> None:
    """Values around 0.001 are reconstructed: losses of 1e-7 and gradients of 1e-5 are right."""
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with watch(model) as watcher:
        for x, _ in data.clusters(100):
            small = x / 1000
            loss = functional.mse_loss(model(x) / 1000, small)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family=_FAMILY)
def very_noisy_losses(watch: Watch) -> None:
    """Batches of two make the loss jump by a factor of ten from step to step, while it falls."""
    model = mlp(2, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    fit(watch, model, optimizer, data.curve(120, batch=2, features=2), functional.mse_loss)


@healthy(family=_FAMILY)
def plateau_then_drop(watch: Watch) -> None:
    """The product of two signs among six, with a small start: log(2) for long, then a drop."""
    model = mlp(6, 64, 64, 1, activation=nn.Tanh)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    with watch(model) as watcher:
        for _ in range(120):
            x = torch.randn(64, 6).sign()
            y = (x[:, :1] * x[:, 1:2] > 0).float()
            loss = functional.binary_cross_entropy_with_logits(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family=_FAMILY)
def tiny_dataset(watch: Watch) -> None:
    """The same eight samples at every step: the loss goes to zero by heart."""
    model = mlp(16, 64, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batch = next(data.clusters(1, batch=8))
    fit(watch, model, optimizer, (batch for _ in range(80)))


@healthy(family=_FAMILY)
def one_hot_inputs(watch: Watch) -> None:
    """Inputs are one-hot: 15 of 16 values are zero."""
    model = mlp(16, 32, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batches = (
        (functional.one_hot(x.argmax(-1), 16).float(), x.argmax(-1) % 4)
        for x, _ in data.clusters(100)
    )
    fit(watch, model, optimizer, batches)


@healthy(family=_FAMILY, on="CNN")
def pixels_from_0_to_1(watch: Watch) -> None:
    """Images in [0, 1], not centered, as ToTensor gives them."""
    model = plain_convnet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batches = ((((x + 3) / 6).clamp(0, 1), y) for x, y in data.images(100))
    fit(watch, model, optimizer, batches)


@healthy(family=_FAMILY, on="CNN")
def raw_pixels_into_a_batch_norm(watch: Watch) -> None:
    """Bytes from 0 to 255 are normalized by the first layer of the model."""
    model = nn.Sequential(nn.BatchNorm2d(1), *plain_convnet())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batches = (((40 * x + 128).clamp(0, 255).round(), y) for x, y in data.images(80))
    fit(watch, model, optimizer, batches)


@healthy(family=_FAMILY)
def rare_class(watch: Watch) -> None:
    """One sample in twenty is positive, and weighted: the loss starts low and still falls."""
    model = mlp(16, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([10.0]))
    watcher = watch(model)
    for x, y in data.clusters(100, batch=64, classes=16):
        loss = criterion(model(x).squeeze(1), (y == 3).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=_FAMILY, on="LSTM")
def most_labels_ignored(watch: Watch) -> None:
    """Only the second half of each sentence is scored: the other labels are −100, on purpose."""
    model = SequenceLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model) as watcher:
        for x, y in data.sentences(80, batch=16):
            labels = y.masked_fill(torch.arange(12) < 6, -100)
            loss = functional.cross_entropy(model(x).flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family=_FAMILY, on="GPT")
def masked_language_model(watch: Watch) -> None:
    """One token in six is masked and scored; the loss is noisy because few labels count."""
    model = GPT(vocabulary=17)
    for block in model.blocks:
        cast(Tensor, cast(nn.Module, block.attention).mask).fill_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with watch(model) as watcher:
        for x, _ in data.sentences(120, batch=16):
            hidden = torch.rand(x.shape) < 0.2
            labels = x.masked_fill(~hidden, -100)
            logits = model(x.masked_fill(hidden, 16))
            loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family=_FAMILY)
def distillation(watch: Watch) -> None:
    """A teacher runs without gradient, and the student follows its probabilities."""
    teacher = Classifier(width=64).requires_grad_(False).eval()
    student = mlp(16, 32, 4)
    model = nn.ModuleDict({"teacher": teacher, "student": student})
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
    watcher = watch(model)
    for x, _ in data.clusters(80):
        with torch.no_grad():
            wanted = functional.softmax(20 * teacher(x), -1)
        given = functional.log_softmax(student(x), -1)
        loss = functional.kl_div(given, wanted, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()
