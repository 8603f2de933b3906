"""Something turns NaN, and its user is told which op did it, where, and on what."""

from __future__ import annotations

import traceback
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from torchglass import NonFiniteError, TorchglassWarning, errors, guard, record, replay

INF = float("inf")
HERE = Path(__file__).name


class Does(nn.Module):
    """A model whose forward is a function of itself and its inputs."""

    def __init__(self, forward: Callable[..., Any], **members: Any) -> None:
        super().__init__()
        self.does = forward
        for name, member in members.items():
            setattr(self, name, member)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.does(self, *args, **kwargs)


class Attention(nn.Module):
    """Causal attention that takes a square root of what may be negative, if it is told to."""

    def __init__(self, *, broken: bool) -> None:
        super().__init__()
        self.query = nn.Linear(16, 16)
        self.broken = broken

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        scores = self.query(x) @ x.transpose(1, 2)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(future, -INF).softmax(-1) @ x
        if self.broken:
            mixed = torch.sqrt(mixed - 0.5)
        result: torch.Tensor = mixed + x
        return result


def found(model: nn.Module, *args: Any, train: bool = False, **options: Any) -> tuple[Any, ...]:
    """What a guard finds in one forward, or in one training step."""
    with guard(model, on="record", **options) as guarded:
        output = model(*args)
        if train:
            output.sum().backward()
    return guarded.findings


def only(findings: tuple[Any, ...]) -> Any:
    """The one finding that there is."""
    assert len(findings) == 1, [finding.message for finding in findings]
    return findings[0]


