"""Healthy trainings of several networks, of policies, and with targets that move."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from benchmarks.diagnosis.cases import Watch, functional, healthy
from benchmarks.diagnosis.data import clusters, images, pairs, ring
from benchmarks.diagnosis.holdout.healthy_optimizers import unlogged_fit
from benchmarks.diagnosis.holdout.models import (
    ActorCritic,
    ConvVAE,
    Denoiser,
    Llama,
    PreActNet,
)
from benchmarks.diagnosis.holdout.tasks import (
    bandit,
)

FAMILY = "dynamics"


@healthy(family=FAMILY, on="GAN")
def hinge_gan_with_spectral_norm(watch: Watch) -> None:
    """Two losses that go up and down against each other, and a spectral norm."""
    model = nn.ModuleDict(
        {
            "generator": nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 2)),
            "critic": nn.Sequential(
                parametrizations.spectral_norm(nn.Linear(2, 48)),
                nn.LeakyReLU(0.2),
                parametrizations.spectral_norm(nn.Linear(48, 1)),
            ),
        }
    )
    generator, critic = model["generator"], model["critic"]
    opt_g = torch.optim.Adam(generator.parameters(), lr=5e-3, betas=(0.5, 0.9))
    opt_d = torch.optim.Adam(critic.parameters(), lr=5e-3, betas=(0.5, 0.9))
    watcher = watch(model)
    for real in ring(100, batch=64):
        fake = generator(torch.randn(64, 4))
        loss = functional.relu(1 - critic(real)).mean()
        loss = loss + functional.relu(1 + critic(fake.detach())).mean()
        opt_d.zero_grad()
        loss.backward()
        opt_d.step()
        loss_g = -critic(fake).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        watcher.log("critic", loss)
        watcher.log("generator", loss_g)
        watch.losses.append(float((fake.norm(dim=-1) - 1).abs().mean()))
    watcher.close()


@healthy(family=FAMILY, on="GAN")
def wasserstein_gan_with_a_gradient_penalty(watch: Watch) -> None:
    """The critic's loss is negative, and the penalty needs a gradient of a gradient."""
    generator = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 2))
    critic = nn.Sequential(nn.Linear(2, 48), nn.SiLU(), nn.Linear(48, 1))
    model = nn.ModuleDict({"generator": generator, "critic": critic})
    opt_g = torch.optim.Adam(generator.parameters(), lr=3e-3, betas=(0.0, 0.9))
    opt_d = torch.optim.Adam(critic.parameters(), lr=3e-3, betas=(0.0, 0.9))
    watcher = watch(model)
    for step, real in enumerate(ring(150, batch=32)):
        fake = generator(torch.randn(32, 4))
        mixed = torch.lerp(real, fake.detach(), torch.rand(32, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        penalty = (slope.norm(dim=-1) - 1).pow(2).mean()
        loss = critic(fake.detach()).mean() - critic(real).mean() + 5 * penalty
        opt_d.zero_grad()
        loss.backward()
        opt_d.step()
        watcher.log("loss", loss)
        if step % 3 == 2:
            opt_g.zero_grad()
            (-critic(fake).mean()).backward()
            opt_g.step()
            watch.losses.append(float((fake.norm(dim=-1) - 1).abs().mean()))
    watcher.close()


@healthy(family=FAMILY, on="RL")
def policy_gradient_with_a_baseline(watch: Watch) -> None:
    """The loss means little: it stays around a value while the reward grows."""
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watcher = watch(model)
    for state, rewards in bandit(100):
        logits, value = model(state)
        policy: Any = torch.distributions.Categorical(logits=logits)
        action = policy.sample()
        reward = rewards.gather(1, action[:, None]).squeeze(1)
        actor = -((reward - value.detach()) * policy.log_prob(action)).mean()
        loss: Any = (
            actor + 0.5 * functional.mse_loss(value, reward) - 0.01 * policy.entropy().mean()
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        watcher.log("loss", loss)
        watch.losses.append(-float(reward.mean()))
    watcher.close()


@healthy(family=FAMILY, on="RL")
def several_epochs_on_one_batch_of_actions(watch: Watch) -> None:
    """PPO: four updates on each batch with a clipped ratio, advantages are normalized."""
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for state, rewards in bandit(30):
        with torch.no_grad():
            logits, value = model(state)
            policy: Any = torch.distributions.Categorical(logits=logits)
            action = policy.sample()
            old = policy.log_prob(action)
            reward = rewards.gather(1, action[:, None]).squeeze(1)
            advantage = (reward - value - (reward - value).mean()) / (reward - value).std()
        for _ in range(4):
            logits, value = model(state)
            policy = torch.distributions.Categorical(logits=logits)
            ratio = (policy.log_prob(action) - old).exp()
            clipped = ratio.clamp(0.8, 1.2) * advantage
            loss: Any = -torch.min(ratio * advantage, clipped).mean()
            loss = loss + 0.5 * functional.mse_loss(value, reward)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
        watch.losses.append(-float(reward.mean()))
    watcher.close()


@healthy(family=FAMILY, on="RL")
def value_learning_with_a_target_network(watch: Watch) -> None:
    """The loss jumps whenever the target network is renewed."""
    model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 3))
    target = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for step, (state, rewards) in enumerate(bandit(120)):
        if step % 30 == 29:
            target.load_state_dict(model.state_dict())
        action = torch.randint(3, (64, 1))
        with torch.no_grad():
            future = target(state.roll(1, 1)).amax(1)
        wanted = rewards.gather(1, action).squeeze(1) + 0.5 * future
        loss = functional.smooth_l1_loss(model(state).gather(1, action).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class Student(nn.Module):
    """A teacher and a student in one model."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = PreActNet(depth=4)
        self.student = PreActNet(width=8, depth=1)

    def forward(self, x: Tensor) -> tuple[Any, Any]:
        with torch.no_grad():
            wanted = self.teacher(x)
        return self.student(x), wanted


@healthy(family=FAMILY, on="CNN")
def student_learns_from_a_teacher(watch: Watch) -> None:
    """A frozen teacher in eval mode is part of the model; the student learns its outputs."""
    model = Student()
    unlogged_fit(model.teacher, images(40), lr=3e-3)
    model.teacher.eval().requires_grad_(False)
    optimizer = torch.optim.Adam(model.student.parameters(), lr=3e-3)
    watcher = watch(model)
    for x, y in images(60):
        logits, wanted = model(x)
        soft = functional.kl_div(
            (logits / 2).log_softmax(-1), (wanted / 2).softmax(-1), reduction="batchmean"
        )
        loss = 0.5 * functional.cross_entropy(logits, y) + 2 * soft
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="diffusion")
def noise_prediction(watch: Watch) -> None:
    """A diffusion model: the loss is noisy and falls slowly to a limit above 0."""
    model = Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    alpha = torch.linspace(0.999, 0.01, 50)
    watcher = watch(model)
    for clean in ring(100, batch=128):
        t = torch.randint(50, (128,))
        a = alpha[t][:, None]
        noise = torch.randn_like(clean)
        noisy = a.sqrt() * clean + (1 - a).sqrt() * noise
        loss = functional.mse_loss(model(noisy, t / 50), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="VAE")
def weight_of_the_prior_grows_from_zero(watch: Watch) -> None:
    """The KL term starts with the weight 0: the total loss may rise, the reconstruction falls."""
    model = ConvVAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    watcher = watch(model)
    for step, (x, _) in enumerate(images(90)):
        reconstruction, mu, logvar = model(x)
        error = functional.mse_loss(reconstruction, x, reduction="sum") / len(x)
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(-1).mean()
        loss = error + min(1.0, step / 60) * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
        watch.losses.append(float(error))
    watcher.close()


class Clip(nn.Module):
    """Two encoders and a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 16))
        self.right = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 16))
        self.logit_scale = nn.Parameter(torch.tensor(2.66))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        left = functional.normalize(self.left(x), dim=-1)
        right = functional.normalize(self.right(y), dim=-1)
        return self.logit_scale.exp() * left @ right.T


