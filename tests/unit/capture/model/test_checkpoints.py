"""Checkpoints of every kind, and files that only pretend to be some."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests import models
from tests.versions import needs_torch
from torchglass.analyse.parameters import count
from torchglass.capture.model.checkpoints import StoredTensors, read_checkpoint
from torchglass.capture.model.structure import read_model
from torchglass.errors import TargetError, UnsafeFileError
from torchglass.records.model import Model, Slot


@pytest.fixture
def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def _saved(path: Path, content: object, **options: Any) -> Path:
    torch.save(content, path, **options)
    return path


def _slots(model: Model) -> dict[str, Slot]:
    return {
        f"{module.path}.{slot.name}".lstrip("."): slot
        for module in model.modules
        for slot in module.slots
    }


def _facts(model: Model) -> dict[str, tuple[Any, ...]]:
    return {
        name: (slot.role, slot.spec, slot.trainable, slot.persistent)
        for name, slot in _slots(model).items()
    }


def _parameters(model: Model) -> int:
    return count(model)[0].total.parameters


def test_the_dotted_names_of_a_state_dict_become_a_tree(tmp_path: Path, net: nn.Module) -> None:
    model = read_checkpoint(_saved(tmp_path / "net.pt", net.state_dict()))

    assert [(m.path, m.class_name) for m in model.modules] == [
        ("", "checkpoint"),
        ("0", "group"),
        ("1", "group"),
    ]
    assert (model.name, model.origin) == ("net.pt", str(tmp_path / "net.pt"))
    assert count(model)[0].total.parameters == 24
    assert count(model)[0].total.buffers == 9


def test_norm_statistics_and_integer_tensors_are_buffers(tmp_path: Path) -> None:
    tensors = {
        "norm.weight": torch.zeros(2),
        "norm.running_mean": torch.zeros(2),
        "position_ids": torch.arange(4),
        "mask": torch.ones(2, dtype=torch.bool),
    }

    slots = _slots(read_checkpoint(_saved(tmp_path / "net.pt", tensors)))

    assert {name: slot.role for name, slot in slots.items()} == {
        "norm.weight": "parameter",
        "norm.running_mean": "buffer",
        "position_ids": "buffer",
        "mask": "buffer",
    }
    assert slots["norm.weight"].trainable


def test_a_name_can_be_a_group_and_a_tensor(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(1), "a.b": torch.zeros(2), "a.b.c": torch.zeros(3)}

    model = read_checkpoint(_saved(tmp_path / "net.pt", tensors))

    assert [module.path for module in model.modules] == ["", "a", "a.b"]
    assert [*_slots(model)] == ["a", "a.b", "a.b.c"]
    assert _parameters(model) == 6


def test_a_name_with_a_million_dots_creates_few_modules(tmp_path: Path) -> None:
    model = read_checkpoint(_saved(tmp_path / "net.pt", {"." * 1_000_000: torch.zeros(1)}))

    assert len(model.modules) < 1000
    assert _parameters(model) == 1


@pytest.mark.parametrize("wrap", [{"state_dict": 0}, {"model": 0, "epoch": 3, "args": {"lr": 0.1}}])
def test_a_state_dict_among_metadata_is_the_model(
    wrap: dict[str, Any], tmp_path: Path, net: nn.Module
) -> None:
    content = {key: net.state_dict() if value == 0 else value for key, value in wrap.items()}

    model = read_checkpoint(_saved(tmp_path / "net.ckpt", content))

    assert [module.path for module in model.modules] == ["", "0", "1"]


def test_optimizer_state_is_shown_but_not_as_parameters(tmp_path: Path, net: nn.Module) -> None:
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    content = {"model": net.state_dict(), "optimizers": [optimizer.state_dict()]}

    model = read_checkpoint(_saved(tmp_path / "net.pt", content))

    assert _slots(model)["0.weight"].role == "parameter"
    assert _slots(model)["optimizers.0.state.0.exp_avg"].role == "buffer"
    assert _parameters(model) == 24


def _trained(net: nn.Module, kind: type[torch.optim.Optimizer], **options: Any) -> dict[str, Any]:
    optimizer = kind(net.parameters(), **options)
    net(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


@pytest.mark.parametrize(
    ("key", "beside"),
    [
        ("model", {"optimizer": "state of Adam or AdamW", "epoch": "3", "args": "lr=0.1, seed=1"}),
        (
            "state_dict",
            {
                "pytorch-lightning_version": "'2.4.0'",
                "global_step": "40",
                "optimizer_states": "state of Adam or AdamW",
                "lr_schedulers": "empty",
                "hyper_parameters": "hidden=64, name='small'",
            },
        ),
        ("module", {"ds_version": "'0.14'", "optimizer": "state of Adam or AdamW"}),
        ("anything at all", {"epoch": "3"}),
    ],
    ids=["training", "lightning", "deepspeed", "own name"],
)
def test_other_contents_of_a_checkpoint_are_listed(
    key: str, beside: dict[str, str], tmp_path: Path, net: nn.Module
) -> None:
    state = _trained(net, torch.optim.AdamW)
    values: dict[str, Any] = {
        "optimizer": state,
        "optimizer_states": [state],
        "epoch": 3,
        "global_step": 40,
        "args": {"lr": 0.1, "seed": 1},
        "hyper_parameters": {"hidden": 64, "name": "small"},
        "lr_schedulers": [],
        "pytorch-lightning_version": "2.4.0",
        "ds_version": "0.14",
    }
    content = {name: values[name] for name in beside}
    # The model is found by what it is, and not by where it stands.
    content = {**dict(list(content.items())[:1]), key: net.state_dict(), **content}

    model = read_checkpoint(_saved(tmp_path / "train.pth", content))

    assert {part.name: part.text for part in model.also_in_file} == beside
    assert _parameters(model) == 24
    assert [module.path for module in model.modules][:3] == ["", "0", "1"]
    for part in model.also_in_file:
        assert bool(part.path) == bool(part.tensors) == name_is_optimizer(part.name)
        assert not part.path or model.find(part.path) is not None


def name_is_optimizer(name: str) -> bool:
    return name.startswith("optimizer")


@pytest.mark.parametrize("names", [("G", "D"), ("model", "model_ema")])
def test_several_models_in_one_file_keep_their_names(
    names: tuple[str, str], tmp_path: Path, net: nn.Module
) -> None:
    content = {name: net.state_dict() for name in names} | {"epoch": 3}

    model = read_checkpoint(_saved(tmp_path / "train.pth", content))

    assert [child.name for child in model.children(model.root)] == [*names]
    assert [(part.name, part.text) for part in model.also_in_file] == [("epoch", "3")]


def test_random_states_counters_and_optimizers_are_not_models(
    tmp_path: Path, net: nn.Module
) -> None:
    content = {
        "rng": {"torch": torch.get_rng_state(), "cuda": [torch.get_rng_state()]},
        "meters": {"loss": torch.tensor(0.5)},
        "sgd": _trained(net, torch.optim.SGD, lr=0.1, momentum=0.9),
        "plain": _trained(net, torch.optim.SGD, lr=0.1),
        "weights": net.state_dict(),
        "0": "a name that a layer has, too",
    }

    model = read_checkpoint(_saved(tmp_path / "train.pth", content))

    told = {part.name: (part.text, part.path) for part in model.also_in_file}
    assert told["sgd"] == ("state of SGD with momentum", "sgd")
    assert told["plain"] == ("optimizer without state", "")
    assert told["rng"] == ("", "rng")
    assert told["meters"] == ("", "meters")
    assert "meters" in {child.name for child in model.children(model.root)}
    assert _parameters(model) == 24


def test_values_among_the_tensors_of_a_state_dict_are_listed(
    tmp_path: Path, net: nn.Module
) -> None:
    content = {**net.state_dict(), "epoch": 3}

    model = read_checkpoint(_saved(tmp_path / "net.pth", content))

    assert [(part.name, part.text) for part in model.also_in_file] == [("epoch", "3")]


def test_the_metadata_of_safetensors_is_listed(tmp_path: Path, net: nn.Module) -> None:
    file = tmp_path / "net.safetensors"
    save_file(net.state_dict(), file, metadata={"format": "pt", "epoch": "3"})

    model = read_checkpoint(file)

    assert [(part.name, part.text) for part in model.also_in_file] == [("epoch", "3")]


def test_checkpoint_tensors_are_named_as_in_the_tree(tmp_path: Path, net: nn.Module) -> None:
    state = _trained(net, torch.optim.Adam)
    file = _saved(tmp_path / "train.pth", {"optimizer": state, "model": net.state_dict()})

    loads = StoredTensors(file)

    assert set(loads) == set(_slots(read_checkpoint(file)))
    assert torch.equal(loads["0.weight"](), net.state_dict()["0.weight"])


def test_tensors_that_share_a_storage_are_tied(tmp_path: Path) -> None:
    path = _saved(tmp_path / "net.pt", models.TiedLanguageModel().state_dict())

    model = read_checkpoint(path)

    assert [*model.tied.values()] == [("embed.weight", "head.weight")]


@pytest.mark.parametrize("content", [torch.zeros(3), [torch.zeros(3)], (torch.zeros(3), 1)])
def test_tensors_outside_of_a_dict_are_shown(content: object, tmp_path: Path) -> None:
    assert _parameters(read_checkpoint(_saved(tmp_path / "t.pt", content))) == 3


def test_a_file_from_before_torch_1_6_is_read(tmp_path: Path, net: nn.Module) -> None:
    path = _saved(tmp_path / "n.pth", net.state_dict(), _use_new_zipfile_serialization=False)

    assert _parameters(read_checkpoint(path)) == 24


def test_reading_a_checkpoint_loads_no_tensor(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    save_file({"weight": torch.zeros(1)}, path)
    header = json.dumps({"w": {"dtype": "F32", "shape": [1 << 33], "data_offsets": [0, 1 << 35]}})
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header.encode())
        file.truncate(8 + len(header) + (1 << 35))

    model = read_checkpoint(path)

    assert count(model)[0].total.bytes == 1 << 35


class _Opens:
    """Unpickling it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("archive", [True, False])
