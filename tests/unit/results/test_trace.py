from __future__ import annotations

import pickle
import sqlite3
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import torchglass as tg
from tests import make
from tests.zoo_trace import Recurrent, traced
from torchglass.errors import LookupFailedError, StoreError, ViewError, collector_paused
from torchglass.records.model import Model
from torchglass.records.trace import OpId
from torchglass.results.files import LoadedPass
from torchglass.results.trace import Trace, load_trace

UNSAVED = LoadedPass(make.trace([make.op(0, "x", kind="input")]), {}, {})
CHAIN = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))


@pytest.fixture
def trace() -> Trace:
    return traced(Recurrent(), torch.randn(6, 5), random_seed=7)


@pytest.fixture
def chain() -> Trace:
    return traced(CHAIN, torch.randn(3, 4))


def test_a_trace_is_loaded_lazily() -> None:
    asked = []

    def load() -> LoadedPass:
        asked.append("pass")
        return UNSAVED

    def model() -> Model:
        asked.append("model")
        return make.model()

    trace = Trace(load, model)
    assert asked == []

    assert len(trace) == 1
    assert trace[0] is trace["input_1"]
    assert asked == ["pass"]

    _ = trace.modules, str(trace), str(trace)
    assert asked == ["pass", "model"]


def test_a_trace_is_a_sequence_of_its_ops(trace: Trace) -> None:
    assert len(trace) == len(trace.ops) == 19
    assert list(trace) == list(trace.ops)
    assert trace[-1] is trace.ops[18]
    assert trace[1:4] == trace.ops[1:4]
    assert trace[np.int64(3)] is trace.ops[3]
    assert [op.label for op in trace] == trace.layer_labels


def test_a_trace_supports_in_for_keys_and_ops(trace: Trace, chain: Trace) -> None:
    there: list[object] = ["linear_1:2", 18, trace[3]]
    missing: list[object] = ["conv2d_1", "linear_1", 19, chain[3], None]

    assert all(key in trace for key in there)
    assert not any(key in trace for key in missing)


def test_a_layer_gives_all_its_passes(trace: Trace) -> None:
    passes = trace.layer("linear_1_1")

    assert [op.label for op in passes] == [f"linear_1_1:{number}" for number in (1, 2, 3, 4)]
    assert trace.layer("linear_1") == passes
    assert trace.layer("norm") == (trace["norm"],)
    assert [op.pass_number for op in passes] == [1, 2, 3, 4]
    assert {op.passes for op in passes} == {4}


def test_a_layer_with_several_passes_needs_a_pass_number(trace: Trace) -> None:
    with pytest.raises(
        LookupFailedError, match="'linear_1_1' matches 4 ops: linear_1_1:1, linear_1_1:2"
    ):
        trace["linear_1_1"]


def test_the_output_is_the_object_the_model_returned() -> None:
    model = Recurrent()
    returned = []
    model.register_forward_hook(lambda *call: returned.append(call[2]))

    trace = traced(model, torch.randn(6, 5))

    assert trace.output is returned[0]
    assert trace["output.b.0"].tensor is trace.output["b"][0]
    assert [op.function for op in trace.outputs] == ["a", "b.0", "b.1"]
    assert [op.label for op in trace.inputs] == ["input_1_0"]


def test_a_failed_pass_has_no_output_and_says_why() -> None:
    record = make.trace([make.op(0, "x", kind="input")], error="ValueError: too wide")
    trace = Trace(lambda: LoadedPass(record, {}, {}), make.model)

    assert trace.error == "ValueError: too wide"
    with pytest.raises(ViewError, match="has no output: it raised ValueError: too wide"):
        _ = trace.output


def test_an_op_has_its_outputs(chain: Trace) -> None:
    op = chain["linear_1"]

    assert op.tensor is op.tensor_contents is op.tensors[0]
    assert (op.shape, op.dtype, op.device, op.bytes) == ((3, 4), "float32", "cpu", 48)
    assert op.stats is op.stats
    assert op.stats is not None
    assert op.stats.count == 12
    assert op.function == "linear"
    assert op.grad_fn == "AddmmBackward0"
    assert op.seconds > 0
    assert op.gradient is None


def test_an_op_has_its_module_and_source_line(chain: Trace) -> None:
    op = chain["relu_1"]

    assert op.in_place
    assert [call.label for call in op.modules] == ["1"]
    assert [call.label for call in op.output_of] == ["1"]
    assert op.settings == {"inplace": "True"}
    assert op.source is not None
    assert Path(op.source.file).name == "zoo_trace.py"
    assert op.code == "output = model(*args, **kwargs)"


def test_an_op_has_parents_children_and_siblings(trace: Trace) -> None:
    add = trace["add_1_3:1"]

    assert [op.label for op in add.parents] == ["relu_1_2:1", "input_1_0"]
    assert add.parent_places == {"relu_1_2:1": ("0",), "input_1_0": ("1",)}
    assert [op.label for op in add.siblings] == ["linear_1_1:1"]
    assert [op.label for op in add.spouses] == ["relu_1_2:2"]
    assert [op.label for op in trace[0].children] == ["linear_1_1:1", "add_1_3:1"]
    assert trace[0].children[0].parents[0] is trace[0]