@healthy(family=FAMILY, on="two towers")
def contrast_with_a_learned_temperature(watch: Watch) -> None:
    """Cross entropy over similarities in both directions, logits up to 14 and growing."""
    model = Clip()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for x, y in pairs(80):
        logits = model(x, y)
        labels = torch.arange(len(x))
        loss = functional.cross_entropy(logits, labels) + functional.cross_entropy(logits.T, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


class Byol(nn.Module):
    """An online network with a predictor, and a slow copy without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(
            nn.Linear(16, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 16)
        )
        self.predictor = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Any, Any]:
        with torch.no_grad():
            wanted = self.target(y)
        return self.predictor(self.online(x)), wanted


@healthy(family=FAMILY, on="Siamese")
def slow_copy_as_target(watch: Watch) -> None:
    """BYOL: the target network follows slowly and never gets a gradient."""
    model = Byol()
    trained = [*model.online.parameters(), *model.predictor.parameters()]
    optimizer = torch.optim.Adam(trained, lr=3e-3)
    watcher = watch(model)
    for x, _ in clusters(80, batch=64):
        left, right = x + 0.2 * torch.randn_like(x), x + 0.2 * torch.randn_like(x)
        predicted, wanted = model(left, right)
        loss = 2 - 2 * functional.cosine_similarity(predicted, wanted).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, p in zip(model.target.parameters(), model.online.parameters(), strict=True):
                slow.lerp_(p, 0.02)
        watcher.log("loss", loss)
    watcher.close()


class Coupling(nn.Module):
    """An affine coupling layer of a flow."""

    def __init__(self, flip: bool) -> None:
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2))
        nn.init.zeros_(self.net[2].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.net[2].bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> tuple[Any, Any]:
        a, b = x.chunk(2, -1)
        if self.flip:
            a, b = b, a
        scale, shift = self.net(a).chunk(2, -1)
        scale = scale.tanh()
        b = b * scale.exp() + shift
        return torch.cat((b, a) if self.flip else (a, b), -1), scale.sum(-1)


class Flow(nn.Module):
    """Six coupling layers and a normal distribution."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Coupling(bool(i % 2)) for i in range(6))

    def forward(self, x: Tensor) -> Any:
        total: Any = 0.0
        for layer in self.layers:
            x, log_determinant = layer(x)
            total = total + log_determinant
        return -(total - x.pow(2).sum(-1) / 2).mean()


@healthy(family=FAMILY, on="flow")
def likelihood_of_a_flow(watch: Watch) -> None:
    """A normalizing flow whose last layers start at 0, with a loss below 0."""
    model = Flow()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    watcher = watch(model)
    for points in ring(90, batch=128):
        loss = model(0.7 * points + 0.1 * torch.randn_like(points))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="CNN")
