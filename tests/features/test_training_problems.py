"""What `tg.watch` finds wrong in a training: all that is, and nothing of what is only odd."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchglass as tg

Loop = Callable[[Any], None]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def found_in(run: Any) -> set[tuple[str, str]]:
    return {(one.kind, one.path) for one in run.findings}


def watched(path: Path, model: nn.Module, loop: Loop, **options: Any) -> Any:
    with tg.watch(model, save=path / "run.glass", verbose=False, **options) as watcher:
        loop(watcher)
    return tg.open(path / "run.glass")


def train(
    model: nn.Module,
    steps: int,
    batch: Callable[[], Any],
    loss_of: Callable[[Any], Tensor] = lambda output: output.square().mean(),
    *,
    lr: Callable[[int], float] | float = 0.01,
    logs: bool = True,
    kind: type[torch.optim.Optimizer] = torch.optim.SGD,
) -> Loop:
    """A plain loop, as the README has it."""
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = kind(weights, lr=0.01)  # type: ignore[call-arg]

    def loop(watcher: Any) -> None:
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = lr(step) if callable(lr) else lr
            optimizer.zero_grad()
            loss = loss_of(model(*batch()))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if logs:
                watcher.log("loss", loss)

    return loop


def rows(*sizes: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(*sizes),)


def sigmoids(depth: int, width: int = 16) -> nn.Sequential:
    pairs = ((nn.Linear(width, width), nn.Sigmoid()) for _ in range(depth))
    return nn.Sequential(*itertools.chain.from_iterable(pairs), nn.Linear(width, 1))


def dead() -> nn.Sequential:
    first = nn.Linear(4, 40)
    nn.init.constant_(first.bias, -20.0)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(40, 1))


# What is wrong


@pytest.mark.parametrize("logs", [True, False], ids=["logged", "silent"])
@pytest.mark.parametrize("log_freq", [1, 2, 5, 10])
def test_a_dead_layer_is_found_at_any_log_freq(log_freq: int, logs: bool, tmp_path: Path) -> None:
    model = dead()

    run = watched(
        tmp_path, model, train(model, 3 * log_freq, rows(8, 4), logs=logs), log_freq=log_freq
    )

    (finding,) = _problems(run.findings)
    assert (finding.kind, finding.path, finding.first_step) == ("dead-units", "1", 0)
    assert finding.message.startswith("`1` is dead: ")
    assert finding.message.endswith(" since step 0")
    assert any(one.startswith("No gradient reaches `0.weight`") for one in finding.consequences)


def test_a_dead_layer_is_found_despite_pauses_accumulation_and_eval(
    tmp_path: Path,
) -> None:
    model = dead()
    parts = [model[0].parameters(), model[2].parameters()]
    optimizers = [torch.optim.SGD(part, lr=0.01) for part in parts]

    def loop(watcher: Any) -> None:
        for step in range(24):
            if step % 7 == 3:
                watcher.pause()
            for _ in range(2):
                model(torch.randn(8, 4)).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            watcher.resume()
            model.eval()
            with torch.no_grad():
                watcher.log("accuracy", float(model(torch.randn(8, 4)).mean()))
            model.train()

    run = watched(tmp_path, model, loop, log_freq=2)

    assert found_in(run) == {("dead-units", "1")}


@pytest.mark.parametrize("log_freq", [1, 5])
@pytest.mark.parametrize("depth", [10, 12])
def test_gradients_that_vanish_layer_by_layer_are_found(
    depth: int, log_freq: int, tmp_path: Path
) -> None:
    model = sigmoids(depth)

    run = watched(tmp_path, model, train(model, 8 * log_freq, rows(32, 16)), log_freq=log_freq)

    found = [one for one in run.findings if one.kind == "vanishing-gradient"]
    assert found[0].path == "0"
    assert found[0].message.startswith("Almost no gradient reaches `0.weight` (")
    assert {one.path for one in found}.isdisjoint({str(2 * depth), str(2 * depth - 2)})


@pytest.mark.parametrize(
    "log", [("params_grad",), ("io", "params_grad"), ("params_grad", "io_grad")]
)
def test_vanishing_gradients_are_found_with_any_log_option(log: list[str], tmp_path: Path) -> None:
    model = sigmoids(12)

    run = watched(tmp_path, model, train(model, 8, rows(32, 16)), log=log)

    assert ("vanishing-gradient", "0") in found_in(run)


class Stack(nn.Module):
    """Weights without modules of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(16, 16) / 4 for _ in range(12))

    def forward(self, x: Tensor) -> Any:
        for weight in self.weights:
            x = torch.sigmoid(x @ weight)
        return x


