"""Fourth hold-out: healthy trainings whose task or loss looks odd."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmarks.diagnosis import data
from benchmarks.diagnosis.cases import Watch, fit, functional, healthy
from benchmarks.diagnosis.holdout.fourth_models import (
    ActorCritic,
    Denoiser,
    GraphNet,
    Seq2Seq,
    SimSiam,
    SpeechNet,
    UNet,
    draw,
    episodes,
    follow,
    graphs,
    moons,
    noised,
    reversals,
    speech,
    squares,
)
from benchmarks.diagnosis.models import VAE, Classifier, ConvNet, TwoTower, mlp


@healthy(family="losses", on="VAE")
def kl_term_warms_up(watch: Watch) -> None:
    """The weight of the KL term grows from 0: the loss falls, then rises a little."""
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    with watch(model) as watcher:
        for step, (x, _) in enumerate(data.clusters(160)):
            again, mean, log_variance = model(x)
            kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(-1).mean()
            loss = functional.mse_loss(again, x) + min(step / 100, 1) * 0.05 * kl
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
            watch.losses.append(float(functional.mse_loss(again, x)))


@healthy(family="losses", on="GAN")
def critic_with_a_gradient_penalty(watch: Watch) -> None:
    """WGAN-GP: five steps of the critic for one of the generator, and a double backward."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = mlp(4, 32, 32, 2)
            self.critic = mlp(2, 32, 32, 1, activation=nn.SiLU)

    model = Net()
    first = torch.optim.Adam(model.generator.parameters(), 2e-3, betas=(0.5, 0.9))
    second = torch.optim.Adam(model.critic.parameters(), 2e-3, betas=(0.5, 0.9))
    with watch(model) as watcher:
        for step, real in enumerate(data.ring(160, batch=48)):
            fake = model.generator(torch.randn(48, 4))
            if step % 6 == 5:
                first.zero_grad()
                cheat: Any = -model.critic(fake).mean()
                cheat.backward()
                first.step()
                continue
            fake = fake.detach()
            mixed = torch.lerp(real, fake, torch.rand(48, 1)).requires_grad_()
            (slope,) = torch.autograd.grad(model.critic(mixed).sum(), mixed, create_graph=True)
            loss = model.critic(fake).mean() - model.critic(real).mean()
            loss = loss + 10 * (slope.norm(dim=-1) - 1).square().mean()
            second.zero_grad()
            loss.backward()
            second.step()
            watcher.log("loss", loss)
            watch.losses.append(float(abs(fake.norm(dim=-1).mean() - 1)))


@healthy(family="losses", on="SimSiam")
def siamese_with_stopped_gradient(watch: Watch) -> None:
    """SimSiam: the target side is detached on purpose, and the loss is a negative cosine."""
    model = SimSiam()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    with watch(model) as watcher:
        for x, _ in data.clusters(160, batch=64):
            views = [model.encoder(x + 0.2 * torch.randn_like(x)) for _ in range(2)]
            loss: Any = torch.zeros(())
            for one, other in (views, views[::-1]):
                cosine = functional.cosine_similarity(model.predictor(one), other.detach())
                loss = loss - cosine.mean() / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="EMA", on="BYOL")
