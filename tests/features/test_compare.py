"""`tg.compare`: structure, values, and the first op at which two models diverge."""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

import torchglass as tg
from tests.command_line import main


class Attention(nn.Module):
    """One block as a reference writes it: separate projections, torch's attention."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        y = self.norm(x)
        q, k, v = (
            layer(y).view(batch, length, self.heads, -1).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        merged: torch.Tensor = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + merged


class Port(nn.Module):
    """The same block with other names, fused projections and attention spelled out."""

    def __init__(self, reference: Attention, diagonal: int = 1) -> None:
        super().__init__()
        width = reference.q.in_features
        self.heads, self.diagonal = reference.heads, diagonal
        self.ln = copy.deepcopy(reference.norm)
        self.qkv = nn.Linear(width, 3 * width)
        layers = (reference.q, reference.k, reference.v)
        self.qkv.weight.data = torch.cat([one.weight.data for one in layers])
        self.qkv.bias.data = torch.cat([one.bias.data for one in layers])
        self.proj = copy.deepcopy(reference.out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.ln(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(self.diagonal)
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        merged: torch.Tensor = self.proj((weights @ v).transpose(1, 2).flatten(2))
        return merged + x


@pytest.fixture
def reference() -> Attention:
    torch.manual_seed(0)
    model = Attention()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


X = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_correct_port_does_not_diverge(reference: Attention, dtype: torch.dtype) -> None:
    found = tg.compare(reference.to(dtype), Port(reference).to(dtype), X)

    assert found.first_divergence is None
    assert found.same
    assert found.exit_code == 0
    assert "no operation diverges" in str(found)


def test_a_half_precision_copy_does_not_diverge(reference: Attention) -> None:
    found = tg.compare(reference, copy.deepcopy(reference).to(torch.bfloat16), X)

    assert found.first_divergence is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_that_is_off_by_one_is_named_with_its_line(
    reference: Attention, dtype: torch.dtype
) -> None:
    found = tg.compare(reference.to(dtype), Port(reference, diagonal=2).to(dtype), X)

    divergence = found.first_divergence
    assert divergence is not None
    assert divergence.b is not None
    assert divergence.b.function == "triu"
    assert divergence.b.source is not None
    assert Path(divergence.b.source.file).name == "test_compare.py"
    assert "First divergence" in str(found)
    assert ".triu(self.diagonal)" in str(found)


def test_different_arguments_are_named_however_small_their_effect(reference: Attention) -> None:
    other = copy.deepcopy(reference)
    other.norm.eps = 1e-6

    divergence = tg.compare(reference, other, X).first_divergence

    assert divergence is not None
    assert divergence.b is not None
    assert divergence.b.path == "norm"
    assert divergence.reason == "different arguments: eps=1e-06 in b, 1e-05 in a"


def test_the_first_layer_with_different_weights_is_named() -> None:
    torch.manual_seed(0)
    first, second = Attention(), Attention()

    divergence = tg.compare(first, second, X).first_divergence

    assert divergence is not None
    assert divergence.kind == "weight"
    assert divergence.reason == "q.weight has different values than a's q.weight"


def test_a_swapped_weight_is_named(reference: Attention) -> None:
    other = copy.deepcopy(reference)
    other.k, other.v = other.v, other.k

    divergence = tg.compare(reference, other, X).first_divergence

    assert divergence is not None
    assert divergence.kind == "operands"
    assert divergence.reason.startswith("b reads `k` linear")
    assert "(a's `v` linear" in divergence.reason


def test_comparing_does_not_change_models_or_random_state(reference: Attention) -> None:
    other = nn.Sequential(reference, nn.BatchNorm1d(9), nn.Dropout())
    before = copy.deepcopy(other.state_dict())
    state = torch.get_rng_state()

    tg.compare(other, other, X)

    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in other.state_dict().items())


def test_traces_are_compared_without_running_anything(reference: Attention) -> None:
    first, second = tg.trace(reference, X), tg.trace(Port(reference, diagonal=0), X)

    found = tg.compare(first, second)

    assert found.first_divergence is not None
    assert "estimated" in str(found)


def test_an_exported_program_does_not_diverge_from_its_model(reference: Attention) -> None:
    program = torch.export.export(reference, (X,))

    assert tg.compare(reference, program, X).first_divergence is None


def test_an_exported_program_file_can_be_compared(reference: Attention, tmp_path: Path) -> None:
    torch.export.save(torch.export.export(reference, (X,)), tmp_path / "model.pt2")

    assert tg.compare(reference, tmp_path / "model.pt2", X).first_divergence is None
    wrong = tg.compare(tmp_path / "model.pt2", Port(reference, diagonal=2), X).first_divergence
    assert wrong is not None
    assert wrong.b is not None
    assert wrong.b.function == "triu"


@pytest.mark.filterwarnings("ignore::Warning")
@pytest.mark.slow
def test_a_bug_in_an_onnx_model_is_named_with_its_line(
    reference: Attention, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    right, wrong = tmp_path / "right.onnx", tmp_path / "wrong.onnx"
    torch.onnx.export(reference, (X,), right, dynamo=True, verbose=False)
    torch.onnx.export(Port(reference, diagonal=2), (X,), wrong, dynamo=True, verbose=False)

    assert tg.compare(reference, right, X).same
    found = tg.compare(reference, wrong, X).first_divergence
    assert found is not None
    assert found.b is not None
    assert found.b.source is not None
    assert Path(found.b.source.file).name == "test_compare.py"


def test_a_missing_extra_error_names_the_pip_command(
    reference: Attention, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)

    with pytest.raises(tg.errors.TargetError, match=r"pip install 'torchglass\[onnx\]'"):
        tg.compare(reference, tmp_path / "model.onnx", X)


@pytest.mark.filterwarnings("ignore::Warning")
def test_a_quantized_copy_does_not_diverge_but_another_activation_does() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))
    quantize: Any = torch.ao.quantization.quantize_dynamic
    quantized = quantize(model, {nn.Linear}, dtype=torch.qint8)
    x = torch.randn(4, 16)

    assert tg.compare(model, quantized, x).first_divergence is None
    quantized[1] = nn.GELU()
    found = tg.compare(model, quantized, x).first_divergence
    assert found is not None
    assert found.reason == "b computes gelu where a computes relu"


def test_half_precision_does_not_hide_a_small_difference(reference: Attention) -> None:
    other = copy.deepcopy(reference)
    other.norm.eps = 1e-3

    found = tg.compare(reference.bfloat16(), other.bfloat16(), X)

    assert found.first_divergence is not None
    assert found.first_divergence.reason == "different arguments: eps=0.001 in b, 1e-05 in a"
    assert "ran in float32" in str(found)


def test_a_state_dict_is_the_same_as_its_model(reference: Attention) -> None:
    assert tg.compare(reference.state_dict(), reference).same


def test_a_low_rank_change_is_recognized_in_half_precision(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(256, 128, generator=generator)
    update = torch.randn(256, 4, generator=generator) @ torch.randn(4, 128, generator=generator)
    noise = torch.randn(256, 128, generator=generator)
    base = {"lora": before.bfloat16(), "full": before.bfloat16()}
    tuned = {
        "lora": (base["lora"].float() + 0.02 * update).bfloat16(),
        "full": (base["full"].float() + 0.04 * noise).bfloat16(),
    }

    changes = {one.name: one for one in tg.compare(base, tuned).tensors or ()}

    assert changes["lora"].rank == 4
    assert changes["full"].rank is None


def test_untrained_norms_keep_their_names_when_one_is_removed() -> None:
    first = nn.ModuleDict({"norm1": nn.LayerNorm(8), "norm2": nn.LayerNorm(8)})
    second = nn.ModuleDict({"norm2": first["norm2"]})

    found = tg.compare(first, second)

    assert found.structure is not None
    assert [one.path for one in found.structure.removed] == ["norm1"]


def test_renamed_and_moved_modules_are_found() -> None:
    torch.manual_seed(0)
    first = nn.ModuleDict(
        {"encoder": nn.Sequential(nn.Linear(8, 16), nn.ReLU()), "head": nn.Linear(16, 4)}
    )
    second = nn.ModuleDict({"backbone": first["encoder"], "head": nn.Linear(16, 5)})

    found = tg.compare(first, second)

    assert found.structure is not None
    assert found.structure.changes["backbone"].path_before == "encoder"
    assert "backbone.0" not in found.structure.changes
    assert [row.change for row in found.rows if row.name == "head"] == ["arguments"]
    assert {row.name for row in found.rows if row.change == "shape"} == {
        "head.weight",
        "head.bias",
    }


def test_an_inserted_layer_does_not_change_all_layers_after_it() -> None:
    layers = [nn.Linear(8, 8) for _ in range(6)]
    first = nn.Sequential(*layers)
    second = nn.Sequential(*layers[:2], nn.Linear(8, 8), *layers[2:])

    found = tg.compare(first, second)

    assert found.structure is not None
    added = [path for path, one in found.structure.changes.items() if one.verdict == "added"]
    assert added == ["2"]
    assert not found.changed_tensors


def test_values_are_compared_tensor_by_tensor(tmp_path: Path) -> None:
    torch.manual_seed(0)
    before = {"a.weight": torch.randn(64, 64), "b.weight": torch.randn(64), "c": torch.ones(3)}
    after = dict(before)
    after["a.weight"] = before["a.weight"] + torch.randn(64, 2) @ torch.randn(2, 64)
    after["c"] = torch.tensor([1.0, torch.nan, 1.0])
    save_file(before, tmp_path / "before.safetensors")
    save_file(after, tmp_path / "after.safetensors")

    found = tg.compare(tmp_path / "before.safetensors", tmp_path / "after.safetensors")

    changes = {one.name: one for one in found.tensors or ()}
    assert changes["b.weight"].is_equal
    assert changes["a.weight"].rank == 2
    moved = after["a.weight"] - before["a.weight"]
    assert changes["a.weight"].distance == pytest.approx(
        float(moved.norm() / before["a.weight"].norm()), rel=1e-5
    )
    assert changes["c"].nan_after == 1
    assert changes["c"].nan_before == 0
    assert "2 of 3 tensors differ" in found.summary
    assert json.loads(found.to_json())["same"] is False


def test_the_command_exits_with_1_for_different_checkpoints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "a.safetensors")
    save_file({"w": torch.zeros(2)}, tmp_path / "b.safetensors")
    names = str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors")

    assert main(["compare", names[0], names[0]]) == 0
    assert main(["compare", *names]) == 1
    assert "1 of 1 tensor differs" in capsys.readouterr().out


def train(path: Path, rate: float, steps: int = 60, **options: object) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tg.watch(model, save=path, verbose=False, **options) as watcher:  # type: ignore[arg-type]
        for step in range(steps):
            if step == 30:
                optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            loss = (model(torch.randn(64, 4)) - 1).square().mean()
            loss.backward()
            optimizer.step()
            watcher.log("loss", loss.detach())


def test_runs_with_different_settings_diverge_at_a_named_step(tmp_path: Path) -> None:
    train(tmp_path / "a.glass", rate=0.01)
    train(tmp_path / "b.glass", rate=0.3, log_freq=2)

    found = tg.compare(tmp_path / "a.glass", tmp_path / "b.glass")

    assert not found.same
    assert {row.name for row in found.rows if row.kind == "setting"} >= {"optimizer lr"}
    loss = next(row for row in found.rows if row.kind == "curve" and row.name == "loss")
    since = int(loss.change.partition("step ")[2].split(",")[0])
    assert 30 <= since <= 40, loss.change


def test_settings_passed_to_watch_are_compared_first(tmp_path: Path) -> None:
    for name, config in {"a": {"lr": 0.1, "model": {"width": 8}}, "b": {"lr": 0.3}}.items():
        train(tmp_path / f"{name}.glass", rate=0.01, steps=3, config=config)

    found = tg.compare(tmp_path / "a.glass", tmp_path / "b.glass")

    settings = [(row.name, row.before, row.after) for row in found.rows if row.kind == "setting"]
    assert settings[:2] == [("config lr", "0.1", "0.3"), ("config model.width", "8", "")]
    assert "settings differ: config lr, config model.width" in found.summary


def test_a_run_that_becomes_nan_differs_from_the_first_step_at_which_it_does(
    tmp_path: Path,
) -> None:
    for name, losses in (("a", [2.0, 1.5, 1.2, 1.1, 1.0, 0.9]), ("b", [3.0, 50.0, 1e20])):
        path = tmp_path / f"{name}.glass"
        with tg.watch(nn.Linear(2, 1), save=path, verbose=False) as watcher:
            for value in [*losses, *[float("nan")] * (6 - len(losses))]:
                watcher.log("loss", value)
                watcher.step()

    found = tg.compare(tmp_path / "a.glass", tmp_path / "b.glass")

    assert "Curves diverge: loss diverges at step 0" in found.summary
    loss = next(row for row in found.rows if row.name == "loss")
    assert (loss.before, loss.after) == ("0.9", "NaN from step 3")


def test_a_run_is_the_same_as_itself(tmp_path: Path) -> None:
    train(tmp_path / "a.glass", rate=0.01)

    found = tg.compare(tmp_path / "a.glass", tmp_path / "a.glass")

    assert found.same
    assert found.summary.startswith("Same structure.")


def test_a_changed_tensor_has_histograms_of_its_old_and_new_values_in_the_same_bins() -> None:
    before = {"a.weight": torch.linspace(0, 1, 100), "b.weight": torch.ones(3)}
    after = {**before, "a.weight": torch.linspace(0, 2, 100)}

    changed, same = tg.compare(before, after).tensors or ()

    assert same.histograms is None
    found = changed.histograms
    assert found is not None
    assert (found.low, found.high) == (0, 2)
    assert sum(found.before) == sum(found.after) == 100
    half = len(found.before) // 2
    assert (sum(found.before[half + 1 :]), sum(found.after[half:])) == (0, 50)