def test_parameters_of_a_parameter_list_are_checked(tmp_path: Path) -> None:
    model = Stack()

    run = watched(tmp_path, model, train(model, 8, rows(32, 16)))

    assert "`weights.0`" in run.findings[0].message


@pytest.mark.parametrize("log_freq", [1, 5])
@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_non_finite_input_data_is_an_error_at_once(bad: str, log_freq: int, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    batches = itertools.chain([torch.randn(8, 4)] * 5, [torch.full((8, 4), float(bad))] * 5)

    run = watched(tmp_path, model, train(model, 10, lambda: (next(batches),)), log_freq=log_freq)

    (first, *_) = (one for one in run.findings if one.facts["series"] == "input.0")
    word = {"nan": "NaN", "inf": "Inf"}[bad]
    assert first.message == f"All 32 values entering the model are {word} (since step 5)"
    assert first.severity == "error"


def test_a_nan_loss_is_reported_at_its_step_even_if_not_recorded(
    tmp_path: Path,
) -> None:
    model = nn.Linear(4, 1)

    def loop(watcher: Any) -> None:
        for step in range(8):
            model(torch.randn(2, 4)).sum().backward()
            watcher.log("loss", float("nan") if step >= 3 else 1.0)
            watcher.log("val_loss", float("nan"))
            watcher.step()

    run = watched(tmp_path, model, loop, log_freq=5)

    assert [one.message for one in run.findings] == ["`loss` is NaN (since step 3)"]


class LogOfZero(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return torch.log(x * (x > 0))


def test_a_log_of_zero_is_reported_where_it_breaks_gradients(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), LogOfZero())

    run = watched(tmp_path, model, train(model, 1, rows(8, 4), lambda output: -output.mean()))

    assert any(one.severity == "error" for one in run.findings)
    assert any("the gradient of `0.weight`" in one for one in told(run))


# Norms of large and small gradients


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [1e20, 1e-25, 3e37, 1e-3])
@pytest.mark.parametrize("width", [4, 40_000])
def test_gradient_norms_are_exact_at_any_magnitude(
    size: float, dtype: torch.dtype, width: int, tmp_path: Path
) -> None:
    model = nn.Identity()
    x = torch.ones(2, width, dtype=dtype, requires_grad=True)

    def loop(watcher: Any) -> None:
        model(x * 1).backward(torch.full((2, width), size, dtype=dtype))

    run = watched(tmp_path, model, loop)

    expected = size * width**0.5
    assert run["output.grad_norm"].column("max")[0] == pytest.approx(expected, rel=1e-2)
    assert run["output.grad_norm"].column("mean")[0] == pytest.approx(expected, rel=1e-2)
    assert run.findings == ()


@pytest.mark.parametrize("size", [1e200, 1e-200])
def test_float64_values_whose_squares_overflow_are_measured(size: float, tmp_path: Path) -> None:
    model = nn.Identity()
    values = torch.randn(4, 5000, dtype=torch.float64) * size
    x = torch.ones(4, 5000, dtype=torch.float64, requires_grad=True)

    run = watched(tmp_path, model, lambda watcher: model(x * 1).backward(values))

    told = run["output.grad"]
    assert told.column("std")[0] == pytest.approx((values / size).std().item() * size)
    assert told.column("mean")[0] == pytest.approx((values / size).mean().item() * size)
    norms = (values / size).norm(dim=1) * size
    assert run["output.grad_norm"].column("max")[0] == pytest.approx(norms.max().item())
    with tg.record(model) as recording:
        model(values)
    assert recording[""][-1].out_std == pytest.approx((values / size).std().item() * size)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1.0, 1e-30, 1e30])