def target_network_follows(watch: Watch) -> None:
    """BYOL: the target network gets no gradient and follows the online one slowly."""
    model = SimSiam()
    model.target = copy.deepcopy(model.encoder).requires_grad_(False)
    trained = [*model.encoder.parameters(), *model.predictor.parameters()]
    optimizer = torch.optim.AdamW(trained, 2e-3)
    with watch(model) as watcher:
        for x, _ in data.clusters(140, batch=64):
            one, two = (x + 0.2 * torch.randn_like(x) for _ in range(2))
            with torch.no_grad():
                aim = functional.normalize(model.target(two))
            said = functional.normalize(model.predictor(model.encoder(one)))
            loss = (2 - 2 * (said * aim).sum(-1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                follow(model.target, model.encoder, 0.02)
            watcher.log("loss", loss)


@healthy(family="RL", on="DQN")
def q_learning_with_a_target(watch: Watch) -> None:
    """DQN in a corridor: only the taken action has a gradient; a target is copied at times."""
    model = nn.ModuleDict({"online": mlp(8, 32, 2), "target": mlp(8, 32, 2)})
    model["target"].load_state_dict(model["online"].state_dict())
    model["target"].requires_grad_(False)
    optimizer = torch.optim.Adam(model["online"].parameters(), 2e-3)
    with watch(model) as watcher:
        for step in range(200):
            place = torch.randint(8, (64,))
            action = torch.randint(2, (64,))
            after = (place + 2 * action - 1).clamp(0, 7)
            reward = (after == 7).float()
            state, later = (
                functional.one_hot(place, 8).float(),
                functional.one_hot(after, 8).float(),
            )
            with torch.no_grad():
                aim = reward + 0.8 * (1 - reward) * model["target"](later).amax(-1)
            value = model["online"](state).gather(1, action[:, None]).squeeze(1)
            loss = functional.huber_loss(value, aim)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 25 == 24:
                model["target"].load_state_dict(model["online"].state_dict())
            watcher.log("loss", loss)
            watch.losses.append(float((value - 0.8 ** (7 - after)).abs().mean()))


@healthy(family="RL", on="PPO")
def clipped_policy(watch: Watch) -> None:
    """PPO: four steps on the same episodes, a loss around zero, and a bonus for entropy."""
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3, eps=1e-5)
    with watch(model) as watcher:
        for _ in range(45):
            state, action, reward = episodes(model, 96)
            with torch.no_grad():
                logits, value = model(state)
                before = logits.log_softmax(-1).gather(1, action[:, None]).squeeze(1)
                gain = reward - value.squeeze(-1)
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            for _ in range(4):
                logits, value = model(state)
                policy: Any = torch.distributions.Categorical(logits=logits)
                ratio = (policy.log_prob(action) - before).exp()
                surrogate = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                critic = functional.mse_loss(value.squeeze(-1), reward)
                loss = -surrogate + 0.5 * critic - 0.01 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                watcher.log("loss", loss)
                watch.losses.append(1 - float(reward.mean()))


@healthy(family="RL", on="actor")
def continuous_actions(watch: Watch) -> None:
    """A Gaussian policy with a free log_std, trained by REINFORCE with a mean as the baseline."""

    class Actor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = mlp(3, 32, 1, activation=nn.Tanh)
            self.log_std = nn.Parameter(torch.zeros(1))

        def forward(self, state: Tensor) -> torch.distributions.Normal:
            return torch.distributions.Normal(self.mean(state), self.log_std.exp())

    model = Actor()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with watch(model) as watcher:
        for _ in range(200):
            state = torch.randn(96, 3)
            policy = model(state)
            action = policy.sample()
            reward = -(action - state[:, :1]).square()
            loss = -(policy.log_prob(action) * (reward - reward.mean())).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
            watch.losses.append(-float(reward.mean()))


@healthy(family="losses", on="U-Net")
def dice_of_rare_pixels(watch: Watch) -> None:
    """Dice loss on classes of a tenth of the pixels: it is no mean over pixels."""

    def dice(logits: Tensor, y: Tensor) -> Tensor:
        share = logits.softmax(1)
        truth = functional.one_hot(y, 3).permute(0, 3, 1, 2)
        both = (share * truth).sum((0, 2, 3))
        total = share.sum((0, 2, 3)) + truth.sum((0, 2, 3))
        return cast(Tensor, 1 - ((2 * both + 1) / (total + 1)).mean())

    model = UNet()
    fit(watch, model, torch.optim.Adam(model.parameters(), 5e-3), squares(140), dice)


@healthy(family="losses", on="CTC")
def symbols_from_frames(watch: Watch) -> None:
    """CTC: the model says blank everywhere before it learns the symbols."""
    model = SpeechNet()
    optimizer = torch.optim.Adam(model.parameters(), 8e-3)
    with watch(model) as watcher:
        for x, y in speech(130):
            said = model(x).transpose(0, 1)
            lengths = torch.full((len(x),), 12), torch.full((len(x),), 3)
            loss = functional.ctc_loss(said, y, *lengths)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="losses", on="two towers")
def most_triplets_are_easy(watch: Watch) -> None:
    """A triplet loss with a margin: soon most triplets have no loss, and some batches none."""
    model = mlp(16, 32, 8)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    with watch(model) as watcher:
        for x, y in data.clusters(160, batch=48):
            order = y.argsort()
            code = functional.normalize(model(x[order] + torch.randn_like(x)))
            loss = functional.triplet_margin_loss(code[:16], code[1:17], code[-16:], margin=0.5)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="losses")
def focal_loss_of_rare_events(watch: Watch) -> None:
    """One sample of twenty is positive; the focal loss is small from the start."""

    def focal(logits: Tensor, y: Tensor) -> Tensor:
        plain = functional.binary_cross_entropy_with_logits(logits, y, reduction="none")
        return cast(Tensor, (0.25 * (1 - (-plain).exp()) ** 2 * plain).mean())

    def batches() -> data.Pairs:
        for x, y in data.clusters(160, batch=64, classes=20):
            yield x, (y == 3).float()[:, None]

    model = mlp(16, 32, 1)
    nn.init.constant_(cast(nn.Linear, model[2]).bias, -3.0)
    fit(watch, model, torch.optim.Adam(model.parameters(), 5e-3), batches(), focal)


