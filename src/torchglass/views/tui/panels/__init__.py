"""The panels beside the tree, each a view of the module under its cursor."""

from torchglass.views.tui.panels.attributes import AttributesPanel
from torchglass.views.tui.panels.code import CodePanel
from torchglass.views.tui.panels.details import DetailsPanel, PerformancePanel
from torchglass.views.tui.panels.findings import FindingsPanel
from torchglass.views.tui.panels.op_flow import ExplanationPanel, TensorFlowPanel
from torchglass.views.tui.panels.overview import OverviewPanel
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.panels.reports import ReportPanel
from torchglass.views.tui.panels.series import GradientFlowPanel, SeriesPanel

__all__ = ["PANELS", "Panel"]

PANELS: tuple[type[Panel], ...] = (
    DetailsPanel,
    CodePanel,
    AttributesPanel,
    PerformancePanel,
    TensorFlowPanel,
    GradientFlowPanel,
    SeriesPanel,
    FindingsPanel,
    ExplanationPanel,
    ReportPanel,
    OverviewPanel,
)
"""In the order in which they are offered."""