def test_update_ratios_are_exact_for_weights_of_any_magnitude(
    size: float, dtype: torch.dtype, tmp_path: Path
) -> None:
    if not torch.finfo(dtype).tiny < size < torch.finfo(dtype).max:
        pytest.skip("the type has no such number")
    model = nn.Linear(400, 400, bias=False).to(dtype)
    nn.init.constant_(model.weight, size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def loop(watcher: Any) -> None:
        model.weight.grad = torch.full_like(model.weight, size)
        optimizer.step()

    run = watched(tmp_path, model, loop, log=["updates"])

    assert run["weight.update"].values.tolist() == pytest.approx([0.5], rel=1e-2)


# What is only odd: no finding above a note


class Residual(nn.Module):
    """A branch that begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        return x + self.scale * torch.tanh(self.inner(x))


class LoRA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(16, 16).requires_grad_(False)
        self.a = nn.Linear(16, 4, bias=False)
        self.b = nn.Linear(4, 16, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Any:
        return self.base(x) + self.b(self.a(x))


class Attention(nn.Module):
    """Separate projections, and a mask that the model makes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.mask = nn.Parameter(torch.full((6, 6), -torch.inf).triu(1), requires_grad=False)
        self.softmax = nn.Softmax(-1)

    def forward(self, x: Tensor) -> Any:
        scores = self.q(x) @ self.k(x).transpose(-2, -1) / 4 + self.mask
        return self.softmax(scores) @ self.v(x)


class MaskMaker(nn.Module):
    """Puts out a mask that masks nothing, or minus infinity."""

    def __init__(self, masked: float) -> None:
        super().__init__()
        self.masked = masked

    def forward(self, keep: Tensor) -> tuple[Tensor, Tensor]:
        return torch.where(keep, 0.0, self.masked), ~keep


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.maker, self.nothing = MaskMaker(-torch.inf), MaskMaker(-1e9)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, *, mask: Tensor) -> Any:
        allowed = torch.ones(6, 6, dtype=torch.bool)
        made, _ = self.maker(allowed.tril())
        zeros, _ = self.nothing(allowed)
        y = self.encoder(x, src_mask=mask + made + zeros)
        # An action that is not allowed has no chance.
        return self.head(y).masked_fill(torch.tensor([False, False, True, False]), -torch.inf)


class Mixture(nn.Module):
    """Experts of which some rest."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 6)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x: Tensor) -> Any:
        weights = self.gate(x).softmax(-1)
        best = weights.argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            chosen = best == number
            out[chosen] = expert(x[chosen]) * weights[chosen, number, None]
        return out


class TopK(nn.Module):
    """A sparse code: nearly everything is zero on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(16, 2048), nn.Linear(2048, 16)
        self.keep = KeepTop(4)

    def forward(self, x: Tensor) -> Any:
        return self.decode(self.keep(self.encode(x))) - x


class KeepTop(nn.Module):
    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def forward(self, x: Tensor) -> Any:
        values, places = x.topk(self.k, dim=-1)
        return torch.zeros_like(x).scatter(-1, places, values)


