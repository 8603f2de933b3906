"""`tg.diagnose` names what is wrong with a training, where, since when, and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import torchglass as tg
from tests.command_line import main

Loss = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


def mlp(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4), *more)


class Log(nn.Module):
    """The logarithm."""

    def forward(self, x: Tensor) -> Tensor:
        return x.log()


_CENTRES = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)) * 2


def classes(size: int = 32) -> tuple[Tensor, Tensor]:
    labels = torch.randint(4, (size,))
    return _CENTRES[labels] + torch.randn(size, 8), labels


def fit(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    batch: Callable[[], tuple[Tensor, Tensor]] = classes,
    loss_of: Loss = functional.cross_entropy,
    *,
    steps: int = 40,
    clears: bool = True,
    **options: Any,
) -> Path:
    """A usual training, watched; the path of its run."""
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=0.01)
    path = folder / "run.glass"
    with tg.watch(model, save=path, verbose=False, **options) as watcher:
        for _ in range(steps):
            x, y = batch()
            loss = loss_of(model(x), y)
            if clears:
                optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            watcher.log("loss", loss)
    return path


def kinds(diagnosis: Any) -> list[str]:
    return [one.kind for one in diagnosis.problems]


@pytest.mark.parametrize("log_freq", [1, 10])
def test_a_healthy_training_is_healthy(log_freq: int, tmp_path: Path) -> None:
    diagnosis = tg.diagnose(fit(tmp_path, mlp(), log_freq=log_freq))

    assert diagnosis.verdict == "healthy"
    assert diagnosis.problems == ()
    assert str(diagnosis).startswith("Healthy: no problems found in 40 steps")
    assert diagnosis.exit_code == 0


@pytest.mark.parametrize("log_freq", [1, 10])
def test_a_missing_zero_grad_is_reported(log_freq: int, tmp_path: Path) -> None:
    diagnosis = tg.diagnose(fit(tmp_path, mlp(), clears=False, log_freq=log_freq))

    assert diagnosis.findings[0].kind == "gradient-accumulates"
    assert "zero_grad" in diagnosis.findings[0].remedy
    assert diagnosis.verdict == "broken"


def test_accumulation_over_several_batches_is_not_a_missing_zero_grad(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    path = tmp_path / "run.glass"
    with tg.watch(model, save=path, verbose=False) as watcher:
        for _ in range(20):
            for _ in range(3):
                x, y = classes()
                loss = functional.cross_entropy(model(x), y)
                (loss / 3).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            watcher.log("loss", loss)

    assert kinds(tg.diagnose(path)) == []


def test_softmax_before_cross_entropy_is_named(tmp_path: Path) -> None:
    diagnosis = tg.diagnose(fit(tmp_path, mlp(nn.Softmax(-1))))

    finding = diagnosis.findings[0]
    assert (finding.kind, finding.path) == ("softmax-before-cross-entropy", "3")
    assert "remove the softmax" in finding.remedy


@pytest.mark.parametrize("ends", [nn.LogSoftmax(0), nn.Sequential(nn.Softmax(0), Log())])
def test_a_softmax_over_the_samples_is_named(ends: nn.Module, tmp_path: Path) -> None:
    found = tg.diagnose(fit(tmp_path, mlp(ends), loss_of=functional.nll_loss))

    assert kinds(found)[0] == "softmax-over-batch"


@pytest.mark.parametrize(("is_log", "expected"), [(False, ["nll-without-log-softmax"]), (True, [])])
def test_probabilities_instead_of_their_logarithms_in_kl_div_are_named(
    is_log: bool, expected: list[str], tmp_path: Path
) -> None:
    ends = nn.LogSoftmax(-1) if is_log else nn.Softmax(-1)

    def divergence(output: Tensor, labels: Tensor) -> Tensor:
        target = 0.9 * functional.one_hot(labels, 4) + 0.025
        return functional.kl_div(output, target, reduction="batchmean")

    assert kinds(tg.diagnose(fit(tmp_path, mlp(ends), loss_of=divergence))) == expected


@pytest.mark.parametrize("straight", [False, True])
def test_a_rounded_value_is_named_unless_its_gradient_goes_straight_through(
    straight: bool, tmp_path: Path
) -> None:
    class Rounded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + (x.round() - x).detach() if straight else x.round()

    model = nn.Sequential(nn.Linear(8, 16), Rounded(), nn.Linear(16, 4))
    found = tg.diagnose(fit(tmp_path, model))

    if straight:
        assert not found.problems
    else:
        (first, *_) = found.problems
        assert (first.kind, first.op) == ("no-gradient", "round")
        assert "test_diagnose.py" in first.message


def test_a_head_with_gradients_between_recorded_steps_alone_is_healthy(tmp_path: Path) -> None:
    class Tasks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp()
            self.rarely = nn.Linear(4, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.body(x)
            return hidden, self.rarely(hidden)

    steps = iter(range(40))

    def loss_of(output: Any, labels: Tensor) -> Tensor:
        often, rarely = output
        loss = functional.cross_entropy(often, labels)
        return loss + rarely.square().mean() if next(steps) % 5 == 3 else loss

    assert not tg.diagnose(fit(tmp_path, Tasks(), loss_of=loss_of, log_freq=5)).problems


def test_a_target_that_is_broadcast_is_named(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def batch() -> tuple[Tensor, Tensor]:
        x = torch.randn(16, 8)
        return x, x.sum(1)

    diagnosis = tg.diagnose(fit(tmp_path, model, batch=batch, loss_of=_mean_square))

    assert diagnosis.findings[0].kind == "loss-broadcast"
    assert "(16, 1)" in diagnosis.findings[0].message


def _mean_square(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def test_a_pairwise_loss_is_not_reported_as_an_accidental_broadcast(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def ranking(output: Tensor, labels: Tensor) -> Tensor:
        scores = output[:, 0]
        wanted = (labels[:, None] - labels[None, :]).float()
        return functional.softplus(-wanted * (scores[:, None] - scores[None, :])).mean()

    diagnosis = tg.diagnose(fit(tmp_path, model, loss_of=ranking))

    assert "loss-broadcast" not in kinds(diagnosis)


def test_parameters_without_an_optimizer_are_named(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model[2].parameters(), lr=0.01)

    finding = tg.diagnose(fit(tmp_path, model, optimizer)).findings[0]

    assert (finding.kind, finding.path) == ("not-in-optimizer", "0")
    assert finding.series == "0.weight"


def test_a_layer_replaced_after_creating_the_optimizer_is_reported(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model[2] = nn.Linear(32, 4)

    finding = tg.diagnose(fit(tmp_path, model, optimizer)).findings[0]

    assert (finding.kind, finding.path) == ("replaced-parameter", "2")


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 32)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(x).relu().detach())


def test_a_detach_is_named_with_its_line(tmp_path: Path) -> None:
    finding = tg.diagnose(fit(tmp_path, Detached())).findings[0]

    assert (finding.kind, finding.path, finding.op) == ("no-gradient", "body", "detach")
    assert finding.source is not None
    assert finding.source.file == __file__


def test_a_too_high_learning_rate_is_reported_instead_of_its_effects(
    tmp_path: Path,
) -> None:
    model = mlp()

    finding = tg.diagnose(
        fit(tmp_path, model, torch.optim.SGD(model.parameters(), lr=100.0))
    ).findings[0]

    assert finding.kind == "lr-too-high"
    assert finding.consequences


def test_non_finite_values_are_one_finding_at_the_first_module(tmp_path: Path) -> None:
    class LogOfZero(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return (x - x).log() * 0

    model = nn.Sequential(nn.Linear(8, 8), LogOfZero(), nn.Linear(8, 4))

    (finding,) = tg.diagnose(fit(tmp_path, model, steps=5)).problems

    assert (finding.kind, finding.path, finding.first_step) == ("inf", "1", 0)
    assert (finding.op, finding.tensors[0].name) == ("log", "input")
    assert len(finding.consequences) > 3


def test_a_model_and_a_batch_are_enough(tmp_path: Path) -> None:
    model = mlp(nn.Softmax(-1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch, state = classes(), torch.get_rng_state()

    diagnosis = tg.diagnose(model, batch, loss=functional.cross_entropy)

    assert diagnosis.findings[0].kind == "softmax-before-cross-entropy"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_exception_in_the_model_is_diagnosed() -> None:
    x, y = classes()

    diagnosis = tg.diagnose(mlp(), (x, y + 1), loss=functional.cross_entropy)

    assert diagnosis.verdict == "broken"
    assert diagnosis.findings[0].kind == "labels-out-of-range"
    assert "stopped by IndexError at step 0" in diagnosis.summary


def test_an_optimizer_of_a_copied_model_is_reported(tmp_path: Path) -> None:
    model, copied = mlp(), mlp()
    lost = tg.diagnose(fit(tmp_path, model, torch.optim.SGD(copied.parameters(), lr=0.1)))

    assert (lost.findings[0].kind, lost.verdict) == ("replaced-parameter", "broken")


def test_an_optimizer_that_never_steps_is_reported(tmp_path: Path) -> None:
    model = mlp()
    idle = torch.optim.Adam(model[0].parameters(), lr=0.01)
    path = fit(tmp_path, model, torch.optim.Adam(model[2].parameters(), lr=0.01))

    finding = tg.diagnose(path).findings[0]

    assert idle.param_groups
    assert (finding.kind, finding.path) == ("optimizer-not-stepped", "0")


def test_an_input_scaled_inside_the_forward_is_not_reported(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self, by: float) -> None:
            super().__init__()
            self.net, self.by = mlp(), by

        def forward(self, x: Tensor) -> Any:
            return self.net(x / self.by)

    def pixels() -> tuple[Tensor, Tensor]:
        x, y = classes()
        return x * 100, y

    raw = tg.diagnose(fit(tmp_path / "raw", Scaled(1.0), batch=pixels))
    scaled = tg.diagnose(fit(tmp_path / "scaled", Scaled(100.0), batch=pixels))

    assert "inputs-not-normalized" in kinds(raw)
    assert kinds(scaled) == []


def test_a_model_needs_a_batch_and_a_loss() -> None:
    with pytest.raises(tg.TorchglassError, match="pass a batch"):
        tg.diagnose(mlp())
    with pytest.raises(tg.TorchglassError, match="not a loss; pass one"):
        tg.diagnose(mlp(), classes())
    with pytest.raises(tg.TorchglassError, match="not int"):
        tg.diagnose(3)


def test_a_watcher_can_be_diagnosed_during_training(tmp_path: Path) -> None:
    model = mlp(nn.Softmax(-1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with tg.watch(model, save=tmp_path / "run.glass", verbose=False) as watcher:
        for _ in range(4):
            x, y = classes()
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        assert kinds(tg.diagnose(watcher)) == ["softmax-before-cross-entropy"]


def test_a_function_is_called_once_for_each_problem(tmp_path: Path) -> None:
    found: list[tg.Finding] = []

    fit(tmp_path, mlp(nn.Softmax(-1)), on_finding=found.append)

    assert [one.kind for one in found].count("softmax-before-cross-entropy") == 1


def test_a_broken_training_can_be_stopped(tmp_path: Path) -> None:
    with pytest.raises(tg.TrainingStoppedError, match="pile up"):
        fit(tmp_path, mlp(), clears=False, on_finding="stop")

    status = tg.open(tmp_path / "run.glass").status
    assert status.error == "TrainingStoppedError"


def test_problems_can_be_raised_as_warnings(tmp_path: Path) -> None:
    with pytest.warns(tg.TorchglassWarning, match="softmax"):
        fit(tmp_path, mlp(nn.Softmax(-1)), on_finding="warn")


def test_an_unknown_action_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(tg.TorchglassError, match='"warn" or "stop"'):
        fit(tmp_path, mlp(), on_finding="shout")


def test_custom_rules_are_used(tmp_path: Path) -> None:
    path = fit(tmp_path, mlp())

    @tg.rule("many-steps", title="Many steps")
    def many_steps(training: Any) -> Any:
        if training.last_step > 20:
            yield tg.Finding(severity="warning", kind="many-steps", message="Many steps")

    assert kinds(tg.diagnose(path)) == ["many-steps"]


def test_the_exit_code_of_diagnose_is_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(fit(tmp_path / "a", mlp()))]) == 0
    assert capsys.readouterr().out.startswith("Healthy: no problems found")

    assert main(["diagnose", str(fit(tmp_path / "b", mlp(nn.Softmax(-1)))), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "warning"


def test_text_html_and_json_have_the_same_message(tmp_path: Path) -> None:
    diagnosis = tg.diagnose(fit(tmp_path, mlp(nn.Softmax(-1))))
    message = diagnosis.findings[0].message

    assert message in " ".join(str(diagnosis).split())
    assert message in diagnosis.to_html(tmp_path / "page.html")
    assert json.loads(diagnosis.to_json())["findings"][0]["message"] == message
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_a_printed_run_begins_with_its_verdict(tmp_path: Path) -> None:
    with tg.open(fit(tmp_path, mlp(nn.Softmax(-1)))) as run:
        text = str(run)

    assert text.startswith("Warning: ")
    assert "do: Return the logits" in text


# The operation behind the first NaN


class Normalized(nn.Module):
    """Divides by a norm, which is 0 for one batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.Dropout(0.1))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        unit = x / x.norm(dim=1, keepdim=True)
        return self.head(unit) + 0 * self.body(x).sum()


