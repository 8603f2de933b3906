"""`TorchglassCallback` in Hugging Face's own Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import torchglass as tg
from tests.integrations.wandb_file import read_rows
from torchglass.integrations.transformers import TorchglassCallback


class Sentences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if self.fails and index >= 4:
            raise RuntimeError("a sentence is broken")
        ids = (torch.arange(6) + index) % 11
        return {"input_ids": ids, "labels": ids}


class InOrder(Trainer):  # type: ignore[misc]  # transformers is not checked
    def _get_train_sampler(self, *args: Any) -> torch.utils.data.SequentialSampler:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def trainer(folder: Path, callback: TorchglassCallback, fails: bool = False, **options: Any) -> Any:
    config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, n_positions=8)
    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        disable_tqdm=True,
        per_device_train_batch_size=2,
        **{
            "report_to": [],
            "num_train_epochs": 1,
            "logging_steps": 1,
            "save_strategy": "no",
            **options,
        },
    )
    torch.manual_seed(0)
    return InOrder(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Sentences(fails),
        eval_dataset=Sentences(),
        callbacks=[callback],
    )


def test_training_is_recorded_at_the_trainers_steps_with_its_logs(tmp_path: Path) -> None:
    file = tmp_path / "run.glass"
    callback = TorchglassCallback(save=file, config={"note": "mine", "seed": 7}, verbose=False)
    training = trainer(tmp_path, callback, learning_rate=1e-3, hub_token="hf_secret")

    training.train()

    run = tg.open(file)
    assert run.config["learning_rate"] == 1e-3
    assert run.config["per_device_train_batch_size"] == 2
    assert (run.config["note"], run.config["seed"]) == ("mine", 7)
    assert b"hf_secret" not in file.read_bytes()
    logged = [(log["step"], log["loss"]) for log in training.state.log_history if "loss" in log]
    assert run.finished
    assert list(zip(run["loss"].steps, run["loss"].values, strict=True)) == logged
    assert run["learning_rate"].steps.tolist() == [1, 2, 3, 4]
    assert run["transformer.h.0.attn.c_attn.weight.grad"].steps.tolist() == [1, 2, 3, 4]


def test_an_evaluation_has_separate_series_at_the_preceding_step(tmp_path: Path) -> None:
    file = tmp_path / "run.glass"
    training = trainer(
        tmp_path,
        TorchglassCallback(save=file, verbose=False),
        eval_strategy="steps",
        eval_steps=2,
    )

    training.train()

    run = tg.open(file)
    assert run["eval_loss"].steps.tolist() == [2, 4]
    assert run["lm_head.eval:output"].steps.tolist() == [2, 4]


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    file = tmp_path / "run.glass"
    training = trainer(
        tmp_path, TorchglassCallback(save=file, verbose=False), gradient_accumulation_steps=2
    )

    training.train()

    run = tg.open(file)
    assert run["loss"].steps.tolist() == [1, 2]
    assert run["lm_head.output"].steps.tolist() == [1, 2]
    assert run["lm_head.output"].column("count").tolist() == [4 * 6 * 11] * 2


@pytest.mark.slow
def test_training_resumed_from_a_checkpoint_continues_in_its_run(tmp_path: Path) -> None:
    file = tmp_path / "run.glass"
    first = trainer(
        tmp_path,
        TorchglassCallback(resume=file, verbose=False),
        save_strategy="steps",
        save_steps=4,
    )
    first.train()

    second = trainer(tmp_path, TorchglassCallback(resume=file, verbose=False), num_train_epochs=2)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))

    assert tg.open(file)["loss"].steps.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.slow
def test_after_an_exception_close_removes_all_hooks(tmp_path: Path) -> None:
    file = tmp_path / "run.glass"
    callback = TorchglassCallback(save=file, verbose=False)
    training = trainer(tmp_path, callback, fails=True)

    with pytest.raises(RuntimeError, match="a sentence is broken"):
        training.train()
    callback.close()

    run = tg.open(file)
    assert run.finished
    assert run["lm_head.output"].steps.tolist()[:1] == [1]


def test_in_wandb_every_step_is_logged_once_with_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    file = tmp_path / "run.glass"
    watched = TorchglassCallback(backend="wandb", save=file, verbose=False)

    with wandb.init(project="glass", dir=tmp_path, mode="offline"):
        trainer(tmp_path, watched, report_to=["wandb"]).train()

    rows = read_rows(tmp_path)
    measured = [row for row in rows if "torchglass/transformer.wte.weight" in row]
    assert [row["torchglass/step"] for row in measured] == [1, 2, 3, 4]
    told = [row for row in rows if "torchglass/loss" in row]
    recorded = tg.open(file)["loss"]
    assert [row["torchglass/step"] for row in told] == recorded.steps.tolist()
    assert [row["torchglass/loss"] for row in told] == recorded.values.tolist()
