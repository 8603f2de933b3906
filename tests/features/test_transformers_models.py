"""Models from another library, as their users have them: keywords, outputs that are objects."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

import torchglass as tg


def gpt2() -> nn.Module:
    config = GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=100, bos_token_id=1, eos_token_id=2
    )
    model: nn.Module = GPT2LMHeadModel(config).eval()
    return model


def llama() -> nn.Module:
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=100,
    )
    model: nn.Module = LlamaForCausalLM(config).eval()
    return model


def mixtral() -> nn.Module:
    config = MixtralConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        vocab_size=100,
    )
    model: nn.Module = MixtralForCausalLM(config).eval()
    return model


TOKENS = torch.arange(7)[None]


@pytest.mark.parametrize("make", [gpt2, llama])
def test_every_op_is_traced_and_replays(make: Callable[[], nn.Module]) -> None:
    trace = tg.trace(make(), input_ids=TOKENS)

    assert trace.validate()
    assert "purely feedforward" in str(trace)
    assert trace["input.input_ids"].shape == (1, 7)
    assert trace["output.logits"].shape == (1, 7, 100)
    assert trace.output.logits.shape == (1, 7, 100)


def test_a_tied_head_is_counted_once() -> None:
    model = gpt2()

    total = tg.get_parameter_statistics(model)["total_params"]

    assert total == sum(parameter.numel() for parameter in model.parameters())


def test_generation_shows_one_pass_per_token() -> None:
    model = gpt2()

    with tg.tracing(model, save=None) as trace:
        model.generate(TOKENS, max_new_tokens=3, do_sample=False, pad_token_id=0)  # type: ignore[operator]

    assert trace.anatomy.loops == 3
    assert [call.number for call in trace.calls if call.path == "transformer"] == [1, 2, 3]


@pytest.mark.parametrize("make", [gpt2, llama, mixtral])
# torch 2.6 warns where a model asks a fake tensor for its address; later ones do not.
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_fake_forward_has_the_shapes_and_flops_of_a_real_one(
    make: Callable[[], nn.Module], capfd: pytest.CaptureFixture[str]
) -> None:
    model = make()

    real, fake = (tg.summary(model, input_ids=TOKENS, fake=fake) for fake in (False, True))
    counted, predicted = (tg.flops(model, input_ids=TOKENS, fake=fake) for fake in (False, True))

    assert str(fake) == str(real)
    assert predicted.total_flops == counted.total_flops > 0
    assert tg.memory(model, input_ids=TOKENS, fake=True).peak_bytes > 0
    assert "fake_tensor" not in capfd.readouterr().err