def line_of(text: str) -> int:
    """The first line of this file that has a text."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_the_op_of_the_first_nan_is_named_with_module_line_and_values() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Attention(broken=False), Attention(broken=True), Attention(broken=False))
    x = torch.randn(2, 5, 16)
    inside: list[torch.Tensor] = []
    model[1].register_forward_hook(lambda module, args, output: inside.append(output - args[0]))
    model(x)
    truth = torch.isnan(inside[0])

    finding = only(found(model, x))

    assert (finding.op, finding.path, finding.call) == ("sqrt", "1", 1)
    assert finding.source is not None
    assert Path(finding.source.file).name == HERE
    assert finding.source.line == line_of("mixed = torch.sqrt(mixed - 0.5)")
    assert finding.facts["nan"] == int(truth.sum()) > 0
    assert finding.facts["values"] == 160
    assert finding.facts["first_index"] == truth.nonzero()[0].tolist()
    given, made = finding.tensors
    assert given.stats is not None
    assert given.stats.min < 0 < given.stats.max
    assert made.stats is not None
    assert made.stats.max == pytest.approx(given.stats.max**0.5)


def test_an_error_is_raised_at_the_users_line_with_the_explanation() -> None:
    model = nn.Sequential(Attention(broken=True))

    with pytest.raises(NonFiniteError) as raised, guard(model):
        model(torch.zeros(1, 3, 16))

    assert isinstance(raised.value, ArithmeticError)
    lines = [frame.line for frame in traceback.extract_tb(raised.tb) if HERE in frame.filename]
    assert lines[-1] == "mixed = torch.sqrt(mixed - 0.5)"
    story = str(raised.value)
    assert "sqrt produced 48 NaN among 48 values in module 0" in story
    assert "mixed = torch.sqrt(mixed - 0.5)" in story
    assert "input   1×3×16 float32  -0.5 … -0.5" in story
    assert "48 NaN, the first at [0, 0, 0]" in story
    assert "why: input goes down to -0.5: the square root of a negative number is NaN" in story


MASKS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "masked_fill": lambda scores, hidden: scores.masked_fill(hidden, -INF),
    "where": lambda scores, hidden: torch.where(hidden, -INF, scores),
    "full and triu": lambda scores, hidden: scores + torch.full((4, 4), -INF).triu(1),
    "written in place": lambda scores, hidden: scores.clone().masked_fill_(hidden, -INF),
    "assigned": lambda scores, hidden: _assigned(scores, hidden),
    "written down": lambda scores, hidden: scores + torch.tensor([0.0, 0.0, -INF, -INF]),
    "filled": lambda scores, hidden: scores + torch.zeros(4, 4).masked_fill_(hidden, -INF).mT.mT,
}


def _assigned(scores: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    scores = scores * 1
    scores[hidden] = -INF
    return scores


@pytest.mark.parametrize("way", MASKS)
def test_a_mask_of_minus_inf_is_not_blamed(way: str) -> None:
    hidden = torch.ones(4, 4, dtype=torch.bool).triu(1)
    model = Does(lambda self, x: MASKS[way](self.fc(x), hidden).softmax(-1), fc=nn.Linear(4, 4))

    assert found(model, torch.randn(4, 4), train=True) == ()


def test_a_mask_that_is_a_buffer_or_an_input_is_not_blamed() -> None:
    mask = torch.full((4, 4), -INF).triu(1)
    model = Does(lambda self, x, given: (self.fc(x) + self.mask + given).softmax(-1))
    model.fc = nn.Linear(4, 4)
    model.register_buffer("mask", mask)

    assert found(model, torch.randn(4, 4), mask) == ()


def test_a_softmax_over_a_fully_masked_row_is_blamed_and_the_mask_is_named() -> None:
    hidden = torch.zeros(4, 4, dtype=torch.bool)
    hidden[2] = True
    model = Does(lambda self, x: x.masked_fill(hidden, -INF).view(1, 4, 4).softmax(-1))

    finding = only(found(model, torch.randn(4, 4)))

    assert (finding.op, finding.facts["nan"]) == ("softmax", 4)
    assert finding.facts["first_index"] == [0, 2, 0]
    assert finding.tensors[0].maker.startswith("masked_fill in the model itself")


def test_attention_over_a_fully_masked_row_is_blamed() -> None:
    mask = torch.zeros(4, 4)
    mask[1] = -INF
    x = torch.randn(1, 1, 4, 8)
    model = Does(lambda self, x: self.norm(x).exp() * functional.softmax(x @ x.mT + mask, -1).sum())
    model.norm = nn.LayerNorm(8)

    finding = only(found(model, x))

    assert finding.op == "softmax"


def test_multiplying_a_mask_by_inf_is_blamed_on_the_product() -> None:
    keep = torch.tensor([1.0, 1.0, 0.0])
    model = Does(lambda self, x: (x + (1 - keep) * -INF).softmax(-1))

    finding = only(found(model, torch.randn(2, 3)))

    assert (finding.op.strip("_"), finding.facts["nan"]) == ("mul", 2)


def test_an_inf_and_the_resulting_nan_are_two_findings_in_order() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        large = torch.exp(x)
        return large - large

    overflow, difference = found(Does(forward), torch.tensor([1.0, 100.0]))

    assert (overflow.kind, overflow.op) == ("inf", "exp")
    assert overflow.facts["first_index"] == [1]
    assert (difference.kind, difference.op.strip("_")) == ("nan", "sub")
    assert difference.tensors[0].maker.startswith("exp in the model itself")


@pytest.mark.parametrize("moved", [False, True])
def test_non_finite_inputs_are_reported_as_such(moved: bool) -> None:
    x = torch.randn(3, 4)
    x[1, 2] = float("nan")

    class Hears(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, signal: torch.Tensor) -> Any:
            return self.fc(torch.relu(signal).view(3, 4).clone() if moved else signal)

    finding = only(found(Hears(), x))

    assert finding.message.startswith("1 NaN came in with input signal")
    assert finding.facts["first_index"] == [1, 2]
    assert finding.op == ""
    assert finding.facts["used_by"] == "linear"


def test_non_finite_parameters_and_buffers_are_reported_by_name() -> None:
    broken = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    worn = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    with torch.no_grad():
        broken.get_parameter("0.weight")[:3, 0] = float("nan")
        worn.get_buffer("1.running_mean")[1] = float("nan")
    x = torch.randn(2, 4)

    assert "parameter 0.weight contains 3 NaN" in only(found(broken, x)).message
    assert "buffer 1.running_mean contains 1 NaN" in only(found(worn, x)).message


@pytest.mark.parametrize(("dtype", "value"), [(torch.float16, 4e4), (torch.bfloat16, 2e38)])
def test_a_half_precision_value_near_overflow_is_a_warning(
    dtype: torch.dtype, value: float
) -> None:
    model = Does(lambda self, x: x * 2)

    finding = only(found(model, torch.full((3,), value / 2, dtype=dtype)))

    assert (finding.severity, finding.kind) == ("warning", "near overflow")
    assert f"% of the {str(dtype).removeprefix('torch.')} maximum" in finding.message


def test_a_near_overflow_does_not_raise_but_an_overflow_does() -> None:
    model = Does(lambda self, x: (x * 2) * 2)

    with (
        pytest.warns(TorchglassWarning, match="mul reaches 40000"),
        pytest.raises(NonFiniteError, match="largest float16 value is 65504"),
        guard(model),
    ):
        model(torch.full((3,), 2e4, dtype=torch.float16))


def test_a_mask_of_finfo_min_is_not_a_near_overflow() -> None:
    least = torch.finfo(torch.float16).min
    hidden = torch.eye(4, dtype=torch.bool)
    model = Does(lambda self, x: x.masked_fill(hidden, least) + (~hidden).half() * least)

    assert found(model, torch.zeros(4, 4, dtype=torch.float16)) == ()


def test_uninitialized_memory_is_not_blamed() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        rows = torch.empty(3, 4)
        rows.view(torch.int32).fill_(-1)  # What is in memory may well be NaN.
        for number in range(3):
            rows[number] = x
        result: torch.Tensor = self.fc(rows)
        return result

    assert found(Does(forward, fc=nn.Linear(4, 2)), torch.randn(4)) == ()


def test_an_inf_in_the_backward_names_the_forward_op() -> None:
    model = nn.Sequential(nn.Flatten(), Does(lambda self, x: torch.sqrt(x)))
    x = torch.zeros(1, 3, requires_grad=True)

    finding = only(found(model, x, train=True))

    assert (finding.phase, finding.op, finding.path) == ("backward", "sqrt", "1")
    assert finding.source is not None
    assert finding.source.line == line_of("Does(lambda self, x: torch.sqrt(x)))")
    assert (finding.kind, finding.facts["inf"]) == ("inf", 3)
    assert finding.facts["node"] == "SqrtBackward0"


def test_nan_gradients_through_where_are_found_in_the_backward() -> None:
    model = Does(lambda self, x: torch.where(x > 0, x.log(), 0.0))
    x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)

    findings = found(model, x, train=True, allow=["log"])
    assert findings == ()
    forward, backward = found(model, x, train=True)

    assert (forward.kind, forward.op, forward.phase) == ("inf", "log", "forward")
    assert (backward.kind, backward.op, backward.phase) == ("nan", "log", "backward")
    assert backward.facts["first_index"] == [0]


def test_a_bad_parameter_gradient_is_reported_by_name() -> None:
    model = Does(lambda self, x: (self.scale * 0).sqrt() * x)
    model.scale = nn.Parameter(torch.ones(3))

    first = found(model, torch.ones(3), train=True)[0]

    assert (first.op, first.phase, first.kind) == ("sqrt", "backward", "inf")
    shown = {one.name: one.stats for one in first.tensors if one.stats is not None}
    assert (shown["gradient of the result"].min, shown["gradient of the result"].max) == (1.0, 1.0)
    assert (shown["result"].min, shown["result"].max) == (0.0, 0.0)


class Spoils(torch.autograd.Function):
    """Passes its input through, and no gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * float("nan")