@pytest.mark.parametrize("log_freq", [1, 7, 100])
def test_the_op_of_the_first_nan_is_named_at_any_log_freq(log_freq: int, tmp_path: Path) -> None:
    count = iter(range(100))

    def batch() -> tuple[Tensor, Tensor]:
        x, y = classes()
        return (x * 0 if next(count) == 16 else x), y

    diagnosis = tg.diagnose(fit(tmp_path, Normalized(), batch=batch, log_freq=log_freq))

    finding = diagnosis.findings[0]
    assert (finding.kind, finding.op, finding.first_step) == ("nan", "div", 16)
    assert finding.source is not None
    assert finding.source.file == __file__
    assert diagnosis.verdict == "broken"
    # The sentence says where and why; the remedy is code.
    place = f"{Path(__file__).name}:{finding.source.line}"
    assert f"{place}: the divisor contains 0" in diagnosis.summary
    assert "a / (b + 1e-8)" in finding.remedy
    assert f"at: the model · div · step 16 · {place}" in str(diagnosis)


def test_rerunning_a_batch_does_not_affect_training(tmp_path: Path) -> None:
    def train(guard: Any) -> tuple[list[Tensor], Tensor]:
        torch.manual_seed(3)
        model = Normalized()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        path = tmp_path / f"{guard}.glass"
        with tg.watch(model, save=path, verbose=False, log_freq=3, guard=guard):
            for step in range(6):
                x, y = classes()
                loss = functional.cross_entropy(model(x * (step != 4)), y)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        return [*model.parameters(), *model.buffers()], torch.get_rng_state()

    (without, random), (with_guard, same_random) = train(None), train("auto")

    assert torch.equal(random, same_random)
    for before, after in zip(without, with_guard, strict=True):
        torch.testing.assert_close(before, after, rtol=0, atol=0, equal_nan=True)


