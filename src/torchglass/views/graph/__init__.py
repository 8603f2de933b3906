"""Pictures of a trace: SVG, PNG and PDF, drawn through Graphviz."""

from torchglass.views.graph.directions import Direction as Direction
from torchglass.views.graph.picture import draw as draw
from torchglass.views.graph.style import ColorBy as ColorBy
from torchglass.views.graph.style import Overrides as Overrides