class Tied(nn.Module):
    """An embedding of which few rows are used, tied to the output."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20_000, 16, padding_idx=0)
        self.positions = nn.Embedding(2, 16, padding_idx=0)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 20_000, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Any:
        return self.head(self.norm(self.embedding(x) + self.positions(torch.zeros_like(x))))


class Heads(nn.Module):
    """Two tasks that are trained in turn, with gradients that are set to zero."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(8, 8)
        self.heads = nn.ModuleList(nn.Linear(8, 1) for _ in range(2))
        self.turn = 0

    def forward(self, x: Tensor) -> Any:
        self.turn += 1
        return self.heads[self.turn // 20 % 2](self.trunk(x))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        zeros = torch.zeros(2, x.shape[0], 8)
        return self.lstm(x, (zeros, zeros))[0][:, -1]


class OneNumber(nn.Module):
    """A scalar in front of everything, with a gradient far above all others."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1e-4))
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        return self.scale * 1e6 * self.inner(x * 1e-6)


class SmallWeights(nn.Module):
    """Attention whose queries and keys begin small, behind an embedding with large gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.positions = nn.Embedding(8, 16)
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.apart = nn.Linear(16, 16)
        for module in (self.q, self.k, self.apart):
            nn.init.normal_(module.weight, std=1e-3)

    def forward(self, x: Tensor) -> Any:
        y = self.embedding(x)
        scores = self.q(y) @ (self.k(y) + self.apart(self.positions(torch.arange(8)))).mT / 1000
        return (y + scores.softmax(-1) @ self.v(y)) @ self.embedding.weight.T * 30


def conv(*, zero: bool = False) -> nn.Module:
    """A bias in front of a batch norm, and a scale in front of one: no gradient by mathematics."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 1, groups=8),
        nn.BatchNorm2d(8),
        nn.Flatten(),
        nn.Linear(8 * 36, 4),
        nn.GroupNorm(2, 4),
    )
    if zero:
        nn.init.zeros_(model[4].weight)  # type: ignore[arg-type]
    return model


def deep() -> nn.Module:
    blocks = [nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU()) for _ in range(24)]
    return nn.Sequential(*blocks, nn.Linear(16, 1))


def zero_head() -> nn.Module:
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 4))
    nn.init.zeros_(model[3].weight)  # type: ignore[arg-type]
    return model


def warm(step: int) -> float:
    return 1e-7 * step


def held_back(step: int) -> float:
    return 0.0 if step < 30 else 0.01


def images() -> tuple[Tensor]:
    return (torch.randn(8, 3, 8, 8),)


def tokens() -> tuple[Tensor]:
    return (torch.randint(0, 50, (4, 8)),)


def next_token(scores: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, -2), torch.randint(0, 50, (scores[..., 0].numel(),)))


def first_class(scores: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, -2), torch.zeros(scores[..., 0].numel()).long())


class Keywords(nn.Module):
    """Gives a model its mask by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Masked()

    def forward(self, x: Tensor) -> Any:
        return self.inner(x, mask=nn.Transformer.generate_square_subsequent_mask(6))


class Own(nn.Module):
    """torch's own attention, whose key bias has no gradient by mathematics."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(6)
        return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    nn.init.constant_(model[0].bias, -20.0)  # type: ignore[arg-type]
    model[0].requires_grad_(False)
    return model


HEALTHY: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "bias before norms": lambda: (conv(), {"batch": images}),
    "norm that begins at zero": lambda: (conv(zero=True), {"batch": images}),
    "norm that begins at zero, warm-up": lambda: (conv(zero=True), {"batch": images, "lr": warm}),
    "key bias": lambda: (Attention(), {"batch": rows(4, 6, 16)}),
    "key bias with Adam": lambda: (
        Attention(),
        {"batch": rows(4, 6, 16), "kind": torch.optim.Adam},
    ),
    "torch's attention": lambda: (Own(), {"batch": rows(4, 6, 16)}),
    "masks": lambda: (Keywords(), {"batch": rows(4, 6, 16), "loss_of": first_class}),
    "LoRA": lambda: (LoRA(), {"batch": rows(4, 16)}),
    "LoRA, warm-up": lambda: (LoRA(), {"batch": rows(4, 16), "lr": warm}),
    "LoRA, held back": lambda: (LoRA(), {"batch": rows(4, 16), "lr": held_back}),
    "LoRA, warm-up with Adam": lambda: (
        LoRA(),
        {"batch": rows(4, 16), "lr": warm, "kind": torch.optim.Adam},
    ),
    "branches that begin at zero": lambda: (
        nn.Sequential(Residual(), Residual(), nn.Linear(8, 1)),
        {"batch": rows(16, 8), "lr": warm},
    ),
    "a head that begins at zero": lambda: (
        zero_head(),
        {"batch": rows(16, 16), "loss_of": first_class, "lr": warm},
    ),
    "a mixture of experts": lambda: (Mixture(), {"batch": rows(3, 8)}),
    "a sparse code": lambda: (TopK(), {"batch": rows(16, 16)}),
    "queries and keys that begin small": lambda: (
        SmallWeights(),
        {"batch": tokens, "loss_of": next_token, "lr": 1e-4},
    ),
    "a tied embedding": lambda: (Tied(), {"batch": tokens, "loss_of": next_token}),
    "tasks in turn": lambda: (Heads(), {"batch": rows(16, 8)}),
    "an LSTM": lambda: (Recurrent(), {"batch": rows(4, 5, 8)}),
    "one number with a large gradient": lambda: (OneNumber(), {"batch": rows(16, 8), "lr": 1e-12}),
    "24 layers with norms": lambda: (deep(), {"batch": rows(16, 16)}),
    "frozen and dead": lambda: (frozen(), {"batch": rows(16, 8)}),
}


@pytest.mark.parametrize("log_freq", [1, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_training_has_no_findings(name: str, log_freq: int, tmp_path: Path) -> None:
    model, options = HEALTHY[name]()

    run = watched(tmp_path, model, train(model, 45, **options), log_freq=log_freq)

    assert above_notes(run) == []


@pytest.mark.parametrize("log_freq", [1, 5])
def test_adversarial_training_has_no_findings(log_freq: int, tmp_path: Path) -> None:
    model = nn.ModuleDict(
        {
            "maker": nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)),
            "critic": nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(), nn.Linear(16, 1)),
        }
    )
    optimizers = {name: torch.optim.Adam(part.parameters()) for name, part in model.items()}

    def loop(watcher: Any) -> None:
        for step in range(45):
            name = "maker" if step % 5 == 4 else "critic"
            fake = model["maker"](torch.randn(16, 4))
            score = model["critic"](fake if name == "maker" else fake.detach()).mean()
            loss = -score if name == "maker" else score - model["critic"](torch.randn(16, 8)).mean()
            optimizers[name].zero_grad(set_to_none=False)
            loss.backward()
            optimizers[name].step()
            watcher.log("loss", loss)

    run = watched(tmp_path, model, loop, log_freq=log_freq)

    assert above_notes(run) == []


@pytest.mark.usefixtures("scalers_freed")
@pytest.mark.parametrize("log_freq", [1, 5])
@pytest.mark.parametrize("unscales", [False, True])
def test_overflows_skipped_by_a_grad_scaler_are_not_errors(
    unscales: bool, log_freq: int, tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)

    def loop(watcher: Any) -> None:
        for _ in range(60):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = model(torch.randn(8, 4)).square().mean()
            scaler.scale(loss).backward()
            if unscales:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            watcher.log("loss", loss)

    run = watched(tmp_path, model, loop, log_freq=log_freq)

    assert scaler.get_scale() < 2.0**40
    assert above_notes(run) == []
    assert {one.kind for one in run.findings} <= {"scaled-overflow"}


@pytest.mark.usefixtures("scalers_freed")
def test_an_overflow_without_a_grad_scaler_is_an_error(tmp_path: Path) -> None:
    model, other = nn.Linear(4, 1).half(), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(other(torch.ones(1, 4))).sum().backward()

    def loop(watcher: Any) -> None:
        (model(torch.ones(8, 4, dtype=torch.half)).float().sum() * 1e6).backward()
        optimizer.step()

    run = watched(tmp_path, model, loop)

    assert "All 4 values of the gradient of `weight` are Inf (since step 0)" in told(run)


def told(run: Any) -> list[str]:
    """Everything that was found, with what followed from it."""
    return [text for one in run.findings for text in (one.message, *one.consequences)]


def above_notes(run: Any) -> list[str]:
    return [one.message for one in _problems(run.findings)]


def _problems(findings: tuple[Any, ...]) -> Iterator[Any]:
    return (one for one in findings if one.severity != "info")


def test_weights_that_are_put_back_after_each_step_are_named(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.Adam(model.parameters(), 0.01)

    def loop(watcher: Any, *, puts_back: bool = True) -> None:
        for _ in range(30):
            x = torch.randn(16, 4)
            loss = F.mse_loss(model(x), x[:, :1])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if puts_back:
                model.load_state_dict(start)
            watcher.log("loss", loss)

    sick = watched(tmp_path, model, loop)
    (found,) = [one for one in tg.diagnose(sick).findings if one.kind == "lost-updates"]
    assert "put back after each step" in found.message

    (tmp_path / "healthy").mkdir()
    healthy = watched(tmp_path / "healthy", model, lambda one: loop(one, puts_back=False))
    assert tg.diagnose(healthy).verdict == "healthy"


def test_settings_that_mean_the_opposite_elsewhere_are_named(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=0.99), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), 0.01, maximize=True)

    def loop(watcher: Any) -> None:
        for _ in range(40):
            x = torch.randn(16, 4)
            loss = F.cross_entropy(model(x), x[:, :3].argmax(-1))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            watcher.log("loss", loss)

    remedies = {
        one.kind: one.remedy for one in tg.diagnose(watched(tmp_path, model, loop)).findings
    }
    assert "momentum=0.01" in remedies["batch-norm-drift"]
    assert "maximize=True" in remedies["loss-diverges"]
