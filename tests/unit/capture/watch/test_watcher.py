from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim import optimizer as optimizers

from tests.recorded import RUN
from torchglass.capture.tensor.moments import measure
from torchglass.capture.watch.options import Options
from torchglass.capture.watch.watcher import Watcher
from torchglass.errors import TargetError, TorchglassWarning
from torchglass.records.run import Frame
from torchglass.records.step_points import point_values
from torchglass.store.readers import MemoryStore

PARAMETERS = Options(log=frozenset({"params", "params_grad"}))


class Tied(nn.Module):
    """An embedding whose weight is the head's, too, with dropout, batch norm and a frozen bias."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Dropout(0.2))
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 11)
        self.head.weight = self.embed.weight
        self.head.bias.requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.head(self.norm(self.body(self.embed(tokens))))
        return hidden


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(RUN)


def batches(count: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield torch.randint(11, (16,), generator=generator)


def loss_of(model: Callable[[torch.Tensor], torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens), tokens)


def train(
    model: nn.Module,
    steps: int,
    optimizer: Optimizer | None = None,
    log: Callable[[str, torch.Tensor], None] = lambda name, value: None,
) -> list[float]:
    optimizer = optimizer or Adam(model.parameters(), lr=0.01)
    losses = []
    for tokens in batches(steps):
        optimizer.zero_grad()
        loss = loss_of(model, tokens)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        log("loss", loss)
        losses.append(loss.item())
    return losses


def steps_of(store: MemoryStore, label: str) -> list[int]:
    (series,) = (each for each in store.series() if each.label == label)
    return [int(step) for step in store.points(series.id).steps]


def values_of(store: MemoryStore, label: str) -> list[tuple[float, ...]]:
    (series,) = (each for each in store.series() if each.label == label)
    return [tuple(row) for row in store.points(series.id).values.tolist()]


def test_each_step_has_the_statistics_of_every_weight_and_gradient(store: MemoryStore) -> None:
    model = Tied()

    with Watcher(model, store, PARAMETERS) as watcher:
        train(model, 3, log=watcher.log)

    assert {series.label for series in store.series()} == {
        "loss",
        *("embed.weight", "embed.weight.grad"),
        *("body.0.weight", "body.0.weight.grad", "body.0.bias", "body.0.bias.grad"),
        *("norm.weight", "norm.weight.grad", "norm.bias", "norm.bias.grad"),
        "head.bias",
    }
    assert steps_of(store, "embed.weight.grad") == [0, 1, 2]
    assert steps_of(store, "loss") == [0, 1, 2]


def test_a_frozen_weight_is_measured_once(store: MemoryStore) -> None:
    model = Tied()

    with Watcher(model, store):
        train(model, 3)

    assert steps_of(store, "head.bias") == [0]


def test_gradients_are_from_before_the_update_and_weights_from_after(store: MemoryStore) -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = SGD(model.parameters(), lr=0.5)

    with Watcher(model, store):
        model(torch.tensor([[1.0, 2.0]])).backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 1.5)
        optimizer.step()
        after = measure(model.weight)
        optimizer.zero_grad()

    assert after is not None
    assert values_of(store, "weight")[0] == pytest.approx(point_values(after))
    gradient = values_of(store, "weight.grad")[0]
    assert gradient[1:4] == (1.0, 1.5, 1.25)


def test_training_is_bit_for_bit_the_same_when_watched(store: MemoryStore) -> None:
    plain, watched = Tied(), Tied()
    watched.load_state_dict(plain.state_dict())

    torch.manual_seed(5)
    losses = train(plain, 50)
    state = torch.get_rng_state()
    torch.manual_seed(5)
    with Watcher(watched, store) as watcher:
        watched_losses = train(watched, 50, log=watcher.log)

    assert watched_losses == losses
    assert torch.equal(torch.get_rng_state(), state)
    for (name, expected), actual in zip(
        plain.state_dict().items(), watched.state_dict().values(), strict=True
    ):
        assert torch.equal(expected, actual), name
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        assert one.grad is None or other.grad is None or torch.equal(one.grad, other.grad)
    assert [value for (value,) in values_of(store, "loss")] == losses


def test_every_nth_step_is_measured_but_all_logged_values_are_kept(
    store: MemoryStore,
) -> None:
    model = Tied()

    with Watcher(model, store, Options(log_freq=3)) as watcher:
        train(model, 8, log=watcher.log)

    assert steps_of(store, "norm.bias") == [0, 3, 6]
    assert steps_of(store, "norm.bias.grad") == [0, 3, 6]
    assert steps_of(store, "loss") == list(range(8))


def test_log_freq_must_be_at_least_one(store: MemoryStore) -> None:
    with pytest.raises(TargetError, match="log_freq must be an integer of at least 1, not 0"):
        Watcher(Tied(), store, Options(log_freq=0))


def test_a_loss_logged_before_the_step_belongs_to_that_step(store: MemoryStore) -> None:
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)

    with Watcher(model, store) as watcher:
        for step in range(3):
            loss = model(torch.ones(1)).sum()
            watcher.log("loss", step)
            watcher.log("again", step)
            loss.backward()
            optimizer.step()

    assert steps_of(store, "loss") == [0, 1, 2]
    assert values_of(store, "loss") == [(0.0,), (1.0,), (2.0,)]
    assert steps_of(store, "again") == [0, 1, 2]
    assert steps_of(store, "weight") == [0, 1, 2]


def test_a_logged_tensor_keeps_its_value_at_that_time(store: MemoryStore) -> None:
    model = nn.Linear(1, 1)
    running = torch.zeros(())

    with Watcher(model, store) as watcher:
        for _ in range(2):
            running += 1
            watcher.log("running", running)
            running += 10
            watcher.step()

    assert values_of(store, "running") == [(1.0,), (12.0,)]


def test_two_optimizers_of_one_model_share_their_steps(store: MemoryStore) -> None:
    model = Tied()
    first = SGD(model.body.parameters(), lr=0.1)
    second = SGD([*model.embed.parameters(), *model.norm.parameters()], lr=0.1)

    with Watcher(model, store) as watcher:
        for tokens in batches(3):
            loss = loss_of(model, tokens)
            loss.backward()  # type: ignore[no-untyped-call]
            first.step()
            second.step()
            watcher.log("loss", loss)

    for label in ("body.0.weight", "embed.weight", "norm.bias.grad", "loss"):
        assert steps_of(store, label) == [0, 1, 2], label


def test_the_optimizer_of_another_model_is_ignored(store: MemoryStore) -> None:
    other = Tied()

    with Watcher(Tied(), store):
        train(other, 2)

    assert store.last_step() == -1


def test_a_closure_gives_its_gradients_to_the_step_they_update(store: MemoryStore) -> None:
    model = nn.Linear(1, 1, bias=False)
    optimizer = SGD(model.parameters(), lr=0.1)
    inputs = iter([2.0, 3.0])

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(torch.tensor([next(inputs)])).sum()
        loss.backward()
        return float(loss.item())

    with Watcher(model, store):
        optimizer.step(closure)
        optimizer.step(closure=closure)

    assert [row[3] for row in values_of(store, "weight.grad")] == [2.0, 3.0]


def test_a_loop_without_an_optimizer_ends_steps_explicitly(store: MemoryStore) -> None:
    model = nn.Linear(1, 1, bias=False)

    with Watcher(model, store) as watcher:
        for _ in range(2):
            model(torch.ones(1)).backward()
            with torch.no_grad():
                model.weight -= 0.1
            watcher.step()

    assert steps_of(store, "weight") == [0, 1]
    assert [row[3] for row in values_of(store, "weight.grad")] == [1.0, 2.0]


def test_a_loop_may_number_its_steps(store: MemoryStore) -> None:
    model = Tied()
    optimizer = Adam(model.parameters())

    with Watcher(model, store) as watcher:
        for number in (100, 101, 105):
            loss = loss_of(model, next(batches(1)))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            watcher.log("loss", loss)
            watcher.step(number)

    assert steps_of(store, "loss") == steps_of(store, "norm.bias") == [100, 101, 105]


def test_a_parameter_without_a_gradient_has_only_values(store: MemoryStore) -> None:
    model = nn.ModuleDict({"used": nn.Linear(1, 1), "unused": nn.Linear(1, 1)})
    optimizer = SGD(model.parameters(), lr=0.1)

    with Watcher(model, store):
        model["used"](torch.ones(1)).backward()
        optimizer.step()

    labels = {series.label for series in store.series()}
    assert "unused.weight" in labels
    assert "unused.weight.grad" not in labels


def test_a_watched_model_has_no_extra_attributes(store: MemoryStore) -> None:
    model = Tied()
    before = {name: set(vars(module)) for name, module in model.named_modules()}

    with Watcher(model, store):
        train(model, 1)
        copied = copy.deepcopy(model)
        pickled = pickle.loads(pickle.dumps(model))
        saved = io.BytesIO()
        torch.save(model, saved)
        during = {name: set(vars(module)) for name, module in model.named_modules()}

    assert during == before
    for twin in (copied, pickled):
        assert twin.state_dict().keys() == model.state_dict().keys()
    assert b"torchglass" not in saved.getvalue()


def test_closing_removes_the_hooks(store: MemoryStore) -> None:
    hooks = optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks
    before = [len(table) for table in hooks]
    model = Tied()

    watcher = Watcher(model, store)
    during = [len(table) for table in hooks]
    watcher.close()
    watcher.close()
    train(model, 1)

    assert during == [count + 1 for count in before]
    assert [len(table) for table in hooks] == before
    assert store.finished()
    assert store.last_step() == -1


def test_an_error_in_the_block_propagates_and_the_hooks_are_removed(store: MemoryStore) -> None:
    before = len(optimizers._global_optimizer_pre_hooks)
    model = Tied()

    def fail() -> None:
        with Watcher(model, store):
            train(model, 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()

    assert len(optimizers._global_optimizer_pre_hooks) == before
    assert store.last_step() == 1


def test_a_watcher_does_not_keep_the_model_alive(store: MemoryStore) -> None:
    model = Tied()
    weight = weakref.ref(model.embed.weight)
    watcher = Watcher(model, store)
    train(model, 2)

    del model
    gc.collect()

    assert weight() is None
    assert store.last_step() == 1
    assert len(optimizers._global_optimizer_pre_hooks) == 0
    watcher.close()


def test_a_log_after_the_model_is_gone_says_that_nothing_is_recorded(store: MemoryStore) -> None:
    model = Tied()
    # Only the list was watched, and nobody keeps it.
    watcher = Watcher(nn.ModuleList([model]), store)
    gc.collect()
    train(model, 1)

    with pytest.warns(TorchglassWarning, match="keep a reference"):
        watcher.log("loss", 1.0)
    watcher.close()


class Broken(MemoryStore):
    """A sink with an error in it."""

    def put_frame(self, frame: Frame) -> None:
        raise RuntimeError(f"no room for step {frame.step}")


def test_an_internal_error_is_a_warning_and_training_continues() -> None:
    model = Tied()
    watcher = Watcher(model, Broken(RUN))
    train(model, 1)

    with pytest.warns(TorchglassWarning, match="RuntimeError: no room for step 0"):
        losses = train(model, 2)
    watcher.close()

    assert len(losses) == 2


def test_logging_more_than_one_value_is_a_warning(store: MemoryStore) -> None:
    with (
        Watcher(Tied(), store) as watcher,
        pytest.warns(
            TorchglassWarning,
            match=r"log\('losses', …\) expects one number, not a tensor of shape \(3,\)",
        ),
    ):
        watcher.log("losses", torch.zeros(3))

    assert store.last_step() == -1


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # torch's own
def test_a_compiled_model_and_training_step_work_unchanged(store: MemoryStore) -> None:
    model = Tied()
    compiled = torch.compile(model, backend="eager")
    optimizer = SGD(model.parameters(), lr=0.1)

    with Watcher(model, store) as watcher:
        loss = loss_of(compiled, next(batches(1)))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.compile(optimizer.step, backend="eager")()
        watcher.log("loss", loss)

    assert steps_of(store, "loss") == [0]
