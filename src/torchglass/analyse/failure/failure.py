"""What happened in a forward that raised: the op, its operands, their origin, the broken rule.

failure = Failure(trace, model)
failure.verdict.why     # "fc1 (Linear) expects 400 features in the last dimension of its input, …"
"""

from __future__ import annotations

import difflib
import linecache
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations
from math import prod
from pathlib import Path

from torchglass.analyse.failure import operand_rules, shape_rules, value_rules
from torchglass.analyse.failure.operands import (
    BrokenRule,
    FailedOp,
    Images,
    Rule,
    TensorArgument,
    arguments,
    depends_on_inputs,
    fitting_images,
    input_of_size,
    limit_behind,
    set_by,
    text,
)
from torchglass.analyse.signatures import BROADCASTING, CELLS, LOSSES, argument_name, plain_name
from torchglass.analyse.trace import TraceStructure, parameters_of
from torchglass.records.model import Model, Module, Stats
from torchglass.records.trace import (
    CallId,
    CallRecord,
    Operand,
    OpId,
    OpRecord,
    SourceLine,
    TraceRecord,
)

_TABLE: tuple[tuple[str, tuple[Rule, ...]], ...] = (
    ("linear", (value_rules.dtype, operand_rules.linear)),
    ("conv1d conv2d conv3d", (operand_rules.convolution,)),
    ("conv_transpose1d conv_transpose2d conv_transpose3d", (operand_rules.convolution,)),
    ("max_pool1d max_pool2d max_pool3d", (operand_rules.pooling,)),
    ("avg_pool1d avg_pool2d avg_pool3d", (operand_rules.pooling,)),
    ("matmul mm bmm addmm baddbmm mv dot", (value_rules.dtype, operand_rules.matrices)),
    ("scaled_dot_product_attention", (operand_rules.attention,)),
    (CELLS, (operand_rules.cell,)),
    ("cat concat concatenate stack", (shape_rules.joining,)),
    (f"{BROADCASTING} where masked_fill {LOSSES}", (shape_rules.broadcasting,)),
    ("binary_cross_entropy", (shape_rules.same_shape, value_rules.probabilities)),
    ("binary_cross_entropy_with_logits", (shape_rules.same_shape,)),
    ("view reshape", (shape_rules.reshaping,)),
    ("expand", (shape_rules.stretching,)),
    ("split split_with_sizes unflatten", (shape_rules.splitting,)),
    ("permute", (shape_rules.permuting,)),
    ("einsum", (shape_rules.sums_of_products,)),
    ("batch_norm instance_norm", (operand_rules.batch_norm,)),
    ("layer_norm rms_norm", (operand_rules.layer_norm,)),
    ("group_norm", (operand_rules.group_norm,)),
    ("BatchNorm1d BatchNorm2d BatchNorm3d", (operand_rules.norm_module,)),
    ("LSTM GRU RNN", (operand_rules.recurrent_module,)),
    ("MultiheadAttention", (operand_rules.attention_module,)),
    ("embedding", (value_rules.embedding,)),
    ("one_hot", (value_rules.one_hot,)),
    ("cross_entropy nll_loss", (value_rules.classes,)),
    ("gather scatter scatter_add index_select", (value_rules.along_dimension,)),
    ("getitem setitem", (value_rules.indexing,)),
)
_RULES: Mapping[str, tuple[Rule, ...]] = {
    function: rules for functions, rules in _TABLE for function in functions.split()
}
_MIXED_DTYPES = (
    *("embedding", "one_hot", "cross_entropy", "nll_loss", "gather", "scatter", "scatter_add"),
    *("index_select", "getitem", "setitem", "where"),
)


def find_broken_rule(failed: FailedOp) -> BrokenRule | None:
    """The broken rule; None if the facts prove none."""
    rules = [value_rules.device, *_PYTHON_RULES]
    # Sparse and nested tensors and subclasses follow other rules.
    if all(tensor.is_plain for tensor in failed.tensors):
        rules += [*_RULES.get(failed.function, ()), shape_rules.dimension]
    if failed.function not in _MIXED_DTYPES:
        rules.append(value_rules.dtype)
    verdicts = (rule(failed) for rule in rules)
    return next((verdict for verdict in verdicts if verdict is not None), None)


