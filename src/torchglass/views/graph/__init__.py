"""Pictures of a trace: SVG, PNG and PDF, drawn through Graphviz."""

from torchglass.views.graph.layout import Direction as Direction
from torchglass.views.graph.render import draw as draw
from torchglass.views.graph.style import ColorBy as ColorBy
from torchglass.views.graph.style import Overrides as Overrides
