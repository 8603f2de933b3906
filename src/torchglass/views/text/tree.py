"""A model as a tree of lines.

ResNet(
├── 11.7M parameters
├── conv1: Conv2d(3→64, 7×7) [9.4K params]
├── layer1: Sequential [148.0K params]
│   └── 0: BasicBlock [74.0K params]
└── fc: Linear(512→1000) [513.0K params]
"""

from __future__ import annotations

from torchglass.analyse.model.summary import Row, SummaryReport
from torchglass.records.model import Model
from torchglass.views.brief import brief
from torchglass.views.columns import SAME_AS, row_name, same_as
from torchglass.views.formats import format_count, harmless, shorten
from torchglass.views.text.guides import guides

_LONGEST_NAME = 60


def tree_text(report: SummaryReport) -> str:
    """The rows of a report, each with what its module does and its parameters."""
    rows = report.rows
    total = f"{format_count(report.counts.total.parameters)} parameters"
    lines = [
        f"{guide}{_line(row, report.model)}"
        for row, guide in zip(rows[1:], guides(rows[1:], "──"), strict=True)
    ]
    return "\n".join(
        [f"{harmless(report.model.name)}(", f"{'├' if lines else '└'}── {total}", *lines]
    )


def _line(row: Row, model: Model) -> str:
    module = row.module
    name = shorten(row_name(row, model), _LONGEST_NAME)
    other = same_as(row, model)
    if module.alias_of is not None:
        return f"{name}: {harmless(module.kind)} {SAME_AS} {other}"
    what = name if len(row.members) > 1 else f"{name}: {brief(module.kind, module.extra)}"
    tied = f", tied to {other}" if other else ""
    problem = f"  ! {harmless(module.problem)}" if module.problem else ""
    return f"{what} [{format_count(row.total.parameters)} params{tied}]{problem}"
