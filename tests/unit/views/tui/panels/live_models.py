"""The panel that opens a model which is in this process."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from tests.unit.views.tui.panels import samples
from tests.unit.views.tui.panels.panel_app import subject_of
from torchglass.capture.live_object import LiveObject
from torchglass.capture.model.structure import read_model
from torchglass.views.tui.panels.attributes import AttributesPanel


def panel_of(
    model: nn.Module, recorded: Mapping[str, Mapping[str, torch.Tensor]] | None = None
) -> AttributesPanel:
    """The attributes of a model, with what a forward of it left behind."""
    live = LiveObject(model, recorded)
    return AttributesPanel(subject_of(samples.store(read_model(model)), live))
