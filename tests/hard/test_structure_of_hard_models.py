"""Models that are compiled, scripted, traced, exported, quantized, sharded or not made yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests import models
from torchglass.analyse.model.parameters import Counts, count
from torchglass.capture.model.structure import read_model
from torchglass.capture.tensor.describing import measure
from torchglass.records.model import Model

# Functions of torch that have no annotations.
trace: Callable[..., nn.Module] = torch.jit.trace
quantize_dynamic: Callable[..., nn.Module] = torch.ao.quantization.quantize_dynamic
quantized_layers: Any = torch.ao.nn.quantized

# torch announces that these will go, while the models that were made with them stay.
scripted = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
quantized = [
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*quantized.*:UserWarning"),
]


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.BatchNorm1d(4))


def _total(model: Model) -> Counts:
    return count(model)[0].total


def _kinds(model: Model) -> list[tuple[str, str]]:
    return [(module.path, module.kind) for module in model.modules]


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_compiled_model_shows_the_module_inside() -> None:
    model = read_model(torch.compile(_net(), backend="eager"))

    assert _kinds(model)[:3] == [
        ("", "OptimizedModule"),
        ("_orig_mod", "Sequential"),
        ("_orig_mod.0", "Linear"),
    ]
    assert _total(model).parameters == 24


@scripted
@pytest.mark.parametrize("make", [torch.jit.script, lambda net: trace(net, torch.zeros(2, 3))])
def test_a_scripted_model_has_the_classes_it_was_made_of(make: Callable[..., Any]) -> None:
    model = read_model(make(_net().eval()))

    assert _kinds(model) == [
        ("", "Sequential"),
        ("0", "Linear"),
        ("1", "ReLU"),
        ("2", "BatchNorm1d"),
    ]
    assert not model.root.training
    assert (_total(model).parameters, _total(model).buffers) == (24, 9)


@scripted
def test_a_scripted_model_with_a_shared_module_counts_it_once() -> None:
    model = read_model(torch.jit.script(models.SharedBlock()))

    assert _total(model).parameters == 20


def test_a_graph_module_is_named_after_what_was_traced() -> None:
    model = read_model(fx.symbolic_trace(models.TiedLanguageModel()))

    assert model.root.class_name == "torch.fx.graph_module.TiedLanguageModel"
    assert _total(model).parameters == 1600 + 272


def test_an_exported_program_and_its_module_hold_the_same() -> None:
    program = torch.export.export(_net().eval(), (torch.zeros(2, 3),))

    whole, module = read_model(program), read_model(program.module())

    assert _kinds(whole) == [
        ("", "Sequential"),
        ("0", "Linear"),
        ("1", "ReLU"),
        ("2", "BatchNorm1d"),
    ]
    assert _total(whole).parameters == _total(module).parameters == 24


def test_a_parametrized_weight_is_counted_where_it_is_kept() -> None:
    model = read_model(models.weight_norm())

    assert model.root.class_name.endswith("ParametrizedLinear")
    assert _total(model).parameters == 3 + (3 + 12)
    assert model.find("parametrizations.weight.0") is not None


def test_a_lazy_layer_is_shown_before_its_shape_is_known() -> None:
    net = nn.LazyLinear(4)

    before = read_model(net)
    net(torch.zeros(2, 3))
    after = read_model(net)

    assert [slot.spec.shape for slot in before.root.slots] == [None, None]
    assert before.root.kind == "LazyLinear"
    assert (_total(before).parameters, _total(after).parameters) == (0, 16)


def test_a_model_on_meta_shows_what_it_would_take() -> None:
    with torch.device("meta"):
        net = models.TiedLanguageModel()

    model = read_model(net)

    assert _total(model).parameters == 1600 + 272
    assert {slot.spec.device for module in model.modules for slot in module.slots} == {"meta"}
    assert len(model.tied) == 1


def test_a_fake_model_shows_what_it_would_take() -> None:
    with FakeTensorMode():
        net = nn.Sequential(nn.Linear(1_000_000, 1_000_000), nn.Linear(10, 10))
        model = read_model(net)

    assert _total(model).parameters == 10**12 + 10**6 + 110
    assert not model.tied


class TestQuantized:
    pytestmark = quantized

    def test_a_dynamic_linear_shows_its_packed_weight_and_bias(self) -> None:
        net = quantize_dynamic(nn.Sequential(nn.Linear(4, 3)), {nn.Linear})

        model = read_model(net)

        packed = model.find("0._packed_params")
        assert packed is not None
        assert [(slot.name, slot.role, slot.spec.bytes) for slot in packed.slots] == [
            ("weight", "packed", 12),
            ("bias", "packed", 12),
        ]
        assert (_total(model).parameters, _total(model).trainable) == (15, 0)

    def test_half_precision_packs_two_bytes_an_element(self) -> None:
        net = quantize_dynamic(nn.Sequential(nn.Linear(4, 3)), {nn.Linear}, dtype=torch.float16)

        total = _total(read_model(net))

        assert (total.parameters, total.bytes) == (15, 12 * 2 + 3 * 4)

    def test_a_dynamic_lstm_shows_the_weights_of_its_cells(self) -> None:
        net = nn.Sequential(nn.LSTM(4, 5, num_layers=2))
        expected = sum(parameter.numel() for parameter in net.parameters())

        model = read_model(quantize_dynamic(net, {nn.LSTM}))

        assert _total(model).parameters == expected

    def test_a_static_convolution_and_an_embedding_show_their_weights(self) -> None:
        conv, embed = quantized_layers.Conv2d(3, 4, 3), quantized_layers.Embedding(10, 8)

        model = read_model(nn.ModuleList([conv, embed]))

        assert _total(model).parameters == 4 * 27 + 4 + 80

    @scripted
    def test_a_scripted_one_shows_them_too(self) -> None:
        net = quantize_dynamic(nn.Sequential(*[nn.Linear(3, 3) for _ in range(20)]), {nn.Linear})

        model = read_model(torch.jit.script(net))

        assert _total(model).parameters == 20 * 12
        assert not model.tied


@pytest.mark.usefixtures("process_group")
def test_a_distributed_model_shows_the_module_it_wraps() -> None:
    model = read_model(DistributedDataParallel(_net()))

    assert _kinds(model)[:2] == [("", "DistributedDataParallel"), ("module", "Sequential")]
    assert _total(model).parameters == 24


@pytest.mark.usefixtures("process_group")
def test_a_sharded_model_shows_the_shapes_of_the_whole() -> None:
    net = models.TiedLanguageModel()
    fully_shard(net)

    model = read_model(net)

    assert model.root.kind == "FSDPTiedLanguageModel"
    assert {s.spec.layout for m in model.modules for s in m.slots} == {"DTensor"}
    assert (_total(model).parameters, _total(model).bytes) == (1872, 1872 * 4)
    weight: Any = net.body.weight
    assert measure(weight) == measure(weight.to_local())
    assert len(model.tied) == 1


@pytest.mark.parametrize(
    "make",
    [
        _net,
        models.weight_norm,
        models.TiedLanguageModel,
        lambda: torch.compile(_net(), backend="eager"),
    ],
)
def test_looking_at_a_hard_model_leaves_it_as_it_was(make: Callable[[], nn.Module]) -> None:
    net = make()
    before, random_state = models.state_of(net), torch.get_rng_state()

    read_model(net)

    assert models.state_of(net) == before
    assert torch.equal(torch.get_rng_state(), random_state)


def test_twenty_thousand_modules_are_read_and_counted() -> None:
    model = read_model(models.wide(20_000))

    assert len(model.modules) == 20_001
    assert _total(model).parameters == 18_000 * 6
    assert len({id(slot.spec) for module in model.modules for slot in module.slots}) == 2


def test_a_transformer_from_the_hub_is_counted_as_it_counts_itself() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=100)
    net = transformers.GPT2LMHeadModel(config)

    model = read_model(net)

    assert _total(model).parameters == net.num_parameters()
    assert [*model.tied.values()] == [("transformer.wte.weight", "lm_head.weight")]