def test_pickled_code_is_refused_by_name_and_does_not_run(archive: bool, tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    path = _saved(tmp_path / "x.pt", {"a": _Opens(trap)}, _use_new_zipfile_serialization=archive)

    with pytest.raises(UnsafeFileError, match=r"x\.pt .*posix\.mkdir.* --unsafe .*unsafe=True"):
        read_checkpoint(path)

    assert not trap.exists()


def test_a_pickled_module_is_read_when_allowed(tmp_path: Path, net: nn.Module) -> None:
    path = _saved(tmp_path / "net.pt", {"net": net, "epoch": 1})

    with pytest.raises(UnsafeFileError, match="BatchNorm1d"):
        read_checkpoint(path)
    model = read_checkpoint(path, unsafe=True)

    assert [module.kind for module in model.modules] == [
        "dict",
        "Sequential",
        "Linear",
        "BatchNorm1d",
    ]
    assert model.name == "net.pt"


# torch announces that TorchScript will go, while the files that were made with it stay.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_scripted_module_is_read_when_allowed(tmp_path: Path, net: nn.Module) -> None:
    path = tmp_path / "net.pt"
    save: Callable[..., None] = torch.jit.save
    save(torch.jit.script(net), path)

    with pytest.raises(UnsafeFileError, match="TorchScript"):
        read_checkpoint(path)
    model = read_checkpoint(path, unsafe=True)

    assert [module.kind for module in model.modules] == ["Sequential", "Linear", "BatchNorm1d"]


def test_a_decompression_bomb_is_refused(tmp_path: Path) -> None:
    path, bomb = _saved(tmp_path / "a.pt", torch.zeros(1_000_000)), tmp_path / "bomb.pt"
    with zipfile.ZipFile(path) as plain, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as small:
        for name in plain.namelist():
            small.writestr(name, plain.read(name))

    with pytest.raises(TargetError, match=r"bomb\.pt is refused: it would grow from"):
        read_checkpoint(bomb)


def test_exponentially_nested_containers_are_refused(tmp_path: Path) -> None:
    content: list[Any] = [torch.zeros(1)]
    for _ in range(60):
        content = [content, content]

    with pytest.raises(TargetError, match="more than 500,000"):
        read_checkpoint(_saved(tmp_path / "net.pt", content))


@pytest.mark.parametrize("suffix", [".pt", ".bin", ".safetensors", ".pt2", ".dat"])
def test_corrupt_files_give_a_one_line_error(suffix: str, tmp_path: Path, net: nn.Module) -> None:
    whole = _saved(tmp_path / "whole.pt", net.state_dict()).read_bytes()
    path = tmp_path / f"damaged{suffix}"

    for content in (b"", b"\0" * 100, b"\x80\x02garbage", whole[:700], whole[:-30], b"{}", b"PK"):
        path.write_bytes(content)
        with pytest.raises(TargetError) as raised:
            read_checkpoint(path)
        assert str(raised.value).startswith(path.name)
        assert "\n" not in str(raised.value)


def test_a_pickle_that_is_not_a_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.pt"
    path.write_bytes(pickle.dumps({"a": 1}))

    with pytest.raises(TargetError, match=r"data\.pt"):
        read_checkpoint(path)


def test_a_file_without_tensors_says_so(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"there are no tensors in notes\.pt"):
        read_checkpoint(_saved(tmp_path / "notes.pt", {"epoch": 3}))


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"there is no file .*gone\.pt"):
        read_checkpoint(tmp_path / "gone.pt")


