"""Someone wants to know where the memory of a training step goes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.fresh import fresh
from benchmarks.memory import LLAMA_70B, Llama, predict_llama
from benchmarks.models import GPT2, ResNet18
from tests.command_line import main
from torchglass import errors, memory


class Tagger(nn.Module):
    """An LSTM and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 32, 2)
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tags: torch.Tensor = self.head(self.lstm(x)[0])
        return tags


def gpt() -> tuple[nn.Module, torch.Tensor]:
    return GPT2(2, 64, 4, 300, 64), torch.randint(0, 300, (4, 64))


def resnet() -> tuple[nn.Module, torch.Tensor]:
    return ResNet18().train(), torch.randn(8, 3, 64, 64)


def small_resnet() -> tuple[nn.Module, torch.Tensor]:
    return ResNet18().train(), torch.randn(2, 3, 32, 32)


def tagger() -> tuple[nn.Module, torch.Tensor]:
    return Tagger(), torch.randn(30, 8, 16)


def perceptron() -> tuple[nn.Module, torch.Tensor]:
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(32, 64)


def squares(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


Subject = Callable[[], tuple[nn.Module, torch.Tensor]]


def profiled_peak(model: nn.Module, x: torch.Tensor) -> int:
    """The most that torch.profiler sees allocated at one time in a plain step."""

    def step() -> None:
        output = model(x)
        loss = squares(output)
        torch.autograd.backward(loss)

    step()
    for parameter in model.parameters():
        parameter.grad = None
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        step()
    for parameter in model.parameters():
        parameter.grad = None
    live = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


@pytest.mark.parametrize("subject", [gpt, resnet, tagger, perceptron])
def test_the_allocator_peak_matches_torch_profiler(subject: Subject) -> None:
    model, x = subject()

    taken = memory(model, x, loss=squares)

    assert taken.allocator_peak_bytes is not None
    found = taken.allocator_peak_bytes - taken.before_bytes
    assert found == pytest.approx(profiled_peak(model, x), rel=0.02)


@pytest.mark.parametrize("subject", [gpt, resnet, perceptron])
def test_the_storage_peak_matches_torch_profiler(subject: Subject) -> None:
    model, x = subject()

    taken = memory(model, x, loss=squares)

    found = taken.peak_bytes - taken.before_bytes
    assert found == pytest.approx(profiled_peak(model, x), rel=0.02)


@pytest.mark.parametrize("optimizer", [None, "adamw"])
@pytest.mark.parametrize("subject", [gpt, small_resnet, perceptron])
def test_a_prediction_equals_the_measurement_to_the_byte(
    subject: Subject, optimizer: str | None
) -> None:
    model, x = subject()

    measured = memory(model, x, optimizer=optimizer)
    predicted = memory(model, x, optimizer=optimizer, fake=True)

    assert [one._replace(time_ns=0) for one in measured.timeline] == [
        one._replace(time_ns=0) for one in predicted.timeline
    ]
    assert measured.footprint.blocks == predicted.footprint.blocks


@pytest.mark.parametrize("subject", [gpt, small_resnet, tagger, perceptron])
def test_saved_bytes_match_what_autograd_saves(subject: Subject) -> None:
    model, x = subject()
    known = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), x)}
    known |= {buffer.untyped_storage().data_ptr() for buffer in model.buffers()}
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(x)
        loss = output.sum()

    taken = memory(model, x)

    kept = [block.bytes for block in taken.activations if block.saved_by]
    assert sorted(kept) == sorted(size for size in saved.values() if size)
    assert loss.requires_grad


@pytest.fixture(scope="module")
def taken() -> Any:
    torch.manual_seed(0)
    model, x = gpt()
    return memory(model, x, optimizer="adamw")


def test_memory_of_a_gpt_matches_hand_computed_sizes(taken: Any) -> None:
    width, words, length, layers = 64, 300, 64, 2
    block = 12 * width * width + 13 * width
    parameters = words * width + length * width + layers * block + 2 * width

    assert taken.parameters_bytes == taken.gradients_bytes == 4 * parameters
    # A head that shares its weight has one tensor less: AdamW keeps a count of steps for each.
    tensors = 2 + layers * 12 + 2
    assert taken.optimizer_bytes == 2 * 4 * parameters + 4 * tensors
    assert taken.buffers_bytes == layers * length * length
    logits = 4 * length * words * 4
    assert taken["head"].own.activation_bytes == logits


