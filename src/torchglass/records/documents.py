"""The records that a run keeps one of each, beside its model and its series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from torchglass.records.activations import Activations
from torchglass.records.finding import Findings
from torchglass.records.graph import Graph
from torchglass.records.measures import Measures
from torchglass.records.memory import Footprint
from torchglass.records.run import Ending
from torchglass.records.statistics import Statistics
from torchglass.records.trace import Trace

Document = Activations | Ending | Findings | Footprint | Graph | Measures | Statistics | Trace
D = TypeVar("D", Activations, Ending, Findings, Footprint, Graph, Measures, Statistics, Trace)

NAMES: Mapping[type[Document], str] = {
    Activations: "activations",
    Ending: "ending",
    Findings: "findings",
    Footprint: "footprint",
    Graph: "graph",
    Measures: "measures",
    Statistics: "statistics",
    Trace: "trace",
}
"""What each is called in a store and in addresses."""