def test_safetensors_keep_dtypes_and_numeric_order(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    tensors = {
        "layers.10.w": torch.zeros(2, dtype=torch.bfloat16),
        "layers.9.w": torch.zeros(3, dtype=torch.float8_e4m3fn),
        "c": torch.zeros(3, dtype=torch.complex64),
        "m": torch.zeros(5, dtype=torch.bool),
    }
    save_file(tensors, path)

    model = read_checkpoint(path)

    assert [module.path for module in model.modules] == ["", "layers", "layers.9", "layers.10"]
    assert {name: (slot.spec.dtype, slot.spec.bytes) for name, slot in _slots(model).items()} == {
        "c": ("complex64", 24),
        "m": ("bool", 5),
        "layers.9.w": ("float8_e4m3fn", 3),
        "layers.10.w": ("bfloat16", 4),
    }


@needs_torch(2, 8, "four-bit elements")
def test_four_bit_elements_share_a_byte_in_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    save_file({"w": torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)}, path)

    slot = _slots(read_checkpoint(path))["w"]

    assert (slot.spec.elements, slot.spec.bytes) == (8, 4)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    for number, name in enumerate(names):
        save_file({f"layers.{number}.weight": torch.zeros(4)}, tmp_path / name)
    index = tmp_path / "model.safetensors.index.json"
    weights = {f"layers.{number}.weight": name for number, name in enumerate(names)}
    index.write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    return index