def test_memory_of_rows_ops_and_holders_adds_up(taken: Any) -> None:
    every = [*taken.rows.values(), taken.unattributed]

    for field in ("parameter_bytes", "activation_bytes", "saved_bytes", "gradient_bytes"):
        whole = getattr(taken.rows[""].total, field)
        assert sum(getattr(row.own, field) for row in every) == whole > 0
    assert sum(row.own.optimizer_bytes for row in every) == taken.optimizer_bytes
    assert sum(holder.bytes for holder in taken.peak_holders) == taken.peak_bytes
    assert max(moment.live_bytes for moment in taken.timeline) == taken.peak_bytes
    in_step = sum(h.bytes for h in taken.peak_holders if h.op)
    assert sum(op.peak_bytes for op in taken.ops) == in_step


def test_the_timeline_shows_time_kind_and_module(taken: Any) -> None:
    times = [moment.time_ns for moment in taken.timeline]

    assert times == sorted(times)
    assert {moment.phase for moment in taken.timeline} == {
        "forward",
        "loss",
        "backward",
        "optimizer",
    }
    gelu = [moment for moment in taken.timeline if moment.path == "blocks.0.mlp.1"]
    assert (gelu[0].op, gelu[0].bytes) == ("gelu", 4 * 64 * 256 * 4)


def test_the_printed_report_has_modules_curve_and_peak(taken: Any) -> None:
    lines = str(taken).splitlines()

    assert any("├─ tokens" in line and "4×64×64" in line for line in lines)
    assert any("┤" in line and "█" in line for line in lines)
    assert any(line.startswith("Peak ") and " on cpu, in the " in line for line in lines)
    assert any("including AdamW state" in line for line in lines)
    assert "gelu" in taken.op_table(None)
    assert "activations" in taken.peak_table(None)
    assert len({len(line) for line in lines if line.startswith("───")}) == 1
    assert repr(taken) == str(taken)


def test_a_memory_report_is_saved_as_json_and_csv(taken: Any, tmp_path: Path) -> None:
    taken.to_json(tmp_path / "memory.json")
    text = taken.to_csv(tmp_path / "memory.csv")

    plain: dict[str, Any] = json.loads((tmp_path / "memory.json").read_text())
    rows = list(csv.DictReader(io.StringIO(text)))
    assert plain["peak_bytes"] == taken.peak_bytes
    changes = [(one["block"], one["bytes"]) for one in plain["footprint"]["changes"]]
    assert changes == [(one.block, one.bytes) for one in taken.footprint.changes]
    assert [row["path"] for row in rows] == [
        taken.model.name,
        *list(taken.rows)[1:],
        "unattributed",
    ]
    assert int(rows[0]["peak_bytes"]) == taken.peak_bytes
    assert (tmp_path / "memory.csv").read_text() == text


def test_a_small_llama_is_predicted_to_the_byte() -> None:
    sizes = {"layers": 2, "width": 64, "heads": 8, "groups": 2, "inner": 96, "words": 50}
    model = Llama(**sizes, length=16)
    tokens = torch.randint(0, 50, (2, 16))

    measured = memory(model, tokens, optimizer="adamw")
    predicted = memory(model, tokens, optimizer="adamw", fake=True)

    assert measured.footprint.blocks == predicted.footprint.blocks
    assert measured.peak_bytes == predicted.peak_bytes


@pytest.mark.slow
def test_predicting_a_70b_model_takes_less_than_a_gigabyte() -> None:
    # A tenth of the layers, each twelve times as wide inside, hold as much in less time.
    sizes = {**LLAMA_70B, "layers": 8, "inner": 12 * LLAMA_70B["inner"]}
    attention = 2 * 8192 * (8192 + 1024)
    layer = attention + 3 * 8192 * sizes["inner"] + 2 * 8192
    parameters = 8 * layer + 2 * 128_256 * 8192 + 8192

    found = fresh(predict_llama, sizes=sizes, optimizer="adamw")

    assert parameters > 70_000_000_000
    assert found["parameters_bytes"] == found["gradients_bytes"] == parameters * 2
    assert found["optimizer_bytes"] == pytest.approx(2 * parameters * 2, rel=1e-6)
    assert found["peak_bytes"] > 4 * parameters * 2
    assert found["resident_bytes"] < 1 << 30


NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(16, 8), nn.ReLU())
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    return "net.py:Net"


def test_the_memory_command_prints_the_table_and_requested_extras(
    net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--input", "4x16", "--optimizer", "adam", "--ops", "--peak"]

    assert main(["memory", net, *options]) == 0

    printed = capsys.readouterr().out
    assert "├─ 0" in printed
    assert "including Adam state" in printed
    assert "At the peak" in printed
    assert "addmm" in printed


def test_the_command_line_predicts_and_writes_json(net: str, tmp_path: Path) -> None:
    code = main(["memory", net, "--input", "4x16", "--fake", "--no-backward", "--json", "m.json"])

    plain = json.loads((tmp_path / "m.json").read_text())
    assert code == 0
    assert plain["fake"]
    assert [part["phase"] for part in plain["footprint"]["parts"]] == ["forward"]


def test_the_memory_command_can_print_only_csv(
    net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["memory", net, "--input", "4x16", "--csv", "-"]) == 0

    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["class"].rpartition(".")[2] for row in rows] == ["Net", "Linear", "ReLU", ""]


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (3, "optimizer must be a name such as 'adamw', .* not 3"),
        ("lbfgs", "LBFGS cannot be measured"),
        (torch.optim.LBFGS, "LBFGS cannot be measured"),
        (torch.optim.LBFGS(nn.Linear(2, 2).parameters()), "LBFGS cannot be measured"),
        ("adamm", "torch.optim has no 'adamm'"),
    ],
    ids=["number", "name", "class", "instance", "typo"],
)
def test_an_invalid_optimizer_is_refused(optimizer: Any, message: str) -> None:
    with pytest.raises(errors.CaptureError, match=message):
        memory(nn.Linear(2, 2), torch.ones(1, 2), optimizer=optimizer)


def test_a_loss_that_is_not_a_function_is_refused() -> None:
    loss: Any = 3

    with pytest.raises(
        errors.CaptureError, match="loss must be a function of the model's output, not 3"
    ):
        memory(nn.Linear(2, 2), torch.ones(1, 2), loss=loss)


def test_an_unknown_row_error_lists_the_rows() -> None:
    taken = memory(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2))

    with pytest.raises(
        errors.LookupFailedError, match="no module 'nope' was measured; available: 0, 1"
    ):
        taken.rows["nope"]
    assert taken.rows.get("nope") is None


def test_optimizer_conflicts_with_no_backward(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", net, "--input", "4x16", "--optimizer", "sgd", "--no-backward"]) == 2

    assert "--optimizer needs the backward. Remove --no-backward." in capsys.readouterr().err


unused = nn.Linear(1000, 1000)


def test_a_function_is_not_charged_for_models_it_does_not_use() -> None:
    def total(x: torch.Tensor) -> torch.Tensor:
        return x.sum()

    found = memory(total, torch.ones(3, 4), backward=False)

    assert found.parameters_bytes == 0
    assert found.peak_bytes < 1_000


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: nn.LSTM(32, 64, 2), (20, 8, 32)),
        (lambda: nn.LSTM(16, 24, batch_first=True, bidirectional=True), (3, 150, 16)),
        (lambda: nn.LSTM(8, 50), (400, 2, 8)),
    ],
)
def test_tensors_an_lstm_saves_for_backward_are_predicted(
    layer: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    model, x = layer(), torch.randn(shape)

    measured, predicted = memory(model, x), memory(model, x, fake=True)

    assert predicted.peak_bytes == pytest.approx(measured.peak_bytes, rel=0.02)
    assert predicted.activations_bytes == pytest.approx(measured.activations_bytes, rel=0.02)


def test_the_printed_peak_is_the_allocator_peak() -> None:
    measured = memory(nn.LSTM(32, 64), torch.randn(20, 8, 32))

    assert measured.allocator_peak_bytes is not None
    assert measured.allocator_peak_bytes > measured.peak_bytes
    peak = f"{measured.allocator_peak_bytes / 2**20:.1f} MB"
    assert f"Peak  {peak} on cpu" in str(measured)
    assert "scratch memory inside kernels" in str(measured)