@healthy(family="losses", on="CNN")
def smoothed_labels_and_mixup(watch: Watch) -> None:
    """Mixup of pictures and labels, with smoothing: the loss can not come near 0."""
    model = ConvNet()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for x, y in data.images(130):
            weight = float(torch.distributions.Beta(0.4, 0.4).sample())
            one = functional.one_hot(y, 4).float()
            said = model(weight * x + (1 - weight) * x.flip(0))
            aim = weight * one + (1 - weight) * one.flip(0)
            loss = functional.cross_entropy(said, aim, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="masks", on="GNN")
def nodes_without_neighbours(watch: Watch) -> None:
    """A node has no neighbour in each graph; its mean is over at least one."""
    model = GraphNet()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    with watch(model) as watcher:
        for x, links, y in graphs(140, isolated_at=0):
            loss = functional.cross_entropy(model(x, links), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="losses", on="diffusion")
def noise_is_predicted(watch: Watch) -> None:
    """Diffusion: the loss falls early, then stays at the noise that no model can know."""
    model = Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    with watch(model) as watcher:
        for x in moons(200):
            noisy, t, noise = noised(x)
            loss = functional.mse_loss(model(noisy, t), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="recurrent", on="seq2seq")
def sentences_are_reversed(watch: Watch) -> None:
    """Seq2seq with the true tokens as input, padding in the sources, and clipping."""
    model = Seq2Seq()
    optimizer = torch.optim.RMSprop(model.parameters(), 5e-3)
    chance = draw(46)
    with watch(model) as watcher:
        for source, before, mask, target in reversals(120):
            mask[torch.rand(mask.shape, generator=chance) < 0.05] = False
            mask[:, 0] = True
            said = model(source, before, mask)
            loss = functional.cross_entropy(said.flatten(0, 1), target.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="losses", on="CLIP")
def temperature_is_learnt(watch: Watch) -> None:
    """CLIP: normalised towers, a symmetric loss, and a temperature that is a parameter."""
    model = TwoTower()
    model.logit_scale = nn.Parameter(torch.tensor(2.66))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.1)
    with watch(model) as watcher:
        for x, y in data.pairs(140):
            left, right = (functional.normalize(one) for one in model(x, y))
            logits = model.logit_scale.exp() * left @ right.T
            aim = torch.arange(len(x))
            loss = (
                functional.cross_entropy(logits, aim) + functional.cross_entropy(logits.T, aim)
            ) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="losses")
def likelihood_below_zero(watch: Watch) -> None:
    """A Gaussian likelihood with a learnt variance: the loss goes far below 0."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 48), nn.SiLU())
            self.mean, self.variance = nn.Linear(48, 1), nn.Linear(48, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.body(x)
            return self.mean(hidden), functional.softplus(self.variance(hidden)) + 1e-4

    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    with watch(model) as watcher:
        for x, y in data.curve(200):
            mean, variance = model(x)
            loss = functional.gaussian_nll_loss(mean, y, variance)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="losses")
def counts_with_a_relu_at_the_end(watch: Watch) -> None:
    """Targets are never negative, and the net ends in a ReLU on purpose."""
    model = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 1), nn.ReLU())
    nn.init.constant_(cast(nn.Linear, model[2]).bias, 1.0)
    batches = ((x, (1 + y).clamp(min=0)) for x, y in data.curve(160))
    fit(watch, model, torch.optim.Adam(model.parameters(), 3e-3), batches, functional.mse_loss)


@healthy(family="losses", on="MLP")
def one_task_has_few_labels(watch: Watch) -> None:
    """Two heads; one batch in eight has labels of the second: its head has no gradient else."""

    class Tasks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(16, 48), nn.ReLU())
            self.often, self.rarely = nn.Linear(48, 4), nn.Linear(48, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.body(x)
            return self.often(hidden), self.rarely(hidden)

    model = Tasks()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(data.clusters(160)):
            often, rarely = model(x)
            loss = functional.cross_entropy(often, y)
            if step % 8 == 3:
                loss = loss + functional.cross_entropy(rarely, y % 2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="dynamics")
def harder_data_later(watch: Watch) -> None:
    """A curriculum: at step 80 the classes come close, and the loss jumps up for good."""
    model = Classifier()
    chance = draw(47)

    def batches() -> data.Pairs:
        for step, (x, y) in enumerate(data.clusters(200)):
            noise = 0.2 if step < 80 else 2.0
            yield x + noise * torch.randn(x.shape, generator=chance), y

    fit(watch, model, torch.optim.Adam(model.parameters(), 3e-3), batches())