def test_a_custom_autograd_function_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Does(lambda self, x: Spoils.apply(x)))  # type: ignore[no-untyped-call]

    messages = [finding.message for finding in found(model, torch.ones(1, 2), train=True)]

    assert "the backward of Spoils produced 2 NaN among 2 values in module 1" in messages


def test_a_non_finite_initial_gradient_is_reported_as_such() -> None:
    model = nn.Linear(2, 2)
    gradient = torch.tensor([[1.0, float("nan")]])

    with guard(model, on="record") as guarded:
        model(torch.ones(1, 2)).backward(gradient)

    finding = only(guarded.findings)
    assert "came with the initial gradient of backward" in finding.message


def test_the_backward_can_be_excluded() -> None:
    model = Does(lambda self, x: torch.sqrt(x))

    assert found(model, torch.zeros(3, requires_grad=True), train=True, backward=False) == ()


def test_a_warning_is_issued_once_per_location() -> None:
    model = Does(lambda self, x: x.log())

    with warnings.catch_warnings(record=True) as caught, guard(model, on="warn") as guarded:
        warnings.simplefilter("always")
        for _ in range(3):
            model(-torch.ones(2))

    assert len(caught) == 1
    assert "log produced 2 NaN" in str(caught[0].message)
    assert len(guarded.findings) == 1