def test_an_op_lists_the_parameters_it_used(trace: Trace) -> None:
    used = trace["linear_1:3"].parameters

    assert {name: spec.shape for name, spec in used.items()} == {
        "fc.weight": (5, 5),
        "fc.bias": (5,),
    }


def test_an_op_that_was_not_saved_has_no_tensor() -> None:
    op = Trace(lambda: UNSAVED, make.model)[0]

    assert (op.tensor, op.tensors, op.stats) == (None, (None,), None)
    assert "size=24 B (not saved)" in str(op)


def test_gradients_of_the_pass_are_saved_in_the_file(tmp_path: Path) -> None:
    record = make.trace([make.op(0, "x", kind="input")])
    gradients = {(OpId(0), 0): torch.ones(2, 3)}
    trace = Trace(lambda: LoadedPass(record, {}, gradients), make.model)

    loaded = load_trace(trace.save(tmp_path / "pass.glass"))

    for op in (trace[0], loaded[0]):
        assert op.gradient is not None
        assert torch.equal(op.gradient, torch.ones(2, 3))
        assert "\tGradient: min 1, mean 1, max 1, std 0" in str(op)


def test_an_op_shows_all_its_outputs() -> None:
    trace = traced(nn.LSTM(3, 4), torch.randn(5, 2, 3))

    text = str(trace["lstm_1"])

    assert [tensor.shape for tensor in trace["lstm_1"].tensors if tensor is not None] == [
        (5, 2, 4),
        (1, 2, 4),
        (1, 2, 4),
    ]
    assert text.count("Output tensor ") == 3
    assert text.count("Values: ") == 3


def test_printing_changes_neither_random_state_nor_gradients(chain: Trace) -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()

    for op in chain:
        _ = str(op), op.stats

    assert torch.equal(torch.get_rng_state(), state)
    assert chain.output.requires_grad
    assert chain["linear_2"].tensor.grad_fn is not None  # type: ignore[union-attr]


def test_calls_are_numbered_from_one(trace: Trace) -> None:
    calls = [call for call in trace.calls if call.path == "fc"]

    assert [call.number for call in calls] == [1, 2, 3, 4]
    assert [call.label for call in calls] == ["fc:1", "fc:2", "fc:3", "fc:4"]
    assert [value.spec.shape for value in (*calls[0].inputs, *calls[0].outputs)] == [(6, 5)] * 2
    assert calls[1].outputs[0].op == trace["linear_1:2"].record.id
    assert calls[0].ops == (trace["linear_1:1"],)
    assert calls[0].seconds > 0
    assert calls[0].module is trace.modules["fc"]


def test_calls_form_a_tree(trace: Trace) -> None:
    (root,) = (call for call in trace.calls if call.parent is None)

    assert root.path == ""
    assert [call.label for call in root.children] == ["fc:1", "fc:2", "fc:3", "fc:4", "norm"]
    assert all(call.parent is root for call in root.children)
    assert repr(root) == "<call of the model: 15 ops>"


def test_modules_parameters_and_buffers_are_found_by_name(trace: Trace) -> None:
    assert list(trace.modules) == ["", "fc", "norm"]
    assert list(trace.params) == ["fc.weight", "fc.bias", "norm.weight", "norm.bias"]
    assert trace.params["fc.weight"].spec.shape == (5, 5)
    assert "norm.running_mean" in trace.buffers


def test_every_op_is_a_row_of_plain_values(trace: Trace) -> None:
    rows = trace.to_dicts()

    assert len(rows) == len(trace)
    assert rows[4]["label"] == "linear_1_1:2"
    assert rows[4]["output_of"] == ("fc:2",)
    assert rows[4]["parents"] == ("add_1_3:1",)
    assert rows[4]["parameter_count"] == 30
    assert rows[4]["saved"] is True


def test_a_data_frame_has_a_row_for_each_op(trace: Trace) -> None:
    frame = trace.to_pandas()

    assert len(frame) == len(trace)
    assert frame.loc[4, "label"] == "linear_1_1:2"


