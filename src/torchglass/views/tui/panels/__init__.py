"""The panels beside the tree, each a view of the module under its cursor."""

from torchglass.views.tui.panels.attributes import Attributes
from torchglass.views.tui.panels.code import Code
from torchglass.views.tui.panels.details import Details
from torchglass.views.tui.panels.explanation import ExplanationPanel
from torchglass.views.tui.panels.findings import FindingsPanel
from torchglass.views.tui.panels.gradients import GradientFlow
from torchglass.views.tui.panels.op_flow import TensorFlow
from torchglass.views.tui.panels.panel import Panel
from torchglass.views.tui.panels.performance import Performance
from torchglass.views.tui.panels.series import SeriesPanel

__all__ = ["PANELS", "Panel"]

PANELS: tuple[type[Panel], ...] = (
    Details,
    Code,
    Attributes,
    Performance,
    TensorFlow,
    GradientFlow,
    SeriesPanel,
    FindingsPanel,
    ExplanationPanel,
)
"""In the order in which they are offered."""