def test_a_module_or_an_op_can_be_allowed() -> None:
    model = nn.Sequential(Does(lambda self, x: x.log()))

    assert found(model, -torch.ones(2), allow=["log"]) == ()
    assert found(model, -torch.ones(2), allow="log") == ()
    assert found(model, -torch.ones(2), allow=["0"]) == ()
    assert len(found(model, -torch.ones(2), allow=["1"])) == 1


def test_a_finding_names_the_call_number_of_a_repeated_module() -> None:
    cell = Does(lambda self, x: (x - 1).sqrt())
    model = Does(lambda self, x: self.cell(self.cell(self.cell(x))), cell=cell)

    finding = found(model, torch.tensor([4.0]))[0]

    assert (finding.path, finding.call) == ("cell", 3)


def test_an_optimizer_step_that_breaks_a_parameter_is_found() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e38)

    with guard(model, on="record") as guarded:
        model(torch.full((1, 2), 1e3)).sum().backward()
        optimizer.step()

    finding = only(guarded.findings)
    assert (finding.phase, finding.op) == ("optimizer", "SGD.step")
    assert "produced 2 Inf among 2 values" in finding.message


def test_an_in_place_op_is_shown_with_its_overwritten_input() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y /= torch.tensor([1.0, 0.0])
        return y

    finding = only(found(Does(forward), torch.tensor([3.0, 4.0])))

    assert finding.op == "div_"
    assert finding.tensors[0].stats is not None
    assert (finding.tensors[0].stats.min, finding.tensors[0].stats.max) == (3.0, 4.0)


def test_a_loss_can_be_checked_explicitly() -> None:
    model = nn.Linear(2, 2)

    with guard(model, on="record", cheap=True) as guarded:
        loss = (model(torch.ones(1, 2)).sum() * 0 - 1).log()
        assert not guarded.check(loss)
        assert guarded.check(torch.ones(3))

    assert "the loss contains 1 NaN" in only(guarded.findings).message


def test_a_healthy_model_says_so() -> None:
    with guard(nn.Linear(2, 2)) as guarded:
        pass

    assert guarded.ok
    assert str(guarded) == "No NaN or Inf found"


def test_an_unknown_action_of_a_guard_is_refused() -> None:
    wrong: Any = "scream"
    with pytest.raises(errors.TargetError, match="not 'scream'"), guard(nn.ReLU(), on=wrong):
        pass


def dumped(tmp_path: Path, model: nn.Module, x: torch.Tensor, **options: Any) -> Any:
    return found(model, x, dump=tmp_path, **options)[0]


def test_the_op_of_a_finding_can_be_replayed_alone(tmp_path: Path) -> None:
    model = Does(lambda self, x: functional.softmax(x * INF, dim=-1))
    finding = dumped(tmp_path, model, torch.randn(2, 4))

    again = replay(finding.facts["dump"])

    assert again.reproduced
    assert again.finding.op == finding.op
    given = {one.name: one.stats for one in finding.tensors}
    assert {one.name: one.stats for one in again.record.tensors} == given
    assert "run alone: reproduced" in str(again)


def test_an_in_place_op_is_replayed_on_its_overwritten_input(tmp_path: Path) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y[1:].sqrt_()
        return y

    finding = dumped(tmp_path, Does(forward), torch.tensor([4.0, -4.0]))

    again = replay(finding.facts["dump"])

    assert again.reproduced
    assert again.record.tensors[0].stats is not None
    assert again.record.tensors[0].stats.min == -4.0


@pytest.mark.parametrize("forward", [lambda self, x: x.sqrt(), lambda self, x: (x * 1).sqrt_()])
def test_a_backward_op_can_be_replayed_alone(forward: Any, tmp_path: Path) -> None:
    x = torch.zeros(3, requires_grad=True)

    finding = dumped(tmp_path, Does(forward), x, train=True)

    again = replay(finding.facts["dump"])
    assert finding.phase == "backward"
    assert again.reproduced
    assert "gradient produced" in str(again)