def test_shards_are_one_model_by_index_or_by_folder(sharded: Path) -> None:
    by_index, by_folder = read_checkpoint(sharded), read_checkpoint(sharded.parent)

    assert [module.path for module in by_index.modules] == ["", "layers", "layers.0", "layers.1"]
    assert by_folder.modules == by_index.modules


def test_shards_need_no_index(sharded: Path) -> None:
    sharded.unlink()

    assert _parameters(read_checkpoint(sharded.parent)) == 8


def test_pickled_shards_are_one_model(tmp_path: Path) -> None:
    for number in (1, 2):
        content = {f"layers.{number}.weight": torch.zeros(4)}
        _saved(tmp_path / f"pytorch_model-{number}-of-2.bin", content)

    model = read_checkpoint(tmp_path)

    assert _parameters(model) == 8
    assert not model.tied


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded.parent / "model-00002-of-00002.safetensors").unlink()

    with pytest.raises(TargetError, match=r"there is no file .*model-00002-of-00002"):
        read_checkpoint(sharded)


def test_an_index_cannot_point_outside_its_folder(sharded: Path) -> None:
    sharded.write_text(json.dumps({"weight_map": {"a": "../../secret.safetensors"}}))

    with pytest.raises(TargetError, match="outside its folder"):
        read_checkpoint(sharded)


def test_a_folder_of_several_models_asks_for_one(tmp_path: Path, net: nn.Module) -> None:
    for name in ("a.pt", "b.pt"):
        _saved(tmp_path / name, net.state_dict())

    with pytest.raises(TargetError, match=r"name one: a\.pt, b\.pt"):
        read_checkpoint(tmp_path)


def test_a_folder_without_a_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="there is no checkpoint in the folder"):
        read_checkpoint(tmp_path)


class _Exported(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        first = nn.Linear(4, 4)
        self.body = nn.Sequential(first, nn.ReLU())
        self.tied = nn.Linear(4, 4)
        self.tied.weight = first.weight
        self.unused = nn.Linear(2, 2)
        self.scale: torch.Tensor
        self.register_buffer("scale", torch.ones(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.tied(self.body(self.body(x))) * self.scale[0]
        return out


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "net.pt2"
    torch.export.save(torch.export.export(_Exported(), (torch.zeros(2, 4),)), path)
    return path


@needs_torch(2, 8, "programs saved as text")
def test_an_exported_program_has_the_module_tree_with_its_classes(exported: Path) -> None:
    model = read_checkpoint(exported)

    assert [(module.path, module.kind) for module in model.modules] == [
        ("", "_Exported"),
        ("body", "Sequential"),
        ("body.0", "Linear"),
        ("body.1", "ReLU"),
        ("tied", "Linear"),
        ("unused", "group"),
    ]
    assert _parameters(model) == 16 + 4 + 4 + 6
    assert [*model.tied.values()] == [("body.0.weight", "tied.weight")]
    assert not _slots(model)["scale"].persistent


@needs_torch(2, 8, "programs saved as text")
# torch 2.9 warns of its own way to load.
@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_the_json_of_an_exported_program_matches_the_loaded_program(exported: Path) -> None:
    read, loaded = read_checkpoint(exported), read_model(torch.export.load(exported))

    assert [module.path for module in read.modules] == [module.path for module in loaded.modules]
    assert _facts(read) == _facts(loaded)


def test_an_exported_program_without_its_json_is_refused(exported: Path, tmp_path: Path) -> None:
    older = tmp_path / "older.pt2"
    with zipfile.ZipFile(exported) as whole, zipfile.ZipFile(older, "w") as rest:
        for name in whole.namelist():
            if "/models/" not in name:
                rest.writestr(name, whole.read(name))

    with pytest.raises(UnsafeFileError, match=r"torch\.export\.load.*--unsafe"):
        read_checkpoint(older)