def adversarial_examples(watch: Watch) -> None:
    """FGSM: a backward to the input before the one that counts."""
    model = PreActNet(norm=lambda width: nn.GroupNorm(4, width))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    watcher = watch(model)
    for x, y in images(70):
        moved = x.clone().requires_grad_()
        functional.cross_entropy(model(moved), y).backward()
        assert moved.grad is not None
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x + 0.03 * moved.grad.sign()), y)
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
    watcher.close()


@healthy(family=FAMILY, on="GPT")
def reward_of_sampled_answers(watch: Watch) -> None:
    """Answers are sampled, scored and made more likely; the loss is around 0."""
    model = Llama(vocabulary=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    watcher = watch(model)
    for _ in range(50):
        tokens = torch.randint(8, (32, 4))
        with torch.no_grad():
            for _ in range(3):
                chosen = model(tokens)[:, -1].softmax(-1).multinomial(1)
                tokens = torch.cat([tokens, chosen], 1)
        reward = (tokens[:, 4:] == tokens[:, :1]).float().mean(1)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-4)
        log_p = model(tokens[:, :-1])[:, 3:].log_softmax(-1)
        log_p = log_p.gather(-1, tokens[:, 4:, None]).squeeze(-1)
        loss = -(advantage[:, None] * log_p).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.log("loss", loss)
        watch.losses.append(-float(reward.mean()))
    watcher.close()