def test_an_op_that_cannot_be_dumped_is_refused_with_the_reason(tmp_path: Path) -> None:
    model = Does(lambda self, x: torch.normal(x, INF))

    finding = dumped(tmp_path, model, torch.ones(3))

    assert "normal is not a named torch function" in finding.facts["not_dumped"]
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_not_a_guard_dump_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"x": torch.ones(2)}, tmp_path / "weights.safetensors")

    with pytest.raises(errors.TargetError, match="has no operation to rerun"):
        replay(tmp_path / "weights.safetensors")


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_a_scripted_module_is_checked_as_one_op() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.LogSigmoid()))
    broken = torch.jit.script(nn.Sequential(nn.Linear(2, 2)))
    with torch.no_grad():
        dict(broken.named_parameters())["0.bias"][1] = float("nan")
    model = nn.Sequential(scripted, broken)

    finding = only(found(model, torch.ones(1, 2)))

    assert finding.message.startswith("parameter 1.0.bias contains 1 NaN, first used by script")


def test_a_compiled_model_is_guarded_as_its_python_code() -> None:
    model = nn.Sequential(nn.ReLU(), Does(lambda self, x: (x - 1).log()))
    model.compile(backend="eager")

    finding = only(found(model, torch.zeros(2)))

    assert (finding.op, finding.path) == ("log", "1")


def test_a_backward_after_the_guard_ends_is_not_checked() -> None:
    x = torch.zeros(3, requires_grad=True)
    with guard(nn.Identity()):
        loss = x.sqrt().sum()

    torch.autograd.backward(loss)

    assert x.grad is not None
    assert torch.isinf(x.grad).all()


def test_an_exception_in_a_guarded_model_is_unchanged() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        x.log_()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), guard(Does(forward)):
        Does(forward)(torch.ones(2))


def test_the_guard_keeps_no_tensor_alive() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    gone = []

    with guard(model):
        for _ in range(3):
            output = model(torch.randn(2, 4))
            gone.append(weakref.ref(output))
            output.square().mean().backward()
        del output

    assert [reference() for reference in gone] == [None, None, None]


def test_replaying_a_folder_is_refused_as_a_folder(tmp_path: Path) -> None:
    with pytest.raises(errors.StoreError, match="it is a folder"):
        replay(tmp_path)