def test_a_data_frame_without_pandas_says_what_to_install(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(ViewError, match=r"pip install 'torchglass\[pandas\]', or use to_dicts"):
        trace.to_pandas()


def test_a_trace_prints_its_random_seed_and_has_a_one_line_repr(trace: Trace) -> None:
    assert "\tRandom seed: 7\n" in str(trace)
    assert repr(trace) == "<trace of Recurrent: 19 ops, 6 module calls>"
    assert repr(trace["norm"]) == "<batchnorm_1_5: 6×5 float32 in norm>"


def test_in_a_notebook_a_trace_is_a_table_with_escaped_names() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu()

    Odd.__name__ = "<script>alert(1)</script>"

    html = traced(Odd(), torch.randn(2))._repr_html_()

    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "relu_1_1" in html
    assert "http" not in html


def test_a_saved_trace_loads_without_its_model(trace: Trace, tmp_path: Path) -> None:
    path = trace.save(tmp_path / "pass.glass")

    loaded = load_trace(path)

    assert loaded.record == trace.record
    assert loaded.model == trace.model
    assert str(loaded) == str(trace)
    for op, original in zip(loaded, trace, strict=True):
        assert str(op) == str(original)
        assert torch.equal(op.tensor, original.tensor)  # type: ignore[arg-type]
    assert {file.name for file in tmp_path.iterdir()} == {"pass.glass", "pass.glass.safetensors"}


def test_a_saved_trace_without_suffix_becomes_a_run_file(chain: Trace, tmp_path: Path) -> None:
    path = chain.save(tmp_path / "new" / "pass")

    assert path == tmp_path / "new" / "pass.glass"
    assert torch.equal(load_trace(path).output, chain.output)


def test_an_existing_file_is_overwritten_only_on_request(
    trace: Trace, chain: Trace, tmp_path: Path
) -> None:
    path = chain.save(tmp_path / "pass.glass")

    with pytest.raises(StoreError, match=r"pass\.glass already exists; .*overwrite=True"):
        trace.save(path)
    assert len(load_trace(path)) == len(chain)

    trace.save(path, overwrite=True)
    assert len(load_trace(path)) == len(trace)


def test_a_trace_without_its_tensors_has_all_other_data(trace: Trace, tmp_path: Path) -> None:
    path = trace.save(tmp_path / "pass.glass")
    (tmp_path / "pass.glass.safetensors").unlink()

    loaded = load_trace(path)

    assert loaded["norm"].tensor is None
    assert loaded["norm"].shape == (6, 5)
    assert "19 tensors (2.1 KB) computed in forward pass; 0 tensors (0 B) saved." in str(loaded)


def test_the_output_structure_of_a_loaded_trace_is_not_invented(
    trace: Trace, tmp_path: Path
) -> None:
    loaded = load_trace(trace.save(tmp_path / "pass.glass"))

    with pytest.raises(ViewError, match=r"only its tensors: see trace\.outputs"):
        _ = loaded.output
    assert [op.label for op in loaded.outputs] == [op.label for op in trace.outputs]


def test_a_file_without_a_trace_says_so(trace: Trace, tmp_path: Path) -> None:
    path = trace.save(tmp_path / "pass.glass")
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM documents WHERE kind = 'trace'")
    connection.close()

    with pytest.raises(StoreError, match="contains a run but no trace"):
        load_trace(path)


def test_a_pickled_trace_is_the_same(trace: Trace) -> None:
    other: Trace = pickle.loads(pickle.dumps(trace))

    assert str(other) == str(trace)
    assert torch.equal(other[4].tensor, trace[4].tensor)  # type: ignore[arg-type]
    assert torch.equal(other.output["b"][1], trace.output["b"][1])
    assert other["linear_1:2"] is other[4]
    assert other.random_seed == 7


def test_a_pickled_trace_keeps_the_output_tensor(chain: Trace) -> None:
    other: Trace = pickle.loads(pickle.dumps(chain))

    assert torch.equal(other.output, chain.output)


def test_a_buffer_has_its_value_from_before_the_pass() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    trace = tg.trace(model, torch.randn(3, 4))

    mean = trace["1.running_mean"]
    assert mean.label == "1.running_mean"
    assert torch.equal(torch.as_tensor(mean.tensor), torch.zeros(4))
    assert [op.label for op in mean.children] == ["batchnorm_1_3"]
    assert "used by batchnorm_1_3" in repr(mean)


def test_a_misspelled_weight_error_suggests_the_name() -> None:
    trace = tg.trace(nn.Sequential(nn.Linear(4, 4)), torch.ones(2, 4))

    with pytest.raises(
        LookupFailedError, match=r"no op or tensor is named '0.weigth'; did you mean 0.weight"
    ):
        trace["0.weigth"]


def test_a_parameter_is_found_by_its_name_with_its_gradient() -> None:
    model = nn.Linear(4, 4)

    trace = tg.trace(model, torch.ones(4))
    trace.output.sum().backward()

    weight = trace["weight"]
    assert weight.tensor is model.weight
    assert weight.gradient is model.weight.grad
    assert weight.shape == (4, 4)


@collector_paused()
def test_an_unreferenced_trace_is_freed_without_the_garbage_collector() -> None:
    trace = traced(CHAIN, torch.randn(3, 4))
    op, call, weight = trace["linear_1"], trace.calls[1], trace["0.weight"]
    assert op.lookup_keys
    assert op.stats
    assert call.ops
    assert trace.layer("linear_1")
    assert str(trace)
    assert repr(weight)
    assert op.tensor is not None
    saved = weakref.ref(op.tensor)

    del op, call, weight, trace

    assert saved() is None