_NO_ATTRIBUTE = re.compile(r"AttributeError: '(\w+)' object has no attribute '(\w+)'")


def _missing_attribute(failed: FailedOp) -> BrokenRule | None:
    """An attribute of a module must exist."""
    found = _NO_ATTRIBUTE.match(failed.error)
    if found is None or failed.layer is None or failed.layer.kind != found[1] or not failed.parts:
        return None
    near = difflib.get_close_matches(found[2], failed.parts, n=3, cutoff=0.5)
    return BrokenRule(
        why=f"{found[1]} has no module, parameter or buffer called {found[2]}; "
        f"it has {', '.join(failed.parts)}",
        fits=tuple(f"self.{name}, which is close to it" for name in near),
    )


_NO_TENSOR = re.compile(r"TypeError: (\w+)\(\): argument '(\w+)'.* must be Tensor, not (\w+)")


def _not_a_tensor(failed: FailedOp) -> BrokenRule | None:
    """The argument of a layer must be a tensor, not a container of tensors."""
    found = _NO_TENSOR.match(failed.error)
    if found is None:
        return None
    kind = "None" if found[3] == "NoneType" else f"a {found[3]}"
    weights = [slot.spec.shape for slot in failed.layer.slots[:1]] if failed.layer else []
    # The weight matrix gives the size that the input must have.
    wanted = weights[0][1] if weights and weights[0] and len(weights[0]) == 2 else None
    fitting = [tensor for tensor in failed.tensors if tensor.shape[-1:] == (wanted,)]
    return BrokenRule(
        why=f"{found[1]} expects a tensor as its {found[2]}, but got {kind}",
        fits=tuple(f"pass {tensor.name}, which is {text(tensor.shape)}" for tensor in fitting),
    )


_PYTHON_RULES: tuple[Rule, ...] = (_missing_attribute, _not_a_tensor)

