"""Inspections made by hand, so that views and exports are tested without torch."""

from __future__ import annotations

from typing import Any

from tests.make import spec
from torchglass.records.calls import (
    CallCost,
    CallTensor,
    InspectedCall,
    InspectedModel,
    InspectedModule,
)
from torchglass.records.model import Stats
from torchglass.results import inspection

SCHEMA_FILE = inspection.SCHEMA_FILE
read_inspection = inspection.Inspection.read


def tensor(*shape: int, place: str = "", stats: Stats | None = None) -> CallTensor:
    """A tensor of float32."""
    return CallTensor(place=place, spec=spec(*shape), stats=stats)


def call(number: int, forward_pass: int = 1, **fields: Any) -> InspectedCall:
    """A call of the first pass."""
    return InspectedCall(number=number, forward_pass=forward_pass, **fields)


def inspected() -> InspectedModel:
    """A model with a layer that went wrong, another place of it, and a list that is not called."""
    fine = Stats(count=6, min=-1.0, max=1.0, mean=0.0, std=0.5)
    wrong = Stats(count=4, min=0.0, max=1.0, mean=0.5, std=0.5, nan=2, inf=1)
    layer = call(
        1,
        inputs=(tensor(2, 3, place="0", stats=fine),),
        outputs=(tensor(2, 2, stats=wrong),),
        input_gradients=(tensor(2, 3, place="0", stats=fine),),
        output_gradients=(tensor(2, 2, stats=fine),),
        forward=CallCost(total_ns=2_500_000, self_ns=2_500_000, added_bytes=16),
        backward=CallCost(total_ns=4_000_000, self_ns=4_000_000, added_bytes=-16),
    )
    whole = call(
        1,
        inputs=(tensor(2, 3, place="0", stats=fine),),
        outputs=(tensor(2, 2, place="x", stats=wrong), tensor(1, place="y")),
        output_gradients=(tensor(2, 2, place="x", stats=fine),),
        forward=CallCost(total_ns=5_000_000, self_ns=2_500_000, added_bytes=20),
        backward=CallCost(total_ns=8_000_000, self_ns=4_000_000, added_bytes=0),
    )
    sizes: Any = {"parameters": 25, "learnable": 25, "parameter_bytes": 100, "gradient_bytes": 50}
    return InspectedModel(
        name="Net",
        modules=(
            InspectedModule(
                path="", name="", class_name="Net", call_count=1, calls=(whole,), **sizes
            ),
            InspectedModule(
                path="fc",
                name="fc",
                class_name="Linear",
                parent=0,
                call_count=1,
                calls=(layer,),
                **sizes,
            ),
            InspectedModule(path="rest", name="rest", class_name="ModuleList", parent=0),
            InspectedModule(
                path="rest.0",
                name="0",
                class_name="Linear",
                parent=2,
                same_as="fc",
                **sizes,
            ),
        ),
        passes=1,
        notes=("it was made by hand",),
    )
