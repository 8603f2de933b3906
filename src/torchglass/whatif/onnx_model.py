"""An ONNX file: its weights, and a run in ONNX Runtime that keeps every value.

Needs the extra `torchglass[onnx]`, which is imported on use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from torchglass.capture.tensor.description import iter_tensors
from torchglass.errors import TargetError
from torchglass.records.comparison import ExecutedOp, ExecutionGraph, ValueId
from torchglass.records.trace import SourceLine
from torchglass.whatif.execution import Execution, coarsest_step
from torchglass.whatif.forward import Unrepeatable

_VIEWS = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice", "Split"}
)
_TORCH_NAMES = {
    "Gemm": "linear",
    "LayerNormalization": "layer_norm",
    "Conv": "conv2d",
    "Concat": "cat",
    "Gather": "embedding",
    "ReduceMean": "mean",
    "BatchNormalization": "batch_norm",
    "Trilu": "triu",
}
_SOURCE = re.compile(r'File "([^"]+)", line (\d+)')
_TRACE = "pkg.torch.onnx.stack_trace"


def weights(path: Path) -> dict[str, torch.Tensor]:
    """The weights in an ONNX file, by name."""
    onnx, _ = _imported(path)
    return dict(_weights(onnx, onnx.load(path)))


def _weights(onnx: ModuleType, model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for one in model.graph.initializer:
        array = onnx.numpy_helper.to_array(one)
        yield one.name, torch.from_numpy(array.copy())


def _imported(path: Path) -> tuple[ModuleType, ModuleType]:
    try:
        import onnx
        import onnx.numpy_helper
        import onnxruntime
    except ImportError as error:
        raise TargetError(
            f"{path.name} needs {error.name}: pip install 'torchglass[onnx]'"
        ) from None
    return onnx, onnxruntime


class OnnxForward(Unrepeatable):
    """An ONNX model with inputs, which runs on the CPU without fusing ops: all values exist."""

    def __init__(self, path: Path, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.path = path
        self.args, self.kwargs = args, kwargs

    def execute(self) -> Execution:
        onnx, runtime = _imported(self.path)
        model = onnx.load(self.path)
        returned = [one.name for one in model.graph.output]
        made = [name for node in model.graph.node for name in node.output if name]
        model.graph.output.extend(
            onnx.ValueInfoProto(name=name) for name in made if name not in returned
        )
        options = runtime.SessionOptions()
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        session = runtime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        tensors = dict(_weights(onnx, model))
        feed = self._feed([one.name for one in session.get_inputs()])
        results = session.run(made, {name: one.numpy() for name, one in feed.items()})
        tensors |= feed
        tensors |= {name: torch.as_tensor(one) for name, one in zip(made, results, strict=True)}
        return _execution(onnx, model, tensors, list(feed), returned)

    def _feed(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        by_name = {name: self.kwargs[name] for name in names if name in self.kwargs}
        rest = [name for name in names if name not in by_name]
        tensors = list(iter_tensors((tuple(self.args), {})))
        if len(tensors) != len(rest):
            raise TargetError(
                f"{self.path.name} has the inputs {', '.join(names)}; "
                f"{len(tensors) + len(by_name)} were passed"
            )
        feed = dict(zip(rest, tensors, strict=True)) | by_name
        return {name: feed[name].detach().cpu().contiguous() for name in names}


def _execution(
    onnx: ModuleType,
    model: Any,
    tensors: Mapping[str, torch.Tensor],
    inputs: Sequence[str],
    returned: Sequence[str],
) -> Execution:
    numbers: dict[str, ValueId] = {name: number for number, name in enumerate(tensors)}
    counts: dict[str, int] = {}
    ops: list[ExecutedOp] = []
    for node in model.graph.node:
        function = _TORCH_NAMES.get(node.op_type, node.op_type.lower())
        counts[function] = counts.get(function, 0) + 1
        is_view = node.op_type in _VIEWS or node.op_type == "Cast"
        read = node.input[:1] if is_view else node.input
        ops.append(
            ExecutedOp(
                id=len(ops),
                function=function,
                label=node.name or f"{function}_{counts[function]}",
                source=_source(node),
                settings=tuple(
                    (one.name, str(onnx.helper.get_attribute_value(one))) for one in node.attribute
                ),
                inputs=tuple(numbers[name] for name in read if name in numbers),
                outputs=tuple(numbers[name] for name in node.output if name in numbers),
                is_layout=is_view,
            )
        )
    values = list(tensors.values())
    graph = ExecutionGraph(
        name=model.graph.name,
        ops=tuple(ops),
        shapes=tuple(tuple(one.shape) for one in values),
        inputs=tuple(numbers[name] for name in inputs),
        outputs=tuple(numbers[name] for name in returned),
        names={numbers[one.name]: one.name for one in model.graph.initializer},
    )
    note = "ONNX Runtime ran on the CPU without fusing ops"
    return Execution(graph=graph, values=values, eps=coarsest_step(graph, values), notes=(note,))


def _source(node: Any) -> SourceLine | None:
    """The line of Python that a node was exported from, if the exporter wrote it down."""
    texts = [one.value for one in node.metadata_props if one.key == _TRACE]
    lines = _SOURCE.findall(texts[0]) if texts else []
    if not lines:
        return None
    return SourceLine(file=lines[-1][0], line=int(lines[-1][1]), function="")
