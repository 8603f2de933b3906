"""The receptive fields of all ops in one pass are those that each op has by itself."""

import torch
from torch import nn

import torchglass as tg
from torchglass.analyse.receptive_field import field_line, field_lines


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.ReLU())
        self.body = nn.Conv2d(2, 2, 3, padding=2, dilation=2)
        self.mix = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = self.stem(x)
        shifted: torch.Tensor = self.body(z) + z + self.mix(y)
        chosen = shifted.flatten(1).gather(1, torch.zeros(1, 3, dtype=torch.long))
        return chosen.sum()


def test_all_fields_in_one_pass_are_those_of_each_op() -> None:
    trace = tg.trace(TwoInputs(), torch.rand(1, 1, 16, 16), torch.rand(1, 1, 1, 4)).record

    found = field_lines(trace)

    alone = {op.id: field_line(trace, op.id, most_ops=1000) for op in trace.ops if op.kind == "op"}
    assert found == {op: line for op, line in alone.items() if line and "not known" not in line}
    assert len(found) >= 5
