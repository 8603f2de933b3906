"""Healthy trainings of the third hold-out that look odd: loops, optimizers and data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import TensorDataset

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
from benchmarks.diagnosis.models import GPT, ConvNet, Mixture, SequenceLSTM, ViT, mlp

Adam = torch.optim.Adam


@healthy(family="optimizer", on="MLP")
def sharpness_aware_steps(watch: Watch) -> None:
    """SAM: two forwards and backwards for each update, at two places."""
    model = mlp(10, 32, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as watcher:
        for x, y in batches(records(), 8):
            functional.cross_entropy(model(x), y).backward()
            moved = []
            with torch.no_grad():
                one: Any
                for one in model.parameters():
                    moved.append(0.05 * one.grad / (one.grad.norm() + 1e-8))
                    one.add_(moved[-1])
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            with torch.no_grad():
                for one, far in zip(model.parameters(), moved, strict=True):
                    one.sub_(far)
            optimizer.step()
            optimizer.zero_grad()
            watcher.log("loss", loss)


@healthy(family="optimizer", on="CNN")
def warm_restarts(watch: Watch) -> None:
    """The learning rate falls to 0 and jumps back, again and again."""
    model = ConvNet(classes=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 16)
    train(watch, model, optimizer, digits(), scheduler=scheduler, epochs=10)


@healthy(family="optimizer", on="GPT")
def schedule_that_ends_at_zero(watch: Watch) -> None:
    """Linear decay to 0 at the very last step."""
    model = GPT(14, length=10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 60)
    train(watch, model, optimizer, text(), next_token, epochs=10, scheduler=scheduler)


@healthy(family="optimizer", on="ViT")
def layers_with_their_own_learning_rates(watch: Watch) -> None:
    """Layer-wise decay: the first layers learn a hundred times slower."""
    model = ViT(classes=5)
    groups = [
        {"params": model.head.parameters(), "lr": 3e-3},
        {"params": model.layers.parameters(), "lr": 1e-3},
        {
            "params": [*model.patches.parameters(), model.positions, *model.norm.parameters()],
            "lr": 3e-5,
        },
    ]
    train(watch, model, torch.optim.AdamW(groups), digits())


@healthy(family="optimizer", on="CNN")
def backbone_is_thawed_after_an_epoch(watch: Watch) -> None:
    """Only the head is trained at first; then everything, with a new parameter group."""
    model = ConvNet(classes=5)
    model.features.requires_grad_(False)
    optimizer = Adam(model.head.parameters(), lr=3e-3)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(batches(digits(), 8)):
            if step == 20:
                model.features.requires_grad_(True)
                optimizer.add_param_group({"params": model.features.parameters(), "lr": 1e-3})
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="optimizer", on="GPT")
def accumulation_over_eight_micro_batches(watch: Watch) -> None:
    """A step of the optimizer after every eighth backward; the loss is logged at each."""
    model = GPT(14, length=10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    with watch(model) as watcher:
        for count, (x, y) in enumerate(batches(text(), 40, 16), 1):
            loss = next_token(model(x), y) / 8
            loss.backward()
            watcher.log("loss", 8 * loss)
            if count % 8 == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()


@healthy(family="gradients", on="MLP")
def learning_to_learn(watch: Watch) -> None:
    """MAML: the outer loss is computed with weights after an inner step."""
    model = mlp(1, 32, 32, 1)
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model) as watcher:
        for _ in range(60):
            phase, size = 6.28 * torch.rand(1), 0.5 + torch.rand(1)
            x = 4 * torch.rand(32, 1) - 2
            y = size * (x + phase).sin()
            named = dict(model.named_parameters())
            inner = functional.mse_loss(model(x[:16]), y[:16])
            slopes = torch.autograd.grad(inner, list(named.values()), create_graph=True)
            fast = {
                name: one - 0.05 * slope
                for (name, one), slope in zip(named.items(), slopes, strict=True)
            }
            loss = functional.mse_loss(functional_call(model, fast, (x[16:],)), y[16:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="dynamics", on="RL")
def clipped_policy_gradient(watch: Watch) -> None:
    """PPO: several epochs over one batch of actions, and a loss around 0 that goes up and down."""

    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 32), nn.Tanh())
            self.policy, self.value = nn.Linear(32, 3), nn.Linear(32, 1)

        def forward(self, state: Tensor) -> Any:
            z = self.body(state)
            return self.policy(z), self.value(z).squeeze(-1)

    model, right = Agent(), torch.randn(6, 3)
    optimizer = Adam(model.parameters(), lr=3e-3)
    rewards = []
    with watch(model) as watcher:
        for _ in range(16):
            state = torch.randn(128, 6)
            with torch.no_grad():
                logits, value = model(state)
                policy: Any = torch.distributions.Categorical(logits=logits)
                action = policy.sample()
                old = logits.log_softmax(-1).gather(1, action[:, None]).squeeze(1)
                reward = ((state @ right).argmax(-1) == action).float()
                gain = reward - value
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            rewards.append(float(reward.mean()))
            for _ in range(4):
                logits, value = model(state)
                chance = logits.log_softmax(-1)
                ratio = (chance.gather(1, action[:, None]).squeeze(1) - old).exp()
                surrogate = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
                entropy = -(chance.exp() * chance).sum(-1).mean()
                loss = -surrogate.mean() + 0.5 * functional.mse_loss(value, reward) - 0.01 * entropy
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                watcher.log("loss", loss)


@healthy(family="dynamics", on="RL")
def soft_q_learning_with_a_target_network(watch: Watch) -> None:
    """The error of a Q network grows at first, as its targets do."""
    model = mlp(4, 32, 2)
    slow = mlp(4, 32, 2)
    slow.load_state_dict(model.state_dict())
    optimizer = Adam(model.parameters(), lr=2e-3)
    with watch(model) as watcher:
        for step in range(80):
            state, after = torch.randn(64, 4), torch.randn(64, 4)
            action = torch.randint(2, (64,))
            reward = (state[:, 0] > 0).float()
            with torch.no_grad():
                target = reward + 0.9 * slow(after).max(-1).values
            value = model(state).gather(1, action[:, None]).squeeze(1)
            loss = functional.smooth_l1_loss(value, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 9:
                slow.load_state_dict(model.state_dict())
            watcher.log("loss", loss)


@healthy(family="activations", on="mixture")
def mixture_with_a_balance_loss(watch: Watch) -> None:
    """One expert per sample, with a loss that keeps them balanced."""
    model = Mixture(10)
    model.head = nn.Linear(10, 3)
    optimizer = Adam(model.parameters(), lr=3e-3)
    with watch(model) as watcher:
        for x, y in batches(records(), 8):
            gates, choice = model.route(x)
            share = functional.one_hot(choice, 4).float().mean(0)
            loss = functional.cross_entropy(model(x), y) + 0.1 * 4 * (share * gates.mean(0)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="dynamics", on="MLP")
def single_samples(watch: Watch) -> None:
    """Plain SGD with a batch of one: the loss jumps by orders of magnitude."""
    model = mlp(10, 32, 3)
    train(
        watch, model, torch.optim.SGD(model.parameters(), lr=0.02), records(128), batch=1, epochs=2
    )


@healthy(family="dynamics", on="MLP")
def one_batch_is_learned_by_heart(watch: Watch) -> None:
    """The sanity check of every tutorial: overfit one batch until the loss is almost 0."""
    model = mlp(10, 64, 3)
    optimizer = Adam(model.parameters(), lr=1e-2)
    x, y = next(iter(batches(records(), 1, 16)))
    with watch(model) as watcher:
        for _ in range(80):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="dynamics", on="CNN")
def losses_are_summed(watch: Watch) -> None:
    """reduction="sum": the loss is in the hundreds, the last batch of an epoch is smaller."""
    model = ConvNet(classes=5)
    loss_function = nn.CrossEntropyLoss(reduction="sum")
    train(watch, model, Adam(model.parameters(), lr=1e-3), digits(250), loss_function)


@healthy(family="set-up", on="CNN")
def mixed_samples_and_labels(watch: Watch) -> None:
    """Mixup with label smoothing and dropout 0.4."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.4), nn.Linear(576, 5)
    )
    optimizer = Adam(model.parameters(), lr=2e-3)
    with watch(model) as watcher:
        for x, y in batches(digits(), 8):
            share, other = float(torch.rand(())), torch.randperm(len(x))
            soft = functional.one_hot(y, 5).float()
            out = model(share * x + (1 - share) * x[other])
            loss = functional.cross_entropy(
                out, share * soft + (1 - share) * soft[other], label_smoothing=0.1
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="set-up", on="MLP")
def counts_through_a_logarithm(watch: Watch) -> None:
    """Raw counts up to thousands are given, and the first line of forward takes log1p."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(10, 32, 3)

        def forward(self, x: Tensor) -> Any:
            return self.net(torch.log1p(x) - 4)

    x, y = records().tensors
    model = Net()
    train(watch, model, Adam(model.parameters(), lr=3e-3), TensorDataset((x + 4).exp(), y))


@healthy(family="set-up", on="GPT")
def model_that_returns_its_loss(watch: Watch) -> None:
    """The forward takes a dict and returns a dict with the loss, as in many libraries."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gpt = GPT(14, length=10)

        def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
            logits = self.gpt(input_ids)
            return {
                "loss": None if labels is None else next_token(logits, labels),
                "logits": logits,
            }

    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with watch(model) as watcher:
        for x, y in batches(text(), 8):
            loss = model(input_ids=x, labels=y)["loss"]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watcher.log("loss", loss)


