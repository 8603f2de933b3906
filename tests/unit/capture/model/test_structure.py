"""Models read into records: every module, every tensor, and nothing touched."""

from __future__ import annotations

import doctest
import functools
from collections import OrderedDict
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests import models
from torchglass.analyse.parameters import Counts, count
from torchglass.capture.model import structure
from torchglass.capture.model.structure import read_model
from torchglass.capture.tensor import moments
from torchglass.errors import TargetError
from torchglass.records.model import Model, Module


def _total(model: Model) -> Counts:
    return count(model)[0].total


def _at(model: Model, path: str) -> Module:
    module = model.find(path)
    assert module is not None
    return module


def test_modules_are_in_tree_order() -> None:
    model = read_model(nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), nn.Linear(3, 1)))

    assert [module.path for module in model.modules] == ["", "0", "0.0", "0.1", "1"]
    assert [module.id for module in model.modules] == [0, 1, 2, 3, 4]
    assert model.root.children == (1, 4)
    assert model.modules[3].parent == 1
    assert model.name == "Sequential"


def test_a_module_has_its_class_and_extra_repr() -> None:
    conv = read_model(nn.Conv2d(3, 64, 7)).root

    assert conv.class_name == "torch.nn.modules.conv.Conv2d"
    assert conv.extra == "3, 64, kernel_size=(7, 7), stride=(1, 1)"


def test_batch_norm_has_its_parameters_and_its_statistics() -> None:
    total = _total(read_model(nn.BatchNorm2d(64)))

    assert (total.parameters, total.buffers) == (128, 129)
    assert total.bytes == 128 * 4 + 128 * 4 + 8


def test_a_tied_embedding_is_counted_once() -> None:
    model = read_model(models.TiedLanguageModel())

    assert _total(model).parameters == 100 * 16 + 16 * 16 + 16
    assert [*model.tied.values()] == [("embed.weight", "head.weight")]


def test_two_parameters_sharing_memory_are_one_tensor() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = nn.Parameter(first.weight.detach().t())

    model = read_model(nn.Sequential(first, second))

    assert [*model.tied.values()] == [("0.weight", "1.weight")]


def test_different_slices_of_one_storage_are_different_tensors() -> None:
    flat = torch.zeros(8)
    net = nn.Module()
    net.a, net.b, net.head = nn.Parameter(flat[:4]), nn.Parameter(flat[4:]), nn.Parameter(flat)

    model = read_model(net)

    assert not model.tied


def test_empty_tensors_are_not_tied() -> None:
    net = nn.Module()
    net.a, net.b = nn.Parameter(torch.empty(0)), nn.Parameter(torch.empty(0))

    assert not read_model(net).tied


def test_a_module_under_two_names_is_read_once() -> None:
    model = read_model(models.SharedBlock())

    first, second = _at(model, "first"), _at(model, "second")
    assert second.alias_of == first.id
    assert (second.children, second.slots) == ((), ())
    assert second.class_name == first.class_name
    assert _total(model).parameters == 20


def test_a_module_that_contains_itself_is_read_once() -> None:
    model = read_model(models.ContainsItself())

    assert _at(model, "child.parent").alias_of == 0
    assert _total(model).parameters == 6 + 12


def test_slots_have_requires_grad_and_persistence() -> None:
    slots = {slot.name: slot for slot in read_model(models.Counter()).root.slots}

    assert [*slots] == ["trained", "frozen", "steps", "cache"]
    assert (slots["trained"].trainable, slots["frozen"].trainable) == (True, False)
    assert (slots["steps"].persistent, slots["cache"].persistent) == (True, False)
    assert slots["steps"].role == "buffer"


def test_train_and_eval_mode_are_recorded_per_module() -> None:
    net = nn.Sequential(nn.Dropout(), nn.Dropout())
    net[1].eval()

    assert [module.training for module in read_model(net).modules] == [True, True, False]


def test_existing_hooks_are_recorded() -> None:
    def spy(*_: Any) -> None: ...

    net = models.all_hooks(spy)
    net.register_forward_hook(functools.partial(spy, 1))

    hooks = read_model(net).root.hooks

    name = f"{spy.__qualname__}"
    assert hooks == (
        f"forward_pre: {name}",
        f"forward: {name}",
        f"forward: {name}",
        f"backward_pre: {name}",
        f"backward: {name}",
    )


def test_a_module_pickled_by_an_older_torch_without_hook_tables_is_read() -> None:
    def spy(*_: Any) -> None: ...

    net = nn.Linear(1, 1)
    net.register_forward_hook(spy)
    del net.__dict__["_load_state_dict_post_hooks"]

    root = read_model(net).root

    assert root.hooks == (f"forward: {spy.__qualname__}",)
    assert root.problem == ""


def test_classes_have_their_source_location() -> None:
    source = read_model(models.TiedLanguageModel()).classes["tests.models.TiedLanguageModel"]

    assert source.file == models.__file__
    assert source.forward_line == models.TiedLanguageModel.forward.__code__.co_firstlineno
    assert source.forward_file == ""


def test_an_inherited_forward_is_located_in_the_base_class() -> None:
    class Mine(nn.Linear): ...

    (source,) = read_model(Mine(1, 1)).classes.values()

    assert source.file == __file__
    assert source.forward_file.endswith("linear.py")


def test_a_class_without_a_forward_has_no_forward_line() -> None:
    (source,) = read_model(nn.ModuleList()).classes.values()

    assert source.forward_line is None


