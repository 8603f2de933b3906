"""Random programs of ops, views and in-place writes, against a reference that clones everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchglass.capture.tensor.description import iter_tensors
from torchglass.capture.trace.assemble import CapturedPass, assemble
from torchglass.capture.trace.pass_recorder import tracing
from torchglass.capture.trace.replay import validate
from torchglass.capture.trace.saved_tensors import Rerun

ROWS, COLUMNS = 4, 6
Make = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Write = Callable[[torch.Tensor], object]

MAKE: dict[str, Make] = {
    "add": lambda a, b: a + b.sum(),
    "add alike": lambda a, b: a + b if a.shape == b.shape else a + 1,
    "mul": lambda a, b: a * 2,
    "relu": lambda a, b: torch.relu(a),
    "cat": lambda a, b: torch.cat([a.reshape(-1), b.reshape(-1)]),
    "contiguous": lambda a, b: a.contiguous(),
}
VIEW: dict[str, Make] = {
    "rows": lambda a, b: a[: max(1, a.shape[0] // 2)],
    "tail": lambda a, b: a[a.shape[0] // 2 :],
    "every other": lambda a, b: a[::2],
    "transpose": lambda a, b: a.T if a.dim() == 2 else a[:],
    "flat": lambda a, b: a.reshape(-1),
    "column": lambda a, b: a[:, 0] if a.dim() == 2 and a.shape[1] else a[:],
}
WRITE: dict[str, Write] = {
    "add_": lambda a: a.add_(1),
    "add itself": lambda a: a.__iadd__(a),
    "setitem": lambda a: a.__setitem__(0, 7.0),
    "relu_": torch.relu_,
    "out": lambda a: torch.mul(a, 3, out=a),
    "zero_": lambda a: a.zero_(),
}


@dataclass(frozen=True)
class Instruction:
    name: str
    first: int
    second: int


instructions = st.builds(
    Instruction,
    name=st.sampled_from([*MAKE, *VIEW, *WRITE]),
    first=st.integers(0, 30),
    second=st.integers(0, 30),
)
programs = st.lists(instructions, min_size=1, max_size=14)


class Program(nn.Module):
    """Runs instructions on the tensors made so far; `after` sees what each of them made."""

    def __init__(self, instructions: list[Instruction]) -> None:
        super().__init__()
        self.instructions = instructions
        self.after: Callable[[torch.Tensor], None] = lambda tensor: None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = [x * 1]
        self.after(made[0])
        for instruction in self.instructions:
            first = made[instruction.first % len(made)]
            second = made[instruction.second % len(made)]
            if instruction.name in WRITE:
                if first.numel():
                    WRITE[instruction.name](first)
                    self.after(first)
            else:
                make = MAKE.get(instruction.name) or VIEW[instruction.name]
                made.append(make(first, second))
                self.after(made[-1])
        return made[-1]


def capture(program: Program, x: torch.Tensor) -> CapturedPass:
    with tracing(program) as recorder:
        program(x)
    return assemble(recorder)


def last_results(captured: CapturedPass) -> list[torch.Tensor]:
    return [captured.tensors[op.id, 0] for op in captured.trace.ops if op.kind == "op"]


@settings(max_examples=150, deadline=None)
@given(program=programs)
def test_every_value_is_saved_as_computed(program: list[Instruction]) -> None:
    x = torch.arange(ROWS * COLUMNS, dtype=torch.float32).reshape(ROWS, COLUMNS) - 9
    model = Program(program)
    wanted: list[torch.Tensor] = []
    model.after = lambda tensor: wanted.append(tensor.clone())
    model(x)

    model.after = lambda tensor: None
    saved = last_results(capture(model, x))

    # An instruction may be several ops, so the wanted values are found in order among all.
    position = 0
    for value in wanted:
        while position < len(saved) and not torch.equal(saved[position], value):
            position += 1
        assert position < len(saved)


@settings(max_examples=150, deadline=None)
@given(programs)
def test_every_record_can_be_replayed_bit_for_bit(program: list[Instruction]) -> None:
    captured = capture(Program(program), torch.randn(ROWS, COLUMNS))

    validation = validate(captured, perturb=False)

    assert not validation.differing
    assert not validation.skipped


@settings(max_examples=150, deadline=None)
@given(programs)
def test_every_write_to_the_input_of_an_op_is_an_ancestor(program: list[Instruction]) -> None:
    """The reference marks each element of memory with the op that wrote it last."""
    captured = capture(Program(program), torch.randn(ROWS, COLUMNS))
    ancestors: dict[int, set[int]] = {}
    written_by: dict[int, torch.Tensor] = {}

    for op in captured.trace.ops:
        ancestors[op.id] = {op.id}.union(*(ancestors[parent] for parent in op.parents))
        event = captured.events[op.id]
        if event is None:
            continue
        for tensor in _read(event):
            writers = set(_marks(written_by, tensor).flatten().tolist()) - {-1}
            assert writers <= ancestors[op.id]
        for tensor in event.results:
            if event.written or not _known(written_by, tensor):
                _marks(written_by, tensor).fill_(op.id)


def _read(event: Rerun) -> list[torch.Tensor]:
    """The tensors whose elements an op needs: its arguments, or, of one that makes a view, that."""
    given = list(iter_tensors(event.args))
    storages = {tensor.untyped_storage()._cdata for tensor in (*given, *event.results)}
    is_view = len(storages) == 1 and not event.written
    return list(event.results) if is_view else given


def _known(written_by: dict[int, torch.Tensor], tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage()._cdata in written_by


def _marks(written_by: dict[int, torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    count = storage.nbytes() // tensor.element_size()
    marks = written_by.setdefault(storage._cdata, torch.full((count,), -1))
    return marks.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