_LAST_OPS = 8
_PACKAGE = str(Path(__file__).parents[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class ExceptionContext:
    """What the exception and the live tensors know and the record of the pass does not."""

    source: SourceLine | None = None
    """The innermost line of the user's code in the traceback."""
    torch_source: SourceLine | None = None
    """The line that raised it, if that is Python code of torch."""
    depth: int | None = None
    """The number of module calls that the exception left."""
    stats: Mapping[str, Stats] = field(default_factory=dict)
    """Statistics of the failing op's operands, by position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeOrigin:
    """A size that did not fit, and the op that produced it."""

    tensor: TensorArgument
    size: int
    op: OpRecord


class Failure:
    """A forward that raised; each fact is computed when it is first needed."""

    def __init__(
        self, record: TraceRecord, model: Model, context: ExceptionContext | None = None
    ) -> None:
        self.record = record
        self.model = model
        self.context = context or ExceptionContext()
        self.anatomy = TraceStructure(record)

    @property
    def error(self) -> str:
        return self.record.error

    @property
    def op(self) -> OpRecord | None:
        """The op that raised; None if the exception came from Python code."""
        return self.record.failed

    @cached_property
    def call(self) -> CallRecord | None:
        """The innermost module call that was running."""
        found = self.op.call if self.op is not None else self._open_call()
        return None if found is None else self.record.calls[found]

    @property
    def module(self) -> Module | None:
        """The module of that call; None if it is not part of the model."""
        return None if self.call is None else self.model.find(self.call.path)

    @property
    def source(self) -> SourceLine | None:
        """The line of the user's code where it happened."""
        found = self.source_of(self.op) if self.op is not None else None
        return found or self.context.source

    def source_of(self, op: OpRecord) -> SourceLine | None:
        """The line that called an op; None if that is our own call of the model."""
        return None if op.source is None or is_ours(op.source.file) else op.source

    @cached_property
    def tensors(self) -> tuple[TensorArgument, ...]:
        """The tensor arguments of the op, or of the module if no op failed."""
        return self._failed_op.tensors

    @cached_property
    def verdict(self) -> BrokenRule | None:
        """The broken rule, if the facts prove one."""
        verdict = find_broken_rule(self._failed_op)
        if verdict is None or self.op is None:
            return verdict
        return self._too_long(verdict) or self._too_many_positions(verdict) or verdict

    def _too_long(self, verdict: BrokenRule) -> BrokenRule | None:
        """The rule of a model with a maximum length, if a slice proves it."""
        ops = self.record.ops
        tensors = {tensor.name: tensor for tensor in self.tensors}
        clashing = [tensors[name] for name, _ in verdict.sizes if name in tensors]
        limits = (limit_behind(ops, tensor.operand) for tensor in clashing)
        limit = next((found for found in limits if found is not None), None)
        if limit is None:
            return self._of_another_length(verdict)
        role = "parameter" if limit.held.parameter else "buffer"
        name = limit.held.parameter or limit.held.buffer
        held = f"{role} {name} is {text(limit.held.spec.shape or ())}"
        return self._at_most(
            limit.size, limit.asked, held, f"extend {name} to length {limit.asked}"
        )

    def _too_many_positions(self, verdict: BrokenRule) -> BrokenRule | None:
        """The same for a position embedding whose indices the model computes itself."""
        index, table = self._failed_op["indices"], self._failed_op["weight"]
        if self._failed_op.function != "embedding" or index is None or table is None:
            return None
        if index.stats is None or index.stats.max < table.shape[0] or index.stats.min < 0:
            return None
        if depends_on_inputs(self.record.ops, index.operand):
            return None
        asked = int(index.stats.max) + 1
        if input_of_size(self.record.ops, asked) is None:
            return None
        rows = f"{self._failed_op.subject} has {table.shape[0]} rows"
        longer = f"use an Embedding with at least {asked} rows"
        return self._at_most(table.shape[0], asked, rows, longer)

    def _of_another_length(self, verdict: BrokenRule) -> BrokenRule | None:
        """The same for a parameter or buffer that is added to an input of a different length."""
        tensors = {tensor.name: tensor for tensor in self.tensors}
        for (name, dim), (other, _) in permutations(verdict.sizes, 2):
            held = tensors[name]
            maker = set_by(self.record.ops, tensors[other].operand, dim)
            # The last dimension is features, so its size is not a sequence length.
            if not held.is_held or dim == -1 or maker is None:
                continue
            if self.record.ops[maker].kind == "input":
                path = held.operand.parameter or held.operand.buffer
                told = f"{path} is {text(held.shape)}"
                sizes = held.shape[dim], tensors[other].shape[dim]
                return self._at_most(*sizes, told, f"change {path} to length {sizes[1]}", "exactly")
        return None

    def _at_most(
        self, limit: int, asked: int, held: str, longer: str, bound: str = "at most"
    ) -> BrokenRule:
        found = input_of_size(self.record.ops, asked)
        if found is None:
            why = f"there are {bound} {limit} positions ({held}), but {asked} were requested"
            return BrokenRule(why=why, fits=(longer,))
        op, dim = found
        spec = op.outputs[0].spec
        name = op.function or "input"
        units = "tokens" if spec.dtype.startswith("int") else "positions"
        cut = ", ".join([":"] * dim + [f":{limit}"])
        shorter = [f"cut the input to {limit}: {name}[{cut}]"] if asked > limit else []
        return BrokenRule(
            why=f"the model accepts {bound} {limit} {units} ({held}), but input {name} "
            f"{text(spec.shape or ())} has {asked}",
            fits=(*shorter, longer),
        )

    @cached_property
    def images(self) -> Images | None:
        """The image sizes that would fit, if all ops from the input to the failure are known."""
        tensors = {tensor.name: tensor for tensor in self.tensors}
        if self.verdict is None or self.op is None or "input" not in tensors:
            return None
        tensor = tensors["input"]
        if self.verdict.least_side is not None:
            least = self.verdict.least_side
            return fitting_images(self.record.ops, tensor.operand, lambda side: side >= least)
        flattened = self._flattened(tensor)
        if flattened is None or "weight" not in tensors:
            return None
        channels, wanted = (flattened.spec.shape or ())[1], tensors["weight"].shape[-1]
        return fitting_images(
            self.record.ops, flattened, lambda side: channels * side * side == wanted
        )

    def _flattened(self, tensor: TensorArgument) -> Operand | None:
        """The images N×C×H×W that were flattened to the input of a linear layer."""
        maker = set_by(self.record.ops, tensor.operand, -1)
        if self._failed_op.function != "linear" or maker is None:
            return None
        operand = next(iter(self.record.ops[maker].operands), None)
        shape = operand.spec.shape if operand is not None else None
        is_flat = (
            shape is not None and len(shape) == 4 and tensor.shape == (shape[0], prod(shape[1:]))
        )
        return operand if is_flat else None

    @cached_property
    def set_sizes(self) -> tuple[SizeOrigin, ...]:
        """The ops that produced the sizes that did not fit, each op once."""
        found: dict[OpId, SizeOrigin] = {}
        tensors = {tensor.name: tensor for tensor in self.tensors}
        for name, dim in self.verdict.sizes if self.verdict else ():
            tensor = tensors[name]
            op = set_by(self.record.ops, tensor.operand, dim)
            if op is not None and op not in found:
                found[op] = SizeOrigin(
                    tensor=tensor, size=tensor.shape[dim], op=self.record.ops[op]
                )
        return tuple(found.values())

    @cached_property
    def earlier(self) -> tuple[OpRecord, ...]:
        """Earlier runs of the same op in this pass, in a loop or an earlier call."""
        return tuple(op for op in self.record.ops if self.op and _is_same(op, self.op))

    @property
    def last_ops(self) -> tuple[OpRecord, ...]:
        """The ops that ran before it, the latest last."""
        return self.record.ops[-_LAST_OPS:]

    @cached_property
    def _failed_op(self) -> FailedOp:
        module = self.module
        parts: tuple[str, ...] = ()
        if module is not None:
            children = [child.name for child in self.model.children(module)]
            parts = (*children, *(slot.name for slot in module.slots))
        if self.op is not None:
            tensors, settings = arguments(self.op, self.context.stats)
            return FailedOp(
                function=plain_name(self.op.function),
                tensors=tensors,
                settings=settings,
                error=self.error,
                writes=self.op.writes,
                layer=module,
                parts=parts,
                has_worked=bool(self.earlier),
            )
        return FailedOp(
            function=module.kind if module else "",
            tensors=_arguments_of(self.call) if self.call else (),
            settings={},
            error=self.error,
            layer=module,
            parts=parts,
            has_worked=self.call is not None and self.call.number > 1,
        )

    def _open_call(self) -> CallId | None:
        """The call that an exception outside of ops left: the last call at each level."""
        calls = self.record.calls
        roots = [call.id for call in calls if call.parent is None]
        line = roots[-1:]
        while line and (self.context.depth is None or len(line) < self.context.depth):
            inner = [call for call in calls if call.parent == line[-1]]
            # If the depth is not known, a call that returned something is not the one that failed.
            if not inner or (self.context.depth is None and inner[-1].outputs):
                break
            line.append(inner[-1].id)
        return line[-1] if line else None


def is_ours(file: str) -> bool:
    """Whether a file is part of this package, and not of the user's code."""
    return file.startswith(_PACKAGE)


def code_at(source: SourceLine) -> str:
    """The text of a line, "" if its file cannot be read."""
    return linecache.getline(source.file, source.line).strip()


def _is_same(op: OpRecord, failed: OpRecord) -> bool:
    if op.function != failed.function:
        return False
    used = parameters_of(failed)
    return used.keys() == parameters_of(op).keys() if used else op.site == failed.site


def _arguments_of(call: CallRecord) -> tuple[TensorArgument, ...]:
    """The tensor arguments of a call, in the form of those of an op."""
    heads = {value.place.partition(".")[0] for value in call.inputs}
    count = sum(map(str.isdecimal, heads))
    names = [f"input {number + 1}" for number in range(len(call.inputs))] if count > 1 else []
    return tuple(
        TensorArgument(
            name=argument_name(value.place, names),
            operand=Operand(place=value.place, spec=value.spec, op=value.op),
        )
        for value in call.inputs
    )