def test_a_module_whose_extra_repr_raises_is_a_row_with_the_error() -> None:
    model = read_model(nn.Sequential(models.BrokenExtra(), nn.Linear(2, 2)))

    broken = _at(model, "0")
    assert broken.problem == "extra_repr: ValueError: no config has been set"
    assert [slot.name for slot in broken.slots] == ["weight"]
    assert _total(model).parameters == 7 + 6 + 6


def test_an_extra_repr_that_is_not_a_string_is_a_problem() -> None:
    class Numbered(nn.Module):
        def extra_repr(self) -> str:
            return 3  # type: ignore[return-value]

    assert "returned int, not str" in read_model(Numbered()).root.problem


def test_overridden_methods_and_properties_are_not_called() -> None:
    model = read_model(nn.Sequential(models.Hostile()))

    assert [module.path for module in model.modules] == ["", "0", "0.inner"]
    assert _at(model, "0").problem == ""
    assert _total(model).parameters == 7 + 6


def test_an_uninitialized_module_is_a_row_with_the_error() -> None:
    net = nn.Sequential(nn.Linear(1, 1))
    net._modules["bad"] = models.Uninitialized()

    model = read_model(net)

    assert "KeyError" in _at(model, "bad").problem
    assert _at(model, "0").problem == ""


def test_unusual_module_names_are_kept() -> None:
    model = read_model(models.hostile_names())

    names = [module.name for module in model.children(model.root)]
    assert names == ["[bold]", "<b>", "a\nb", "", "ü", "__class__x", "with.dots"]


def test_containers_of_modules_and_parameters_are_read() -> None:
    net = nn.Module()
    net.layers = nn.ModuleDict({"in": nn.Linear(1, 2), "out": nn.Linear(2, 1)})
    net.scales = nn.ParameterList([torch.zeros(3), torch.zeros(4)])
    net.named = nn.ParameterDict({"a": torch.zeros(5)})

    model = read_model(net)

    assert [module.path for module in model.modules] == [
        "",
        "layers",
        "layers.in",
        "layers.out",
        "scales",
        "named",
    ]
    assert [slot.name for slot in _at(model, "scales").slots] == ["0", "1"]
    assert _total(model).parameters == 4 + 3 + 7 + 5


def test_unusual_attributes_are_not_touched() -> None:
    class Grumpy:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    class Net(nn.Module):
        config = Grumpy()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    net = Net()
    for name in ("_c", "param", "_packed_params", "dtype"):
        setattr(net, name, Grumpy())

    model = read_model(net)

    assert model.root.problem == ""
    assert model.classes[model.root.class_name].file == __file__


def test_a_decorated_forward_is_located_at_its_own_code() -> None:
    class Net(nn.Module):
        @torch.no_grad()
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    (source,) = read_model(Net()).classes.values()

    assert (source.file, source.forward_file) == (__file__, "")


@pytest.mark.parametrize("module", [structure, moments])
def test_a_docstring_example_prints_its_output(module: ModuleType) -> None:
    assert doctest.testmod(module) == (0, len(doctest.DocTestFinder().find(module)[0].examples))


def test_an_empty_model_is_one_row() -> None:
    model = read_model(nn.Module())

    assert len(model.modules) == 1
    assert _total(model) == Counts()


def test_a_thousand_levels_are_read() -> None:
    model = read_model(models.deep(1500))

    assert len(model.modules) == 1501
    assert _total(model).parameters == 6


def test_reading_does_not_change_the_model() -> None:
    net = nn.Sequential(models.TiedLanguageModel(), models.weight_norm(), nn.BatchNorm1d(3))
    before, random_state = models.state_of(net), torch.get_rng_state()

    read_model(net)

    assert models.state_of(net) == before
    assert torch.equal(torch.get_rng_state(), random_state)


def test_a_pipeline_is_the_root_of_its_modules() -> None:
    model = read_model(models.Pipeline())

    assert model.root.class_name == "tests.models.Pipeline"
    assert [module.path for module in model.modules] == [
        "",
        "unet",
        "unet.0",
        "components",
        "components.vae",
        "components.unet",
        "stages",
        "stages.0",
        "stages.1",
    ]
    assert _at(model, "components.unet").alias_of == _at(model, "unet").id
    assert _total(model).parameters == 112 + 9 + 2 + 4


@pytest.mark.parametrize(
    "target",
    [
        {"generator": nn.Linear(1, 1), "epoch": 3},
        OrderedDict(generator=nn.Linear(1, 1)),
        SimpleNamespace(generator=nn.Linear(1, 1)),
    ],
)
def test_a_dict_or_a_namespace_of_networks_is_a_model(target: object) -> None:
    assert [module.path for module in read_model(target).modules] == ["", "generator"]


def test_an_object_with_slots_is_a_model() -> None:
    class Slotted:
        __slots__ = ("net", "unset")

        def __init__(self) -> None:
            self.net = nn.Linear(1, 1)

    assert [module.path for module in read_model(Slotted()).modules] == ["", "net"]


def test_a_list_that_contains_itself_is_read_once() -> None:
    stages: list[object] = [nn.Linear(1, 1)]
    stages.append(stages)

    assert [module.alias_of for module in read_model(stages).modules] == [None, None, 0]


@pytest.mark.parametrize("target", [3, "resnet18", {}, [1, 2], object(), {"a": {"b": 1}}])
def test_an_object_without_a_module_is_refused(target: object) -> None:
    with pytest.raises(TargetError, match=r"not a model; pass an nn\.Module"):
        read_model(target)


def test_a_class_is_refused_with_a_hint() -> None:
    with pytest.raises(TargetError, match="Linear is a class, not a model; pass an instance"):
        read_model(nn.Linear)
