"""One forward to look at changes nothing of the user's."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchglass as tg
from torchglass.capture.model_inputs import Seen, look_at
from torchglass.errors import CaptureError

Build = Callable[[], nn.Module]


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(), nn.Flatten()
    )


def shapes(seen: Seen) -> dict[str, tuple[int, ...] | None]:
    return {call.path: call.outputs[0].spec.shape for call in seen.calls}


@pytest.mark.parametrize("fake", [False, True])
def test_a_forward_gives_the_shapes_of_every_module(fake: bool) -> None:
    seen = look_at(convolutional(), input_size=(2, 3, 8, 8), fake=fake)

    assert shapes(seen) == {
        "": (2, 144),
        "0": (2, 4, 6, 6),
        "1": (2, 4, 6, 6),
        "2": (2, 4, 6, 6),
        "3": (2, 4, 6, 6),
        "4": (2, 144),
    }


@pytest.mark.parametrize("fake", [False, True])
def test_a_model_in_training_mode_keeps_buffers_versions_gradients_and_mode(fake: bool) -> None:
    model = convolutional().train()
    model(torch.ones(2, 3, 8, 8)).sum().backward()
    held = [*model.parameters(), *model.buffers()]
    before = copy.deepcopy(model.state_dict())
    versions = [tensor._version for tensor in held]
    gradients = [copy.deepcopy(parameter.grad) for parameter in model.parameters()]

    look_at(model, input_size=(2, 3, 8, 8), fake=fake)

    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [id(tensor) for tensor in held] == [
        id(tensor) for tensor in (*model.parameters(), *model.buffers())
    ]
    assert [tensor._version for tensor in held] == versions
    assert all(
        gradient is not None
        and parameter.grad is not None
        and torch.equal(parameter.grad, gradient)
        for parameter, gradient in zip(model.parameters(), gradients, strict=True)
    )
    assert all(module.training for module in model.modules())
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("fake", [False, True])
def test_every_random_generator_keeps_its_state(fake: bool) -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.rand_like(x) * random.random() * float(np.random.rand())

    torch.manual_seed(1)
    expected = torch.rand(3), random.random(), np.random.rand()
    torch.manual_seed(1)
    random_state, numpy_state = random.getstate(), np.random.get_state(legacy=False)

    look_at(Noisy(), input_size=(4,), fake=fake)

    assert torch.equal(torch.rand(3), expected[0])
    assert random.getstate() == random_state
    assert str(np.random.get_state(legacy=False)) == str(numpy_state)


def test_attributes_set_by_a_forward_are_removed() -> None:
    class Counting(nn.Module):
        total: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.steps = 0
            self.register_buffer("total", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            self.cache = x
            self.head = nn.Linear(2, 2)
            self.total = self.total + 1
            return x

    model = Counting()

    look_at(model, input_size=(2, 2))

    assert model.steps == 0
    assert not hasattr(model, "cache")
    assert list(model.children()) == []
    assert model.total.item() == 0


def test_user_inputs_are_not_modified() -> None:
    x = -torch.ones(2)

    look_at(nn.ReLU(inplace=True), (x,))

    assert torch.equal(x, -torch.ones(2))


def test_inputs_can_be_keywords_or_input_data() -> None:
    class Named(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a + b

    a, b = torch.ones(2, 1), torch.ones(1, 3)

    ways = [
        look_at(Named(), (a,), {"b": b}),
        look_at(Named(), input_data=[a, b]),
        look_at(Named(), input_data={"a": a, "b": b}),
        look_at(Named(), input_size=[(2, 1), (1, 3)]),
    ]

    assert [shapes(seen)[""] for seen in ways] == [(2, 3)] * 4


def test_input_size_creates_inputs_with_the_models_dtype_and_device() -> None:
    seen = look_at(nn.Linear(2, 2, dtype=torch.float64, device="meta"), input_size=(1, 2))

    spec = seen.calls[0].inputs[0].spec
    assert (spec.dtype, spec.device) == ("float64", "meta")


@pytest.mark.parametrize("dtypes", [torch.long, "int64", ["torch.long"]])
def test_a_generated_integer_input_is_valid_for_every_embedding(dtypes: Any) -> None:
    seen = look_at(nn.Embedding(1, 4), input_size=(2, 7), dtypes=dtypes)

    assert shapes(seen)[""] == (2, 7, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"args": (torch.ones(1),), "input_size": (1,)}, "only once"),
        ({"input_size": (1,), "dtypes": ["float31"]}, "no dtype 'float31'"),
        ({"input_size": [(1,), (2,)], "dtypes": ["float32"]}, "one dtype per input"),
        ({"input_size": ["x"]}, "input_size must be a size such as"),
    ],
)
def test_inputs_that_cannot_be_created_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        look_at(nn.ReLU(), **arguments)


def test_a_user_exception_is_raised_unchanged_with_a_note() -> None:
    error = KeyError("mine")

    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise error

    with pytest.raises(KeyError) as caught:
        look_at(nn.Sequential(nn.ReLU(), Failing()), input_size=(1,))

    assert caught.value is error
    if sys.version_info >= (3, 11):
        assert error.__notes__ == ["while running 1"]


def test_a_lazy_model_gets_shapes_and_stays_lazy() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())

    seen = look_at(model, input_size=(2, 5))

    assert [slot.spec.shape for slot in seen.model.modules[1].slots] == [(3, 5), (3,)]
    assert isinstance(model[0], nn.LazyLinear)
    assert isinstance(model[0].weight, nn.UninitializedParameter)


def test_a_compiled_model_shows_its_original_modules() -> None:
    model = torch.compile(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), backend="eager")

    assert shapes(look_at(model, input_size=(1, 2)))["_orig_mod.0"] == (1, 3)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_a_scripted_model_keeps_its_buffers() -> None:
    model = torch.jit.script(nn.Sequential(nn.BatchNorm1d(3)))

    look_at(model, input_size=(4, 3))

    assert model.state_dict()["0.num_batches_tracked"].item() == 0
    assert torch.equal(model.state_dict()["0.running_mean"], torch.zeros(3))


def test_an_object_that_contains_models_can_be_run() -> None:
    class Pipeline:
        def __init__(self) -> None:
            self.parts = {"net": nn.Linear(2, 3)}

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.parts["net"](x)
            return result

    assert shapes(look_at(Pipeline(), input_size=(1, 2))) == {"parts.net": (1, 3)}


def test_a_target_that_is_not_callable_is_refused() -> None:
    with pytest.raises(CaptureError, match="dict cannot be run"):
        look_at({"net": nn.Linear(2, 3)}, input_size=(1, 2))


def test_the_weights_of_a_meta_model_are_still_readable() -> None:
    with torch.device("meta"):
        model = nn.Linear(3, 2)

    look_at(model, input_size=(1, 3))

    assert model.weight.data_ptr() == 0


def test_a_meta_model_runs_with_fake_tensors_if_meta_would_fail() -> None:
    class Peeking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.device.type == "meta":
                raise NotImplementedError
            return x * self.weight

    with torch.device("meta"):
        model = Peeking()

    assert shapes(look_at(model, input_size=(2, 3), fake=True))[""] == (2, 3)
    assert model.weight.is_meta


def test_a_fake_forward_takes_no_memory() -> None:
    terabytes = (1 << 20, 1 << 20)

    seen = look_at(nn.Sequential(nn.ReLU(), nn.Sigmoid()), input_size=terabytes, fake=True)

    assert shapes(seen)["1"] == terabytes


def test_tied_weights_stay_tied_as_fake_tensors() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
            self.b.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert self.a.weight is self.b.weight
            return x

    look_at(Tied(), input_size=(1, 2), fake=True)


def if_positive(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


def in_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy())


def positive_ones(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


@pytest.mark.parametrize(
    ("choose", "reason"),
    [
        (if_positive, "its control flow depends on tensor values, which fake tensors lack"),
        (in_numpy, "it reads tensor values, which fake tensors lack"),
        (positive_ones, "a shape depends on tensor values, which fake tensors lack"),
    ],
)
@pytest.mark.parametrize("verb", [tg.summary, tg.flops, tg.memory])
def test_a_fake_forward_that_needs_values_names_the_module_the_line_and_the_reason(
    verb: Callable[..., object],
    choose: Callable[[torch.Tensor], torch.Tensor],
    reason: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Choosing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return choose(x)

    model = nn.Sequential(nn.Linear(2, 2), Choosing())
    line = choose.__code__.co_firstlineno + 1

    with pytest.raises(CaptureError) as raised:
        verb(model, torch.randn(2, 2), fake=True)

    assert str(raised.value) == (
        f"1 ({__file__}:{line}) does not run with fake=True: {reason}. Use fake=False."
    )
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("verb", [tg.summary, tg.flops, tg.memory])
def test_an_error_in_a_fake_forward_is_raised_once_without_torch_logs(
    verb: Callable[..., object], capfd: pytest.CaptureFixture[str]
) -> None:
    model = nn.Sequential(nn.Linear(4, 4))

    with pytest.raises(RuntimeError, match=r"must have same reduction dim|cannot be multiplied"):
        verb(model, torch.randn(2, 5), fake=True)

    assert capfd.readouterr().err == ""


def test_a_fake_tensor_model_runs_unchanged() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model = nn.Linear(2, 3)

    assert shapes(look_at(model, input_size=(1, 2)))[""] == (1, 3)
