"""A training with Ray Train on two workers: `python -m tests.integrations.ray_training FOLDER`.

With a step as second argument, rank 1 raises there.
"""

from __future__ import annotations

import sys
from typing import Any

import ray
import ray.train.torch
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig

from tests.integrations.trainings import Net
from torchglass.integrations.ray import TorchglassCallback, watch

STEPS = 6


def train(config: dict[str, Any]) -> None:
    """What each worker runs."""
    rank = ray.train.get_context().get_world_rank()
    torch.manual_seed(rank)
    model = ray.train.torch.prepare_model(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model, verbose=False) as watcher:
        for step in range(STEPS):
            loss = model(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss)
            if rank == 1 and step == config["fails_at"]:
                raise RuntimeError("the second worker gives up")
            ray.train.report({"loss": loss.item()})


def main(folder: str, fails_at: str = "-1") -> None:
    """Train, and end Ray again."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"fails_at": int(fails_at)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="two-workers",
            storage_path=folder,
            callbacks=[TorchglassCallback(seconds=0.0)],
            failure_config=FailureConfig(max_failures=0),
        ),
    )
    try:
        trainer.fit()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