@healthy(family="activations", on="LSTM")
def teacher_forcing_that_fades(watch: Watch) -> None:
    """Scheduled sampling: more and more of the model's own tokens; the loss rises again."""
    model = SequenceLSTM(14)
    optimizer = Adam(model.parameters(), lr=1e-2)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(batches(text(), 12)):
            with torch.no_grad():
                own = model(x).argmax(-1)[:, :-1]
            swap = torch.rand(own.shape) < 0.004 * step
            mixed = torch.cat([x[:, :1], torch.where(swap, own, x[:, 1:])], 1)
            loss = next_token(model(mixed), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="dynamics", on="CNN")
def curriculum_from_easy_to_hard(watch: Watch) -> None:
    """The noise of the pictures grows: the loss falls, then rises."""
    model = ConvNet(classes=5)
    optimizer = Adam(model.parameters(), lr=2e-3)
    with watch(model) as watcher:
        for step, (x, y) in enumerate(batches(digits(), 10)):
            loss = functional.cross_entropy(model(x + 0.03 * step * torch.randn_like(x)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)


@healthy(family="optimizer", on="MLP")
def weights_without_a_decay_of_their_biases(watch: Watch) -> None:
    """AdamW with weight_decay=0.3 on matrices alone, over many steps."""
    model = mlp(10, 32, 32, 1)
    groups = [
        {"params": [one for one in model.parameters() if one.dim() > 1], "weight_decay": 0.3},
        {"params": [one for one in model.parameters() if one.dim() < 2], "weight_decay": 0.0},
    ]
    train(
        watch, model, torch.optim.AdamW(groups, lr=2e-3), prices(), functional.mse_loss, epochs=20
    )
