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

import torchglass as tg
from tests import models

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


def _kinds(summary: Any) -> list[tuple[str, str]]:
    return [(module.path, module.kind) for module in summary.model.modules]


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_compiled_model_shows_the_module_inside() -> None:
    found = tg.summary(torch.compile(_net(), backend="eager"))

    assert _kinds(found)[:3] == [
        ("", "OptimizedModule"),
        ("_orig_mod", "Sequential"),
        ("_orig_mod.0", "Linear"),
    ]
    assert found.total_params == 24


@scripted
@pytest.mark.parametrize("make", [torch.jit.script, lambda net: trace(net, torch.zeros(2, 3))])
def test_a_scripted_model_has_its_original_classes(make: Callable[..., Any]) -> None:
    found = tg.summary(make(_net().eval()))

    assert _kinds(found) == [
        ("", "Sequential"),
        ("0", "Linear"),
        ("1", "ReLU"),
        ("2", "BatchNorm1d"),
    ]
    assert not found.model.root.training
    assert (found.total_params, found.total_buffers) == (24, 9)


@scripted
def test_a_scripted_model_with_a_shared_module_counts_it_once() -> None:
    found = tg.summary(torch.jit.script(models.SharedBlock()))

    assert found.total_params == 20


def test_a_graph_module_is_named_after_the_traced_class() -> None:
    found = tg.summary(fx.symbolic_trace(models.TiedLanguageModel()))

    assert found.model.root.class_name == "torch.fx.graph_module.TiedLanguageModel"
    assert found.total_params == 1600 + 272


def test_an_exported_program_and_its_module_have_the_same_tensors() -> None:
    program = torch.export.export(_net().eval(), (torch.zeros(2, 3),))

    whole, module = tg.summary(program), tg.summary(program.module())

    assert _kinds(whole) == [
        ("", "Sequential"),
        ("0", "Linear"),
        ("1", "ReLU"),
        ("2", "BatchNorm1d"),
    ]
    assert whole.total_params == module.total_params == 24


def test_a_parametrized_weight_is_counted_at_its_parametrization() -> None:
    found = tg.summary(models.weight_norm())

    assert found.model.root.class_name.endswith("ParametrizedLinear")
    assert found.total_params == 3 + (3 + 12)
    assert found.model.find("parametrizations.weight.0") is not None


def test_a_lazy_layer_is_shown_before_its_shape_is_known() -> None:
    net = nn.LazyLinear(4)

    before = tg.summary(net)
    net(torch.zeros(2, 3))
    after = tg.summary(net)

    assert [slot.spec.shape for slot in before.model.root.slots] == [None, None]
    assert before.model.root.kind == "LazyLinear"
    assert (before.total_params, after.total_params) == (0, 16)


def test_a_meta_model_shows_the_size_it_would_have() -> None:
    with torch.device("meta"):
        net = models.TiedLanguageModel()

    found = tg.summary(net)

    assert found.total_params == 1600 + 272
    assert {slot.spec.device for module in found.model.modules for slot in module.slots} == {"meta"}
    assert len(found.model.tied) == 1


def test_a_fake_model_shows_the_size_it_would_have() -> None:
    with FakeTensorMode():
        net = nn.Sequential(nn.Linear(1_000_000, 1_000_000), nn.Linear(10, 10))
        found = tg.summary(net)

    assert found.total_params == 10**12 + 10**6 + 110
    assert not found.model.tied


class TestQuantized:
    pytestmark = quantized

    def test_a_dynamic_linear_shows_its_packed_weight_and_bias(self) -> None:
        net = quantize_dynamic(nn.Sequential(nn.Linear(4, 3)), {nn.Linear})

        found = tg.summary(net)

        packed = found.model.find("0._packed_params")
        assert packed is not None
        assert [(slot.name, slot.role, slot.spec.bytes) for slot in packed.slots] == [
            ("weight", "packed", 12),
            ("bias", "packed", 12),
        ]
        assert (found.total_params, found.trainable_params) == (15, 0)

    def test_half_precision_packed_weights_take_two_bytes_per_element(self) -> None:
        net = quantize_dynamic(nn.Sequential(nn.Linear(4, 3)), {nn.Linear}, dtype=torch.float16)

        found = tg.summary(net)

        assert (found.total_params, found.total_bytes) == (15, 12 * 2 + 3 * 4)

    def test_a_dynamic_lstm_shows_the_weights_of_its_cells(self) -> None:
        net = nn.Sequential(nn.LSTM(4, 5, num_layers=2))
        expected = sum(parameter.numel() for parameter in net.parameters())

        found = tg.summary(quantize_dynamic(net, {nn.LSTM}))

        assert found.total_params == expected

    def test_a_static_convolution_and_an_embedding_show_their_weights(self) -> None:
        conv, embed = quantized_layers.Conv2d(3, 4, 3), quantized_layers.Embedding(10, 8)

        found = tg.summary(nn.ModuleList([conv, embed]))

        assert found.total_params == 4 * 27 + 4 + 80

    @scripted
    def test_a_scripted_quantized_model_shows_its_packed_weights(self) -> None:
        net = quantize_dynamic(nn.Sequential(*[nn.Linear(3, 3) for _ in range(20)]), {nn.Linear})

        found = tg.summary(torch.jit.script(net))

        assert found.total_params == 20 * 12
        assert not found.model.tied


@pytest.mark.usefixtures("process_group")
def test_a_distributed_model_shows_the_module_it_wraps() -> None:
    found = tg.summary(DistributedDataParallel(_net()))

    assert _kinds(found)[:2] == [("", "DistributedDataParallel"), ("module", "Sequential")]
    assert found.total_params == 24


@pytest.mark.usefixtures("process_group")
def test_a_sharded_model_shows_the_shapes_of_the_whole() -> None:
    net = models.TiedLanguageModel()
    fully_shard(net)

    found = tg.summary(net)

    assert found.model.root.kind == "FSDPTiedLanguageModel"
    assert {s.spec.layout for m in found.model.modules for s in m.slots} == {"DTensor"}
    assert (found.total_params, found.total_bytes) == (1872, 1872 * 4)
    assert len(found.model.tied) == 1


@pytest.mark.parametrize(
    "make",
    [
        _net,
        models.weight_norm,
        models.TiedLanguageModel,
        lambda: torch.compile(_net(), backend="eager"),
    ],
)
def test_summarizing_a_hard_model_does_not_change_it(make: Callable[[], nn.Module]) -> None:
    net = make()
    before, random_state = models.state_of(net), torch.get_rng_state()

    tg.summary(net)

    assert models.state_of(net) == before
    assert torch.equal(torch.get_rng_state(), random_state)


def test_twenty_thousand_modules_are_read_and_counted() -> None:
    found = tg.summary(models.wide(20_000))

    assert len(found.model.modules) == 20_001
    assert found.total_params == 18_000 * 6
    assert len({id(slot.spec) for module in found.model.modules for slot in module.slots}) == 2


def test_the_parameter_count_of_a_hub_transformer_matches_num_parameters() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=100)
    net = transformers.GPT2LMHeadModel(config)

    found = tg.summary(net)

    assert found.total_params == net.num_parameters()
    assert [*found.model.tied.values()] == [("transformer.wte.weight", "lm_head.weight")]