class Buckets(nn.Module):
    """T5's relative positions: the logarithm of 0 is cast away, and `where` takes another value."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Embedding(32, 2)

    def forward(self, length: int) -> Any:
        apart = (torch.arange(length)[None, :] - torch.arange(length)[:, None]).abs()
        far = (torch.log(apart.float() / 8) / 3 * 8).to(torch.long) + 8
        return self.bias(torch.where(apart < 8, apart, far.clamp(max=15)))


def test_non_finite_values_discarded_before_the_output_are_not_blamed() -> None:
    model = Does(lambda self, x: x + self.inner(x.shape[0]).sum(), inner=Buckets())

    with guard(model) as guarded:
        model(torch.randn(20, requires_grad=True)).sum().backward()
        with torch.no_grad():
            model(torch.randn(20))

    assert guarded.findings == ()


@pytest.mark.parametrize("aside", [False, True])
def test_non_finite_values_in_an_output_are_blamed_on_their_op(aside: bool) -> None:
    class Leaks(nn.Module):
        kept: torch.Tensor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept = torch.log(x - x)
            return x if aside else self.kept

    inner = Leaks()
    model = Does(lambda self, x: self.inner(x).exp() + self.inner.kept.square(), inner=inner)

    with pytest.raises(NonFiniteError) as raised, guard(model):
        model(torch.ones(3))

    assert raised.value.finding.op == "log"
    assert "allow=" in str(raised.value)


def test_no_grad_values_are_blamed_when_combined_with_differentiable_ones() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            roots = torch.sqrt(-x)
        return torch.where(x > 5, x * roots, x)

    first = found(Does(forward), torch.ones(3, requires_grad=True))[0]

    assert (first.op, first.kind) == ("sqrt", "nan")


def test_the_message_says_how_to_allow_intended_values() -> None:
    model = nn.Sequential(Does(lambda self, x: x.log()))

    with pytest.raises(NonFiniteError) as raised, guard(model):
        model(-torch.ones(2))

    assert 'if intended: tg.guard(model, allow=["log"]), or allow=["0"] for the module' in str(
        raised.value
    )


@pytest.mark.parametrize("bad", [INF, -INF, float("nan")])
def test_a_non_finite_weight_is_named_even_if_the_result_is_finite(bad: float) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model.get_parameter("2.weight")[0] = bad
    x = torch.zeros(2, 4)

    finding = only(found(model, x))

    word = "NaN" if bad != bad else "Inf"
    assert f"parameter 2.weight contains 4 {word}" in finding.message


def test_an_input_or_buffer_with_inf_is_named_even_if_the_result_is_finite() -> None:
    fed = nn.Linear(2, 2)
    worn = nn.BatchNorm1d(2).eval()
    worn.get_buffer("running_mean")[0] = worn.get_buffer("running_var")[0] = INF

    assert "came in with input input" in only(found(fed, torch.tensor([[INF, -INF]]))).message
    assert "buffer running_mean contains 1 Inf" in only(found(worn, torch.ones(1, 2))).message


def test_a_mask_that_is_a_frozen_parameter_is_not_blamed() -> None:
    mask = nn.Parameter(torch.full((3, 3), -INF).triu(1), requires_grad=False)
    model = Does(lambda self, x: (x @ x.T + self.mask).softmax(-1), mask=mask)

    assert found(model, torch.randn(3, 2, requires_grad=True), train=True) == ()


def scaled_step(model: nn.Module, *, clips: bool, fused: bool = False) -> torch.amp.GradScaler:
    optimizer = torch.optim.Adam(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    for _ in range(30):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(8, 4)).square().mean()
        scaler.scale(loss).backward()
        if clips:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return scaler


@pytest.mark.usefixtures("scalers_freed")
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("options", [{}, {"cheap": True}, {"backward": False}])
def test_overflows_checked_by_a_grad_scaler_are_not_raised(
    options: dict[str, Any], clips: bool, fused: bool
) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    with guard(model, **options) as guarded:
        scaler = scaled_step(model, clips=clips, fused=fused)

    assert scaler.get_scale() < 2.0**40
    assert guarded.ok
    assert [parameter.isfinite().all().item() for parameter in model.parameters()] == [True] * 4


@pytest.mark.usefixtures("scalers_freed")
def test_the_grad_scaler_of_another_model_hides_nothing() -> None:
    other = nn.Linear(4, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(other(torch.ones(1, 4)).sum()).backward()
    model = Does(lambda self, x: torch.sqrt(x))

    finding = only(found(model, torch.zeros(3, requires_grad=True), train=True))

    assert (finding.phase, finding.op) == ("backward", "sqrt")
    assert scaler.is_enabled()


@pytest.mark.usefixtures("scalers_freed")
def test_overflows_of_jointly_scaled_losses_are_not_raised() -> None:
    model = nn.Linear(4, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)

    with guard(model) as guarded:
        with torch.autocast("cpu", torch.float16):
            losses = [model(torch.randn(8, 4)).square().mean() for _ in range(2)]
        for loss in scaler.scale(losses):
            loss.backward()

    assert guarded.ok
    assert not all(each.grad.isfinite().all() for each in model.parameters())  # type: ignore[union-attr]


@pytest.mark.usefixtures("scalers_freed")
def test_an_overflow_the_grad_scaler_does_not_check_raises_before_the_update() -> None:
    model = nn.Linear(4, 1)
    weight = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)

    with guard(model):
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(8, 4)).square().mean()
        scaler.scale(loss).backward()
        with pytest.raises(NonFiniteError) as raised:
            optimizer.step()

    assert raised.value.finding.phase == "backward"
    assert torch.equal(model.weight, weight)


def test_no_dump_is_left_of_discarded_values(tmp_path: Path) -> None:
    with guard(Buckets(), dump=tmp_path) as guarded:
        Buckets()(20)

    assert guarded.findings == ()
    assert list(tmp_path.iterdir()) == []


def test_a_recording_continues_after_a_guard_raised() -> None:
    model = nn.Sequential(Does(lambda self, x: x.log()))

    with record(model) as recording, guard(model):
        with torch.no_grad(), pytest.raises(NonFiniteError):
            model(-torch.ones(2))
        model(torch.ones(2))

    assert len(recording["0"]) == 2
