"""What a user does with a trace: select, edit, stop, take gradients, look at kernels."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn

import torchglass as tg


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("save", "kept"),
    [
        ("all", None),
        (None, []),
        ([], []),
        ("relu", ["relu_1_4"]),
        (["0", -1], ["linear_1_1", "output_1_6"]),
        (lambda op: op.type == "linear", ["linear_1_1", "linear_2_5"]),
        (["linear_2", lambda op: op.kind == "input"], ["input_1_0", "linear_2_5"]),
    ],
)
def test_only_selected_tensors_are_saved(
    model: nn.Sequential, save: object, kept: list[str] | None
) -> None:
    trace = tg.trace(model, torch.randn(3, 4), save=save)

    saved = [op.label for op in trace if op.tensor is not None]
    assert saved == (trace.layer_labels if kept is None else kept)
    assert len(trace) == 7


def test_an_unknown_op_name_error_lists_the_closest_names(model: nn.Sequential) -> None:
    with pytest.raises(tg.TorchglassError, match="linear_1"):
        tg.trace(model, torch.randn(3, 4), save=["linear_9"])


def test_tensors_that_are_not_saved_are_freed_during_the_pass() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    class Watching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(5):
                x = x + 1
                alive.append(weakref.ref(x))
            gc.collect()
            assert sum(ref() is not None for ref in alive) == 1
            return x

    tg.trace(Watching(), torch.ones(2), save=None)

    assert len(alive) == 5


def test_an_edit_changes_the_input_of_later_ops(model: nn.Sequential) -> None:
    trace = tg.trace(model, torch.randn(3, 4), edit={"relu_1": torch.zeros_like})

    bias = model[3].bias
    assert torch.equal(trace.output, torch.as_tensor(bias).expand(3, 2))


def test_an_edit_does_not_change_the_model_or_the_random_state(model: nn.Sequential) -> None:
    x = torch.randn(3, 4)
    plain = nn.BatchNorm1d(4)
    plain.load_state_dict(model[1].state_dict())
    plain(model[0](x))
    state = torch.get_rng_state()

    tg.trace(model, x, edit={"relu_1": torch.zeros_like})

    assert torch.equal(torch.as_tensor(model[1].running_mean), torch.as_tensor(plain.running_mean))
    assert torch.equal(torch.get_rng_state(), state)


def test_an_in_place_op_can_be_edited() -> None:
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Identity())

    trace = tg.trace(model, torch.ones(2), edit={"relu_1": lambda y: y * 5})

    assert trace.output.tolist() == [5, 5]


def test_a_forward_can_be_cut_short(model: nn.Sequential) -> None:
    trace = tg.trace(model, torch.randn(3, 4), stop_after="relu_1")

    assert trace.layer_labels[-1] == "relu_1_4"
    assert not trace.error


def test_a_training_step_in_a_block_has_gradients(model: nn.Sequential) -> None:
    with tg.tracing(model, gradients=True) as step:
        loss = model(torch.randn(3, 4)).sum()
        loss.backward()

    assert torch.equal(torch.as_tensor(step["linear_2"].gradient), torch.ones(3, 2))
    assert step["relu_1"].gradient is not None


def test_several_forwards_in_a_block_are_part_of_one_trace(model: nn.Sequential) -> None:
    model.eval()

    with tg.tracing(model) as both:
        model(torch.ones(3, 4))
        model(torch.zeros(5, 4))

    assert [call.number for call in both.calls if call.path == "2"] == [1, 2]
    assert both["2:1"].shape == (3, 4)
    assert both["2:2"].shape == (5, 4)
    assert "purely feedforward" in str(both)


def test_in_a_block_arguments_of_the_forward_may_share_names_with_options() -> None:
    class Saving(nn.Module):
        def forward(self, x: torch.Tensor, *, save: float, level: torch.Tensor) -> torch.Tensor:
            return x * save + level

    model, x, level = Saving(), torch.ones(2), torch.ones(2)

    with tg.tracing(model) as passed:
        model(x, save=2.0, level=level)

    assert torch.equal(torch.as_tensor(passed["output_1"].tensor), torch.full((2,), 3.0))
    assert passed["input.level"].children == (passed["add"],)


def test_a_trace_is_not_ready_before_its_block_has_ended(model: nn.Sequential) -> None:
    with tg.tracing(model) as step, pytest.raises(tg.TorchglassError, match="has ended"):
        step.layer_labels  # noqa: B018


def test_kernels_are_listed_forward_and_backward(model: nn.Sequential) -> None:
    with tg.tracing(model, level="aten") as step:
        model(torch.randn(3, 4)).sum().backward()

    phases = {op.record.phase for op in step}
    assert {"forward", "backward"} <= phases
    assert "addmm_1" in {op.label.rpartition("_")[0] for op in step}


def test_pluck_returns_one_tensor(model: nn.Sequential) -> None:
    model.eval()
    x = torch.randn(3, 4)

    assert torch.equal(tg.pluck(model, x, "linear_1"), model[0](x))


def test_an_exception_names_its_location_and_carries_the_trace() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(4, 2))

    with pytest.raises(RuntimeError, match="cannot be multiplied") as raised:
        tg.trace(model, torch.randn(3, 4))

    trace = raised.value.trace  # type: ignore[attr-defined]
    assert trace.layer_labels == ["input_1_0", "linear_1_1"]
    note = "\n".join(getattr(raised.value, "__notes__", ["linear in module 1", "weight", "2×4"]))
    assert "linear in module 1" in note
    assert "2×4" in note


def test_a_compiled_model_is_traced_as_python_and_says_so(model: nn.Sequential) -> None:
    compiled = cast("nn.Module", torch.compile(model.eval(), backend="aot_eager"))
    x = torch.randn(3, 4)
    compiled(x)

    trace = tg.trace(compiled, x)

    assert trace["linear_1"].modules[-1].path == "_orig_mod.0"
    assert "Note: compiled modules were run uncompiled" in str(trace)
    assert torch.equal(trace.output, compiled(x))


def test_traces_in_different_threads_are_independent(model: nn.Sequential) -> None:
    def traced(length: int) -> str:
        layers = nn.Sequential(*[nn.ReLU() for _ in range(length)])
        return [tg.trace(layers, torch.ones(2)).layer_labels[-2] for _ in range(20)][-1]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(traced, [3, 5, 7, 9]))

    assert found == ["relu_3_3", "relu_5_5", "relu_7_7", "relu_9_9"]


def test_a_trace_inside_a_traced_forward_is_separate() -> None:
    inner: list[str] = []

    class Looking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inner.extend(tg.trace(nn.ReLU(), x).layer_labels)
            return x.tanh()

    outer = tg.trace(Looking(), torch.ones(2))

    assert inner == ["input_1_0", "relu_1_1", "output_1_2"]
    assert outer.layer_labels[-2:] == ["tanh_1_2", "output_1_3"]


def test_a_wrapped_model_is_traced_through_its_wrapper(tmp_path: Path) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    try:
        wrapped = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
        trace = tg.trace(wrapped, torch.ones(3, 4), gradients=True)
        trace.output.sum().backward()
        label, gradient = trace["module"].label, trace["linear_1"].gradient
        # What outlived the group would wait for its thread, and that for Python, for ever.
        del wrapped, trace
    finally:
        torch.distributed.destroy_process_group()

    assert label.startswith("linear_1")
    assert gradient is not None


def test_an_output_changed_later_in_the_block_is_saved_with_its_old_values() -> None:
    model = nn.ReLU()
    with tg.tracing(model) as step:
        y = model(torch.ones(2))
        y.add_(1)

    assert torch.as_tensor(step["output_1"].tensor).tolist() == [1, 1]


def _trace_and_forget(model: nn.Module, x: torch.Tensor) -> None:
    tg.trace(model, x, gradients=True)


def _trace_backward_and_forget(model: nn.Module, x: torch.Tensor) -> None:
    passed = tg.trace(model, x, gradients=True)
    passed.output.sum().backward()
    assert passed["linear_2"].gradient is not None


def _trace_a_step_and_forget(model: nn.Module, x: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tg.tracing(model, gradients=True):
        model(x).sum().backward()
        optimizer.step()


def _trace_some_and_forget(model: nn.Module, x: torch.Tensor) -> None:
    tg.trace(model, x, gradients=True, save=lambda op: op.type == "linear")


@pytest.mark.parametrize(
    "forget",
    [
        _trace_and_forget,
        _trace_backward_and_forget,
        _trace_a_step_and_forget,
        _trace_some_and_forget,
    ],
)
def test_a_trace_with_unread_gradients_is_freed_with_its_tensors(
    model: nn.Sequential, forget: Callable[[nn.Module, torch.Tensor], None]
) -> None:
    seen: list[weakref.ref[torch.Tensor]] = []
    for part in model:
        part.register_forward_hook(lambda _, __, output: seen.append(weakref.ref(output)))
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            forget(model, torch.randn(5, 4))
        alive = [link for link in seen if link() is not None]
    finally:
        gc.enable()

    assert len(seen) == 12
    assert not alive


def test_no_hook_stays_on_a_parameter_updated_in_a_traced_step(
    model: nn.Sequential,
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tg.tracing(model, gradients=True) as passed:
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    gradients = {op.label: op.gradient for op in passed.ops if op.gradient is not None}

    assert not any(parameter._backward_hooks for parameter in model.parameters())
    model(torch.randn(3, 4)).sum().backward()
    after = {op.label: op.gradient for op in passed.ops if op.gradient is not None}
    assert after.keys() == gradients.keys()
    assert all(torch.equal(after[label], gradients[label]) for label in after)


def test_no_hook_stays_on_a_leaf_created_in_a_traced_pass() -> None:
    class Makes(nn.Module):
        def forward(self) -> torch.Tensor:
            self.made = torch.ones(3, requires_grad=True)
            return self.made * 2

    model = Makes()
    passed = tg.trace(model, gradients=True)
    passed.output.sum().backward()
    gradient = passed["ones"].gradient
    assert gradient is not None
    assert gradient.tolist() == [2, 2, 2]

    del passed

    assert not model.made._backward_hooks


def test_a_printed_trace_shows_shape_and_module_of_each_op() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 2)))

    lines = str(tg.trace(model, torch.ones(3, 4))).splitlines()

    assert lines[lines.index("\tOperations:") + 1 :] == [
        "\t\t0  input_1_0   3×4",
        "\t\t1  linear_1_1  3×8  0",
        "\t\t2  relu_1_2    3×8  1",
        "\t\t3  linear_2_3  3×2  2.0",
        "\t\t4  output_1_4  3×2",
    ]


def test_a_long_trace_is_cut_in_the_middle_and_says_how_to_see_all() -> None:
    name = "a_module_whose_name_is_" + "long_" * 12
    model = nn.Sequential(*(nn.Sequential() for _ in range(2)))
    for number in range(90):
        model.add_module(f"{name}{number}", nn.ReLU())

    lines = str(tg.trace(model, torch.ones(3, 4))).splitlines()

    operations = lines[lines.index("\tOperations:") + 1 :]
    assert len(operations) == 61
    assert operations[30] == (
        "\t\t… 32 more operations: trace[30:62], or trace.to_pandas() for all"
    )
    assert all(len(line.expandtabs(4)) <= 80 for line in operations)


def test_a_printed_trace_marks_the_ops_whose_tensors_are_saved() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())

    text = str(tg.trace(model, torch.ones(3, 4), save=["relu"]))

    assert "\tOperations (* where the tensor is saved):" in text
    assert "\n\t\t2  *  relu_1_2    3×8  1\n" in text
    assert "\n\t\t1     linear_1_1  3×8  0\n" in text


def test_a_printed_validation_has_the_verdict_and_a_line_per_problem() -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.where(x > 0, x, x * 2)

    trace = tg.trace(Noisy(), torch.ones(3))
    valid = trace.validate()
    # What was saved is changed behind the trace's back, as an op that is not recorded would do.
    trace["mul"].tensor.add_(1)  # type: ignore[union-attr]
    invalid = trace.validate()

    assert str(valid).splitlines()[0] == "Valid: 3 ops replayed with the same results"
    verdict, *lines = str(invalid).splitlines()
    assert verdict == ("Differs: 1 of 3 ops gave a different result when replayed, first mul_1_2")
    assert "  differs    mul_1_2: values differ by up to 1" in lines


def test_an_exception_of_a_traced_pass_is_pickled_without_the_trace() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError(f"no {tuple((x + 1).shape)}")

    with pytest.raises(ValueError, match="no") as raised:
        tg.trace(Fails(), torch.ones(1000, 1000))

    packed = pickle.dumps(raised.value)
    assert len(packed) < 100_000
    again = pickle.loads(packed)
    assert again.args == raised.value.args
    assert again.trace is None
    assert raised.value.trace.ops  # type: ignore[attr-defined]