def test_nan_only_in_the_backward_is_reported_with_its_op(tmp_path: Path) -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Any:
            out = self.fc(x)
            return out + (out - out).sqrt()

    finding = tg.diagnose(fit(tmp_path, Root(), steps=6, log_freq=5)).findings[0]

    assert (finding.kind in ("nan", "inf"), finding.first_step) == (True, 0)
    assert "sqrt" in finding.op.lower()


@pytest.mark.parametrize("seeds", [(0, 0), (0, 1)], ids=["same start", "different starts"])
def test_ranks_with_different_parameters_are_named(
    seeds: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, seed in enumerate(seeds):
        monkeypatch.setenv("RANK", str(rank))
        torch.manual_seed(seed)
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with tg.watch(model, run_dir=tmp_path, verbose=False):
            for _ in range(4):
                x = torch.eye(8)
                loss = functional.cross_entropy(model(x), torch.arange(8) % 4)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()

    found = [one.kind for one in tg.diagnose(tmp_path).findings]
    assert ("ranks-differ" in found) == (seeds[0] != seeds[1])


def test_an_optimizer_that_converges_at_the_minimum_is_healthy(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 5))
    optimizer: Any = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)
    x = torch.randn(256, 16)
    y = x[:, :5].argmax(1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with tg.watch(model, save=tmp_path / "run.glass", verbose=False) as watcher:
        for _ in range(20):
            watcher.log("loss", optimizer.step(closure))

    assert tg.diagnose(tmp_path / "run.glass").problems == ()
