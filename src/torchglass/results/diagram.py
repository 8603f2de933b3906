"""The result of `diagram`: the structure of a model on one page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchglass.analyse.block_diagram import BlockDiagram, DiagramBlock, block_diagram
from torchglass.analyse.flop_formulas import flops_of_op
from torchglass.analyse.op_graph import fold
from torchglass.errors import ViewError
from torchglass.records.model import Model
from torchglass.records.trace import TraceRecord
from torchglass.results.result import Result
from torchglass.tables.export import File, in_its_folder
from torchglass.tables.text import format_shape, harmless

FORMATS = ("svg", "pdf")


class Diagram(Result):
    """A figure of the blocks of a model: save it, print it, or show it in a notebook."""

    def __init__(self, blocks: BlockDiagram) -> None:
        self.blocks = blocks
        """What the figure shows, as data."""

    def to_svg(self) -> str:
        """The figure as the text of an SVG file."""
        return self._drawn("svg").decode()

    def to_pdf(self) -> bytes:
        """The figure as the bytes of a PDF file with one page."""
        return self._drawn("pdf")

    def save(self, file: File) -> None:
        """Write the figure to a file.

        Args:
            file: Its path, ending in .svg or .pdf; folders are created.

        Raises:
            ViewError: The path has another ending.
        """
        ending = Path(file).suffix.lstrip(".").lower()
        if ending not in FORMATS:
            raise ViewError(f"a diagram is written as .svg or .pdf, not {str(file)!r}")
        in_its_folder(file).write_bytes(self._drawn(ending))

    def to_dict(self) -> dict[str, Any]:
        """The blocks of each panel as dicts, lists, strings and numbers."""
        return {
            "model": self.blocks.info.model,
            "parameters": self.blocks.info.parameters,
            "flops": self.blocks.info.cost.flops,
            "panels": [
                {"title": panel.title, "blocks": self._dicts(panel.block)}
                for panel in self.blocks.panels
            ],
        }

    def _drawn(self, format: str) -> bytes:
        from torchglass.views.graph.block_picture import draw_blocks

        return draw_blocks(self.blocks, format)

    def _lines(self) -> Iterator[str]:
        for panel in self.blocks.panels:
            if panel.title:
                yield ""
                yield f"{panel.title} ({panel.block.path})"
            yield from self._block_lines(panel.block, level=1 if panel.title else 0)

    def _block_lines(self, block: DiagramBlock, level: int) -> Iterator[str]:
        for number, child in enumerate(block.children):
            times = f" × {child.times}" if child.times > 1 else ""
            made = self._made(block, number)
            arrow = f" → {made}" if made else ""
            title = " · ".join([child.title, *child.more])
            yield f"{'  ' * level}{harmless(title)}{times}{arrow}"
            yield from self._block_lines(child, level + 1)

    def _made(self, block: DiagramBlock, number: int) -> str:
        """The shapes of what a block returns."""
        tensors = dict.fromkeys(flow.tensor for flow in block.flows if flow.source == number)
        shapes = [format_shape(self.blocks.shapes[one]) for one in tensors]
        return ", ".join(dict.fromkeys(shapes))

    def _dicts(self, block: DiagramBlock) -> list[dict[str, Any]]:
        return [
            {
                "title": child.title,
                "path": child.path,
                "kind": child.family,
                "then": list(child.more),
                "times": child.times,
                "from": sorted(
                    {
                        flow.source
                        for flow in block.flows
                        if flow.target == number and flow.source is not None
                    }
                ),
                "shape": self._made(block, number),
                "blocks": self._dicts(child),
            }
            for number, child in enumerate(block.children)
        ]

    def __str__(self) -> str:
        """The blocks as indented lines: modules, layers, and the shapes that they return."""
        return "\n".join(self._lines())

    def __repr__(self) -> str:
        return f"<Diagram of {self.blocks.info.model}>"

    def _repr_svg_(self) -> str:
        return self.to_svg()


def diagram_of(trace: TraceRecord, model: Model, depth: int | None) -> Diagram:
    """The diagram of a traced pass."""
    if depth is not None and depth < 1:
        raise ViewError(f"depth must be 1 or more, or None, not {depth}")
    counted = ((op.id, flops_of_op(op)) for op in trace.ops)
    flops = {op: count for op, count in counted if count is not None}
    return Diagram(block_diagram(fold(trace, model, flops=flops), model, depth))
